// SPDX-License-Identifier: Apache-2.0
//
// The messages of each Exchange, for one chunk, as a coroutine that waits at each transfer. Every
// rank runs the same transfers in the same order, with nothing in those that do not concern it.
#pragma once

#include <coroutine>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "cpd/comm/engine/layout.h"
#include "cpd/comm/engine/link.h"
#include "cpd/comm/engine/work.h"

namespace cpd {

/// A chunk on its way. `co_await pending` hands the transfer to whoever drives it, who goes on only
/// when it is done.
class Task {
 public:
  struct promise_type {  // NOLINT(readability-identifier-naming): the language's names
    Pending* waiting = nullptr;
    std::exception_ptr failure;

    Task get_return_object() { return Task(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { failure = std::current_exception(); }
    std::suspend_always await_transform(Pending& pending) {
      waiting = &pending;
      return {};
    }
  };
  using Handle = std::coroutine_handle<promise_type>;

  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  /// Runs to the next transfer, or to the end. Throws what the chunk threw.
  void Resume() {
    handle_.promise().waiting = nullptr;
    handle_.resume();
    if (handle_.promise().failure) std::rethrow_exception(handle_.promise().failure);
  }
  [[nodiscard]] bool done() const { return handle_.done(); }
  /// Null while it runs, and before.
  [[nodiscard]] Pending* waiting() const { return handle_.promise().waiting; }

 private:
  Handle handle_;
};

/// What becomes of the results.
enum class Delivery : std::uint8_t { to_all, to_root, scattered };

class Exchanges {
 public:
  Exchanges(Channel& link, const Work& work, Delivery delivery, int root)
      : link_(link), work_(work), delivery_(delivery), root_(root) {}

  /// How many slices a chunk has under the spec's exchange.
  [[nodiscard]] int Slices() const;
  /// The chunk's messages; parts[s] holds values of slice s.
  Task Run(std::int64_t chunk, std::vector<Part> parts);
  /// Every rank's contributions to all; out + offsets[r] is where rank r's go.
  Task AllGather(std::int64_t chunk, Part part,
                 const std::vector<std::vector<std::int64_t>>& offsets);

  /// Of the chunk that had most.
  [[nodiscard]] std::int64_t steps() const { return most_steps_; }

 private:
  struct Chunk {
    std::int64_t number = 0;
    std::int64_t steps = 0;
  };

  struct Group;
  [[nodiscard]] Group OwnGroup() const;

  Task Owner(Chunk chunk, std::vector<Part> parts);
  Task Gather(Chunk chunk, Part part);
  Task Ring(Chunk chunk, std::vector<Part> parts);
  Task Hierarchical(Chunk chunk, std::vector<Part> parts);

  [[nodiscard]] int rank() const { return work_.rank(); }
  [[nodiscard]] int size() const { return work_.reduction().world(); }
  void Enter(Phase phase, const Chunk& chunk);
  Pending Start(Phase phase, Chunk& chunk, std::vector<Addressed> out, std::vector<Addressed> in);

  Channel& link_;
  const Work& work_;
  Delivery delivery_;
  int root_;
  std::int64_t most_steps_ = 0;
};

}  // namespace cpd
