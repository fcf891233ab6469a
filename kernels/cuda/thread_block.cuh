// SPDX-License-Identifier: Apache-2.0
//
// A thread block that works in steps with a barrier after each step, and functions that start such
// kernels.
#pragma once

#include "kernels/cuda/device.cuh"

namespace cpd::cuda {

/// A thread block of kThreads threads. Each thread has an object of this class.
struct ThreadBlock {
  std::int64_t number = blockIdx.x;
  std::int64_t count = gridDim.x;

  /// Calls run(thread) on each thread, then waits for all threads of the block.
  template <class Run>
  CPD_DEVICE void each(Run run) const {
    run(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
  /// add, raise and flip update a number in global memory: a sum, a maximum, or an exclusive or.
  /// Every thread of the block must call these functions.
  CPD_DEVICE void add(unsigned long long* to, std::uint32_t value) const {
    const unsigned total = __reduce_add_sync(kAll, value);
    if (threadIdx.x % 32 == 0 && total != 0) atomicAdd(to, total);
  }
  CPD_DEVICE void raise(std::uint32_t* to, std::uint32_t value) const {
    const unsigned most = __reduce_max_sync(kAll, value);
    if (threadIdx.x % 32 == 0 && most != 0) atomicMax(to, most);
  }
  CPD_DEVICE void flip(std::uint32_t* to, std::uint32_t value) const {
    const unsigned together = __reduce_xor_sync(kAll, value);
    if (threadIdx.x % 32 == 0 && together != 0) atomicXor(to, together);
  }
  /// Adds `count` to *to. Other threads need not call it. `to` may be in shared or global memory.
  template <class T>
  CPD_DEVICE void tally(T* to, T count) const {
    atomicAdd(to, count);
  }
  /// Sets *first to the minimum of *first and i.
  CPD_DEVICE void note(unsigned long long* first, std::int64_t i) const {
    atomicMin(first, static_cast<unsigned long long>(i));
  }

 private:
  static constexpr unsigned kAll = 0xFFFFFFFFU;
};

/// Starts a kernel for `tiles` tiles of work. Does nothing if there are none.
template <class Kernel, class... Arguments>
int start_tiles(const Launch& launch, Kernel kernel, std::int64_t tiles,
                const Arguments&... arguments) {
  if (tiles == 0) return cudaSuccess;
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  start_kernel(kernel, blocks_for(tiles), kThreads, static_cast<cudaStream_t>(launch.stream),
               arguments...);
  return cudaGetLastError();
}

}  // namespace cpd::cuda
