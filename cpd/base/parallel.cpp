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

/// Values between two questions whether to go on; the pieces of a loop over elements.
constexpr std::int64_t kPiece = std::int64_t{1} << 20;

using Body = std::function<void(std::int64_t, std::int64_t)>;

/// body(begin, end), piece by piece.
void RunPieces(std::int64_t begin, std::int64_t end, std::int64_t grain, const Body& body) {
  const Environment environment;
  const std::int64_t piece = (kPiece + grain - 1) / grain * grain;
  for (std::int64_t i = begin; i < end; i += piece) {
    if (i > begin) CheckInterrupt();
    body(i, std::min(end, i + piece));
  }
}

/// Threads at work on one loop. The one that has made the call looks for a reason to leave it, also
/// while it waits for the others, who then stop.
class Team {
 public:
  explicit Team(int parts) : left_(parts) {}

  /// On one of the other threads.
  void Work(const std::function<void()>& part) {
    const StopWith stop(stop_);
    Try(part);
    --left_;
  }
  /// On the calling thread.
  void Lead(const std::function<void()>& part) {
    Try(part);
    --left_;
  }
  void AwaitOthers() {
    Try([&] {
      for (int turns = 0; left_ > 0; ++turns) {
        CheckInterrupt();
        if (turns < kYields) std::this_thread::yield();
        if (turns >= kYields) std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }
  void Rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  static constexpr int kYields = 2000;  // about a millisecond

  void Try(const std::function<void()>& part) {
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

  std::atomic<int> left_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

/// Runs part(0) … part(count - 1), each in a thread of its own, part(0) in this one.
void RunThreads(int count, const std::function<void(int)>& part) {
  Team team(count);
#ifdef CPD_THREADS_STD
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(count));
    for (int i = 1; i < count; ++i) {
      threads.emplace_back([&, i] { team.Work([&] { part(i); }); });
    }
    team.Lead([&] { part(0); });
    team.AwaitOthers();
  }
#else
#pragma omp parallel num_threads(count)
  {
    const int step = omp_get_num_threads();  // may be fewer
    const int first = omp_get_thread_num();
    for (int i = first; i < count; i += step) {
      if (first == 0) team.Lead([&] { part(i); });
      if (first > 0) team.Work([&] { part(i); });
    }
    if (first == 0) team.AwaitOthers();
  }
#endif
  team.Rethrow();
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
  const std::int64_t grains = (n + grain - 1) / grain;
  const bool serial = n <= serial_below || IsNested() || getpid() != kFirstProcess;
  const auto threads = serial ? 1 : static_cast<int>(std::min<std::int64_t>(MaxThreads(), grains));
  if (threads == 1) return RunPieces(0, n, grain, body);
  RunThreads(threads, [&](int i) {
    const std::int64_t begin = grains * i / threads * grain;
    const std::int64_t end = std::min(n, grains * (i + 1) / threads * grain);
    RunPieces(begin, end, grain, body);
  });
}

}  // namespace cpd
