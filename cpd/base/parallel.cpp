// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/parallel.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpd/base/interrupt.h"
#include "cpd/numeric/environment.h"
#include "cpd/numeric/error.h"

#ifndef CPD_THREADS_STD
#include <omp.h>
#endif

namespace cpd {
namespace {

const pid_t kFirstProcess = getpid();
thread_local bool g_inside = false;
thread_local int g_ranks_on_host = 1;

int HardwareThreads() {
#ifdef CPD_THREADS_STD
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
#else
  return omp_get_max_threads();
#endif
}

bool IsNested() {
#ifndef CPD_THREADS_STD
  if (omp_in_parallel() != 0) return true;
#endif
  return g_inside;
}

/// Values between two questions whether to go on: the most of a piece of a loop over elements.
constexpr std::int64_t kPiece = std::int64_t{1} << 20;

using Clock = std::chrono::steady_clock;
using Body = std::function<void(std::int64_t, std::int64_t)>;

std::int64_t RoundUp(std::int64_t n, std::int64_t grain) { return (n + grain - 1) / grain * grain; }

/// body(begin, end), piece by piece.
void RunPieces(std::int64_t n, std::int64_t grain, const Body& body) {
  const Environment environment;
  const std::int64_t piece = RoundUp(kPiece, grain);
  for (std::int64_t i = 0; i < n; i += piece) {
    if (i > 0) CheckInterrupt();
    body(i, std::min(n, i + piece));
  }
}

/// A loop's pieces, divided evenly among threads: the same for equal loops, so that a thread finds
/// in its own caches and memory what it touched before. One that has done its own share goes on
/// with what is left of the others', who may have been kept from theirs.
class Shares {
 public:
  /// `least`: elements of a piece that are worth a call.
  Shares(std::int64_t n, std::int64_t grain, std::int64_t least, int threads)
      : shares_(static_cast<std::size_t>(threads)) {
    const std::int64_t grains = (n + grain - 1) / grain;
    for (int i = 0; i < threads; ++i) {
      Share& share = shares_[static_cast<std::size_t>(i)];
      share.next = grains * i / threads * grain;
      share.end = std::min(n, grains * (i + 1) / threads * grain);
    }
    const std::int64_t even = n / threads / kPiecesOfShare;
    piece_ = RoundUp(std::clamp<std::int64_t>(even, std::min(least, kPiece), kPiece), grain);
    piece_ = std::max(piece_, grain);
  }

  void Run(int thread, const std::atomic<bool>& stop, const Body& body) {
    const Environment environment;
    const std::size_t count = shares_.size();
    bool first = true;
    for (std::size_t i = 0; i < count; ++i) {
      Share& share = shares_[(static_cast<std::size_t>(thread) + i) % count];
      while (!stop && share.next < share.end) {
        const std::int64_t begin = share.next.fetch_add(piece_);
        if (begin >= share.end) break;
        if (!std::exchange(first, false)) CheckInterrupt();
        body(begin, std::min(share.end, begin + piece_));
      }
    }
  }

 private:
  static constexpr std::int64_t kPiecesOfShare = 8;
  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };
  std::vector<Share> shares_;
  std::int64_t piece_ = 0;
};

/// The others of a loop that made this thread wait for longer than it had worked: cores are busy
/// with something else. Until then loops of so many threads are one thread's, so that waits take a
/// tenth of the time at most.
struct Late {
  int threads = 0;
  Clock::time_point until;
};
thread_local Late g_late;

bool AreLate(int threads) { return g_late.threads == threads && Clock::now() < g_late.until; }

/// Threads at work on one loop. The one that has made the call looks for a reason to leave it, also
/// while it waits for the others, who then stop.
class Team {
 public:
  /// On one of the other threads.
  void Work(Shares& shares, int thread, const Body& body) {
    const StopWith stop(stop_);
    Try([&] { shares.Run(thread, stop_, body); });
    ++done_;
  }
  /// On the calling thread; waits for so many others.
  void Lead(Shares& shares, int others, const Body& body) {
    const auto begin = Clock::now();
    Try([&] { shares.Run(0, stop_, body); });
    worked_ = Clock::now() - begin;
    Try([&] {
      for (int turns = 0; done_ < others; ++turns) {
        CheckInterrupt();
        if (turns < kYields) std::this_thread::yield();
        if (turns >= kYields) std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }
  /// How long the calling thread worked; of a loop that was left, for ever.
  [[nodiscard]] Clock::duration worked() const { return stop_ ? Clock::duration::max() : worked_; }
  void Rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  static constexpr int kYields = 2000;  // about a millisecond

  template <class Part>
  void Try(const Part& part) {
    const bool before = std::exchange(g_inside, true);
    try {
      part();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      stop_ = true;
    }
    g_inside = before;
  }

  Clock::duration worked_{};
  std::atomic<int> done_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

/// Runs the shares, each in a thread of its own, the first in this one.
void RunThreads(int count, Shares& shares, const Body& body) {
  Team team;
#ifdef CPD_THREADS_STD
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(count));
    for (int i = 1; i < count; ++i) threads.emplace_back([&, i] { team.Work(shares, i, body); });
    team.Lead(shares, count - 1, body);
  }
#else
  const auto begin = Clock::now();
#pragma omp parallel num_threads(count)
  {
    const int thread = omp_get_thread_num();
    if (thread == 0) team.Lead(shares, omp_get_num_threads() - 1, body);
    if (thread > 0) team.Work(shares, thread, body);
  }
  const auto end = Clock::now();
  const auto waited = end - begin - team.worked();
  if (waited > team.worked()) g_late = {count, end + 10 * waited};
#endif
  team.Rethrow();
}

/// Threads that a loop is worth: each has at least half of what one does alone.
std::int64_t ThreadsFor(std::int64_t n, std::int64_t grain, std::int64_t serial_below) {
  if (n <= serial_below || IsNested() || getpid() != kFirstProcess) return 1;
  const std::int64_t worth = serial_below > 0 ? 2 * n / serial_below : n;
  const std::int64_t grains = (n + grain - 1) / grain;
  return std::min({static_cast<std::int64_t>(MaxThreads()), grains, worth});
}

}  // namespace

int MaxThreads() {
  const char* text = std::getenv("CPD_NUM_THREADS");
  if (text == nullptr || *text == '\0') {
    return std::max(1, HardwareThreads() / g_ranks_on_host);
  }
  char* end = nullptr;
  const long threads = std::strtol(text, &end, 10);
  if (*end != '\0' || threads < 1 || threads > 4096) {
    throw Error("CPD_NUM_THREADS must be a number from 1 to 4096, got '" + std::string(text) + "'");
  }
  return static_cast<int>(threads);
}

SharedHost::SharedHost(int ranks) : before_(g_ranks_on_host) {
  g_ranks_on_host = std::max(1, ranks);
}
SharedHost::~SharedHost() { g_ranks_on_host = before_; }

void parallel_for(std::int64_t n, std::int64_t grain, std::int64_t serial_below,
                  const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (n <= 0) return;
  const auto threads = static_cast<int>(ThreadsFor(n, grain, serial_below));
  if (threads == 1 || AreLate(threads)) return RunPieces(n, grain, body);
  Shares shares(n, grain, serial_below / 4, threads);
  RunThreads(threads, shares, body);
}

}  // namespace cpd
