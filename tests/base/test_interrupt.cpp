// SPDX-License-Identifier: Apache-2.0
//
// Tests that a long call asks the interrupt function at most every 50 ms, and ends if that function
// throws. Tests also loops, waits and communicators that are interrupted.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/comm/all_reduce.h"
#include "cpd/comm/transport/local.h"
#include "cpd/ops/gemm.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// The exception that the interrupt function of these tests throws to end a call.
class Enough final : public std::exception, public Interrupted {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "enough"; }
};

std::atomic<bool> g_enough{false};
std::atomic<int> g_asked{0};
std::atomic<bool> g_asked_elsewhere{false};
std::thread::id g_caller;

void Ask() {
  ++g_asked;
  if (std::this_thread::get_id() != g_caller) g_asked_elsewhere = true;
  if (g_enough) throw Enough();
}

class Interrupt : public testing::Test {
 protected:
  void SetUp() override {
    g_enough = false;
    g_asked = 0;
    g_asked_elsewhere = false;
    g_caller = std::this_thread::get_id();
    SetInterruptCheck(&Ask);
  }
  void TearDown() override {
    SetInterruptCheck(nullptr);
    unsetenv("CPD_NUM_THREADS");
  }
};

/// Sleeps for longer than the 50 ms between two calls of the interrupt function. Stands for one
/// iteration of a long loop.
void Linger() { std::this_thread::sleep_for(std::chrono::milliseconds(60)); }

constexpr std::int64_t kElements = std::int64_t{8} << 20;

TEST_F(Interrupt, IsAskedAtMostEvery50Milliseconds) {
  for (int i = 0; i < 10'000; ++i) CheckInterrupt();
  EXPECT_LE(g_asked, 100);
  Linger();
  const int before = g_asked;
  CheckInterrupt();
  EXPECT_EQ(g_asked, before + 1);
}

TEST_F(Interrupt, ACallIsNotAskedAtOnce) {
  Linger();
  const RunningCall call;
  CheckInterrupt();
  EXPECT_EQ(g_asked, 0);
  Linger();
  CheckInterrupt();
  EXPECT_EQ(g_asked, 1);
}

TEST_F(Interrupt, ACallWithinACallPutsNoQuestionOff) {
  const RunningCall outer;
  Linger();
  const RunningCall inner;
  CheckInterrupt();
  EXPECT_EQ(g_asked, 1);
}

/// Ends a call of another thread while this thread is in a call too. Returns whether the other call
/// ended in time.
bool EndsAnotherCall() {
  constexpr double kPatience = 20;
  std::atomic<bool> runs{false};
  std::thread([&runs] {
    try {
      const RunningCall call;
      runs = true;
      while (true) CheckInterrupt();
    } catch (const Interrupted&) {
      std::abort();  // ended threads stay in their call
    }
  }).detach();
  while (!runs) std::this_thread::yield();
  const RunningCall own;
  const auto begin = std::chrono::steady_clock::now();
  const bool ended = EndOtherCalls(kPatience);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  return ended && taken.count() < kPatience;
}

// Runs in a child process. The test ends calls of other threads, and these threads would wait
// forever in this process. A fork copies only the calling thread, so the child begins without other
// calls.
TEST_F(Interrupt, EndsTheCallsOfOtherThreads) {
  const pid_t child = fork();
  if (child == 0) _exit(EndsAnotherCall() ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(Interrupt, LeavesALoopBetweenPieces) {
  for (const char* threads : {"1", "3"}) {
    setenv("CPD_NUM_THREADS", threads, 1);
    std::atomic<std::int64_t> done{0};
    g_enough = true;
    EXPECT_THROW(parallel_for(kElements, 256, 0,
                              [&](std::int64_t begin, std::int64_t end) {
                                Linger();
                                EXPECT_EQ(begin % 256, 0);
                                done += end - begin;
                              }),
                 Enough)
        << threads;
    EXPECT_GT(done, 0);
    EXPECT_LT(done, kElements * 3 / 4) << "the other threads end early, too";
    g_enough = false;
    done = 0;
    parallel_for(kElements, 256, 0,
                 [&](std::int64_t begin, std::int64_t end) { done += end - begin; });
    EXPECT_EQ(done, kElements) << "and the next loop is whole";
  }
  EXPECT_FALSE(g_asked_elsewhere);
}

TEST_F(Interrupt, LeavesTheWaitForOtherThreads) {
  setenv("CPD_NUM_THREADS", "2", 1);
  g_enough = true;
  std::atomic<bool> stopped{false};
  std::atomic<bool> runs{false};
  EXPECT_THROW(parallel_for(2, 1, 0,
                            [&](std::int64_t, std::int64_t) {
                              if (std::this_thread::get_id() == g_caller) {
                                for (int i = 0; !runs && i < 1000; ++i) Linger();
                                return;
                              }
                              runs = true;
                              try {
                                while (true) {
                                  CheckInterrupt();
                                  std::this_thread::yield();
                                }
                              } catch (const Interrupted&) {
                                stopped = true;
                                throw;
                              }
                            }),
               Enough);
  EXPECT_TRUE(stopped);
}

TEST_F(Interrupt, AFailureIsWhatLeavesTheLoop) {
  setenv("CPD_NUM_THREADS", "2", 1);
  EXPECT_THROW(parallel_for(2, 1, 0,
                            [&](std::int64_t begin, std::int64_t) {
                              if (begin > 0) throw Error("from a thread");
                            }),
               Error);
}

TEST_F(Interrupt, BreaksACommunicatorAndTellsTheOthers) {
  auto ends = LocalTransports(2);
  Communicator mine(std::move(ends[0]), {60, 1024});
  Communicator theirs(std::move(ends[1]), {60, 1024});
  g_enough = true;
  EXPECT_THROW(mine.Barrier(), Enough);
  g_enough = false;
  EXPECT_EQ(mine.broken(), "a call was interrupted");
  EXPECT_THROW(mine.Barrier(), RankLost);
  try {
    theirs.Barrier();
    ADD_FAILURE() << "the other rank must learn of it";
  } catch (const RankLost& lost) {
    EXPECT_NE(std::string(lost.what()).find("rank 0 gave up"), std::string::npos) << lost.what();
  }
}

/// Returns the product of a square matrix with itself.
std::vector<float> Squared(const std::vector<float>& x, std::int64_t side) {
  std::vector<float> out(x.size());
  const std::vector<std::int64_t> shape{side, side};
  const TensorView from = View(x.data(), DType::f32, shape);
  Gemm(from, from, Accumulator{MakeFormat(6, 9)}, View(out.data(), DType::f32, shape));
  return out;
}

int g_rounds = 0;

void Multiply() {
  ++g_rounds;
  Squared({1, 2, 3, 4}, 2);
}

TEST_F(Interrupt, AQuestionMayMultiply) {
  setenv("CPD_NUM_THREADS", "1", 1);
  std::int64_t side = 64;
  std::vector<float> x;
  std::vector<float> expected;
  for (double seconds = 0; seconds < 0.2;) {  // until a product takes several checks
    side *= 2;
    x.resize(static_cast<std::size_t>(side * side));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) - 6;
    const auto begin = std::chrono::steady_clock::now();
    expected = Squared(x, side);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  SetInterruptCheck(&Multiply);
  for (int i = 0; i < 1000 && g_rounds < 3; ++i) EXPECT_EQ(Squared(x, side), expected);
  EXPECT_GE(g_rounds, 3);
}

}  // namespace
}  // namespace cpd
