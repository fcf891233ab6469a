// SPDX-License-Identifier: Apache-2.0
//
// Codes: values rounded and packed, and the reverse.
#include "cpd/numeric/codec.h"

#include "kernels/cpu/elements.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

/// The codes of map(x); `largest` keeps the largest |map(x)| pattern, which tells of a NaN.
template <class R, class V, class T, class Map>
CPD_FN void code_span(RoundPlan plan, int64_t n, const T* x, const uint32_t* random,
                      uint32_t* codes, Signed<V>& largest, Map map) {
  const auto code = [&](const T* from, const uint32_t* r, uint32_t* to) {
    const V v = map(load_value<V>(from));
    const auto pattern = bits_as<Unsigned<V>>(v) & splat<Unsigned<V>>(Pattern<V>::magnitude);
    largest = max(largest, (Signed<V>)pattern);
    store_u32<V>(to, round_to_whole_code<R>(v, load_random<R, V>(r), plan));
  };
  for_lanes<V>(
      n, [&](int64_t i) { code(x + i, random + i, codes + i); },
      [&](int64_t i, int64_t rest) {
        T in[Lanes<V>::count] = {};
        uint32_t out[Lanes<V>::count];
        uint32_t r[Lanes<V>::count] = {};
        copy(in, x + i, rest);
        if constexpr (R::mode == Rounding::stochastic) copy(r, random + i, rest);
        code(in, r, out);
        copy(codes + i, out, rest);
      });
}

/// The least i with x[i] NaN, or -1, where the largest |x| patterns are known.
template <class V, class T>
CPD_FN int64_t find_nan(Signed<V> largest, int64_t n, const T* x) {
  Scalar<V> lanes[Lanes<V>::count];
  store(lanes, largest);
  bool any = false;
  for (const Scalar<V> lane : lanes) any |= lane != lane;
  for (int64_t i = any ? 0 : n; i < n; ++i) {
    if (x[i] != x[i]) return i;
  }
  return -1;
}

template <class V, class T, class Map>
CPD_FN int64_t encode_all(const RoundPlan& shared, int64_t first, int64_t n, const T* x,
                          const uint32_t* random, uint8_t* packed, bool streaming, Map map) {
  const RoundPlan plan = shared;
  const Packer<Unsigned<F>> packer(plan.bits);
  const bool stream = streaming && is_aligned(packed);
  int64_t nan = -1;
  with_rule(plan, [&]<class R>() {
    with_random<R>(plan, first, n, random, kRun, [&](int64_t i, int64_t count, const uint32_t* r) {
      alignas(64) uint32_t codes[kRun];
      alignas(64) uint8_t bytes[4 * kRun + kPackSlack];
      if (count < kRun) __builtin_memset(codes, 0, sizeof(codes));
      Signed<V> largest{};
      code_span<R, V>(plan, count, x + i, r, codes, largest, map);
      if (!plan.has_nan && nan < 0) {
        const int64_t found = find_nan<V>(largest, count, x + i);
        if (found >= 0) nan = i + found;
      }
      packer.pack(codes, kRun, bytes);
      uint8_t* to = packed + i * plan.bits / 8;
      if (stream && count == kRun) {
        copy_streaming(to, bytes, kRun * plan.bits / 8);
      } else {
        copy(to, bytes, (count * plan.bits + 7) / 8);
      }
    });
  });
  fence_streaming<F>();
  return nan;
}

CPD_BODY int64_t encode_f32_body(const RoundPlan* plan, int shift, int64_t first, int64_t n,
                                 const float* x, const uint32_t* random, uint8_t* packed,
                                 bool streaming) {
  return with_scale(*plan, shift, [&]<class V>(auto map) {
    return encode_all<V>(*plan, first, n, x, random, packed, streaming, map);
  });
}
CPD_BODY int64_t encode_f64_body(const RoundPlan* plan, int64_t first, int64_t n, const double* x,
                                 const uint32_t* random, uint8_t* packed) {
  return encode_all<D>(*plan, first, n, x, random, packed, false, Identity{});
}

/// How a code's value becomes the result: as it is, or times a power of two and divided.
struct AsItIs {
  template <class V>
  CPD_FN auto operator()(V v) const {
    return convert<typename Narrow<V>::F32>(v);
  }
};
template <class S, bool kDivides>
struct Rescaled {
  S factor;
  float last;  ///< the divisor, or its inverse
  template <class V>
  CPD_FN auto operator()(V v) const {
    using Result = typename Narrow<V>::F32;
    const auto scaled = convert<Result>(v * splat<V>(factor));
    return kDivides ? scaled / splat<Result>(last) : scaled * splat<Result>(last);
  }
};

