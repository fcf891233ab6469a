// SPDX-License-Identifier: Apache-2.0
#include "cpd/numeric/round/codec.h"
#include "kernels/cuda/codes.cuh"

namespace cpd::cuda {
namespace {

template <Rounding mode, class V>
__global__ void __launch_bounds__(kThreads)
    encode_elements(const __grid_constant__ RoundPlan plan, DeviceKey key, std::int64_t n,
                    const __grid_constant__ Strided x, const __grid_constant__ Strided random,
                    std::uint8_t* packed, unsigned long long* first_nan) {
  encode_tiles<mode>(
      plan, source_of(plan, key, random), n, packed, [&](std::int64_t i, std::uint32_t r) {
        const V value = load_element<V>(x, i);
        if (first_nan != nullptr && value != value) note_first(first_nan, i);
        return static_cast<std::uint32_t>(round_to_whole_code<mode>(value, Unsigned<V>{r}, plan));
      });
}

/// Returns the code of x. If x is a NaN, records its index i in *first_nan.
template <class R>
CPD_DEVICE std::uint32_t noted_code(float x, std::int64_t i, std::uint32_t random,
                                    const RoundPlan& plan, unsigned long long* first_nan) {
  if (first_nan != nullptr && x != x) note_first(first_nan, i);
  return round_to_whole_code<R>(x, random, plan);
}

/// Encodes contiguous values of one type stochastically.
template <class R, DType type>
__global__ void __launch_bounds__(kThreads)
    encode_stochastic(const __grid_constant__ RoundPlan plan, DeviceKey key, std::int64_t n,
                      const void* x, std::uint8_t* packed, unsigned long long* first_nan) {
  encode_tiles<R::mode>(plan, source_of(plan, key, {}), n, packed,
                        [&](std::int64_t i, std::uint32_t r) {
                          return noted_code<R>(value_of<type>(x, i), i, r, plan, first_nan);
                        });
}

/// Returns the codes of the four elements of a Pack that begins at index i. Records the first NaN
/// without a code in *first_nan.
template <class R, DType type>
CPD_DEVICE FourCodes noted_codes(Pack<type> v, std::int64_t i, const RoundPlan& plan,
                                 unsigned long long* first_nan) {
  return {{noted_code<R>(v.get(0), i, 0, plan, first_nan),
           noted_code<R>(v.get(1), i + 1, 0, plan, first_nan),
           noted_code<R>(v.get(2), i + 2, 0, plan, first_nan),
           noted_code<R>(v.get(3), i + 3, 0, plan, first_nan)}};
}

/// Encodes contiguous values of one type in a mode that is not stochastic; a thread encodes one
/// Pack (four neighboring values) at a time. x must be aligned to 16 bytes. `fours`: writes four
/// codes at a time, which has_four_codes must allow.
template <class R, DType type>
__global__ void __launch_bounds__(kThreads)
    encode_packs(const __grid_constant__ RoundPlan plan, std::int64_t n, const void* x,
                 std::uint8_t* packed, unsigned long long* first_nan, bool fours) {
  const auto* packs = static_cast<const Pack<type>*>(x);
  const auto one = [&](std::int64_t i) {
    return noted_code<R>(value_of<type>(x, i), i, 0, plan, first_nan);
  };
  if (fours) {
    const auto four = [&](std::int64_t q) {
      return noted_codes<R>(packs[q], 4 * q, plan, first_nan);
    };
    return pack_fours(plan.bits, n, packed, four, one);
  }
  const auto fill = [&](std::int64_t begin, int count, std::uint32_t* codes) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int q = thread; q < count / 4; q += kThreads) {
      const std::int64_t i = begin + 4 * q;
      reinterpret_cast<FourCodes*>(codes)[q] = noted_codes<R>(packs[i / 4], i, plan, first_nan);
    }
    for (int i = count / 4 * 4 + thread; i < count; i += kThreads) codes[i] = one(begin + i);
  };
  pack_tiles(plan.bits, n, packed, fill);
}

