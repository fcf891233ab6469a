// SPDX-License-Identifier: Apache-2.0
//
// Records which ranks of a host have reached the start of MPI. MPI_Init returns when all ranks of
// the job have called it, and does not report for whom it waits. So each rank makes a file, locked
// while its process lives, in the folder that the launcher keeps for the job on every host. Without
// such a folder (launchers other than those with PMIx), nothing is known.
#pragma once

#include <string>
#include <vector>

namespace cpd {

class Attendance {
 public:
  /// Marks this rank as here, for as long as its process lives.
  Attendance();

  /// Reports to the ranks that wait that this one has given up.
  void GiveUp() const noexcept;
  /// Returns whether another rank of this host has given up.
  [[nodiscard]] bool HasGivenUp() const;
  /// Returns the ranks that have not come, or whose processes have ended without giving up;
  /// ascending. Empty if that is unknown, as for ranks on other hosts.
  [[nodiscard]] std::vector<int> Absent() const;
  [[nodiscard]] int size() const { return size_; }

 private:
  enum class State : unsigned char { absent, here, given_up };
  [[nodiscard]] std::string FileOf(int rank) const;
  [[nodiscard]] State StateOf(int rank) const;

  std::string stem_;  // of the files; empty: nothing is known
  int rank_ = 0, size_ = 0;
  bool one_host_ = false;
  int own_ = -1;  // this rank's file; never closed, for that would unlock it
};

}  // namespace cpd
