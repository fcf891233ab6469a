// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/pool.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "cpd/base/backoff.h"
#include "cpd/base/quiet_thread.h"

namespace cpd {
namespace {

using Clock = Backoff::Clock;

/// A 64-bit word whose changes threads can wait for.
class Signal {
 public:
  void Set(std::uint64_t value) {
    word_ = value;
    if (sleepers_ == 0) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
    }
    wakes_.notify_all();
  }
  /// If the word of this Signal equals `from`, sets it to `to`, in one atomic step. Returns whether
  /// the word was set. Does not wake threads that wait for the word.
  bool Change(std::uint64_t from, std::uint64_t to) {
    return word_.compare_exchange_strong(from, to);
  }
  [[nodiscard]] std::uint64_t Get() const { return word_; }

  /// Waits until ready(word) is true for the word of this Signal, for up to `longest`. Returns
  /// whether it is true.
  template <class Ready>
  bool Await(Clock::duration longest, Ready ready) {
    const auto end = Clock::now() + longest;
    const auto end_of_spin = std::min(end, Clock::now() + Backoff::kSpin);
    while (Clock::now() < end_of_spin) {
      if (ready(Get())) return true;
      std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    ++sleepers_;  // before it reads the word; Set reads it after it has written the word
    const bool is_ready = wakes_.wait_until(lock, end, [&] { return ready(Get()); });
    --sleepers_;
    return is_ready;
  }

 private:
  std::atomic<std::uint64_t> word_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wakes_;
};

/// The state of a pool thread. Each thread has a Signal. The low bits of the Signal's word hold
/// this state, and the bits above hold the number of the call that the thread makes.
enum Phase : std::uint64_t {
  kFree,
  kTaken,   ///< a caller is writing the call
  kCalled,  ///< not yet begun; the caller may take the call back
  kAtWork,
};
constexpr std::uint64_t kPhases = 4;

Phase PhaseOf(std::uint64_t word) { return static_cast<Phase>(word % kPhases); }

}  // namespace

class PoolThread {
 public:
  /// The loop of a pool thread: waits for a call of work(number), and makes the call.
  void Serve() {
    for (;;) {
      const auto is_called = [](std::uint64_t word) { return PhaseOf(word) == kCalled; };
      if (!state_.Await(std::chrono::hours(1), is_called)) continue;
      const std::uint64_t word = state_.Get();
      if (PhaseOf(word) != kCalled || !state_.Change(word, word - kCalled + kAtWork)) continue;
      (*work_)(number_);
      state_.Set(word - kCalled + kFree);
    }
  }

  /// Makes the thread call work(number), if it is free. Returns the number of the call, or 0 if the
  /// thread is busy.
  std::uint64_t Call(const std::function<void(int)>& work, int number) {
    const std::uint64_t word = state_.Get();
    const std::uint64_t call = word + kPhases;
    if (PhaseOf(word) != kFree || !state_.Change(word, call + kTaken)) return 0;
    work_ = &work;
    number_ = number;
    state_.Set(call + kCalled);
    return call;
  }
  /// Cancels call number `call` of `work_` if the thread has not begun it.
  void TakeBack(std::uint64_t call) { state_.Change(call + kCalled, call + kFree); }
  /// Waits until the thread has ended call number `call` of `work_`, which it has begun, for up to
  /// `longest`. Returns whether the call has ended.
  bool AwaitEnd(std::uint64_t call, Clock::duration longest) {
    return state_.Await(longest, [call](std::uint64_t word) { return word != call + kAtWork; });
  }

 private:
  Signal state_;
  const std::function<void(int)>* work_ = nullptr;
  int number_ = 0;
};

namespace {

/// All threads of a process. They exist until the process ends, so a PoolThread is never destroyed.
class Pool {
 public:
  static constexpr int kMost = 4096;

  static Pool& OfProcess() {
    Pool* pool = g_pool;
    if (pool != nullptr) return *pool;
    auto* made = new Pool;
    made->parents_ = g_parents;
    if (g_pool.compare_exchange_strong(pool, made)) return *made;
    delete made;  // another thread was first
    return *pool;
  }

  /// Returns thread number i, and starts the thread if it does not exist. Threads 0 … i - 1 must
  /// exist. Returns null if the system starts no more threads.
  PoolThread* At(int i) {
    const auto at = static_cast<std::size_t>(i);
    if (PoolThread* thread = threads_[at]; thread != nullptr) return thread;
    const std::lock_guard<std::mutex> lock(starting_);
    if (threads_[at] == nullptr) threads_[at] = Started();
    return threads_[at];
  }

 private:
  static PoolThread* Started() {
    auto thread = std::make_unique<PoolThread>();
    try {
      StartQuietThread([served = thread.get()] { served->Serve(); });
    } catch (const std::system_error&) {
      return nullptr;
    }
    return thread.release();
  }

  static std::atomic<Pool*> g_pool;
  static Pool* g_parents;

  /// Forgets the pool in a forked child, which has none of its parent's threads. The pool's memory
  /// remains reachable.
  static void Forget() {
    if (Pool* const pool = g_pool.exchange(nullptr); pool != nullptr) g_parents = pool;
  }
  static const int kAtFork;

  Pool* parents_ = nullptr;

  std::mutex starting_;
  std::array<std::atomic<PoolThread*>, kMost> threads_{};
};

std::atomic<Pool*> Pool::g_pool{nullptr};
Pool* Pool::g_parents = nullptr;
[[maybe_unused]] const int Pool::kAtFork = pthread_atfork(nullptr, nullptr, &Pool::Forget);

}  // namespace

Helpers::Helpers(int wanted, std::function<void(int)> work) : work_(std::move(work)) {
  static const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  calls_.reserve(static_cast<std::size_t>(wanted));
  Pool& pool = Pool::OfProcess();
  const int most = std::min(std::max(wanted, cores - 1), Pool::kMost);
  for (int i = 0; i < most && static_cast<int>(calls_.size()) < wanted; ++i) {
    PoolThread* const thread = pool.At(i);
    if (thread == nullptr) break;
    const std::uint64_t call = thread->Call(work_, static_cast<int>(calls_.size()) + 1);
    if (call != 0) calls_.push_back({thread, call});
  }
}

Helpers::~Helpers() {
  while (!Finish(std::chrono::hours(1))) {
  }
}

bool Helpers::Finish(Clock::duration longest) {
  for (const Call& call : calls_) call.thread->TakeBack(call.number);
  const auto end = Clock::now() + longest;
  return std::ranges::all_of(calls_, [end](const Call& call) {
    return call.thread->AwaitEnd(call.number, std::max(end - Clock::now(), Clock::duration(0)));
  });
}

}  // namespace cpd
