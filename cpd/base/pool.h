// SPDX-License-Identifier: Apache-2.0
//
// The threads that parallel_for shares among all calls of a process. An idle thread yields its core
// for 50 µs, in case the next loop begins soon, and then sleeps until it is woken.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "cpd/export.h"

namespace cpd {

class PoolThread;

/// Runs work(1), work(2), … on threads of the pool that are free. A thread has the same number in
/// equal calls, unless other calls use some of the threads.
class CPD_API Helpers {
 public:
  /// Uses at most `wanted` threads; starts new ones where fewer exist than that or than the machine
  /// has cores for. Does not wait for threads that work for other calls.
  Helpers(int wanted, std::function<void(int)> work);
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;
  /// Waits until no thread runs `work` any more.
  ~Helpers();

  /// Cancels work on threads that have not begun it, and waits at most `longest` until the others
  /// have returned; returns whether they have.
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
