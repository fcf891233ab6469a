// SPDX-License-Identifier: Apache-2.0
//
// Tests two devices of the CUDA emulation. If a device is given an object of the other device, the
// emulation returns CUDA's error. Where CUDA would make the device unusable, the emulation ends the
// process (runtime.cpp has the list).
#include <gtest/gtest.h>  // before CUDA's words

#include <array>
#include <cstdint>
#include <thread>

#include "kernels/cuda/device.cuh"
#include "tests/testing/cuda_on_cpu/cuda_fp16.h"
#include "tests/testing/cuda_on_cpu/cuda_runtime.h"
#include "tests/testing/sanitized.h"

extern "C" {
int cublasCreate_v2(void** handle);
int cublasSetStream_v2(void* handle, cudaStream_t stream);
int cublasSgemmStridedBatched(void* handle, int op_a, int op_b, int m, int n, int k,
                              const float* alpha, const float* a, int lda, long long stride_a,
                              const float* b, int ldb, long long stride_b, const float* beta,
                              float* c, int ldc, long long stride_c, int batch);
}

namespace {

using cpd::cuda::OnDevice;
using cpd::cuda::start_kernel;

__global__ void set_first(std::uint8_t* to, std::uint8_t value) { *to = value; }

/// Allocates four bytes on a device.
std::uint8_t* allocate(int device) {
  const OnDevice on(device);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  return static_cast<std::uint8_t*>(memory);
}

cudaStream_t new_stream(int device) {
  const OnDevice on(device);
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

/// Returns the first byte of `memory`, after the stream has done its queued work.
int first_of(const std::uint8_t* memory, cudaStream_t stream) {
  std::uint8_t value = 0;
  EXPECT_EQ(cudaMemcpyAsync(&value, memory, 1, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  return value;
}

int current_device() {
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  return device;
}

TEST(DevicesOnCpu, EachThreadHasACurrentDevice) {
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  std::thread([] { EXPECT_EQ(current_device(), 0); }).join();
  EXPECT_EQ(current_device(), 1);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  for (const int none : {-1, 2}) EXPECT_EQ(cudaSetDevice(none), cudaErrorInvalidDevice);
  EXPECT_EQ(current_device(), 0);
  int value = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 2),
            cudaErrorInvalidDevice);
  cudaGetLastError();
}

TEST(DevicesOnCpu, LaunchesAndEventsAreOfTheStreamsDevice) {
  std::uint8_t* const memory = allocate(1);
  const cudaStream_t stream = new_stream(1);
  const auto launched = [&] {
    start_kernel(set_first, 1, 1, stream, memory, std::uint8_t{7});
    return cudaGetLastError();
  };
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(launched(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  {
    const OnDevice on(1);
    EXPECT_EQ(launched(), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);  // made on the first
    cudaEventDestroy(event);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  }
  // A stream of any device may wait for an event, whichever device is current.
  const cudaStream_t other = new_stream(0);
  EXPECT_EQ(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(first_of(memory, new_stream(1)), 7);
  cudaEventDestroy(event);
  cudaFree(memory);
}

/// A null stream is the default stream of the current device. Waiting for a device does not wait
/// for the other device.
TEST(DevicesOnCpu, EachHasItsDefaultStream) {
  const std::array memory{allocate(0), allocate(1)};
  for (const int device : {0, 1}) {
    const OnDevice on(device);
    start_kernel(set_first, 1, 1, nullptr, memory[static_cast<std::size_t>(device)],
                 static_cast<std::uint8_t>(device));
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(first_of(memory[0], new_stream(0)), 0);
  EXPECT_EQ(first_of(memory[1], new_stream(1)), 0xA5);
  const OnDevice on(1);
  EXPECT_EQ(first_of(memory[1], nullptr), 1);
  for (std::uint8_t* piece : memory) cudaFree(piece);
}

/// Tests which copies and operations CUDA permits on a pool's memory.
TEST(DevicesOnCpu, APoolsMemoryIsItsDevices) {
  cudaMemPoolProps properties;
  properties.location.id = 2;
  cudaMemPool_t pool = nullptr;
  EXPECT_EQ(cudaMemPoolCreate(&pool, &properties), cudaErrorInvalidValue);
  properties.location.id = 1;
  EXPECT_EQ(cudaMemPoolCreate(&pool, &properties), cudaSuccess);
  const int trims = cuda_on_cpu::trims(1);
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
  EXPECT_EQ(cuda_on_cpu::trims(1), trims + 1);
  void* pooled = nullptr;
  EXPECT_EQ(cudaMallocFromPoolAsync(&pooled, 4, pool, nullptr), cudaSuccess);
  std::uint8_t* const other = allocate(1);
  const std::array<std::uint8_t, 4> bytes{1, 2, 3, 4};
  EXPECT_EQ(cudaMemcpyAsync(other, bytes.data(), 4, cudaMemcpyDefault, nullptr), cudaSuccess);
  EXPECT_EQ(first_of(other, nullptr), 1);
  EXPECT_EQ(cudaMemcpyAsync(pooled, other, 4, cudaMemcpyDefault, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(other, pooled, 4, cudaMemcpyDefault, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(other, 0, 4, nullptr), cudaErrorInvalidValue);
  cudaGetLastError();
  EXPECT_DEATH(cudaFreeAsync(pooled, nullptr),
               "memory of device 1 is freed in the order of a stream of device 0");
  const OnDevice on(1);
  EXPECT_EQ(cudaMemcpyAsync(pooled, other, 4, cudaMemcpyDefault, nullptr), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(pooled, nullptr), cudaSuccess);
  EXPECT_EQ(cudaFree(other), cudaSuccess);
}

TEST(DevicesOnCpuDeathTest, MemoryOfAnotherDeviceEndsTheProcess) {
  std::uint8_t* const memory = allocate(1);
  EXPECT_DEATH(
      {
        start_kernel(set_first, 1, 1, nullptr, memory, std::uint8_t{7});
        cudaStreamSynchronize(nullptr);
      },
      "memory of device 1 was touched by another device's kernel.*set_first");
  EXPECT_DEATH(*memory = 1, "memory of device 1 was touched by the host");
  cudaFree(memory);
}

TEST(DevicesOnCpu, AContextOfCublasIsOfADevice) {
  constexpr int kFailed = 13;
  void* handle = nullptr;
  {
    const OnDevice on(1);
    cublasCreate_v2(&handle);
  }
  const auto multiply = [&] {
    const float one = 1;
    return cublasSgemmStridedBatched(handle, 0, 0, 1, 1, 0, &one, nullptr, 1, 0, nullptr, 1, 0,
                                     &one, nullptr, 1, 0, 0);
  };
  EXPECT_EQ(multiply(), kFailed);
  const OnDevice on(1);
  EXPECT_EQ(multiply(), 0);
  cublasSetStream_v2(handle, new_stream(0));
  EXPECT_EQ(multiply(), kFailed);
}

}  // namespace
