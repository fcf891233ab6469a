// SPDX-License-Identifier: Apache-2.0
//
// Tests the CUDA emulation: it runs kernels as a GPU does, and ends the process where a GPU's
// result is undefined. The order of threads (CPD_THREAD_ORDER) changes no result.
#include <dlfcn.h>
#include <gtest/gtest.h>  // before CUDA's words

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "kernels/cuda/device.cuh"
#include "tests/testing/cuda_on_cpu/cuda_fp16.h"
#include "tests/testing/cuda_on_cpu/cuda_runtime.h"
#include "tests/testing/cuda_on_cpu/memory.h"
#include "tests/testing/sanitized.h"

namespace {

using cpd::cuda::start_kernel;

constexpr int kThreads = 64;

/// Sets out[i] to the sum of the block's values of x, using shared memory and a collective of a
/// warp.
__global__ void sum_of_block(const unsigned* x, unsigned* out) {
  __shared__ unsigned total;
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  const unsigned sum = __reduce_add_sync(0xFFFFFFFFU, x[i]);
  if (threadIdx.x % 32 == 0) atomicAdd(&total, sum);
  __syncthreads();
  out[i] = total;
}

/// Swaps neighboring values through shared memory. If `waits` is true, a barrier separates the
/// write from the read.
__global__ void swap_pairs(bool waits, unsigned* x) {
  __shared__ unsigned values[kThreads];
  values[threadIdx.x] = x[threadIdx.x];
  if (waits) __syncthreads();
  x[threadIdx.x] = values[threadIdx.x ^ 1];
}

__global__ void barrier_for_some() {
  if (threadIdx.x != 7) __syncthreads();
}
__global__ void different_collectives() {
  if (threadIdx.x % 2 == 0) {
    __reduce_max_sync(0xFFFFFFFFU, 1);
  } else {
    __reduce_min_sync(0xFFFFFFFFU, 1);
  }
}
__global__ void barrier_against_collective() {
  if (threadIdx.x < 5) {
    __syncthreads();
  } else {
    __reduce_or_sync(0xFFFFFFFFU, 1);
  }
}
__global__ void part_of_a_warp() { __reduce_or_sync(0xFFFFU, 1); }
__global__ void write_at(std::uint8_t* to, int at) { to[at] = 1; }
__global__ void read_shared(unsigned* to) {
  __shared__ unsigned nothing;
  if (to == nullptr) nothing = 1;  // else the compiler knows that it is 0
  *to = nothing;
}
__global__ void write_shared_at(int at, std::uint8_t* to) {
  __shared__ std::uint8_t values[8];
  values[at] = 0x3C;
  *to = values[7];
}
struct Large {
  char bytes[4097];
};
__global__ void with_large(Large) {}

template <class T>
class OnDevice {
 public:
  explicit OnDevice(std::size_t n) : n_(n) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, n * sizeof(T)), cudaSuccess);
    data_ = static_cast<T*>(memory);
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  [[nodiscard]] T* data() const { return data_; }
  void Write(const std::vector<T>& values) const {
    cudaMemcpyAsync(data_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice, nullptr);
  }
  [[nodiscard]] std::vector<T> Read() const {
    std::vector<T> values(n_);
    cudaMemcpyAsync(values.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost, nullptr);
    return values;
  }

 private:
  std::size_t n_;
  T* data_ = nullptr;
};

/// Runs a kernel with one block and waits until it has ended.
template <class Kernel, class... Arguments>
void run(Kernel kernel, const Arguments&... arguments) {
  start_kernel(kernel, 1, kThreads, nullptr, arguments...);
  cudaStreamSynchronize(nullptr);
}

/// Converting an fp16 number to float and back gives the number. Any NaN becomes the NaN that the
/// instructions give.
TEST(CudaOnCpu, Halves) {
  for (unsigned code = 0; code < 0x10000; ++code) {
    const bool is_nan = (code & 0x7FFFU) > 0x7C00U;
    const float value = __half2float(__ushort_as_half(static_cast<std::uint16_t>(code)));
    EXPECT_EQ(value != value, is_nan);
    EXPECT_EQ(__half_as_ushort(__float2half_rn(value)), is_nan ? 0x7FFFU : code);
  }
  EXPECT_EQ(__half2float(__ushort_as_half(0x3555)), 0.333251953125F);
  const __half2 both = __floats2half2_rn(1.0F, -65520.0F);  // the second rounds to infinity
  EXPECT_EQ(both.x.code, 0x3C00);
  EXPECT_EQ(both.y.code, 0xFC00);
  EXPECT_EQ(__vminu2(0x00050007, 0x00060003), 0x00050003U);
}

TEST(CudaOnCpu, BarriersSharedMemoryAndCollectives) {
  const OnDevice<unsigned> x(3 * kThreads);
  const OnDevice<unsigned> out(3 * kThreads);
  std::vector<unsigned> values(3 * kThreads);
  for (unsigned i = 0; i < values.size(); ++i) values[i] = i;
  x.Write(values);
  start_kernel(sum_of_block, 3, kThreads, nullptr, x.data(), out.data());
  const std::vector<unsigned> got = out.Read();
  for (unsigned i = 0; i < got.size(); ++i) {
    const unsigned first = i / kThreads * kThreads;
    EXPECT_EQ(got[i], kThreads * first + kThreads * (kThreads - 1) / 2) << i;
  }
}

