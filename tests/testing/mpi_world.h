// SPDX-License-Identifier: Apache-2.0
//
// The processes that mpirun has started, for tests.
#pragma once

#include <cstdlib>
#include <memory>

#include "cpd/comm/transport/libraries.h"
#include "tests/testing/transport_checks.h"

namespace cpd::testing {

/// Returns this process's transport over MPI_COMM_WORLD. The transport exists until the process
/// ends.
inline TransportEnd mpi_end() {
  static Transport* const transport = MpiTransport().release();
  return {*transport};
}

/// Returns the number of processes that mpirun has started, from its environment variables; 1
/// without mpirun.
inline int mpi_size() {
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  return size == nullptr ? 1 : std::atoi(size);
}

}  // namespace cpd::testing
