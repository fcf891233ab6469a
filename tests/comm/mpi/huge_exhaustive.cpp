// SPDX-License-Identifier: Apache-2.0
//
// Tests a message over MPI that has more bytes than an int can count. mpirun starts the processes.
#include <gtest/gtest.h>

#include "tests/testing/mpi_world.h"
#include "tests/testing/transport_checks.h"

namespace cpd::testing {
namespace {

TEST(MpiHuge, MoreBytesThanAnIntCounts) { check_huge(mpi_end()); }

}  // namespace
}  // namespace cpd::testing
