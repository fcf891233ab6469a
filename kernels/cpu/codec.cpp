// SPDX-License-Identifier: Apache-2.0
//
// Encodes values as packed codes (rounds and packs), and decodes packed codes to values.
#include "cpd/numeric/round/codec.h"

#include "kernels/cpu/elements.h"
#include "kernels/cpu/pages.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

/// Stores the codes of one vector of values. Updates `largest`, the largest bit pattern of |map(x)|
/// so far; a pattern above infinity's reports a NaN.
template <class R, class V, class T, class Map>
CPD_FN void code_lanes(const RoundPlan& plan, const T* x, const uint32_t* random, uint32_t* codes,
                       Signed<V>& largest, Map map) {
  const V v = map(load_value<V>(x));
  const auto pattern = bits_as<Unsigned<V>>(v) & splat<Unsigned<V>>(Pattern<V>::magnitude);
  if (!plan.has_nan) largest = max(largest, (Signed<V>)pattern);
  store_u32<V>(codes, round_to_whole_code<R>(v, load_random<R, V>(random), plan));
}

template <class R, class V, class T, class Map>
CPD_FN void code_span(RoundPlan plan, int64_t n, const T* x, const uint32_t* random,
                      uint32_t* codes, Signed<V>& largest, Map map) {
  for_lanes<V>(
      n, [&](int64_t i) { code_lanes<R, V>(plan, x + i, random + i, codes + i, largest, map); },
      [&](int64_t i, int64_t rest) {
        T in[Lanes<V>::count] = {};
        uint32_t out[Lanes<V>::count];
        uint32_t r[Lanes<V>::count] = {};
        copy(in, x + i, rest);
        if constexpr (R::mode == Rounding::stochastic) copy(r, random + i, rest);
        code_lanes<R, V>(plan, in, r, out, largest, map);
        copy(codes + i, out, rest);
      });
}

/// Returns the least i for which x[i] is NaN, or -1. `largest` holds the largest bit pattern of |x|
/// of each lane.
template <class V, class T>
CPD_CALL int64_t find_nan(Signed<V> largest, int64_t n, const T* x) {
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
                          const uint32_t* random, uint8_t* packed, Map map) {
  const RoundPlan plan = shared;
  const Packer<Unsigned<F>> packer(plan.bits);
  int64_t nan = -1;
  with_rule<V>(plan, [&]<class R>() {
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
      copy(packed + i * plan.bits / 8, bytes, (count * plan.bits + 7) / 8);
    });
  });
  return nan;
}

/// Encodes whole groups of four memory pages with non-temporal stores. n must be a multiple of
/// kGroup. Returns the least index of a NaN that the format cannot encode, or -1.
template <class R, class Map>
CPD_FN int64_t encode_pages(RoundPlan plan, int64_t first, int64_t n, const float* x,
                            const uint32_t* random, uint8_t* packed, Map map) {
  alignas(64) uint32_t codes[kPages][kBlock];
  alignas(64) uint8_t bytes[kPages][4 * 2 * kBlock + kPackSlack];  // two blocks: whole lines
  const Packer<Unsigned<F>> packer(plan.bits);
  const int64_t half = kBlock * plan.bits / 8;
  int64_t nan = -1;
  PageIntegers<R> integers(plan, first, n, random);
  for_blocks(n, [&](int64_t block) {
    Signed<F> largest{};
    for_lines(integers, block, [&](int64_t page, int64_t line, const uint32_t* r) {
      const int64_t at = block + page * kPage + line;
      prefetch_line(x + at, block);
      for (int64_t i = 0; i < kLine; i += Lanes<F>::count) {
        code_lanes<R, F>(plan, x + at + i, r + i, codes[page] + line + i, largest, map);
      }
    });
    const bool second = block / kBlock % 2 == 1;
    for (int64_t page = 0; page < kPages; ++page) {
      const int64_t begin = block + page * kPage;
      packer.pack(codes[page], kBlock, bytes[page] + (second ? half : 0));
      if (second) copy_streaming(packed + begin * plan.bits / 8 - half, bytes[page], 2 * half);
      if (plan.has_nan) continue;
      const int64_t found = find_nan<F>(largest, kBlock, x + begin);
      if (found >= 0 && (nan < 0 || begin + found < nan)) nan = begin + found;
    }
  });
  return nan;
}

template <class V, class Map>
CPD_FN int64_t encode_floats(const RoundPlan& plan, int64_t first, int64_t n, const float* x,
                             const uint32_t* random, uint8_t* packed, bool streaming, Map map) {
  int64_t whole = 0;
  int64_t nan = -1;
  if constexpr (Lanes<V>::mantissa == 23) {
    if (streaming) {
      whole = n - n % kGroup;
      with_rule<V>(plan, [&]<class R>() {
        nan = encode_pages<R>(plan, first, whole, x, random, packed, map);
      });
      fence_streaming<F>();
    }
  }
  if (whole == n) return nan;
  const uint32_t* rest = random == nullptr ? random : random + whole;
  const int64_t found = encode_all<V>(plan, first + whole, n - whole, x + whole, rest,
                                      packed + whole * plan.bits / 8, map);
  return nan >= 0 || found < 0 ? nan : whole + found;
}

