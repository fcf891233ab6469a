// SPDX-License-Identifier: Apache-2.0
//
// Tests the parallel loop: each index runs once, errors reach the caller, and the number of threads
// follows CPD_NUM_THREADS.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cpd/base/parallel.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// Sets CPD_NUM_THREADS to `count` while the object lives.
class Threads {
 public:
  explicit Threads(const char* count) { setenv("CPD_NUM_THREADS", count, 1); }
  ~Threads() { unsetenv("CPD_NUM_THREADS"); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
};

/// Runs every case on the pool's threads and on OpenMP's threads, which torch's operators use.
class Parallel : public ::testing::TestWithParam<bool> {
 protected:
  /// Returns the object that makes a test's thread use OpenMP; null if the test uses the pool.
  [[nodiscard]] static std::unique_ptr<OpenMpThreads> ThreadsOfTest() {
    return GetParam() ? std::make_unique<OpenMpThreads>() : nullptr;
  }
  std::unique_ptr<OpenMpThreads> threads_ = ThreadsOfTest();
};
INSTANTIATE_TEST_SUITE_P(Threads, Parallel, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "OpenMp" : "Pool");
});

TEST_P(Parallel, CoversEveryIndexOnceInGrains) {
  for (const char* threads : {"1", "2", "7"}) {
    const Threads set(threads);
    for (const std::int64_t n : {0, 1, 255, 256, 257, 10'000}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(n));
      parallel_for(n, 256, 0, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_EQ(begin % 256, 0);
        for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      for (const auto& count : seen) EXPECT_EQ(count, 1) << n << " with " << threads;
    }
  }
}

TEST_P(Parallel, TakesGrainsThatAreLongerThanAPiece) {
  constexpr std::int64_t kGrain = std::int64_t{3} << 20;
  constexpr std::int64_t kAll = 3 * kGrain - 1;
  for (const char* threads : {"1", "2"}) {
    const Threads set(threads);
    std::atomic<std::int64_t> done{0};
    parallel_for(kAll, kGrain, 0, [&](std::int64_t begin, std::int64_t end) {
      EXPECT_EQ(begin % kGrain, 0);
      EXPECT_GT(end, begin);
      done += end - begin;
    });
    EXPECT_EQ(done, kAll);
  }
}

TEST_P(Parallel, ThrowsWhatABodyThrows) {
  const Threads set("3");
  EXPECT_THROW(parallel_for(3000, 1, 0,
                            [](std::int64_t begin, std::int64_t) {
                              if (begin > 0) throw std::runtime_error("from a thread");
                            }),
               std::runtime_error);
  int calls = 0;  // and works after
  parallel_for(10, 1, 100, [&](std::int64_t, std::int64_t) { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST_P(Parallel, TakesOverFromAThreadThatIsLate) {
  const Threads set("2");
  std::atomic<std::int64_t> left{16};
  std::atomic<bool> waits{false};
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  parallel_for(16, 1, 0, [&](std::int64_t first, std::int64_t last) {
    left -= last - first;
    if (waits.exchange(true)) return;
    while (left > 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  });
  EXPECT_LT(std::chrono::steady_clock::now(), end) << "another thread has done the rest";
  EXPECT_EQ(left, 0);
}

TEST_P(Parallel, GivesEachThreadEnough) {
  const Threads set("16");
  for (const std::int64_t n : {100, 101, 250}) {
    std::mutex mutex;
    std::set<std::thread::id> ids;
    std::int64_t least = n;
    parallel_for(n, 1, 100, [&](std::int64_t begin, std::int64_t end) {
      const std::lock_guard<std::mutex> lock(mutex);
      ids.insert(std::this_thread::get_id());
      least = std::min(least, end - begin);
    });
    EXPECT_LE(static_cast<std::int64_t>(ids.size()), std::max<std::int64_t>(1, n / 50));
    EXPECT_GT(least, 0);
  }
}

TEST_P(Parallel, CallsOfManyThreadsAreEachWhole) {
  const Threads set("3");
  const auto calls = [] {
    const auto threads = ThreadsOfTest();
    for (int i = 0; i < 200; ++i) {
      std::atomic<std::int64_t> done{0};
      parallel_for(1000, 8, 0, [&](std::int64_t begin, std::int64_t end) { done += end - begin; });
      ASSERT_EQ(done, 1000);
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) threads.emplace_back(calls);
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Parallel, IsWholeInAForkedChild) {
  const Threads set("3");
  const auto sum_of_calls = [] {
    std::atomic<std::int64_t> done{0};
    for (int i = 0; i < 100; ++i) {
      parallel_for(100, 1, 0, [&](std::int64_t begin, std::int64_t end) { done += end - begin; });
    }
    return done.load();
  };
  EXPECT_EQ(sum_of_calls(), 10'000);  // the parent's threads are asleep or between two calls
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) std::exit(sum_of_calls() == 10'000 ? 0 : 1);  // with all that ends with it
    int status = -1;
    waitpid(child, &status, 0);
    ASSERT_EQ(status, 0);
    ASSERT_EQ(sum_of_calls(), 10'000);
  }
}

TEST_P(Parallel, IsSerialInsideItself) {
  const Threads set("2");
  std::atomic<int> inner{0};
  parallel_for(2, 1, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      parallel_for(100, 1, 0, [&](std::int64_t, std::int64_t) { ++inner; });
    }
  });
  EXPECT_EQ(inner, 2);
}

TEST_P(Parallel, RunsInTheDefaultFloatingPointEnvironment) {
  const Threads set("2");
  const auto rounds_to_nearest = [] {
    volatile float tiny = 0x1p-30F;
    volatile float sum = 1 + tiny;
    return sum == 1;
  };
  std::fesetround(FE_UPWARD);
  std::atomic<int> wrong{0};
  parallel_for(2, 1, 0, [&](std::int64_t, std::int64_t) {
    if (!rounds_to_nearest()) ++wrong;
  });
  const bool restored = !rounds_to_nearest();
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(restored);
}

TEST(ParallelThreads, RefusesABadNumber) {
  for (const char* bad : {"0", "-1", "two", "5000", "2x"}) {
    const Threads set(bad);
    EXPECT_THROW(MaxThreads(), Error) << bad;
  }
  for (const int good : {1, 3, 4096}) {
    const Threads set(std::to_string(good).c_str());
    EXPECT_EQ(MaxThreads(), good);
  }
}

TEST(ParallelThreads, AreSharedByTheRanksOfAHost) {
  const int all = MaxThreads();
  if (all == 1) GTEST_SKIP() << "one thread cannot be shared";
  {
    const SharedHost ranks(all);
    EXPECT_EQ(MaxThreads(), 1);
    {
      const SharedHost others(1);
      EXPECT_EQ(MaxThreads(), all);
    }
    EXPECT_EQ(MaxThreads(), 1) << "as before the inner one";
  }
  EXPECT_EQ(MaxThreads(), all);
}

}  // namespace
}  // namespace cpd
