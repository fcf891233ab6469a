// SPDX-License-Identifier: Apache-2.0
//
// The devices of the backend "sim" (libcpd_sim.so, looked for at run time), for tests.
#pragma once

#include <dlfcn.h>

#include <stdexcept>

#include "cpd/backend/registry.h"

namespace cpd::testing {

/// Adds the backend at the first call; returns its kind of device. Throws std::runtime_error where
/// the library is missing.
inline Device SimKind() {
  static const Device kind = [] {
    void* library = dlopen("libcpd_sim.so", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    auto* get = reinterpret_cast<const Backend* (*)()>(dlsym(library, "cpd_sim_backend"));
    if (get == nullptr || get()->call_sizes != kCallSizes) {
      throw std::runtime_error("libcpd_sim.so belongs to another build");
    }
    return AddBackend(*get());
  }();
  return kind;
}

}  // namespace cpd::testing
