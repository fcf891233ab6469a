// SPDX-License-Identifier: Apache-2.0
//
// Runs loops on threads, whose number changes no bit of a result, and limits that number.
#pragma once

#include <cstdint>
#include <functional>

#include "cpd/export.h"

namespace cpd {

/// Elements below which one thread works alone, where each takes a few instructions.
constexpr std::int64_t kSerialBelow = std::int64_t{1} << 16;

/// Threads that parallel_for may use: CPD_NUM_THREADS, else OpenMP's maximum (so that
/// OMP_NUM_THREADS and torch.set_num_threads count), else, in a build without it, the cores. Throws
/// Error where CPD_NUM_THREADS is not a positive number.
CPD_API int MaxThreads();

/// While it exists, parallel_for on this thread uses the share of the cores of one of `ranks` ranks
/// on this host. CPD_NUM_THREADS, where set, is not divided.
class CPD_API SharedHost {
 public:
  explicit SharedHost(int ranks);
  SharedHost(const SharedHost&) = delete;
  SharedHost& operator=(const SharedHost&) = delete;
  ~SharedHost();

 private:
  int before_;
};

/// While it exists, parallel_for on this thread uses OpenMP's threads, in a build with OpenMP.
/// torch's operators run on these threads. After an operator the threads spin for some
/// milliseconds, on the cores that the pool's threads would need. So code that runs between torch's
/// operators shares their threads.
class CPD_API OpenMpThreads {
 public:
  OpenMpThreads();
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;
  ~OpenMpThreads();

 private:
  bool before_;
};

/// Calls body(begin, end) for ranges that cover [0, n), each begin a multiple of `grain`. The loop
/// is serial if n is at most `serial_below`, and inside another parallel loop; else each thread has
/// at least half of `serial_below`. body runs in the default floating-point environment. Results
/// must not depend on the ranges.
/// All calls of a process except those under OpenMpThreads share one pool of threads (pool.h). A
/// call uses the free threads, and waits for none that has not begun when all ranges are done.
/// Equal loops have equal ranges on the same threads, except for ranges that a thread takes over
/// from a late one. A forked child starts its own threads.
/// Between ranges, and while it waits for other threads, the calling thread calls CheckInterrupt
/// (interrupt.h). An exception of body or of CheckInterrupt is thrown again here, when all threads
/// have ended. A thread that explains (explaining.h) records the number of threads and calls no
/// body.
CPD_API void parallel_for(std::int64_t n, std::int64_t grain, std::int64_t serial_below,
                          const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace cpd
