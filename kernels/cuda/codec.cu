// SPDX-License-Identifier: Apache-2.0
//
// A block of threads handles a tile of codes through shared memory: codes in for_elements' order
// (encode) or ascending (decode), a group of eight codes packed or unpacked by one thread, and
// neighbouring bytes copied by neighbouring threads.
#include "cpd/numeric/round/codec.h"
#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device.cuh"

namespace cpd::cuda {
namespace {

struct Tile {
  std::uint32_t codes[kTile];
  alignas(16) std::uint8_t bytes[4 * kTile];
};

template <Rounding mode, class V>
__global__ void __launch_bounds__(kThreads)
    encode_tiles(const __grid_constant__ RoundPlan plan, Key key, std::int64_t n,
                 const __grid_constant__ Strided x, const __grid_constant__ Strided random,
                 std::uint8_t* packed, unsigned long long* first_nan) {
  __shared__ Tile tile;
  const Source source = source_of(plan, key, random);
  const int draws = draws_of(mode, plan.random_bits);
  const int indices = kTile / (4 * draws);  // Philox indices of a tile's elements
  const std::int64_t step = std::int64_t{gridDim.x} * kTile;
  for (std::int64_t begin = std::int64_t{blockIdx.x} * kTile; begin < n; begin += step) {
    const std::int64_t first = begin / (4 * draws);
    const int count = tile_count(begin, n);
    const auto encode_element = [&](std::int64_t i, std::uint32_t r) {
      const V value = load_element<V>(x, i);
      if (first_nan != nullptr && value != value) {
        atomicMin(first_nan, static_cast<unsigned long long>(i));
      }
      tile.codes[i - begin] =
          static_cast<std::uint32_t>(round_to_whole_code<mode>(value, Unsigned<V>{r}, plan));
    };
    if constexpr (mode == Rounding::stochastic) {
      for (int at = static_cast<int>(threadIdx.x); at < indices; at += kThreads) {
        for_elements<mode>(first + at, n, plan, source, encode_element);
      }
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
        encode_element(begin + i, 0);
      }
    }
    __syncthreads();
    pack_tile(tile.codes, count, plan.bits, tile.bytes, static_cast<int>(threadIdx.x));
    __syncthreads();
    copy_bytes(packed + begin / 8 * plan.bits, tile.bytes, byte_count(count, plan.bits),
               static_cast<int>(threadIdx.x));  // complete before the next iteration's barrier
  }
}

template <class V>
__global__ void __launch_bounds__(kThreads)
    decode_tiles(const __grid_constant__ RoundPlan plan, std::int64_t n, const std::uint8_t* packed,
                 const __grid_constant__ Strided out) {
  __shared__ Tile tile;
  const std::int64_t step = std::int64_t{gridDim.x} * kTile;
  for (std::int64_t begin = std::int64_t{blockIdx.x} * kTile; begin < n; begin += step) {
    const int count = tile_count(begin, n);
    copy_bytes(tile.bytes, packed + begin / 8 * plan.bits, byte_count(count, plan.bits),
               static_cast<int>(threadIdx.x));
    __syncthreads();
    for (int g = static_cast<int>(threadIdx.x); g * kCodesPerGroup < count; g += kThreads) {
      unpack_group(tile.bytes + g * plan.bits, group_count(count, g), plan.bits,
                   tile.codes + kCodesPerGroup * g);
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      store_element(out, begin + i, value_of_code<V>(Unsigned<V>{tile.codes[i]}, plan));
    }  // complete before the next iteration's first barrier
  }
}

__global__ void __launch_bounds__(kThreads)
    find_greatest(std::int64_t n, const __grid_constant__ Strided integers, std::uint32_t* result) {
  std::uint32_t most = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    const std::uint32_t each =
        static_cast<const std::uint32_t*>(integers.data)[offset_of(integers, i)];
    most = each > most ? each : most;
  }
  most = __reduce_max_sync(0xFFFFFFFFU, most);
  if (threadIdx.x % 32 == 0) atomicMax(result, most);
}

template <class V>
cudaError_t launch_encode(cudaStream_t stream, const RoundPlan& plan, const Key& key,
                          std::int64_t n, const Strided& x, const Strided& random,
                          std::uint8_t* packed, unsigned long long* first_nan) {
  const unsigned blocks = blocks_for((n + kTile - 1) / kTile);
  with_mode(plan.mode, [&]<Rounding mode>() {
    start_kernel(encode_tiles<mode, V>, blocks, kThreads, stream, plan, key, n, x, random, packed,
                 first_nan);
  });
  return cudaGetLastError();
}

}  // namespace

int encode(const Launch& launch, const RoundPlan& plan, const Key& key, std::int64_t n,
           const Strided& x, const Strided* random, std::uint8_t* packed, std::int64_t* first_nan) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const Strided given = random == nullptr ? Strided{} : *random;
  const auto run = [&](unsigned long long* found) {
    return needs_binary64(plan, x)
               ? launch_encode<double>(stream, plan, key, n, x, given, packed, found)
               : launch_encode<float>(stream, plan, key, n, x, given, packed, found);
  };
  *first_nan = -1;
  if (plan.has_nan) return run(nullptr);
  constexpr unsigned long long kNone = ~0ULL;
  Array<unsigned long long> result(launch, 1);
  result.fill(&kNone);
  if (result.status() != cudaSuccess) return result.status();
  const cudaError_t queued = run(result.data());
  if (queued != cudaSuccess) return queued;
  unsigned long long found = kNone;
  const cudaError_t status = result.read(&found);
  if (status == cudaSuccess && found != kNone) *first_nan = static_cast<std::int64_t>(found);
  return status;
}

int decode(const Launch& launch, const RoundPlan& plan, std::int64_t n, const std::uint8_t* packed,
           const Strided& out) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const unsigned blocks = blocks_for((n + kTile - 1) / kTile);
  if (plan.wide) {
    start_kernel(decode_tiles<double>, blocks, kThreads, stream, plan, n, packed, out);
  } else {
    start_kernel(decode_tiles<float>, blocks, kThreads, stream, plan, n, packed, out);
  }
  return cudaGetLastError();
}

int greatest(const Launch& launch, std::int64_t n, const Strided& integers, std::uint32_t* result) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  Array<std::uint32_t> most(launch, 1);
  most.clear();
  if (most.status() != cudaSuccess) return most.status();
  start_kernel(find_greatest, blocks_for((n + kThreads - 1) / kThreads), kThreads, stream, n,
               integers, most.data());
  const cudaError_t queued = cudaGetLastError();
  return queued == cudaSuccess ? most.read(result) : queued;
}

}  // namespace cpd::cuda
