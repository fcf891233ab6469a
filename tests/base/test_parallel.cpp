// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <cfenv>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "cpd/base/parallel.h"
#include "cpd/numeric/error.h"

namespace cpd {
namespace {

/// Sets CPD_NUM_THREADS while alive.
class Threads {
 public:
  explicit Threads(const char* count) { setenv("CPD_NUM_THREADS", count, 1); }
  ~Threads() { unsetenv("CPD_NUM_THREADS"); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
};

TEST(Parallel, CoversEveryIndexOnceInGrains) {
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

TEST(Parallel, ThrowsWhatABodyThrows) {
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

TEST(Parallel, IsSerialInsideItself) {
  const Threads set("2");
  std::atomic<int> inner{0};
  parallel_for(2, 1, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      parallel_for(100, 1, 0, [&](std::int64_t, std::int64_t) { ++inner; });
    }
  });
  EXPECT_EQ(inner, 2);
}

TEST(Parallel, RunsInTheDefaultFloatingPointEnvironment) {
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

TEST(Parallel, RefusesABadNumberOfThreads) {
  for (const char* bad : {"0", "-1", "two", "5000", "2x"}) {
    const Threads set(bad);
    EXPECT_THROW(MaxThreads(), Error) << bad;
  }
  const Threads set("3");
  EXPECT_EQ(MaxThreads(), 3);
}

}  // namespace
}  // namespace cpd
