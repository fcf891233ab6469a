// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/transport/libraries.h"

#include <dlfcn.h>

#include <string>

#include "cpd/base/library_path.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// Returns the table that `file` exports as `symbol`. Throws MachineError for a table of another
/// version.
template <class Library>
const Library& Load(const std::string& file, const char* symbol, int mode,
                    const std::string& needs) {
  void* library = LoadBeside(file, mode, needs);
  auto* get = reinterpret_cast<const Library* (*)()>(dlsym(library, symbol));
  const Library* found = get == nullptr ? nullptr : get();
  if (found == nullptr || found->version != kTransportVersion) {
    throw MachineError(file + " belongs to another build of CPD: build and install both again");
  }
  return *found;
}

const NcclLibrary& Nccl() {
  static const NcclLibrary& library =
      Load<NcclLibrary>(  // tried again at the next call if it throws
          "libcpd_nccl.so", "cpd_nccl_library", RTLD_NOW | RTLD_LOCAL,
          "NCCL needs libcpd_nccl, which cannot be loaded (was CPD built with CUDA and NCCL's "
          "headers?)");
  return library;
}

}  // namespace

std::unique_ptr<Transport> MpiTransport(double timeout) {
  // RTLD_GLOBAL: Open MPI's plugins look for the symbols of libmpi among the global symbols.
  static const MpiLibrary& library = Load<MpiLibrary>(
      "libcpd_mpi.so", "cpd_mpi_library", RTLD_NOW | RTLD_GLOBAL,
      "MPI needs libcpd_mpi, which cannot be loaded (was CPD built with Open MPI?)");
  return std::unique_ptr<Transport>(library.open(timeout));
}

NcclId MakeNcclId() {
  NcclId id{};
  Nccl().make_id(&id);
  return id;
}

std::unique_ptr<Transport> NcclTransport(const NcclId& id, int rank, int size, int device_index,
                                         void* stream, double timeout) {
  return std::unique_ptr<Transport>(Nccl().open(id, rank, size, device_index, stream, timeout));
}

}  // namespace cpd
