// SPDX-License-Identifier: Apache-2.0
//
// Functions for launches and device memory that all kernels share, in addition to strided.h.
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

/// Makes a device the thread's current device while the object lives. Also clears the last CUDA
/// error, so that cudaGetLastError reports only errors of launches after this object's creation.
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

/// Queues a kernel on a stream. Afterwards cudaGetLastError returns an error of the launch.
template <class... Parameters, class... Arguments>
void start_kernel(void (*kernel)(Parameters...), unsigned blocks, int threads, cudaStream_t stream,
                  const Arguments&... arguments) {
  // The sum of the sizes and alignments of a kernel's parameters is an upper bound of the bytes
  // that they take, because each parameter begins at a multiple of its alignment.
  static_assert((std::size_t{0} + ... + (sizeof(Parameters) + alignof(Parameters))) <= 4096,
                "a kernel's parameters have at most 4096 bytes");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

/// Returns the number of multiprocessors of the current device.
inline int processors() {
  int device = 0;
  int processors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  return processors;
}
/// Returns the number of thread blocks for a grid-stride loop on the current device: blocks_needed,
/// but at most 32 for each multiprocessor.
inline unsigned blocks_for(std::int64_t blocks_needed) {
  const std::int64_t most = std::int64_t{32} * processors();
  return static_cast<unsigned>(blocks_needed < most ? blocks_needed : most);
}

/// Returns whether values must be rounded from binary64: for an fp64 input, or for a format with
/// values outside binary32's range.
inline bool needs_binary64(const RoundPlan& plan, const Strided& x) {
  return plan.wide || x.dtype == DType::f64;
}

#define CPD_OP(name, Call) int name(const Launch& launch, const Call& call);
#include "cpd/backend/operations.def"

void use_allocator_at(const std::atomic<const Allocator*>& place);
/// Returns a text on the bytes that this thread's last call of `allocate` could not get, and clears
/// the text. The text is empty if no bytes were lacking.
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

/// An array in device memory that is allocated in stream order (MemoryKind::queued).
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
  /// Copies `from` to the array. `from` may be freed when the function returns.
  void fill(const T* from) {
    if (status_ != cudaSuccess || bytes_ == 0) return;
    status_ = cudaMemcpyAsync(memory_, from, bytes_, cudaMemcpyHostToDevice, stream());
  }
  void clear() {
    if (status_ == cudaSuccess) status_ = cudaMemsetAsync(memory_, 0, bytes_, stream());
  }
  /// Copies the array to `to` and waits until the stream has finished.
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
