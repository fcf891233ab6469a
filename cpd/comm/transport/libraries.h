// SPDX-License-Identifier: Apache-2.0
//
// Transports that live in libraries of their own, loaded when they are first asked for: libcpd_mpi
// and libcpd_nccl beside libcpd. The core builds and runs without them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "cpd/comm/transport/transport.h"

namespace cpd {

/// All ranks of MPI_COMM_WORLD. Starts MPI where it is not started (MPI_THREAD_MULTIPLE) and then
/// also ends it when the process exits, unless a rank was lost. All ranks call it. Throws RankLost
/// where not all have come after `timeout` seconds, and Error where the library, or what it needs,
/// is not there.
///
/// A process that does not come out of a call of MPI's own for as long as the longest timeout, and
/// for half a minute, is ended with status 1 and a line on stderr: nothing else would end the call.
CPD_API std::unique_ptr<Transport> MpiTransport(double timeout = kDefaultTimeout);

/// NCCL's name of a group, to be made by one rank and given to the others.
using NcclId = std::array<std::uint8_t, 128>;
CPD_API NcclId MakeNcclId();
/// One end of a group between GPUs, on the given device and CUDA stream, which nothing else uses;
/// null: a stream of its own, which waits for no other.
/// With device_index -1 messages lie in host memory, which only a stand-in for NCCL takes (tests).
/// Throws Error, or MachineError where NCCL cannot be loaded.
CPD_API std::unique_ptr<Transport> NcclTransport(const NcclId& id, int rank, int size,
                                                 int device_index, void* stream, double timeout);

/// What the libraries export.
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
