// SPDX-License-Identifier: Apache-2.0
//
// Emulates on a CPU the parts of CUDA's language and runtime that kernels/cuda uses. This file
// replaces nvcc's header of the same name. Names, values and meanings are as in the CUDA 13 Runtime
// API. block.h emulates the threads of a block, memory.h memory, and runtime.cpp streams.
#pragma once

// This include must come before the macros below, because the standard headers have attributes with
// the names of these macros.
#include <algorithm>
#include <array>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/testing/cuda_on_cpu/block.h"

// ---- the language -------------------------------------------------------------------------------

#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define CUDART_VERSION 13000
#define __global__
#define __device__
#define __host__
/// A thread of the host runs one block at a time, so shared memory is thread-local. shared_memory.h
/// fills it with 0xA5 before each launch, and checks the bytes beside it after each block.
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__

struct alignas(16) float4 {
  float x, y, z, w;
};

inline void __syncthreads() { cuda_on_cpu::barrier(); }
inline int __syncthreads_and(int value) { return cuda_on_cpu::barrier_and(value != 0) ? 1 : 0; }

inline unsigned __reduce_max_sync(unsigned lanes, unsigned value) {
  return cuda_on_cpu::collect(cuda_on_cpu::Collective::max, lanes, value);
}
inline unsigned __reduce_min_sync(unsigned lanes, unsigned value) {
  return cuda_on_cpu::collect(cuda_on_cpu::Collective::min, lanes, value);
}
inline unsigned __reduce_or_sync(unsigned lanes, unsigned value) {
  return cuda_on_cpu::collect(cuda_on_cpu::Collective::bit_or, lanes, value);
}
inline unsigned __reduce_xor_sync(unsigned lanes, unsigned value) {
  return cuda_on_cpu::collect(cuda_on_cpu::Collective::bit_xor, lanes, value);
}
inline unsigned __reduce_add_sync(unsigned lanes, unsigned value) {
  return cuda_on_cpu::collect(cuda_on_cpu::Collective::add, lanes, value);
}
template <class T>
T __shfl_sync(unsigned lanes, T value, int from) {
  const auto bits = std::bit_cast<unsigned>(value);
  return std::bit_cast<T>(cuda_on_cpu::shuffle(lanes, bits, static_cast<unsigned>(from)));
}
template <class T>
T __shfl_xor_sync(unsigned lanes, T value, int difference) {
  return __shfl_sync(lanes, value, static_cast<int>(threadIdx.x) ^ difference);
}

namespace cuda_on_cpu {

/// Returns a · b + c, rounded once in a direction of <cfenv>. A NaN result is a GPU's NaN, whose
/// bits are all set except the sign.
template <int kDirection>
float fma_toward(float a, float b, float c) {
  const int before = std::fegetround();
  std::fesetround(kDirection);
  volatile float x = a;  // not folded, nor moved past the changes of mode
  volatile float result = __builtin_fmaf(x, b, c);
  std::fesetround(before);
  return result == result ? result : std::bit_cast<float>(0x7FFFFFFF);
}

}  // namespace cuda_on_cpu

inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float __fmaf_rz(float a, float b, float c) {
  return cuda_on_cpu::fma_toward<FE_TOWARDZERO>(a, b, c);
}
inline float __fadd_rz(float a, float b) { return __fmaf_rz(a, 1.0F, b); }
inline float __fmul_rz(float a, float b) {
  return __fmaf_rz(a, b, __builtin_copysignf(0.0F, __builtin_copysignf(1.0F, a) * b));
}
inline float __fmaf_rd(float a, float b, float c) {
  return cuda_on_cpu::fma_toward<FE_DOWNWARD>(a, b, c);
}
inline float __fmaf_ru(float a, float b, float c) {
  return cuda_on_cpu::fma_toward<FE_UPWARD>(a, b, c);
}

/// Returns max(a + b, c) in each half of the words, as signed 16-bit integers. The sums wrap.
inline unsigned __viaddmax_s16x2(unsigned a, unsigned b, unsigned c) {
  const auto half = [=](int shift) {
    const auto sum = static_cast<short>((a >> shift) + (b >> shift));
    const auto other = static_cast<short>(c >> shift);
    return static_cast<unsigned>(static_cast<unsigned short>(sum > other ? sum : other)) << shift;
  };
  return half(0) | half(16);
}

// Atomic operations need no atomic instructions here: the threads of a block take turns, and only
// one thread of the host runs kernels at a time.
template <class T>
T atomicMax(T* to, T value) {
  return std::exchange(*to, std::max(*to, value));
}
template <class T>
T atomicMin(T* to, T value) {
  return std::exchange(*to, std::min(*to, value));
}
template <class T, class V>
T atomicAdd(T* to, V value) {
  return std::exchange(*to, static_cast<T>(*to + value));
}
template <class T>
T atomicOr(T* to, T value) {
  return std::exchange(*to, *to | value);
}
template <class T>
T atomicXor(T* to, T value) {
  return std::exchange(*to, *to ^ value);
}

// ---- the runtime --------------------------------------------------------------------------------

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorStreamCaptureUnsupported = 900,
};
enum cudaMemcpyKind : int {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDefault = 4
};
enum cudaDeviceAttr : int { cudaDevAttrMultiProcessorCount = 16 };
enum cudaMemAllocationType : int { cudaMemAllocationTypePinned = 1 };
enum cudaMemLocationType : int { cudaMemLocationTypeDevice = 1 };
enum cudaMemPoolAttr : int { cudaMemPoolAttrReleaseThreshold = 4 };
enum cudaStreamCaptureMode : int { cudaStreamCaptureModeRelaxed = 2 };
enum cudaStreamCaptureStatus : int {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1
};
constexpr unsigned cudaHostAllocPortable = 1;
constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDisableTiming = 2;

namespace cuda_on_cpu {
class Stream;
struct Event;
struct Pool;
}  // namespace cuda_on_cpu

using cudaStream_t = cuda_on_cpu::Stream*;
using cudaEvent_t = cuda_on_cpu::Event*;
using cudaMemPool_t = cuda_on_cpu::Pool*;

struct cudaMemPoolProps {
  cudaMemAllocationType allocType{};
  struct {
    cudaMemLocationType type{};
    int id = 0;
  } location;
};

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t status);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream);
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t bytes_kept);
cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventDestroy(cudaEvent_t event);

namespace cuda_on_cpu {

/// Queues a grid of thread blocks. If no GPU from sm_80 on accepts the launch, sets the last error
/// and queues nothing. `kernel` is the address of the kernel's code. The thread-local variables of
/// the library that contains this code serve as the kernel's shared memory.
cudaError_t queue_grid(const cudaLaunchConfig_t& config, std::size_t parameter_bytes,
                       const void* kernel, std::function<void()> thread);

/// Returns how many times a device's pools were asked to release their memory.
int trims(int device);

/// Sets whether streams behave as while a CUDA graph is captured: work may be queued, but waiting
/// is an error.
void set_capturing(bool capturing);

/// Queues work of a library on a stream, in order with the stream's kernels.
void queue_work(cudaStream_t stream, std::function<void()> work);
/// A stream's device.
int device_of(cudaStream_t stream);

}  // namespace cuda_on_cpu

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  std::tuple<std::remove_cv_t<Parameters>...> copies(std::forward<Arguments>(arguments)...);
  return cuda_on_cpu::queue_grid(
      *config, (std::size_t{0} + ... + sizeof(Parameters)), reinterpret_cast<const void*>(kernel),
      [kernel, copies = std::move(copies)] { std::apply(kernel, copies); });
}
