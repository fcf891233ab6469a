// SPDX-License-Identifier: Apache-2.0
//
// Started by mpirun. After the alarm the processes leave without MPI_Finalize, which mpirun takes
// for a failure unless its recovery is on; the test asks for rank 0's words.
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
