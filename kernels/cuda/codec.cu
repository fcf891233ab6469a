// SPDX-License-Identifier: Apache-2.0
#include "cpd/numeric/round/codec.h"
#include "kernels/cuda/codes.cuh"

namespace cpd::cuda {
namespace {

template <Rounding mode, class V>
__global__ void __launch_bounds__(kThreads)
    encode_elements(const __grid_constant__ RoundPlan plan, Key key, std::int64_t n,
                    const __grid_constant__ Strided x, const __grid_constant__ Strided random,
                    std::uint8_t* packed, unsigned long long* first_nan) {
  encode_tiles<mode>(
      plan, source_of(plan, key, random), n, packed, [&](std::int64_t i, std::uint32_t r) {
        const V value = load_element<V>(x, i);
        if (first_nan != nullptr && value != value) note_first(first_nan, i);
        return static_cast<std::uint32_t>(round_to_whole_code<mode>(value, Unsigned<V>{r}, plan));
      });
}

template <class V>
__global__ void __launch_bounds__(kThreads)
    decode_elements(const __grid_constant__ RoundPlan plan, std::int64_t n,
                    const std::uint8_t* packed, const __grid_constant__ Strided out) {
  decode_tiles(plan.bits, n, packed, [&](std::int64_t i, std::uint32_t code) {
    store_element(out, i, value_of_code<V>(Unsigned<V>{code}, plan));
  });
}

__global__ void __launch_bounds__(kThreads)
    find_above(std::int64_t n, const __grid_constant__ Strided integers, std::uint32_t limit,
               unsigned long long* first) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    const auto* all = static_cast<const std::uint32_t*>(integers.data);
    if (all[offset_of(integers, i)] >= limit) note_first(first, i);
  }
}

template <class V>
cudaError_t launch_encode(cudaStream_t stream, const RoundPlan& plan, const Key& key,
                          std::int64_t n, const Strided& x, const Strided& random,
                          std::uint8_t* packed, unsigned long long* first_nan) {
  const unsigned blocks = blocks_for((n + kTile - 1) / kTile);
  with_mode(plan.mode, [&]<Rounding mode>() {
    start_kernel(encode_elements<mode, V>, blocks, kThreads, stream, plan, key, n, x, random,
                 packed, first_nan);
  });
  return cudaGetLastError();
}

}  // namespace

int encode(const Launch& launch, const RoundPlan& plan, const Key& key, std::int64_t n,
           const Strided& x, const Strided* random, std::uint8_t* packed,
           unsigned long long* first_nan) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const Strided given = random == nullptr ? Strided{} : *random;
  return needs_binary64(plan, x)
             ? launch_encode<double>(stream, plan, key, n, x, given, packed, first_nan)
             : launch_encode<float>(stream, plan, key, n, x, given, packed, first_nan);
}

int decode(const Launch& launch, const RoundPlan& plan, std::int64_t n, const std::uint8_t* packed,
           const Strided& out) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const unsigned blocks = blocks_for((n + kTile - 1) / kTile);
  if (plan.wide) {
    start_kernel(decode_elements<double>, blocks, kThreads, stream, plan, n, packed, out);
  } else {
    start_kernel(decode_elements<float>, blocks, kThreads, stream, plan, n, packed, out);
  }
  return cudaGetLastError();
}

int first_above(const Launch& launch, std::int64_t n, const Strided& integers, std::uint32_t limit,
                unsigned long long* first) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  start_kernel(find_above, blocks_for((n + kThreads - 1) / kThreads), kThreads,
               static_cast<cudaStream_t>(launch.stream), n, integers, limit, first);
  return cudaGetLastError();
}

}  // namespace cpd::cuda