/// Decodes to contiguous values of one type; a thread decodes one Pack (four neighboring values) at
/// a time. out must be aligned to 16 bytes. `fours`: reads four codes at a time, which
/// has_four_codes must allow.
template <class R, DType type>
__global__ void __launch_bounds__(kThreads)
    decode_packs(const __grid_constant__ RoundPlan plan, std::int64_t n, const std::uint8_t* packed,
                 void* out, bool fours) {
  auto* packs = static_cast<Pack<type>*>(out);
  const auto four = [&](std::int64_t q, FourCodes c) {
    Pack<type> values;
    values.set(value_of_code<R, float>(c.code[0], plan), value_of_code<R, float>(c.code[1], plan),
               value_of_code<R, float>(c.code[2], plan), value_of_code<R, float>(c.code[3], plan));
    packs[q] = values;
  };
  const auto one = [&](std::int64_t i, std::uint32_t code) {
    set_value_of<type>(out, i, value_of_code<R, float>(code, plan));
  };
  if (fours) return unpack_fours(plan.bits, n, packed, four, one);
  const auto take = [&](std::int64_t begin, int count, const std::uint32_t* codes) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int q = thread; q < count / 4; q += kThreads) {
      four(begin / 4 + q, reinterpret_cast<const FourCodes*>(codes)[q]);
    }
    for (int i = count / 4 * 4 + thread; i < count; i += kThreads) one(begin + i, codes[i]);
  };
  unpack_tiles(plan.bits, n, packed, take);
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
cudaError_t launch_encode(cudaStream_t stream, const RoundPlan& plan, const DeviceKey& key,
                          std::int64_t n, const Strided& x, const Strided& random,
                          std::uint8_t* packed, unsigned long long* first_nan) {
  const unsigned blocks = blocks_for(tiles_of(n));
  with_mode(plan.mode, [&]<Rounding mode>() {
    start_kernel(encode_elements<mode, V>, blocks, kThreads, stream, plan, key, n, x, random,
                 packed, first_nan);
  });
  return cudaGetLastError();
}

cudaError_t launch_encode_direct(cudaStream_t stream, const RoundPlan& plan, const DeviceKey& key,
                                 std::int64_t n, const Strided& x, std::uint8_t* packed,
                                 unsigned long long* first_nan) {
  const unsigned blocks = blocks_for(tiles_of(n));
  with_mode(plan.mode, [&]<Rounding mode>() {
    with_form<mode>(plan.form, [&]<class R>() {
      with_pack_type(x.dtype, [&]<DType type>() {
        if constexpr (mode == Rounding::stochastic) {
          start_kernel(encode_stochastic<R, type>, blocks, kThreads, stream, plan, key, n, x.data,
                       packed, first_nan);
        } else {
          start_kernel(encode_packs<R, type>, blocks, kThreads, stream, plan, n, x.data, packed,
                       first_nan, has_four_codes(plan.bits, packed));
        }
      });
    });
  });
  return cudaGetLastError();
}

cudaError_t launch_decode_direct(cudaStream_t stream, const RoundPlan& plan, std::int64_t n,
                                 const std::uint8_t* packed, const Strided& out) {
  with_codes(plan, [&]<class R>() {
    with_pack_type(out.dtype, [&]<DType type>() {
      start_kernel(decode_packs<R, type>, blocks_for(tiles_of(n)), kThreads, stream, plan, n,
                   packed, out.data, has_four_codes(plan.bits, packed));
    });
  });
  return cudaGetLastError();
}

}  // namespace

int encode(const Launch& launch, const EncodeCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const bool binary64 = needs_binary64(*call.plan, call.x);
  if (call.random.data == nullptr && !binary64 && has_packs(call.x)) {
    return launch_encode_direct(stream, *call.plan, call.key, call.n, call.x, call.packed,
                                call.first_nan);
  }
  const auto launch_encode_in = binary64 ? launch_encode<double> : launch_encode<float>;
  return launch_encode_in(stream, *call.plan, call.key, call.n, call.x, call.random, call.packed,
                          call.first_nan);
}

int decode(const Launch& launch, const DecodeCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  if (!call.plan->wide && has_packs(call.out)) {
    return launch_decode_direct(stream, *call.plan, call.n, call.packed, call.out);
  }
  start_kernel(call.plan->wide ? decode_elements<double> : decode_elements<float>,
               blocks_for(tiles_of(call.n)), kThreads, stream, *call.plan, call.n, call.packed,
               call.out);
  return cudaGetLastError();
}

int first_above(const Launch& launch, const FirstAboveCall& call) {
  const auto& [n, integers, limit, first] = call;
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  start_kernel(find_above, blocks_for((n + kThreads - 1) / kThreads), kThreads,
               static_cast<cudaStream_t>(launch.stream), n, integers, limit, first);
  return cudaGetLastError();
}

}  // namespace cpd::cuda
