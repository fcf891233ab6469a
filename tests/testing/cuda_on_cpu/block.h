// SPDX-License-Identifier: Apache-2.0
//
// The threads of a block, as fibers of one thread of the host: each runs until it ends or waits for
// others. What a GPU leaves undefined (a barrier that not all threads reach, lanes of a warp at
// different collectives) ends the process with the kernel's name.
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

// The variables of the running fiber.
extern thread_local uint3 threadIdx;
extern thread_local uint3 blockIdx;
extern thread_local dim3 gridDim;
extern thread_local dim3 blockDim;

namespace cuda_on_cpu {

/// The order in which a block's threads, and a grid's blocks, begin and go on.
enum class ThreadOrder : std::uint8_t { ascending, descending, shuffled };

enum class Collective : std::uint8_t { max, min, bit_or, bit_xor, add, shuffle };

/// __syncthreads.
void barrier();
/// __syncthreads_and.
bool barrier_and(bool value);

/// Fused operations on pairs of halves (cuda_halves.h) since the process began.
extern std::uint64_t half_fmas;

/// The lanes' values combined, on each of the 32 lanes of a warp; `lanes` must name them all.
unsigned collect(Collective operation, unsigned lanes, unsigned value);
/// The value of lane number `from`, modulo 32.
unsigned shuffle(unsigned lanes, unsigned value, unsigned from);

/// Runs `thread` for each thread of the block blockIdx; `kernel` is the address of its code.
void run_block(const void* kernel, ThreadOrder order, const std::function<void()>& thread);

/// The kernel of which this thread of the host runs a block, or null.
const void* running_kernel();

/// The name of the kernel at an address, by binutils: many are in unnamed namespaces, which a
/// process does not know the names of.
std::string name_of(const void* kernel);

/// Ends the process: a kernel or its caller did what no GPU defines.
[[noreturn]] void fail(const std::string& why);
/// The same, with the name of the kernel at that address.
[[noreturn]] void fail_in(const void* kernel, const std::string& why);

}  // namespace cuda_on_cpu
