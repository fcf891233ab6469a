// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.cuh"

namespace cpd::cuda {
namespace {

/// Casts elements of any type and stride in any rounding mode. Visits elements in the order of
/// for_elements, in which a thread rounds all elements that use the random words of one Philox
/// index.
template <Rounding mode, class V>
__global__ void __launch_bounds__(kThreads)
    cast_elements(const __grid_constant__ RoundPlan plan, DeviceKey key, std::int64_t n,
                  const __grid_constant__ Strided x, const __grid_constant__ Strided random,
                  const __grid_constant__ Strided out) {
  const Source source = source_of(plan, key, random);
  const std::int64_t indices = indices_of(mode, plan.random_bits, n);
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; at < indices;
       at += step) {
    for_elements<mode>(at, n, plan, source, [&](std::int64_t i, std::uint32_t r) {
      store_element(out, i, round<mode>(load_element<V>(x, i), Unsigned<V>{r}, plan));
    });
  }
}

/// Casts contiguous values of one type stochastically, one Pack (four neighboring values) at a
/// time, in the order of for_elements. x and out must be aligned to 16 bytes.
template <class R, DType type>
__global__ void __launch_bounds__(kThreads)
    cast_stochastic(const __grid_constant__ RoundPlan plan, DeviceKey key, std::int64_t n,
                    const void* x, void* out) {
  const Source source = source_of(plan, key, {});
  const std::int64_t indices = indices_of(Rounding::stochastic, plan.random_bits, n);
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  auto* to = static_cast<Pack<type>*>(out);
  const auto cast = [&](float v, std::uint32_t r) { return round<R>(v, r, plan); };
  for (std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; at < indices / 4;
       at += step) {
    for_random_packs<type>(
        at, n, plan, source, x,
        [&](std::int64_t i, Pack<type> values, FourIntegers random) {
          to[i / 4] = changed<Stored::held>(values, random, cast);
        },
        [&](std::int64_t i, std::uint32_t r) {
          set_value_of<type>(out, i, cast(value_of<type>(x, i), r));
        });
  }
}

/// Casts contiguous values of one type in a mode that is not stochastic. Each thread casts one Pack
/// (four neighboring values) in each iteration. x and out must be aligned to 16 bytes.
template <class R, DType type>
__global__ void __launch_bounds__(kThreads)
    cast_packs(const __grid_constant__ RoundPlan plan, std::int64_t n, const void* x, void* out) {
  constexpr int kSize = Pack<type>::kSize;
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  const auto* from = static_cast<const Pack<type>*>(x);
  auto* to = static_cast<Pack<type>*>(out);
  for (std::int64_t i = first; i < n / kSize; i += step) {
    to[i] = changed<Stored::held>(from[i], [&](float v) { return round<R>(v, 0U, plan); });
  }
  for (std::int64_t i = n / kSize * kSize + first; i < n; i += step) {
    set_value_of<type>(out, i, round<R>(value_of<type>(x, i), 0U, plan));
  }
}

template <class R>
void cast_direct(unsigned blocks, cudaStream_t stream, const RoundPlan& plan, const DeviceKey& key,
                 std::int64_t n, const Strided& x, const Strided& out) {
  with_pack_type(x.dtype, [&]<DType type>() {
    if constexpr (R::mode == Rounding::stochastic) {
      start_kernel(cast_stochastic<R, type>, blocks, kThreads, stream, plan, key, n, x.data,
                   out.data);
    } else {
      start_kernel(cast_packs<R, type>, blocks, kThreads, stream, plan, n, x.data, out.data);
    }
  });
}

}  // namespace

int cast(const Launch& launch, const CastCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const RoundPlan& plan = *call.plan;
  const bool binary64 = needs_binary64(plan, call.x);
  const bool direct = !binary64 && call.random.data == nullptr && call.x.dtype == call.out.dtype &&
                      has_packs(call.x) && has_packs(call.out);
  const unsigned blocks = blocks_for((call.n + 16 * kThreads - 1) / (16 * kThreads));
  with_mode(plan.mode, [&]<Rounding mode>() {
    if (direct) {
      with_form<mode>(plan.form, [&]<class R>() {
        cast_direct<R>(blocks, stream, plan, call.key, call.n, call.x, call.out);
      });
    } else {
      start_kernel(binary64 ? cast_elements<mode, double> : cast_elements<mode, float>, blocks,
                   kThreads, stream, plan, call.key, call.n, call.x, call.random, call.out);
    }
  });
  return cudaGetLastError();
}

}  // namespace cpd::cuda
