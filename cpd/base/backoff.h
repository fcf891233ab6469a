// SPDX-License-Identifier: Apache-2.0
//
// Paces a loop that polls for another thread or process: at first without delay, then less and less
// often.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace cpd {

/// Pauses between polls for a thread or process that cannot wake this one. In the first 50 µs a
/// pause only yields the core, so an early event is seen at once. After that, each pause sleeps for
/// an eighth of the time waited so far, between 50 µs and 1 ms, and leaves the core to the other
/// thread.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::duration kSpin = std::chrono::microseconds(50);
  static constexpr Clock::duration kLongestSleep = std::chrono::milliseconds(1);

  /// Pauses between two polls.
  void Wait() {
    const auto waited = Clock::now() - begin_;
    if (waited < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::clamp<Clock::duration>(waited / 8, kSpin, kLongestSleep));
    }
  }

 private:
  Clock::time_point begin_ = Clock::now();
};

}  // namespace cpd
