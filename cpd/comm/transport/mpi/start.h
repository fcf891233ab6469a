// SPDX-License-Identifier: Apache-2.0
//
// Starts MPI and makes the communicators that all transports of a process share. Every call that
// waits for other ranks is polled until a deadline.
#pragma once

#include <vector>

#include "cpd/comm/transport/mpi/calls.h"

namespace cpd::mpi {

/// The MPI state that the transports of this process share until the process ends.
struct Job {
  MPI_Comm data = MPI_COMM_NULL;     ///< tag: context * kTags + the caller's
  MPI_Comm control = MPI_COMM_NULL;  ///< tag: context for alarms, join_tag for joining a group
  int rank = 0, size = 0;            ///< in MPI_COMM_WORLD
  int contexts = 0;                  ///< how many the tags can hold
  int join_tag = 0;
  int next_context = 0;   ///< above all that this process has used
  std::vector<int> host;  ///< of each rank: the least rank on its host
};

/// Returns the job's ranks in MPI_COMM_WORLD, ascending.
std::vector<int> AllOf(const Job& job);

/// Returns the job of this process. If MPI does not run, starts MPI. If there is no job yet, makes
/// the job together with all ranks of MPI_COMM_WORLD. Throws RankLost, Error or TransportError.
/// After one RankLost, all later calls throw RankLost, too.
Job& TheJob(double timeout);

}  // namespace cpd::mpi
