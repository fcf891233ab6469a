// SPDX-License-Identifier: Apache-2.0
//
// Runs loops on threads and limits the number of threads. The number of threads changes no bit of a
// result.
#pragma once

#include <cstdint>
#include <functional>

#include "cpd/export.h"

namespace cpd {

/// The number of elements below which one thread works alone, if each element takes a few
/// instructions.
constexpr std::int64_t kSerialBelow = std::int64_t{1} << 16;

/// Returns the number of threads that parallel_for may use. It is CPD_NUM_THREADS if that is set.
/// Otherwise it is OpenMP's maximum, which OMP_NUM_THREADS and torch.set_num_threads set, or
/// without OpenMP the number of cores. Ranks on one host share this number evenly (SharedHost).
/// Throws Error if CPD_NUM_THREADS is not a number from 1 to 4096.
CPD_API int MaxThreads();

/// While an object exists, parallel_for on this thread uses 1 / `ranks` of the cores, as one of
/// `ranks` ranks on this host. CPD_NUM_THREADS, if set, is not divided.
class CPD_API SharedHost {
 public:
  explicit SharedHost(int ranks);
  SharedHost(const SharedHost&) = delete;
  SharedHost& operator=(const SharedHost&) = delete;
  ~SharedHost();

 private:
  int before_;
};

/// While an object exists, parallel_for on this thread uses OpenMP's threads, in a build with
/// OpenMP. torch's operators run on the same threads, which spin for some milliseconds after each
/// operator, on cores that the pool's threads would need. With such an object, code that runs
/// between torch's operators uses the same threads.
class CPD_API OpenMpThreads {
 public:
  OpenMpThreads();
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;
  ~OpenMpThreads();

 private:
  bool before_;
};

/// Calls body(begin, end) for ranges that cover [0, n). Each begin is a multiple of `grain`. One
/// thread runs the loop if n is at most `serial_below`, or if the loop is inside another parallel
/// loop. Otherwise each thread gets at least half of `serial_below` elements. body runs in the
/// default floating-point environment. Results must not depend on the ranges.
///
/// All calls of a process, except calls under OpenMpThreads, share one pool of threads (pool.h). A
/// loop uses the threads that are free. When all ranges are done, it does not wait for threads that
/// have not begun. Equal loops have equal ranges on the same threads, except for ranges that a
/// thread takes over from a late thread. A forked child starts its own threads.
///
/// The calling thread calls CheckInterrupt (interrupt.h) between ranges and while it waits for
/// other threads. An exception of body or of CheckInterrupt is rethrown when all threads have
/// ended. A thread that explains (explaining.h) records the number of threads and calls no body.
CPD_API void parallel_for(std::int64_t n, std::int64_t grain, std::int64_t serial_below,
                          const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace cpd
