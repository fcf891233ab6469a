// SPDX-License-Identifier: Apache-2.0
//
// Tests the MPI transport. mpirun starts several processes, and each runs the same tests. If mpirun
// ends without an error, MPI was finalized correctly.
#include <gtest/gtest.h>

#include "cpd/comm/transport/libraries.h"
#include "tests/testing/codec_ranks.h"
#include "tests/testing/mpi_world.h"
#include "tests/testing/transport_checks.h"

namespace cpd::testing {
namespace {

TEST(MpiTransport, Ends) { check_ends(mpi_end(), "mpi", mpi_size()); }
TEST(MpiTransport, Sizes) { check_sizes(mpi_end()); }
TEST(MpiTransport, SomePeers) { check_some_peers(mpi_end()); }
TEST(MpiTransport, ManyTags) { check_many_tags(mpi_end()); }
TEST(MpiTransport, EqualTags) { check_equal_tags(mpi_end()); }
TEST(MpiTransport, Waiting) { check_waiting(mpi_end()); }
TEST(MpiTransport, Refusals) { check_refusals(mpi_end()); }
TEST(MpiTransport, OtherLengths) { check_other_length(mpi_end()); }
TEST(MpiTransport, SubgroupRefusals) { check_subgroup_refusals(mpi_end()); }

TEST(MpiTransport, MessagesOfAnySize) {
  Communicator comm(MpiTransport(), {.timeout = 60, .chunk = 1000});
  check_codec(comm);
}

TEST(MpiTransport, OpensAgain) {
  const std::unique_ptr<Transport> second = MpiTransport();
  EXPECT_EQ(second->rank(), mpi_end().transport.rank());
  check_equal_tags({*second});
  check_equal_tags(mpi_end());
}

}  // namespace
}  // namespace cpd::testing
