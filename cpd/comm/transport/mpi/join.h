// SPDX-License-Identifier: Apache-2.0
//
// Makes a group of ranks by messages among its members alone. A dead rank outside the group cannot
// delay them.
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

/// Sends this rank's Join to all members of a new group and returns the Joins of all members.
/// `world`: the members' ranks in MPI_COMM_WORLD. Throws RankLost if a member does not answer
/// within `timeout` seconds. The text of RankLost calls member i rank names[i], of `size` ranks.
std::vector<Join> Meet(const Job& job, const std::vector<int>& world, std::span<const int> names,
                       int size, double timeout);

/// Returns the context of a new group, the number by which message tags tell groups apart. It is
/// the greatest context that a member proposes.
int ContextOf(Job& job, const std::vector<Join>& joins);

/// Returns, for each member of a group, the lowest index of a member on the same host.
std::vector<int> HostsOf(const std::vector<Join>& joins);

}  // namespace cpd::mpi
