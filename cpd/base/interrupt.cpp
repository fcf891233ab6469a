// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <thread>

namespace cpd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kPause = 50'000'000;  // nanoseconds between two checks

std::atomic<InterruptCheck> g_check{nullptr};
std::atomic<bool> g_ending{false};
std::atomic<int> g_inside{0};  // the number of threads in a call

thread_local const std::atomic<bool>* t_stop = nullptr;
thread_local std::int64_t t_next = 0;  // when the next check is due
thread_local int t_calls = 0;          // this thread's nested calls
thread_local bool t_stays = false;     // the thread that ends the others' calls

/// The exception that CheckInterrupt throws after another thread has ended this thread's calls, or
/// has stopped the loop that this thread works for.
class Ended final : public std::exception, public Interrupted {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "the call was ended"; }
};

std::int64_t Now() {
  const auto now = Clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

bool IsOver() { return g_ending.load(std::memory_order_relaxed) && !t_stays; }

/// Resets the count of threads in calls: a forked child has only the thread that forked.
void KeepOwnThread() { g_inside = t_calls > 0 ? 1 : 0; }
[[maybe_unused]] const int kAtFork = pthread_atfork(nullptr, nullptr, &KeepOwnThread);

}  // namespace

Interrupted::~Interrupted() = default;

void SetInterruptCheck(InterruptCheck check) { g_check = check; }

void CheckInterrupt() {
  if (IsOver()) throw Ended();
  if (t_stop != nullptr) {
    if (t_stop->load(std::memory_order_relaxed)) throw Ended();
    return;
  }
  const InterruptCheck check = g_check.load(std::memory_order_relaxed);
  if (check == nullptr) return;
  const std::int64_t now = Now();
  if (now < t_next) return;
  t_next = now + kPause;
  check();
}

RunningCall::RunningCall() {
  if (++t_calls > 1) return;
  t_next = Now() + kPause;
  ++g_inside;
}

RunningCall::~RunningCall() {
  if (--t_calls > 0) return;
  --g_inside;
  while (IsOver()) pause();
}

bool EndOtherCalls(double seconds) {
  t_stays = true;
  g_ending = true;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  const int own = t_calls > 0 ? 1 : 0;
  while (g_inside > own && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return g_inside <= own;
}

StopWith::StopWith(const std::atomic<bool>& stop) : before_(t_stop) { t_stop = &stop; }
StopWith::~StopWith() { t_stop = before_; }

}  // namespace cpd
