// SPDX-License-Identifier: Apache-2.0
//
// Makes a group of ranks: by messages among them alone, so that no dead rank can delay them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpd/comm/transport/mpi/start.h"

namespace cpd::mpi {

/// The message that the members of a new group send one another.
struct Join {
  std::uint64_t members;  ///< a hash of their list
  std::int64_t context;   ///< the least that the sender has free
  std::uint64_t host;     ///< a hash of its name
};

/// Sends this rank's Join to all members and returns theirs. `world`: their ranks in MPI. `names`:
/// the numbers, in a group of `size`, by which RankLost names late ranks.
std::vector<Join> Meet(const Job& job, const std::vector<int>& world, std::span<const int> names,
                       int size, double timeout);

/// Returns the context of a new group: the greatest that its members propose.
int ContextOf(Job& job, const std::vector<Join>& joins);

/// For each rank, the least rank on its host.
std::vector<int> HostsOf(const std::vector<Join>& joins);

}  // namespace cpd::mpi