template <class R, class V, class Map>
CPD_FN void value_span(RoundPlan plan, int64_t n, const uint32_t* codes, float* y, Map map) {
  for_lanes<V>(
      n, [&](int64_t i) { store(y + i, map(value_of_code<R, V>(load_u32<V>(codes + i), plan))); },
      [&](int64_t i, int64_t rest) {
        float out[Lanes<V>::count];
        store(out, map(value_of_code<R, V>(load_u32<V>(codes + i), plan)));
        copy(y + i, out, rest);
      });
}

template <class V, class Map>
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
    with_codes(plan, [&]<class R>() { value_span<R, V>(plan, count, codes, y + begin, map); });
  }
}

/// Decodes whole groups of four memory pages with non-temporal stores. n must be a multiple of
/// kGroup.
template <class R, class Map>
CPD_FN void decode_pages(RoundPlan plan, int64_t n, const uint8_t* packed, float* y, Map map) {
  alignas(64) uint32_t codes[kPages][kBlock];
  PageValues values(y);
  const Unpacker<Unsigned<F>> unpacker(plan.bits);
  const int64_t bytes = kBlock * plan.bits / 8;
  for_blocks(n, [&](int64_t block) {
    values.enter_block(block);
    for (int64_t page = 0; page < kPages; ++page) {
      const uint8_t* from = packed + (block + page * kPage) * plan.bits / 8;
      for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(from + bytes * kGroup / kBlock + i);
      unpacker.unpack(from, kBlock, codes[page]);
    }
    for_lines(0, kBlock, [&](int64_t page, int64_t line) {
      for (int64_t i = 0; i < kLine; i += Lanes<F>::count) {
        const auto code = load_u32<F>(codes[page] + line + i);
        values.put(block, page, line + i, map(value_of_code<R, F>(code, plan)));
      }
    });
    values.leave_block(block);
  });
}

template <class Map>
CPD_FN void decode_narrow(const RoundPlan& plan, int64_t n, const uint8_t* packed, float* y,
                          bool streaming, Map map) {
  constexpr int64_t kBehind = 8 * kPackSlack;  // codes that cover what the unpacker reads beyond
  int64_t done = 0;
  if (streaming && holds_floats(y) && n > kBehind) {
    done = (n - kBehind) / kGroup * kGroup;
    with_codes(plan, [&]<class R>() { decode_pages<R>(plan, done, packed, y, map); });
    fence_streaming<F>();
  }
  decode_all<F>(plan, n - done, packed + done * plan.bits / 8, y + done, map);
}

template <bool kDivides>
CPD_FN void decode_times(const RoundPlan& plan, int shift, float last, int64_t n,
                         const uint8_t* packed, float* y, bool streaming) {
  if (!plan.wide && shift >= -126 && shift <= 127) {
    const auto factor = bits_as<float>(static_cast<uint32_t>(shift + 127) << 23);
    return decode_narrow(plan, n, packed, y, streaming, Rescaled<float, kDivides>{factor, last});
  }
  // Computes in binary64 lanes: the value of a code is a binary32 number, so its product with a
  // power of two is exact in binary64.
  decode_all<D>(plan, n, packed, y, Rescaled<double, kDivides>{exact_power(shift), last});
}

}  // namespace

void encode(const EncodeCall& call) {
  const RoundPlan& plan = *call.plan;
  const auto* const random = static_cast<const uint32_t*>(call.random.data);
  int64_t nan = -1;
  if (call.x.dtype == DType::f64) {
    nan = encode_all<D>(plan, call.first, call.n, static_cast<const double*>(call.x.data), random,
                        call.packed, Identity{});
  } else {
    nan = with_scale(plan, call.shift, [&]<class V>(auto map) {
      return encode_floats<V>(plan, call.first, call.n, static_cast<const float*>(call.x.data),
                              random, call.packed, call.streaming, map);
    });
  }
  if (nan < 0 || call.first_nan == nullptr) return;
  const auto found = static_cast<unsigned long long>(call.first + nan);
  if (found < *call.first_nan) *call.first_nan = found;
}

void decode(const DecodeCall& call) {
  const RoundPlan& plan = *call.plan;
  auto* const y = static_cast<float*>(call.out.data);
  if (call.shift == 0 && call.divisor == 1) {
    if (plan.wide) return decode_all<D>(plan, call.n, call.packed, y, AsItIs{});
    decode_narrow(plan, call.n, call.packed, y, call.streaming, AsItIs{});
  } else if (is_power_of_two(call.divisor)) {
    decode_times<false>(plan, call.shift, 1.0F / call.divisor, call.n, call.packed, y,
                        call.streaming);
  } else {
    decode_times<true>(plan, call.shift, call.divisor, call.n, call.packed, y, call.streaming);
  }
}

}  // namespace CPD_ISA
}  // namespace cpd
