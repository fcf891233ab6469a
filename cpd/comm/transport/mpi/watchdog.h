// SPDX-License-Identifier: Apache-2.0
//
// The last resort against a call of MPI's that never returns.
#pragma once

#include <atomic>
#include <cstdint>

namespace cpd {

/// Marks a call into MPI that moves messages; none of them waits. Open MPI 4.1 can deadlock in one
/// when a peer dies during a long send over TCP: the calling thread spins inside MPI, holding its
/// locks, and no exception, signal or other call ends that.
class MpiCall {
 public:
  MpiCall() { ++inside_; }
  ~MpiCall() {
    ++returned_;
    --inside_;
  }
  MpiCall(const MpiCall&) = delete;
  MpiCall& operator=(const MpiCall&) = delete;

  /// Starts the watchdog thread at the first call: it ends a process that stays inside one call for
  /// the longest timeout (seconds) so far, and at least 30 s, with status 1 and a line on stderr.
  /// By then every wait that MPI returns from has ended in an error.
  static void Watch(double timeout);

 private:
  static void Look();

  static inline std::atomic<int> inside_{0};
  static inline std::atomic<std::uint64_t> returned_{0};
  static inline std::atomic<int> patience_{0};
};

}  // namespace cpd
