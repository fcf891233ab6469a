// SPDX-License-Identifier: Apache-2.0
//
// What the kernels share beside strided.h: launches.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/cuda_api.h"
#include "kernels/cuda/strided.h"

namespace cpd::cuda {

#define CPD_DEVICE __device__ __forceinline__

inline bool is_contiguous(const Strided& t, DType type) {
  return t.dtype == type && t.rank == 1 && t.stride[0] == 1;
}

// --- launches ------------------------------------------------------------------------------------

/// Makes a device the thread's current one while alive, and forgets an earlier call's error, which
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

/// Queues a kernel on a stream; what is wrong with the launch is the next cudaGetLastError.
template <class... Parameters, class... Arguments>
void start_kernel(void (*kernel)(Parameters...), unsigned blocks, int threads, cudaStream_t stream,
                  const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

/// Blocks for `work` threads' worth of grid-stride loop on the current device.
inline unsigned blocks_for(std::int64_t blocks_needed) {
  int device = 0;
  int processors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const std::int64_t most = std::int64_t{32} * processors;
  return static_cast<unsigned>(blocks_needed < most ? blocks_needed : most);
}

/// True where rounding starts from binary64: an fp64 input, or a grid that binary32 cannot work on.
inline bool needs_binary64(const RoundPlan& plan, const Strided& x) {
  return plan.wide || x.dtype == DType::f64;
}

int cast(const Launch& launch, const RoundPlan& plan, const Key& key, std::int64_t n,
         const Strided& x, const Strided* random, const Strided& out);
int encode(const Launch& launch, const RoundPlan& plan, const Key& key, std::int64_t n,
           const Strided& x, const Strided* random, std::uint8_t* packed, std::int64_t* first_nan);
int decode(const Launch& launch, const RoundPlan& plan, std::int64_t n, const std::uint8_t* packed,
           const Strided& out);
int greatest(const Launch& launch, std::int64_t n, const Strided& integers, std::uint32_t* result);
int gemm(const Launch& launch, const GemmCall& call);
int gemm_scaled(const Launch& launch, const ScaledGemmCall& call);
int first_outside(const Launch& launch, const RoundPlan& plan, std::int64_t n, const Strided& x,
                  std::int64_t* first);
int blas(const Launch& launch, const MatrixProduct& product, const char** error);
int arithmetic(const Launch& launch, const ArithmeticCall& call);
int sum(const Launch& launch, const SumCall& call);
int hadamard(const Launch& launch, const HadamardCall& call);
int allocate(const Launch& launch, MemoryKind kind, std::int64_t bytes, void** memory);
int release(const Launch& launch, MemoryKind kind, void* memory);
int copy(const Launch& launch, void* to, const void* from, std::int64_t bytes);
int open_stream(int device, void** stream);
int close_stream(int device, void* stream);
int order(const Launch& launch, void* after);
int wait(const Launch& launch);
int reduce(const Launch& launch, const ReduceCall& call);
int count(const Launch& launch, const ReduceCall& call, bool casts, SegmentCounts* counts);
int checksums(const Launch& launch, int n, const Bytes* bytes, std::uint32_t* crcs);

/// Device memory for one value, initialised, and its way back to the host.
template <class T>
class Result {
 public:
  Result(cudaStream_t stream, T initial) : stream_(stream), value_(initial) {
    status_ = cudaMallocAsync(reinterpret_cast<void**>(&memory_), sizeof(T), stream);
    if (status_ == cudaSuccess) {
      status_ = cudaMemcpyAsync(memory_, &value_, sizeof(T), cudaMemcpyHostToDevice, stream);
    }
  }
  ~Result() {
    if (memory_ != nullptr) cudaFreeAsync(memory_, stream_);
  }
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  [[nodiscard]] cudaError_t status() const { return status_; }
  [[nodiscard]] T* memory() const { return memory_; }
  /// Waits for the stream's work.
  cudaError_t read(T* to) {
    const cudaError_t copied =
        cudaMemcpyAsync(to, memory_, sizeof(T), cudaMemcpyDeviceToHost, stream_);
    return copied == cudaSuccess ? cudaStreamSynchronize(stream_) : copied;
  }

 private:
  cudaStream_t stream_;
  T value_;
  T* memory_ = nullptr;
  cudaError_t status_ = cudaSuccess;
};

}  // namespace cpd::cuda
