// SPDX-License-Identifier: Apache-2.0
//
// The last resort against a call of MPI's that never returns.
#pragma once

#include <atomic>
#include <cstdint>

namespace cpd {

/// Calls into MPI that move messages: none of them waits. Open MPI 4.1 can lock itself up in one
/// when a peer dies during a long send over TCP: the thread that called spins inside MPI, holding
/// its locks, and no exception, signal or other call gets it out.
class MpiCall {
 public:
  MpiCall() { ++inside_; }
  ~MpiCall() {
    ++returned_;
    --inside_;
  }
  MpiCall(const MpiCall&) = delete;
  MpiCall& operator=(const MpiCall&) = delete;

  /// Has a thread look on, from the first time on: a process that stays inside one call for as long
  /// as the longest timeout (seconds) so far, and at least half a minute, is ended with status 1
  /// and a line on stderr. By then every wait that MPI lets go of has ended in an error.
  static void Watch(double timeout);

 private:
  static void Look();

  static inline std::atomic<int> inside_{0};
  static inline std::atomic<std::uint64_t> returned_{0};
  static inline std::atomic<int> patience_{0};
};

}  // namespace cpd
