// SPDX-License-Identifier: Apache-2.0
//
// Ends calls early: at Ctrl-C, and at the end of the process while other threads are in a call.
//
// Whatever takes long calls CheckInterrupt between two pieces of work: waits for messages each
// turn, loops over elements, tiles and terms about once a millisecond. A call that ends early frees
// what it held and ends its threads; its results may then be written in part.
#pragma once

#include <atomic>

#include "cpd/export.h"

namespace cpd {

/// A base of the exceptions that end a call early: neither an Error nor a failure of the machine. A
/// check throws a std::exception that has it as a second base.
class CPD_API Interrupted {
 public:
  virtual ~Interrupted();
};

/// Called on the thread that has made a call, at most every 50 ms, with no lock held; returns, or
/// throws to end the call.
using InterruptCheck = void (*)();
/// Sets the check of all calls; null: none.
CPD_API void SetInterruptCheck(InterruptCheck check);

/// Throws where the call on this thread must end. Cheap unless the check is due.
CPD_API void CheckInterrupt();

/// While it exists, this thread is in a call. The first check is due after 50 ms. A thread whose
/// calls were ended never leaves the destructor, so it does not run while the program's objects are
/// destroyed.
class CPD_API RunningCall {
 public:
  RunningCall();
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;
  ~RunningCall();
};

/// From now on, calls on other threads than this one end at their next check, and do not return.
/// Waits at most `seconds` until no other thread is in a call; returns whether none is.
CPD_API bool EndOtherCalls(double seconds);

/// For the workers of parallel_for: while it exists, CheckInterrupt on this thread calls no check
/// but throws once `stop` is set.
class StopWith {
 public:
  explicit StopWith(const std::atomic<bool>& stop);
  StopWith(const StopWith&) = delete;
  StopWith& operator=(const StopWith&) = delete;
  ~StopWith();

 private:
  const std::atomic<bool>* before_;
};

}  // namespace cpd
