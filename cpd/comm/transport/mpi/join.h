// SPDX-License-Identifier: Apache-2.0
//
// How ranks become a group: by messages among them alone, so that a dead rank holds nobody up.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpd/comm/transport/mpi/start.h"

namespace cpd::mpi {

/// What the members of a new group tell one another.
struct Join {
  std::uint64_t members;  ///< a hash of their list
  std::int64_t context;   ///< the least that the sender has free
  std::uint64_t host;     ///< a hash of its name
};

/// Everybody's Join, as soon as all have told; `world` are their ranks in MPI, `names` the numbers
/// by which RankLost names them, of `size`.
std::vector<Join> Meet(const Job& job, const std::vector<int>& world, std::span<const int> names,
                       int size, double timeout);

/// The context of a new group: the greatest of those that its members propose.
int ContextOf(Job& job, const std::vector<Join>& joins);

/// Of each rank, the least on its host.
std::vector<int> HostsOf(const std::vector<Join>& joins);

}  // namespace cpd::mpi
