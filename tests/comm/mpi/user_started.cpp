// SPDX-License-Identifier: Apache-2.0
//
// Tests programs that call MPI_Init themselves, and may call MPI_Finalize too. mpirun starts
// separate processes for each test.
#include <gtest/gtest.h>
#include <mpi.h>

#include "tests/testing/mpi_world.h"
#include "tests/testing/refusal.h"
#include "tests/testing/transport_checks.h"

namespace cpd::testing {
namespace {

TEST(MpiStarted, WithTooFewThreads) {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
  if (level < MPI_THREAD_SERIALIZED) {
    EXPECT_REFUSAL("MPI must have been started with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE",
                   MpiTransport());
  } else {
    check_equal_tags(mpi_end());
  }
  MPI_Finalize();
}

TEST(MpiStarted, AndEndedByTheProgram) {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  auto early = MpiTransport();
  check_equal_tags({*early});
  early.reset();
  const auto late = MpiTransport();
  check_equal_tags({*late});
  MPI_Finalize();
  EXPECT_REFUSAL("MPI has been finalized in this process and cannot start again", MpiTransport());
  EXPECT_REFUSAL("MPI has been finalized", late->Start({}, {}, 0));
}  // `late` ends after MPI

}  // namespace
}  // namespace cpd::testing
