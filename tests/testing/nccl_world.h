// SPDX-License-Identifier: Apache-2.0
//
// The processes that spawn.py has started, for tests of the NCCL transport.
#pragma once

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "cpd/comm/transport/libraries.h"
#include "tests/testing/transport_checks.h"

namespace cpd::testing {

inline int from_environment(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}
inline int nccl_rank() { return from_environment("CPD_TEST_RANK", 0); }
inline int nccl_size() { return from_environment("CPD_TEST_SIZE", 1); }

/// Returns the id that rank 0 makes under this name, and that the other ranks read from a file.
/// Each name may be used only once.
inline NcclId share_nccl_id(const std::string& name) {
  const char* folder = std::getenv("CPD_TEST_FOLDER");
  if (folder == nullptr) return MakeNcclId();
  const std::filesystem::path path = std::filesystem::path(folder) / name;
  NcclId id{};
  if (nccl_rank() == 0) {
    id = MakeNcclId();
    std::ofstream(path.string() + ".part", std::ios::binary)
        .write(reinterpret_cast<const char*>(id.data()), static_cast<std::streamsize>(id.size()));
    std::filesystem::rename(path.string() + ".part", path);
    return id;
  }
  await("an id from rank 0", [&] { return std::filesystem::exists(path); });
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(id.data()), static_cast<std::streamsize>(id.size()));
  return id;
}

/// Returns an NCCL transport among all processes. Passes device_index to NcclTransport.
inline std::unique_ptr<Transport> open_nccl(const std::string& name, int device_index = -1) {
  return NcclTransport(share_nccl_id(name), nccl_rank(), nccl_size(), device_index, nullptr, 60);
}

}  // namespace cpd::testing
