// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/parallel.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
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

class Helper;

/// Threads at work on one loop. The one that has made the call looks for a reason to leave it, also
/// while it waits for the others, who then stop.
class Team {
 public:
  Team(std::span<const std::unique_ptr<Helper>> helpers, Shares& shares, const Body& body)
      : helpers_(helpers), shares_(shares), body_(body) {}

  /// All of the loop, on the calling thread.
  void Lead();
  /// A share, on helper `number`'s thread.
  void Work(std::size_t number);

 private:
  /// A helper wakes two others.
  void Wake(std::size_t first);
  [[nodiscard]] bool IsAlone();

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

  std::span<const std::unique_ptr<Helper>> helpers_;
  Shares& shares_;
  const Body& body_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

/// How long a thread waits awake: loops often follow one another, and waking takes as long as a
/// short one.
class Patience {
 public:
  /// False when it is time to sleep.
  bool IsAwake() {
    if (++turns_ % kTurns != 0) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      __asm__ volatile("yield");
#endif
      return true;
    }
    std::this_thread::yield();
    return std::chrono::steady_clock::now() - begin_ < std::chrono::microseconds(100);
  }

 private:
  static constexpr int kTurns = 32;
  int turns_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// A thread that helps one other thread with its loops. An offer that it has not yet taken may be
/// withdrawn, so that nobody waits for a thread that the system does not let run.
class Helper {
 public:
  Helper() : thread_([this] { Serve(); }) {}
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;
  ~Helper() {
    state_ = kEnds;
    Wake();
    thread_.join();
  }

  void Offer(Team& team, std::size_t number) {
    team_ = &team;
    number_ = number;
    state_ = kOffered;
  }
  void Wake() { state_.notify_one(); }
  /// Withdraws the offer, if it can; whether the helper has nothing to do.
  bool IsFree() {
    int offered = kOffered;
    return state_.compare_exchange_strong(offered, kIdle) || offered == kIdle;
  }

 private:
  enum State : int { kIdle, kOffered, kWorking, kEnds };

  void Serve() {
    while (true) {
      for (Patience patience; state_ == kIdle && patience.IsAwake();) {
      }
      state_.wait(kIdle);
      if (state_ == kEnds) return;
      int offered = kOffered;
      if (!state_.compare_exchange_strong(offered, kWorking)) continue;
      team_->Work(number_);
      state_ = kIdle;
    }
  }

  std::atomic<int> state_{kIdle};
  Team* team_ = nullptr;
  std::size_t number_ = 0;
  std::thread thread_;
};

void Team::Lead() {
  for (std::size_t i = 0; i < helpers_.size(); ++i) helpers_[i]->Offer(*this, i + 1);
  Wake(0);
  Try([&] { shares_.Run(0, stop_, body_); });
  Try([&] {
    for (Patience patience; !IsAlone();) {
      CheckInterrupt();
      if (!patience.IsAwake()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  while (!IsAlone()) std::this_thread::yield();  // where the wait was left
  if (failure_) std::rethrow_exception(failure_);
}

void Team::Work(std::size_t number) {
  Wake(2 * number);
  const StopWith stop(stop_);
  Try([&] { shares_.Run(static_cast<int>(number), stop_, body_); });
}

void Team::Wake(std::size_t first) {
  const std::size_t end = std::min(first + 2, helpers_.size());
  for (std::size_t i = first; i < end; ++i) helpers_[i]->Wake();
}

bool Team::IsAlone() {
  bool alone = true;
  for (const auto& helper : helpers_) alone &= helper->IsFree();
  return alone;
}

/// A thread's helpers, kept from loop to loop.
class Helpers {
 public:
  Helpers() = default;
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;
  ~Helpers() {
    if (getpid() == kFirstProcess) return;
    for (auto& helper : all_) static_cast<void>(helper.release());  // a forked child has none
  }

  /// So many, or as many as the system gives.
  std::span<const std::unique_ptr<Helper>> Take(std::size_t count) {
    try {
      while (all_.size() < count) all_.push_back(std::make_unique<Helper>());
    } catch (const std::system_error&) {
      count = all_.size();
    }
    return std::span(all_).first(count);
  }

 private:
  std::vector<std::unique_ptr<Helper>> all_;
};
thread_local Helpers g_helpers;

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
  if (threads == 1) return RunPieces(n, grain, body);
  Shares shares(n, grain, serial_below / 4, threads);
  Team(g_helpers.Take(static_cast<std::size_t>(threads) - 1), shares, body).Lead();
}

}  // namespace cpd
