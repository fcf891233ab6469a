// SPDX-License-Identifier: Apache-2.0
//
// The threads that parallel_for shares among all calls of a process. One that has nothing to do
// yields its core for 50 µs, in case the next loop begins soon, and then sleeps until it is woken.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "cpd/export.h"

namespace cpd {

class PoolThread;

/// Other threads at work for the one that makes this: each that is free runs work(1), work(2), …
/// The number of a thread is the same for equal calls, where no other call has taken it.
class CPD_API Helpers {
 public:
  /// Asks for at most `wanted` threads; new ones are started where fewer exist than that or than
  /// the machine has cores for. Those that are at work for other calls are not waited for.
  Helpers(int wanted, std::function<void(int)> work);
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;
  /// Waits until no thread runs `work` any more.
  ~Helpers();

  /// Lets no thread begin that has not begun, and waits until the others have returned, at most so
  /// long; true when they have.
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
