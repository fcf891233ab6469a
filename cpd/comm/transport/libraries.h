// SPDX-License-Identifier: Apache-2.0
//
// Transports in separate libraries, libcpd_mpi and libcpd_nccl. They lie beside libcpd and are
// loaded at their first use. The core builds and runs without them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "cpd/comm/transport/transport.h"

namespace cpd {

/// Returns a transport between all ranks of MPI_COMM_WORLD. All ranks must call it. If MPI is not
/// started, starts MPI (MPI_THREAD_MULTIPLE), and ends it when the process exits, unless a rank was
/// lost. Throws RankLost if not all ranks have called within `timeout` seconds, MachineError if the
/// library or a library that it needs cannot be loaded, and Error if MPI cannot start again.
///
/// A process that stays inside one call of MPI for the longest timeout so far, and at least 30 s,
/// is ended with status 1 and a line on stderr, because nothing else would end the call.
CPD_API std::unique_ptr<Transport> MpiTransport(double timeout = kDefaultTimeout);

/// NCCL's identifier of a group of ranks (ncclUniqueId). One rank makes it and sends it to the
/// others.
using NcclId = std::array<std::uint8_t, 128>;
CPD_API NcclId MakeNcclId();
/// Returns one rank's transport in a group of GPUs. `stream`: a CUDA stream of that device that
/// nothing else uses; null: a new, nonblocking stream. With `device_index` -1, messages are in host
/// memory, which only the tests' emulation of NCCL accepts. Throws Error for a rank or device out
/// of range, and MachineError if NCCL cannot be loaded.
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