/// If a kernel swaps neighboring values in shared memory without a barrier between write and read,
/// the results are wrong in every order of the threads.
TEST(CudaOnCpu, AMissingBarrierChangesResults) {
  const OnDevice<unsigned> x(kThreads);
  std::vector<unsigned> values(kThreads);
  std::vector<unsigned> swapped(kThreads);
  for (unsigned i = 0; i < kThreads; ++i) swapped[i ^ 1] = values[i] = 100 + i;
  x.Write(values);
  run(swap_pairs, true, x.data());
  EXPECT_EQ(x.Read(), swapped);
  x.Write(values);
  run(swap_pairs, false, x.data());
  EXPECT_NE(x.Read(), swapped);
}

TEST(CudaOnCpu, MemoryIsPoisonedWhenNew) {
  const OnDevice<unsigned> out(2);
  EXPECT_EQ(out.Read()[1], 0xA5A5A5A5U);
  run(read_shared, out.data());
  EXPECT_EQ(out.Read()[0], 0xA5A5A5A5U);
}

TEST(CudaOnCpu, StreamsRunAsLateAsTheyMay) {
  const OnDevice<std::uint8_t> x(4);
  cudaStream_t first = nullptr;
  cudaStream_t second = nullptr;
  cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
  cudaMemsetAsync(x.data(), 7, 4, first);
  EXPECT_EQ(x.Read()[0], 0xA5);  // nobody has waited
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, first);
  cudaMemsetAsync(x.data(), 8, 4, first);
  cudaStreamWaitEvent(second, event, 0);
  cudaEventDestroy(event);
  cudaStreamSynchronize(second);
  EXPECT_EQ(x.Read()[0], 7);  // up to the event, no further
  cudaStreamSynchronize(first);
  EXPECT_EQ(x.Read()[0], 8);
  cudaStreamDestroy(first);
  cudaStreamDestroy(second);
}

/// IsKnown tells pageable memory from pinned memory, also while another thread allocates and frees
/// pinned memory. With a wrong answer, a copy from pageable memory might be made too late, when the
/// memory holds other values.
TEST(CudaOnCpu, WhatMemoryIsDoesNotDependOnOtherThreads) {
  using cuda_on_cpu::Memory;
  std::atomic<bool> ends = false;
  std::thread other([&] {
    std::array<void*, 64> pieces{};
    for (void*& piece : pieces) piece = Memory::AllocatePinned(64);
    for (std::size_t turn = 0; !ends; ++turn) {
      void*& piece = pieces[turn % pieces.size()];
      Memory::FreePinned(piece);
      piece = Memory::AllocatePinned(64);
    }
    for (void* piece : pieces) Memory::FreePinned(piece);
  });
  const std::vector<std::uint8_t> pageable(64);
  void* pinned = Memory::AllocatePinned(64);
  int wrong = 0;
  for (int turn = 0; turn < 1000000; ++turn) {
    if (Memory::IsKnown(pageable.data()) || !Memory::IsKnown(pinned)) ++wrong;
  }
  EXPECT_EQ(wrong, 0);
  ends = true;
  other.join();
  Memory::FreePinned(pinned);
}

TEST(CudaOnCpu, LaunchesBeyondTheLimitsAreErrors) {
  const auto status_of = [](auto kernel, unsigned blocks, int threads, const auto&... arguments) {
    start_kernel(kernel, blocks, threads, nullptr, arguments...);
    return cudaGetLastError();
  };
  EXPECT_EQ(status_of(barrier_for_some, 0, 32), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status_of(barrier_for_some, 0x80000000U, 32), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status_of(barrier_for_some, 1, 1025), cudaErrorInvalidConfiguration);
  cudaLaunchConfig_t config;  // start_kernel does not compile with 4097 bytes of parameters
  cudaLaunchKernelEx(&config, with_large, Large{});
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, std::size_t{1} << 40), cudaErrorMemoryAllocation);
  cudaGetLastError();
}

/// Returns the pattern of the message with which a process must end: `message`, the emulation's
/// own. Under a sanitizer, which may detect the fault first, the sanitizer's messages match.
std::string ours(const std::string& message) {
  return cpd::testing::kSanitized ? "Sanitizer|runtime error" : message;
}

TEST(CudaOnCpuDeathTest, WhatNoGpuDefinesEndsTheProcess) {
  EXPECT_DEATH(run(barrier_for_some),
               "63 of 64 threads are at a barrier, the others have ended.*barrier_for_some");
  EXPECT_DEATH(run(different_collectives), "lanes of a warp are at different collectives");
  EXPECT_DEATH(run(barrier_against_collective),
               "at a barrier, others wait for lanes of their warp");
  EXPECT_DEATH(run(part_of_a_warp), "a collective of a part of a warp");
}

TEST(CudaOnCpuDeathTest, SharedMemoryIsTheKernelsOwn) {
  const OnDevice<std::uint8_t> to(1);
  run(write_shared_at, 7, to.data());
  for (const int at : {8, 200}) {
    EXPECT_DEATH(run(write_shared_at, at, to.data()),
                 ours("a byte beside the shared memory has changed.*write_shared_at"));
  }
}

TEST(CudaOnCpuDeathTest, MemoryIsTheDevices) {
  const auto beyond = [](int at) {
    const OnDevice<std::uint8_t> x(5);
    run(write_at, x.data(), at);
  };
  beyond(4);
  EXPECT_DEATH(beyond(5), ours("a kernel wrote 1 bytes beyond a piece of 5"));
  EXPECT_DEATH(beyond(260), ours("a kernel wrote 256 bytes beyond a piece of 5"));
  const OnDevice<std::uint8_t> x(5);
  EXPECT_DEATH(x.data()[0] = 1, "");  // the host's hands off
  EXPECT_DEATH(cudaFree(x.data() + 1), "freed that is not allocated");
}

}  // namespace
