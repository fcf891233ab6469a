// SPDX-License-Identifier: Apache-2.0
//
// Transports in libraries of their own, loaded at their first use: libcpd_mpi and libcpd_nccl, next
// to libcpd. The core builds and runs without them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "cpd/comm/transport/transport.h"

namespace cpd {

/// Returns a transport between all ranks of MPI_COMM_WORLD, which all call it. Starts MPI if it is
/// not started (MPI_THREAD_MULTIPLE), and then also ends it when the process exits, unless a rank
/// was lost. Throws RankLost if not all ranks have come after `timeout` seconds, MachineError if
/// the library, or a library that it needs, cannot be loaded, and Error if MPI cannot start again.
///
/// A process that stays inside one call of MPI for the longest timeout so far, and at least 30 s,
/// is ended with status 1 and a line on stderr: nothing else would end the call.
CPD_API std::unique_ptr<Transport> MpiTransport(double timeout = kDefaultTimeout);

/// NCCL's identifier of a group (ncclUniqueId): one rank makes it and sends it to the others.
using NcclId = std::array<std::uint8_t, 128>;
CPD_API NcclId MakeNcclId();
/// One end of a group between GPUs, on a device and a CUDA stream that nothing else uses; null: a
/// new, nonblocking stream. With device_index -1 messages are in host memory, which only the tests'
/// emulation of NCCL takes. Throws Error, or MachineError where NCCL cannot be loaded.
CPD_API std::unique_ptr<Transport> NcclTransport(const NcclId& id, int rank, int size,
                                                 int device_index, void* stream, double timeout);

/// The functions that the libraries export.
struct MpiLibrary {
  std::uint32_t version;               ///< kTransportVersion
  Transport* (*open)(double timeout);  ///< throws Error, MachineError, TransportError, RankLost
};
struct NcclLibrary {
  std::uint32_t version;
  void (*make_id)(NcclId* id);
  Transport* (*open)(const NcclId& id, int rank, int size, int device_index, void* stream,
                     double timeout);
};
constexpr std::uint32_t kTransportVersion = 2;

}  // namespace cpd

extern "C" CPD_API const cpd::MpiLibrary* cpd_mpi_library();
extern "C" CPD_API const cpd::NcclLibrary* cpd_nccl_library();
