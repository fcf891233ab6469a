// SPDX-License-Identifier: Apache-2.0
//
// Coroutines that exchange one chunk of the layers, one for each kind of exchange. A coroutine
// sends the messages of each transfer and suspends until the transfer is complete. Every rank runs
// the same transfers in the same order. A transfer is empty on ranks that it does not concern.
// Before messages of varying sizes, a small transfer between the same ranks sends the sizes.
#pragma once

#include <coroutine>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "cpd/comm/engine/layout.h"
#include "cpd/comm/engine/link.h"
#include "cpd/comm/engine/message_ops.h"

namespace cpd {

/// The exchange of a chunk, as a coroutine. `co_await pending` suspends the coroutine at a
/// transfer; the driver resumes it when the transfer is complete. `co_await task` runs another task
/// within this task.
class Task {
 public:
  struct promise_type;  // NOLINT(readability-identifier-naming): the language's name
  using Handle = std::coroutine_handle<promise_type>;

  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  /// Resumes the task's coroutine, which runs until its next transfer or its end. Rethrows an
  /// exception that the coroutine has thrown.
  void Resume();
  [[nodiscard]] bool done() const { return handle_.done(); }
  /// Returns the transfer that the task waits for; null before the first Resume and while the task
  /// runs.
  [[nodiscard]] Pending* waiting() const;

 private:
  Handle handle_;
};

struct Task::promise_type {
  Pending* waiting = nullptr;  ///< of the outermost task
  Handle innermost;            ///< of the outermost task: the handle that runs
  Handle outermost;
  Handle outer;  ///< goes on when this one ends; null for the outermost
  std::exception_ptr failure;

  promise_type() : innermost(Handle::from_promise(*this)), outermost(innermost) {}
  Task get_return_object() { return Task(Handle::from_promise(*this)); }
  std::suspend_always initial_suspend() noexcept { return {}; }
  void return_void() {}
  void unhandled_exception() { failure = std::current_exception(); }

  struct End {
    [[nodiscard]] bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(Handle ended) noexcept {
      const Handle outer = ended.promise().outer;
      if (!outer) return std::noop_coroutine();
      ended.promise().outermost.promise().innermost = outer;
      return outer;
    }
    void await_resume() noexcept {}
  };
  End final_suspend() noexcept { return {}; }

  std::suspend_always await_transform(Pending& pending) {
    outermost.promise().waiting = &pending;
    return {};
  }
  struct Inner {
    Handle task;
    [[nodiscard]] bool await_ready() const { return task.done(); }
    std::coroutine_handle<> await_suspend(Handle outer) {
      promise_type& inner = task.promise();
      inner.outer = outer;
      inner.outermost = outer.promise().outermost;
      inner.outermost.promise().innermost = task;
      return task;
    }
    void await_resume() {
      if (task.promise().failure) std::rethrow_exception(task.promise().failure);
    }
  };
  Inner await_transform(Task& task) { return {task.handle_}; }
  Inner await_transform(Task&& task) { return {task.handle_}; }
};

inline void Task::Resume() {
  promise_type& promise = handle_.promise();
  promise.waiting = nullptr;
  promise.innermost.resume();
  if (promise.failure) std::rethrow_exception(promise.failure);
}
inline Pending* Task::waiting() const { return handle_.promise().waiting; }

/// The ranks that receive results: all ranks, the root alone, or each rank only its own slices.
enum class Delivery : std::uint8_t { to_all, to_root, scattered };

class Exchanges {
 public:
  Exchanges(Channel& link, const MessageOps& ops, Delivery delivery, int root)
      : link_(link), ops_(ops), delivery_(delivery), root_(root) {}

  /// Returns the number of slices into which a chunk is cut for the spec's exchange.
  [[nodiscard]] int Slices() const;
  /// Exchanges the messages of one chunk. parts[s] lists the chunk's values that belong to slice s
  /// of the layers.
  Task Run(std::int64_t chunk, std::vector<Part> parts);
  /// Sends every rank's contributions to all ranks. The contribution of rank r is written to out +
  /// offsets[r].
  Task AllGather(std::int64_t chunk, Part part,
                 const std::vector<std::vector<std::int64_t>>& offsets);

  /// Returns how many rounds of messages a chunk took (Traffic::steps): the maximum of all chunks
  /// so far.
  [[nodiscard]] std::int64_t steps() const { return most_steps_; }

 private:
  struct Chunk {
    std::int64_t number = 0;
    std::int64_t steps = 0;
  };

  struct Group;
  [[nodiscard]] Group OwnGroup(const std::vector<Part>& parts) const;

  Task Owner(Chunk chunk, std::vector<Part> parts);
  Task Gather(Chunk chunk, Part part);
  Task Ring(Chunk chunk, std::vector<Part> parts);
  Task Hierarchical(Chunk chunk, std::vector<Part> parts);
  // The four steps of the exchange `hierarchical`, in order.
  Task SumInGroup(Chunk& chunk, Group& group);
  Task CollectSums(Chunk& chunk, Group& group);
  Task RingOfMasters(Chunk& chunk, Group& group, const std::vector<Part>& parts);
  Task ShareResults(Chunk& chunk, Group& group);

  [[nodiscard]] int rank() const { return ops_.rank(); }
  [[nodiscard]] int size() const { return ops_.reduction().world(); }
  void Enter(Phase phase, const Chunk& chunk);
  [[nodiscard]] SharedMessage Take(Content content, const Part& part) const {
    return link_.Take(ops_.MostBytes(content, part));
  }
  /// Sends the sizes of the messages `out` to their receivers, and receives the sizes of the
  /// messages `in`. Does nothing if messages with this content always have the same size. Call it
  /// before Start, which sends the messages.
  Task Announce(Phase phase, Content content, const std::vector<Addressed>& out,
                const std::vector<Addressed>& in);
  Pending Start(Phase phase, Chunk& chunk, std::vector<Addressed> out, std::vector<Addressed> in);

  Channel& link_;
  const MessageOps& ops_;
  Delivery delivery_;
  int root_;
  std::int64_t most_steps_ = 0;
};

}  // namespace cpd
