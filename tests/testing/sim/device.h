// SPDX-License-Identifier: Apache-2.0
//
// The devices of the backend "sim" (libcpd_sim.so, looked for at run time), for tests.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "cpd/backend/registry.h"
#include "tests/testing/accelerator.h"

namespace cpd::testing {

class SimDevice final : public Accelerator {
 public:
  /// The first device; null where there is no library; `Why()` then tells.
  static const SimDevice* Get() {
    static const Library library;
    if (library.table == nullptr) return nullptr;
    static const SimDevice first(*library.table, library.kind, 0);
    return &first;
  }
  static std::string Why() { return Library::Open() == nullptr ? dlerror() : ""; }
  [[nodiscard]] const Accelerator* Second() const override {
    static const SimDevice second(table_, kind(), 1);
    return &second;
  }

  [[nodiscard]] void* Allocate(std::size_t bytes) const override {
    void* memory = nullptr;
    Check(table_.allocate({device()}, MemoryKind::device, BytesOf(bytes), &memory));
    return memory;
  }
  void Free(void* memory) const override {
    static_cast<void>(table_.release({device()}, MemoryKind::device, memory));
  }
  void ToDevice(void* to, const void* from, std::size_t bytes) const override {
    Check(table_.copy({device()}, to, from, BytesOf(bytes)));
  }
  void ToHost(void* to, const void* from, std::size_t bytes) const override {
    Check(table_.release_unused(device()));
    Check(table_.copy({device()}, to, from, BytesOf(bytes)));
  }

 private:
  struct Library {
    Library() {
      void* library = Open();
      if (library == nullptr) return;
      auto* get = reinterpret_cast<const Backend* (*)()>(dlsym(library, "cpd_sim_backend"));
      if (get == nullptr || get()->call_sizes != kCallSizes) {
        throw std::runtime_error("libcpd_sim.so belongs to another build");
      }
      table = get();
      kind = AddBackend(*table);
    }
    static void* Open() { return dlopen("libcpd_sim.so", RTLD_NOW | RTLD_LOCAL); }

    const Backend* table = nullptr;
    Device kind{};
  };

  SimDevice(const Backend& table, Device kind, int device)
      : Accelerator(kind, device), table_(table) {}
  static std::int64_t BytesOf(std::size_t bytes) { return static_cast<std::int64_t>(bytes); }
  void Check(int status) const {
    if (status != 0) throw std::runtime_error(std::string("sim: ") + table_.describe(status));
  }

  const Backend& table_;
};

}  // namespace cpd::testing