template <class R, class V, bool kStreaming, class Map>
CPD_FN void value_span(RoundPlan plan, int64_t n, const uint32_t* codes, float* y, Map map) {
  for_lanes<V>(
      n,
      [&](int64_t i) {
        const auto v = map(value_of_code<R, V>(load_u32<V>(codes + i), plan));
        if constexpr (kStreaming) {
          store_streaming(y + i, v);
        } else {
          store(y + i, v);
        }
      },
      [&](int64_t i, int64_t rest) {
        float out[Lanes<V>::count];
        store(out, map(value_of_code<R, V>(load_u32<V>(codes + i), plan)));
        copy(y + i, out, rest);
      });
}

template <class V, bool kStreaming, class Map>
CPD_FN void decode_all(const RoundPlan& shared, int64_t n, const uint8_t* packed, float* y,
                       Map map) {
  const RoundPlan plan = shared;
  const Unpacker<Unsigned<F>> unpacker(plan.bits);
  const int64_t size = (n * plan.bits + 7) / 8;
  uint8_t last[4 * kRun + kPackSlack] = {};
  for (int64_t begin = 0; begin < n; begin += kRun) {
    alignas(64) uint32_t codes[kRun];
    const int64_t count = least(kRun, n - begin);
    const int64_t offset = begin * plan.bits / 8;
    const uint8_t* from = packed + offset;
    if (offset + kRun * plan.bits / 8 + kPackSlack > size) {  // the unpacker reads beyond
      copy(last, from, least(kRun * plan.bits / 8, size - offset));
      from = last;
    }
    unpacker.unpack(from, kRun, codes);
    if (plan.form == Form::general) {
      value_span<Rule<Rounding::nearest_even, Form::general>, V, kStreaming>(plan, count, codes,
                                                                             y + begin, map);
    } else {
      value_span<Rule<Rounding::nearest_even, Form::simple>, V, kStreaming>(plan, count, codes,
                                                                            y + begin, map);
    }
  }
}

template <class Map>
CPD_FN void decode_narrow(const RoundPlan& plan, int64_t n, const uint8_t* packed, float* y,
                          bool streaming, Map map) {
  if (streaming && is_aligned(y)) {
    decode_all<F, true>(plan, n, packed, y, map);
    fence_streaming<F>();
  } else {
    decode_all<F, false>(plan, n, packed, y, map);
  }
}

CPD_BODY void decode_f32_body(const RoundPlan* plan, int64_t n, const uint8_t* packed, float* y,
                              bool streaming) {
  if (plan->wide) return decode_all<D, false>(*plan, n, packed, y, AsItIs{});
  decode_narrow(*plan, n, packed, y, streaming, AsItIs{});
}

template <bool kDivides>
CPD_FN void decode_times(const RoundPlan& plan, int shift, float last, int64_t n,
                         const uint8_t* packed, float* y, bool streaming) {
  if (!plan.wide && shift >= -126 && shift <= 127) {
    const auto factor = bits_as<float>(static_cast<uint32_t>(shift + 127) << 23);
    return decode_narrow(plan, n, packed, y, streaming, Rescaled<float, kDivides>{factor, last});
  }
  // A code's value is a binary32 number, so that the product is exact in binary64.
  decode_all<D, false>(plan, n, packed, y, Rescaled<double, kDivides>{exact_power(shift), last});
}

CPD_BODY void decode_scaled_body(const RoundPlan* plan, int shift, float divisor, int64_t n,
                                 const uint8_t* packed, float* y, bool streaming) {
  const uint32_t bits = bits_as<uint32_t>(divisor) & Pattern<float>::magnitude;
  const bool is_power = (bits & Pattern<float>::fraction) == 0 && bits >= Pattern<float>::implicit;
  if (is_power && bits < (254U << 23)) {  // the inverse is a normal power of two
    decode_times<false>(*plan, shift, 1.0F / divisor, n, packed, y, streaming);
  } else {
    decode_times<true>(*plan, shift, divisor, n, packed, y, streaming);
  }
}

}  // namespace

int64_t encode_f32(const RoundPlan& plan, int shift, int64_t first, int64_t n, const float* x,
                   const uint32_t* random, uint8_t* packed, bool streaming) {
  return enter<encode_f32_body>(&plan, shift, first, n, x, random, packed, streaming);
}

int64_t encode_f64(const RoundPlan& plan, int64_t first, int64_t n, const double* x,
                   const uint32_t* random, uint8_t* packed) {
  return enter<encode_f64_body>(&plan, first, n, x, random, packed);
}

void decode_f32(const RoundPlan& plan, int64_t n, const uint8_t* packed, float* y, bool streaming) {
  enter<decode_f32_body>(&plan, n, packed, y, streaming);
}

void decode_scaled(const RoundPlan& plan, int shift, float divisor, int64_t n,
                   const uint8_t* packed, float* y, bool streaming) {
  enter<decode_scaled_body>(&plan, shift, divisor, n, packed, y, streaming);
}

}  // namespace CPD_ISA
}  // namespace cpd
