// SPDX-License-Identifier: Apache-2.0
//
// Started by mpirun. A message longer than an int counts.
#include <gtest/gtest.h>

#include "tests/testing/mpi_world.h"
#include "tests/testing/transport_checks.h"

namespace cpd::testing {
namespace {

TEST(MpiHuge, MoreBytesThanAnIntCounts) { check_huge(mpi_end()); }

}  // namespace
}  // namespace cpd::testing
