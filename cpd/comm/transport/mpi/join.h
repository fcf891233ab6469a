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
/// within `timeout` seconds. In the text of RankLost, names[i] is the number of member i, and
/// `size` is the number of ranks of the group in which these numbers count.
std::vector<Join> Meet(const Job& job, const std::vector<int>& world, std::span<const int> names,
                       int size, double timeout);

/// Returns the context (the number in the tags) of a new group, which is the greatest context that
/// a member proposes.
int ContextOf(Job& job, const std::vector<Join>& joins);

/// Returns, for each member of a group, the lowest index of a member on the same host.
std::vector<int> HostsOf(const std::vector<Join>& joins);

}  // namespace cpd::mpi
