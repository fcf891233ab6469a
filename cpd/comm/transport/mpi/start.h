// SPDX-License-Identifier: Apache-2.0
//
// The start: MPI itself and the communicators that all transports of a process share. Every call
// that waits for other ranks is polled to a deadline.
#pragma once

#include <vector>

#include "cpd/comm/transport/mpi/calls.h"

namespace cpd::mpi {

/// What the transports of this process share; it stays until the process ends.
struct Job {
  MPI_Comm data = MPI_COMM_NULL;     ///< tag: context * kTags + the caller's
  MPI_Comm control = MPI_COMM_NULL;  ///< tag: context for alarms, join_tag for joining a group
  int rank = 0, size = 0;            ///< in MPI_COMM_WORLD
  int contexts = 0;                  ///< how many the tags have room for
  int join_tag = 0;
  int next_context = 0;   ///< above all that this process has had
  std::vector<int> host;  ///< of each rank: the least rank on its host
};

/// In the order of MPI_COMM_WORLD.
std::vector<int> AllOf(const Job& job);

/// Starts MPI where it does not run, and makes the job, with all ranks of MPI_COMM_WORLD, where
/// there is none. Throws RankLost (from then on the same), Error, TransportError.
Job& TheJob(double timeout);

}  // namespace cpd::mpi
