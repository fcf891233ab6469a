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
/// torch's operators run on these, which after an operator spin for some milliseconds, on the cores
/// that the pool's threads would need: what runs between torch's operators shares their threads.
class CPD_API OpenMpThreads {
 public:
  OpenMpThreads();
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;
  ~OpenMpThreads();

 private:
  bool before_;
};

/// Calls body(begin, end) for pieces that cover [0, n), each begin a multiple of `grain`. Serial
/// where n is at most `serial_below` and inside another parallel loop; else each thread has at
/// least half of `serial_below`. All calls of a process but those under OpenMpThreads share one
/// pool of threads (pool.h): a call uses those that are free, and waits for none that has not begun
/// when all pieces are done. Equal loops have equal pieces on the same threads, but for pieces that
/// a thread takes over from one that is late. A forked child starts threads of its own. body runs
/// in the default floating-point environment. Results must not depend on the pieces. Between
/// pieces, and while it waits for other threads, the calling thread calls CheckInterrupt
/// (interrupt.h). An exception of body or of CheckInterrupt is thrown again here, when all threads
/// have ended. A thread that explains (explaining.h) notes the number of threads and calls no body.
CPD_API void parallel_for(std::int64_t n, std::int64_t grain, std::int64_t serial_below,
                          const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace cpd
