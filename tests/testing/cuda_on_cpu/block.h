// SPDX-License-Identifier: Apache-2.0
//
// Runs the threads of a CUDA block as fibers of one host thread. Each fiber runs until its thread
// ends or waits for others. If some threads miss a barrier, or lanes of a warp are at different
// collectives, a GPU's behavior is undefined. The process then ends with the kernel's name.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// CUDA's built-in variables of the running thread.
extern thread_local uint3 threadIdx;
extern thread_local uint3 blockIdx;
extern thread_local dim3 gridDim;
extern thread_local dim3 blockDim;

namespace cuda_on_cpu {

/// The order in which the threads of a block and the blocks of a grid begin and continue.
enum class ThreadOrder : std::uint8_t { ascending, descending, shuffled };

enum class Collective : std::uint8_t { max, min, bit_or, bit_xor, add, shuffle };

/// __syncthreads.
void barrier();
/// __syncthreads_and.
bool barrier_and(bool value);

/// The number of fused operations on pairs of 16-bit floats (cuda_halves.h) since the process
/// began.
extern std::uint64_t half_fmas;

/// Combines the values of all 32 lanes of a warp, and returns the result on each lane. `lanes` must
/// be the mask of all lanes.
unsigned collect(Collective operation, unsigned lanes, unsigned value);
/// Returns the value that lane number `from` modulo 32 of the calling warp has passed.
unsigned shuffle(unsigned lanes, unsigned value, unsigned from);

/// Runs `thread` for each thread of the block blockIdx. `kernel` is the address of the kernel's
/// code.
void run_block(const void* kernel, ThreadOrder order, const std::function<void()>& thread);

/// Returns the kernel whose block this host thread runs; null if it runs none.
const void* running_kernel();

/// Returns the name of the kernel at an address. The name is read with binutils, because many
/// kernels are in unnamed namespaces, for which dladdr gives no name.
std::string name_of(const void* kernel);

/// Ends the process, because a kernel or its caller did something that is undefined on a GPU.
[[noreturn]] void fail(const std::string& why);
/// Ends the process like `fail`. The message also names the kernel whose code is at `kernel`.
[[noreturn]] void fail_in(const void* kernel, const std::string& why);

}  // namespace cuda_on_cpu
