// SPDX-License-Identifier: Apache-2.0
//
// Ends a process that is stuck in a call of MPI that never returns. This is the last resort.
#pragma once

#include <atomic>
#include <cstdint>

namespace cpd {

/// Marks, while it exists, a call into MPI that moves messages. Such calls do not wait. Open MPI
/// 4.1 can still deadlock in one if a peer dies during a long send over TCP: the calling thread
/// spins inside MPI and holds MPI's locks. No exception, signal or other call ends that.
class MpiCall {
 public:
  MpiCall() { ++inside_; }
  ~MpiCall() {
    ++returned_;
    --inside_;
  }
  MpiCall(const MpiCall&) = delete;
  MpiCall& operator=(const MpiCall&) = delete;

  /// Starts the watchdog thread at the first call. The thread ends the process, with status 1 and a
  /// line on stderr, if one call of MPI takes too long. The limit is the longest `timeout`
  /// (seconds) of all calls of Watch, and at least 30 s. Any wait from which MPI returns ends in an
  /// error sooner.
  static void Watch(double timeout);

 private:
  static void Look();

  static inline std::atomic<int> inside_{0};
  static inline std::atomic<std::uint64_t> returned_{0};
  static inline std::atomic<int> patience_{0};
};

}  // namespace cpd
