// SPDX-License-Identifier: Apache-2.0
//
// Tests the pool of threads that parallel loops share. Tests also that a waiting thread leaves its
// core to other threads.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "cpd/base/backoff.h"
#include "cpd/base/pool.h"

namespace cpd {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

/// A call on `wanted` threads that keep working until the test releases them.
class Held {
 public:
  explicit Held(int wanted)
      : helpers_(wanted, [this](int number) {
          numbers_ |= 1U << number;
          while (!over_) std::this_thread::sleep_for(milliseconds(1));
        }) {}
  ~Held() { Release(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  void Release() { over_ = true; }
  /// Waits until `wanted` threads have begun. Returns a bit mask of the numbers of the threads that
  /// have begun.
  unsigned Begun(int wanted) const {
    while (std::popcount(numbers_.load()) < wanted) std::this_thread::yield();
    return numbers_;
  }
  Helpers& helpers() { return helpers_; }

 private:
  std::atomic<unsigned> numbers_{0};
  std::atomic<bool> over_{false};
  Helpers helpers_;
};

std::size_t ThreadsOfProcess() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST(Pool, RunsTheWorkOnEachThreadOnce) {
  for (const int wanted : {0, 1, 3, 6}) {
    Held held(wanted);
    EXPECT_EQ(held.Begun(wanted), (2U << wanted) - 2) << "numbers 1 … " << wanted;
    EXPECT_EQ(held.helpers().Finish(milliseconds(0)), wanted == 0);
    held.Release();
    EXPECT_TRUE(held.helpers().Finish(hours(1)));
  }
}

TEST(Pool, EqualCallsHaveTheSameThreads) {
  std::map<int, std::thread::id> first;
  for (int call = 0; call < 100; ++call) {
    std::mutex mutex;
    std::map<int, std::thread::id> ids;
    std::atomic<int> begun{0};
    {
      Helpers helpers(3, [&](int number) {
        const std::lock_guard<std::mutex> lock(mutex);
        ids[number] = std::this_thread::get_id();
        ++begun;
      });
      while (begun < 3) std::this_thread::yield();
    }
    if (call == 0) first = ids;
    EXPECT_EQ(ids, first);
  }
}

TEST(Pool, ACallDoesNotWaitForThreadsThatOthersHave) {
  const int most = std::max(3, static_cast<int>(std::thread::hardware_concurrency()));
  Held all(most);  // at least all threads that calls of fewer may have
  all.Begun(most);
  for (int call = 0; call < 100; ++call) {
    std::atomic<int> begun{0};
    Helpers helpers(2, [&](int) { ++begun; });
    EXPECT_TRUE(helpers.Finish(hours(1)));  // or it hangs
    EXPECT_EQ(begun, 0);
  }
}

TEST(Pool, WhatHasNotBegunWhenACallEndsNeverBegins) {
  for (int call = 0; call < 20'000; ++call) {
    std::atomic<bool> over{false};
    std::atomic<int> late{0};
    {
      Helpers helpers(2, [&](int) { late += static_cast<int>(over.load()); });
      helpers.Finish(hours(1));
      over = true;
    }
    ASSERT_EQ(late, 0);
  }
}

TEST(Pool, CallsOfManyThreadsStartNoMoreThreadsThanTheLargestOne) {
  const auto cores = static_cast<std::size_t>(std::thread::hardware_concurrency());
  const auto calls = [] {
    for (int i = 0; i < 2000; ++i) {
      std::atomic<int> begun{0};
      const Helpers helpers(2, [&](int) { ++begun; });
    }
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) callers.emplace_back(calls);
  for (std::thread& caller : callers) caller.join();
  EXPECT_LE(ThreadsOfProcess(), 1 + std::max<std::size_t>({6, cores, 3}));  // 6: the tests above
}

TEST(Pool, ItsThreadsTakeNoSignals) {
  std::atomic<bool> blocked{false};
  std::atomic<bool> over{false};
  const Helpers helpers(1, [&](int) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked = sigismember(&mask, SIGINT) == 1 && sigismember(&mask, SIGTERM) == 1;
    over = true;
  });
  while (!over) std::this_thread::yield();
  EXPECT_TRUE(blocked);
}

/// Returns the CPU time of this thread in seconds.
double Ran() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST(Backoff, LeavesTheCoreToOthers) {
  const auto begin = Backoff::Clock::now();
  const double ran = Ran();
  Backoff backoff;
  int looks = 0;
  for (; Backoff::Clock::now() - begin < milliseconds(300); ++looks) backoff.Wait();
  EXPECT_LT(Ran() - ran, 0.1);
  EXPECT_LT(looks, 5000);  // 300 of a millisecond, and what the first 50 µs take
}

}  // namespace
}  // namespace cpd
