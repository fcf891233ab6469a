// SPDX-License-Identifier: Apache-2.0
//
// Records which ranks of a host have reached the start of MPI. MPI_Init returns when all ranks of
// the job have called it, and does not report for which ranks it waits. So each rank makes a file,
// and holds a lock on it while its process lives. The files are in the folder that the launcher
// keeps for the job on every host. Without such a folder (only launchers with PMIx have one)
// nothing is known.
#pragma once

#include <string>
#include <vector>

namespace cpd {

class Attendance {
 public:
  /// Marks this rank as present while its process lives.
  Attendance();

  /// Tells the ranks that wait that this rank has given up.
  void GiveUp() const noexcept;
  /// Returns whether another rank of this host has given up.
  [[nodiscard]] bool HasGivenUp() const;
  /// Returns, ascending, the ranks that have not reached the start of MPI, and those whose
  /// processes ended without giving up. Empty if this is unknown, as it is if the job has ranks on
  /// other hosts.
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
