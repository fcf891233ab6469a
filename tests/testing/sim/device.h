// SPDX-License-Identifier: Apache-2.0
//
// Gives tests the devices of the backend "sim" (libcpd_sim.so, loaded at run time).
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>

#include "cpd/backend/registry.h"

namespace cpd::testing {

/// The counts that the backend keeps.
struct SimCounts {
  std::int64_t unknown_streams = 0;  ///< calls on streams that are not open
  std::int64_t queued = 0;           ///< blocks of queued memory that are not released
};

/// Returns a function of libcpd_sim.so. Throws std::runtime_error if that library is missing.
template <class Function>
Function SimFunction(const char* name) {
  void* library = dlopen("libcpd_sim.so", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return reinterpret_cast<Function>(dlsym(library, name));
}

inline SimCounts CountsOfSim() { return SimFunction<SimCounts (*)()>("cpd_sim_counts")(); }

/// Registers the backend "sim" at the first call, and returns its kind of device. Throws
/// std::runtime_error if libcpd_sim.so is missing or belongs to another build.
inline Device SimKind() {
  static const Device kind = [] {
    auto* get = SimFunction<const Backend* (*)()>("cpd_sim_backend");
    if (get == nullptr || get()->call_sizes != kCallSizes) {
      throw std::runtime_error("libcpd_sim.so belongs to another build");
    }
    return AddBackend(*get());
  }();
  return kind;
}

}  // namespace cpd::testing
