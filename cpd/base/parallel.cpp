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

#include "cpd/base/backoff.h"
#include "cpd/base/explaining.h"
#include "cpd/base/interrupt.h"
#include "cpd/base/pool.h"
#include "cpd/numeric/lanes/environment.h"
#include "cpd/spec/error.h"

#ifdef CPD_OPENMP
#include <omp.h>
#endif

namespace cpd {
namespace {

thread_local bool t_inside = false;
thread_local int t_ranks_on_host = 1;
thread_local bool t_openmp = false;
const pid_t kFirstProcess = getpid();  // a forked child has none of OpenMP's threads

int HardwareThreads() {
#ifdef CPD_OPENMP
  return omp_get_max_threads();
#else
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
#endif
}

bool IsNested() {
#ifdef CPD_OPENMP
  if (omp_in_parallel() != 0) return true;
#endif
  return t_inside;
}

/// The maximum number of elements of a range between two calls of CheckInterrupt.
constexpr std::int64_t kPiece = std::int64_t{1} << 20;

using Body = std::function<void(std::int64_t, std::int64_t)>;

std::int64_t RoundUp(std::int64_t n, std::int64_t grain) { return (n + grain - 1) / grain * grain; }

/// Calls body(begin, end) on this thread, for one range of [0, n) after the other.
void RunPieces(std::int64_t n, std::int64_t grain, const Body& body) {
  const Environment environment;
  const std::int64_t piece = RoundUp(kPiece, grain);
  for (std::int64_t i = 0; i < n; i += piece) {
    if (i > 0) CheckInterrupt();
    body(i, std::min(n, i + piece));
  }
}

/// The ranges of a loop, divided evenly among threads. Equal loops are divided equally, so a thread
/// finds in its caches the memory that it used before. A thread that has finished its own share
/// takes ranges from the shares of other threads, which may be late.
class Shares {
 public:
  /// `least`: the smallest number of elements that is worth a call of the loop's body.
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

/// The threads of one loop. The calling thread checks whether to end the call early, also while it
/// waits for the other threads. If so, the other threads stop.
class Team {
 public:
  Team(Shares& shares, const Body& body) : shares_(shares), body_(body) {}

  void Run(int threads) {
    if (t_openmp && getpid() == kFirstProcess) {
      RunOpenMp(threads);
    } else {
      RunPool(threads);
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  /// Runs the parallel loop in this thread and in up to threads - 1 free threads of the pool.
  void RunPool(int threads) {
    Helpers helpers(threads - 1, [this](int thread) { Work(thread); });
    Try([&] { shares_.Run(0, stop_, body_); });
    while (!helpers.Finish(kLookAround)) Try(CheckInterrupt);
  }

#ifdef CPD_OPENMP
  void RunOpenMp(int threads) {
    std::atomic<int> done = 0;
#pragma omp parallel num_threads(threads)
    if (const int thread = omp_get_thread_num(); thread > 0) {
      Work(thread);
      ++done;
    } else {
      Try([&] { shares_.Run(0, stop_, body_); });
      for (Backoff backoff; done < omp_get_num_threads() - 1; backoff.Wait()) Try(CheckInterrupt);
    }
  }
#else
  void RunOpenMp(int threads) { RunPool(threads); }
#endif

  void Work(int thread) {
    const StopWith stop(stop_);
    Try([&] { shares_.Run(thread, stop_, body_); });
  }

  static constexpr std::chrono::milliseconds kLookAround{10};

  template <class Part>
  void Try(const Part& part) {
    const bool before = std::exchange(t_inside, true);
    try {
      part();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      stop_ = true;
    }
    t_inside = before;
  }

  Shares& shares_;
  const Body& body_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

/// Returns the number of threads for a loop. Each thread gets at least half of `serial_below`
/// elements.
std::int64_t ThreadsFor(std::int64_t n, std::int64_t grain, std::int64_t serial_below) {
  if (n <= serial_below || IsNested()) return 1;
  const std::int64_t worth = serial_below > 0 ? 2 * n / serial_below : n;
  const std::int64_t grains = (n + grain - 1) / grain;
  return std::min({static_cast<std::int64_t>(MaxThreads()), grains, worth});
}

}  // namespace

int MaxThreads() {
  const char* text = std::getenv("CPD_NUM_THREADS");
  if (text == nullptr || *text == '\0') {
    return std::max(1, HardwareThreads() / t_ranks_on_host);
  }
  char* end = nullptr;
  const long threads = std::strtol(text, &end, 10);
  if (*end != '\0' || threads < 1 || threads > 4096) {
    throw Error("CPD_NUM_THREADS must be a number from 1 to 4096, got '" + std::string(text) + "'");
  }
  return static_cast<int>(threads);
}

SharedHost::SharedHost(int ranks) : before_(t_ranks_on_host) {
  t_ranks_on_host = std::max(1, ranks);
}
SharedHost::~SharedHost() { t_ranks_on_host = before_; }

OpenMpThreads::OpenMpThreads() : before_(std::exchange(t_openmp, true)) {}
OpenMpThreads::~OpenMpThreads() { t_openmp = before_; }

void parallel_for(std::int64_t n, std::int64_t grain, std::int64_t serial_below,
                  const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (n <= 0) return;
  const auto threads = static_cast<int>(ThreadsFor(n, grain, serial_below));
  if (Explaining* const explaining = Explaining::Current()) return explaining->Take(threads);
  if (threads == 1) return RunPieces(n, grain, body);
  Shares shares(n, grain, serial_below / 4, threads);
  Team(shares, body).Run(threads);
}

}  // namespace cpd
