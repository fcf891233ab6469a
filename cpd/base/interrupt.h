// SPDX-License-Identifier: Apache-2.0
//
// Leaving a call early: Ctrl-C, and the end of the process while other threads are still inside.
//
// Whatever takes long asks CheckInterrupt between two pieces of work: waits for messages each turn,
// loops over elements, tiles and terms about once a millisecond. A call that is left has freed what
// it held and ended its threads; what it was to write may then be written in part.
#pragma once

#include <atomic>

#include "cpd/export.h"

namespace cpd {

/// A base of what a check throws to leave a call: neither an Error nor a failure of the machine. A
/// check throws a std::exception that has it as a second base.
class CPD_API Interrupted {
 public:
  virtual ~Interrupted();
};

/// Asked on the thread that has made a call, at most every 50 ms; returns, or throws what is to
/// leave the call. No lock is held then.
using InterruptCheck = void (*)();
/// Null: nobody is asked.
CPD_API void SetInterruptCheck(InterruptCheck check);

/// Throws where the call on this thread is to be left. Cheap unless it is time to ask.
CPD_API void CheckInterrupt();

/// While it lives, this thread is inside a call, and not asked in its first 50 ms. A thread whose
/// calls were ended stays in the destructor for ever, so that it never sees a program that is being
/// taken apart.
class CPD_API RunningCall {
 public:
  RunningCall();
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;
  ~RunningCall();
};

/// From now on, calls on other threads than this one are left at their next check, and new ones as
/// they end. Waits until no other thread is inside, at most so many seconds; true when none is.
CPD_API bool EndOtherCalls(double seconds);

/// For parallel_for: while it lives, CheckInterrupt on this thread, a worker's, asks nobody but
/// throws once `stop` is set.
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
