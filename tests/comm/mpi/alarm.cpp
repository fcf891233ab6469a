// SPDX-License-Identifier: Apache-2.0
//
// Tests the alarm that tells all MPI processes of a failure. mpirun starts the processes. After the
// alarm the processes exit without MPI_Finalize. mpirun reports such an exit as a failure unless
// its recovery option is on, so the test checks the line that rank 0 prints.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/testing/mpi_world.h"
#include "tests/testing/transport_checks.h"

namespace cpd::testing {
namespace {

TEST(MpiAlarm, ArrivesAndGroupsWorkAfter) {
  check_alarm(mpi_end());
  if (mpi_end().transport.rank() == 0 && !HasFailure()) std::puts("all survivors carry on");
  std::fflush(stdout);
}

TEST(MpiAlarm, WorldDoesNotOpenAgain) {
  if (mpi_size() < 2) GTEST_SKIP() << "one process raises no alarm";
  EXPECT_THROW((void)MpiTransport(), Error);
}

}  // namespace
}  // namespace cpd::testing
