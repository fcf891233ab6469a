// SPDX-License-Identifier: Apache-2.0
//
// The threads that parallel_for shares among all calls of a process. An idle thread yields its core
// for 50 µs, in case the next loop begins soon. Then it sleeps until it is woken.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "cpd/export.h"

namespace cpd {

class PoolThread;

/// Runs work(1), work(2), … on free threads of the pool, one number on each thread. While all
/// threads are free, work(i) always runs on the same thread, whose cache may still hold its data.
class CPD_API Helpers {
 public:
  /// Uses up to `wanted` threads. Starts new threads if fewer exist than `wanted` or than the
  /// machine has cores for. Does not wait for threads that work for other calls.
  Helpers(int wanted, std::function<void(int)> work);
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;
  /// Waits until no thread runs `work`.
  ~Helpers();

  /// Cancels `work` on threads that have not begun it. Waits up to `longest` for the other threads.
  /// Returns whether all of them have returned.
  bool Finish(std::chrono::steady_clock::duration longest);

 private:
  struct Call {
    PoolThread* thread;
    std::uint64_t number;
  };
  std::function<void(int)> work_;
  std::vector<Call> calls_;
};

}  // namespace cpd
