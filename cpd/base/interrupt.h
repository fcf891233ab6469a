// SPDX-License-Identifier: Apache-2.0
//
// Ends calls early: at Ctrl-C, and at the end of the process while other threads are in a call.
//
// Long computations call CheckInterrupt regularly: loops that wait for messages in each iteration,
// loops over elements, tiles and terms about once a millisecond. A call that ends early frees its
// memory and ends its threads. Some of its results may already be written.
#pragma once

#include <atomic>

#include "cpd/export.h"

namespace cpd {

/// A base of the exceptions that end a call early. Such an exception is neither an Error nor a
/// failure of the machine. A check throws a std::exception that has Interrupted as its second base.
class CPD_API Interrupted {
 public:
  virtual ~Interrupted();
};

/// A function that is called on the thread of a running call, at most every 50 ms, with no lock
/// held. It returns, or throws to end the call.
using InterruptCheck = void (*)();
/// Sets the function that decides during all later calls whether they end; null: no function.
CPD_API void SetInterruptCheck(InterruptCheck check);

/// Throws if the call on this thread must end. To decide that, calls the InterruptCheck, but at
/// most every 50 ms. Between these times CheckInterrupt takes little time.
CPD_API void CheckInterrupt();

/// Marks this thread as inside a call while the object exists. The InterruptCheck is first called
/// after 50 ms. If another thread has ended this thread's calls (EndOtherCalls), the destructor
/// never returns. The thread then does not run while the program's objects are destroyed.
class CPD_API RunningCall {
 public:
  RunningCall();
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;
  ~RunningCall();
};

/// Ends the calls on all other threads at their next check, now and in the future; these threads do
/// not return from their calls. Waits up to `seconds` seconds. Returns whether all other threads
/// have left their calls.
CPD_API bool EndOtherCalls(double seconds);

/// For the worker threads of parallel_for. While an object exists, CheckInterrupt on this thread
/// never calls the InterruptCheck. Instead it throws as soon as `stop` is true.
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
