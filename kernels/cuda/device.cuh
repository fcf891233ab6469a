// SPDX-License-Identifier: Apache-2.0
//
// Launches and device memory, which the kernels share in addition to strided.h.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <string>

#include "cpd/backend/backend.h"
#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/strided.h"

namespace cpd::cuda {

#define CPD_DEVICE __device__ __forceinline__

// --- launches ------------------------------------------------------------------------------------

/// Makes a device the thread's current one while alive, and clears an earlier call's error, which
/// cudaGetLastError would report as this launch's.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    cudaGetLastError();
    status_ = cudaGetDevice(&before_);
    if (status_ != cudaSuccess || before_ == device) return;
    status_ = cudaSetDevice(device);
    changed_ = status_ == cudaSuccess;
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  [[nodiscard]] cudaError_t status() const { return status_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t status_;
};

/// Queues a kernel on a stream; cudaGetLastError then returns an error of the launch.
template <class... Parameters, class... Arguments>
void start_kernel(void (*kernel)(Parameters...), unsigned blocks, int threads, cudaStream_t stream,
                  const Arguments&... arguments) {
  // Rounded up: each parameter begins at a multiple of its alignment, 16 bytes at most.
  static_assert((std::size_t{0} + ... + (sizeof(Parameters) + alignof(Parameters))) <= 4096,
                "a kernel's parameters have at most 4096 bytes");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

/// The multiprocessors of the current device.
inline int processors() {
  int device = 0;
  int processors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  return processors;
}
/// The number of blocks of a grid-stride loop on the current device: blocks_needed, limited to 32 a
/// multiprocessor.
inline unsigned blocks_for(std::int64_t blocks_needed) {
  const std::int64_t most = std::int64_t{32} * processors();
  return static_cast<unsigned>(blocks_needed < most ? blocks_needed : most);
}

/// Returns whether rounding starts from binary64: for an fp64 input, or a grid outside binary32's
/// range.
inline bool needs_binary64(const RoundPlan& plan, const Strided& x) {
  return plan.wide || x.dtype == DType::f64;
}

#define CPD_OP(name, Call) int name(const Launch& launch, const Call& call);
#include "cpd/backend/operations.def"

void use_allocator_at(const std::atomic<const Allocator*>& place);
/// The bytes that this thread's last call of `allocate` lacked, as text; empty where it lacked
/// none, and once it has been returned.
std::string take_lack();
int allocate(const Launch& launch, MemoryKind kind, std::int64_t bytes, void** memory);
int release(const Launch& launch, MemoryKind kind, void* memory);
int release_unused(int device);
int copy(const Launch& launch, void* to, const void* from, std::int64_t bytes);
int clear(const Launch& launch, void* memory, std::int64_t bytes);
int open_stream(int device, void** stream);
int close_stream(int device, void* stream);
int order(const Launch& launch, void* after);
int wait(const Launch& launch);
ProductPath product_path(const AccumulatorPlan& plan, bool given);

/// Device memory allocated in stream order (MemoryKind::queued).
template <class T>
class Array {
 public:
  Array(const Launch& launch, std::int64_t n) : launch_(launch), bytes_(n * sizeof(T)) {
    void* memory = nullptr;
    status_ = static_cast<cudaError_t>(allocate(launch, MemoryKind::queued, bytes_, &memory));
    memory_ = static_cast<T*>(memory);
  }
  ~Array() {
    if (memory_ != nullptr) release(launch_, MemoryKind::queued, memory_);
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  [[nodiscard]] cudaError_t status() const { return status_; }
  [[nodiscard]] T* data() const { return memory_; }
  /// Copies `from`, which may be freed when this returns, to the array.
  void fill(const T* from) {
    if (status_ != cudaSuccess || bytes_ == 0) return;
    status_ = cudaMemcpyAsync(memory_, from, bytes_, cudaMemcpyHostToDevice, stream());
  }
  void clear() {
    if (status_ == cudaSuccess) status_ = cudaMemsetAsync(memory_, 0, bytes_, stream());
  }
  /// Copies the array to `to` and waits for the stream's work.
  cudaError_t read(T* to) {
    const cudaError_t copied =
        cudaMemcpyAsync(to, memory_, bytes_, cudaMemcpyDeviceToHost, stream());
    return copied == cudaSuccess ? cudaStreamSynchronize(stream()) : copied;
  }

 private:
  [[nodiscard]] cudaStream_t stream() const { return static_cast<cudaStream_t>(launch_.stream); }

  Launch launch_;
  std::size_t bytes_;
  T* memory_ = nullptr;
  cudaError_t status_ = cudaSuccess;
};

}  // namespace cpd::cuda
