// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/registry.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>

#include "cpd/backend/cpu/cpu.h"
#include "cpd/base/library_path.h"
#include "cpd/spec/error.h"
#include "kernels/cuda/paths.h"

namespace cpd {
namespace {

constexpr std::size_t kMostKinds = 8;

std::atomic<const Allocator*> g_allocator = nullptr;
std::array<std::atomic<const Backend*>, kMostKinds> g_backends{};
std::atomic<std::size_t> g_kinds = static_cast<std::size_t>(Device::cuda) + 1;

bool IsOfThisBuild(const Backend& backend) {
  return backend.size == sizeof(Backend) && backend.call_sizes == kCallSizes;
}

/// Throws std::logic_error if the backend lacks an operation.
void CheckOperations(const Backend& backend) {
  const auto check = [&](const char* operation, bool is_there) {
    if (!is_there) throw std::logic_error(std::string(backend.name) + " has no " + operation);
  };
#define CPD_OP(name, Call) check(#name, backend.name != nullptr);
#include "cpd/backend/operations.def"
}

const Backend& LoadCuda() {
  const std::string file = "libcpd_cuda.so";
  void* library = LoadBeside(file, RTLD_NOW | RTLD_LOCAL,
                             "CUDA tensors need libcpd_cuda, which cannot be loaded (build CPD "
                             "with nvcc: CUDA's compiler)");
  auto* get = reinterpret_cast<decltype(&cpd_backend)>(dlsym(library, "cpd_backend"));
  const Backend* backend = get == nullptr ? nullptr : get();
  if (backend == nullptr || !IsOfThisBuild(*backend)) {
    throw MachineError(file + " belongs to another build of CPD: build and install both again");
  }
  backend->use_allocator_at(g_allocator);
  return *backend;
}

const Backend& Cuda() {
  static const Backend& backend = LoadCuda();  // tried again at the next call if it throws
  return backend;
}

}  // namespace

const Backend& BackendOf(Device device) {
  const auto kind = static_cast<std::size_t>(device);
  const Backend* const backend = kind < kMostKinds ? g_backends[kind].load() : nullptr;
  if (backend != nullptr) return *backend;
  if (device == Device::cpu) return cpu::Table();
  if (device == Device::cuda) return Cuda();
  throw MachineError("no backend was added for kind of device " +
                     std::to_string(static_cast<int>(device)));
}

const Backend& Described(Device device) {
  static const Backend cuda = [] {
    Backend described{};
    described.name = "cuda";
    described.product_path = cuda::path_of_product;
    return described;
  }();
  const bool is_cuda =
      device == Device::cuda && g_backends[static_cast<std::size_t>(device)] == nullptr;
  return is_cuda ? cuda : BackendOf(device);
}

std::string NameOf(const TensorView& x) {
  if (x.on_host()) return "cpu";
  return std::string(Described(x.device).name) + ":" + std::to_string(x.device_index);
}

Device AddBackend(const Backend& backend) {
  if (!IsOfThisBuild(backend)) {
    throw std::logic_error(std::string(backend.name) + " was compiled with other headers of CPD");
  }
  CheckOperations(backend);
  const std::size_t kind = g_kinds++;
  if (kind >= kMostKinds) throw std::logic_error("there are at most 8 kinds of device");
  backend.use_allocator_at(g_allocator);
  g_backends[kind] = &backend;
  return static_cast<Device>(kind);
}

const Backend* SetBackend(Device device, const Backend* backend) {
  if (backend == nullptr && device > Device::cuda) {
    throw std::logic_error("a kind of device that was added has no other backend than that");
  }
  return g_backends.at(static_cast<std::size_t>(device)).exchange(backend);
}

void SetAllocator(const Allocator* allocator) { g_allocator = allocator; }

}  // namespace cpd
