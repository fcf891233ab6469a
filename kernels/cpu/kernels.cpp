// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend: loops over contiguous memory around numeric/'s kernels. Compiled once per ISA
// with CPD_ISA set to its name and the ISA's flags; each object exports one function, the table's
// getter. No standard library here: an inline function compiled with ISA flags could be picked up
// elsewhere.

#include "cpd/numeric/codec.h"
#include "cpd/numeric/exact.h"
#include "cpd/numeric/philox.h"
#include "cpd/numeric/round.h"
#include "kernels/cpu/tables.h"

namespace cpd {
inline namespace CPD_ISA {

std::uint64_t g_calls = 0;

namespace {

using std::int64_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

#define CPD_STRING2(x) #x
#define CPD_STRING(x) CPD_STRING2(x)
uint64_t calls() { return __atomic_load_n(&g_calls, __ATOMIC_RELAXED); }

CPD_FN bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 64 == 0; }

constexpr int64_t kRun = 4 * kBlock;  ///< elements whose codes or random integers stay in L1

// --- random integers
// ------------------------------------------------------------------------------

/// The integers of elements i … i + n - 1; both are multiples of kBlock.
CPD_FN void random_run(int bits, uint64_t seed, uint64_t stream, int64_t i, int64_t n,
                       uint32_t* out) {
  using U = Unsigned<F>;
  const int draws = draws_per_word(bits);
  const U mask = splat<U>((1U << bits) - 1);
  const uint64_t index = 16 * (static_cast<uint64_t>(i) / (64 * static_cast<uint64_t>(draws)));
  for (int64_t group = 0; group < n / (64 * draws); ++group, out += 64 * draws) {
    for (int lane = 0; lane < 16; lane += Lanes<F>::count) {
      const uint64_t here = index + 16 * static_cast<uint64_t>(group);
      const U low = splat<U>(static_cast<uint32_t>(here) + static_cast<uint32_t>(lane));
      const Words<U> words = random_words(low + iota<U>(), here, 0, seed, stream);
      for (int q = 0; q < draws; ++q) {
        for (int w = 0; w < 4; ++w) {
          store(out + 64 * q + 16 * w + lane, (words.word[w] >> (q * (32 / draws))) & mask);
        }
      }
    }
  }
}

CPD_BODY void random_integers_body(int bits, uint64_t seed, uint64_t stream, int64_t first,
                                   int64_t n, uint32_t* out) {
  alignas(64) uint32_t last[kBlock];
  for (int64_t i = 0; i < n; i += kRun) {
    const int64_t count = least(kRun, n - i);
    const int64_t whole = count - count % kBlock;
    random_run(bits, seed, stream, first + i, whole, out + i);
    if (whole == count) continue;
    random_run(bits, seed, stream, first + i + whole, kBlock, last);
    copy(out + i + whole, last, count - whole);
  }
}

/// Runs body(begin, count, random) over [0, n) in steps (a multiple of kBlock, or n), for
/// stochastic plans without given integers in no more than kRun, with fresh ones.
template <class R, class Body>
CPD_FN void with_random(const RoundPlan& plan, int64_t first, int64_t n, const uint32_t* random,
                        int64_t step, Body body) {
  if constexpr (R::mode != Rounding::stochastic) {
    for (int64_t i = 0; i < n; i += step) body(i, least(step, n - i), nullptr);
  } else if (random != nullptr) {
    for (int64_t i = 0; i < n; i += step) body(i, least(step, n - i), random + i);
  } else {
    alignas(64) uint32_t run[kRun];
    const int64_t most = least(step, kRun);
    for (int64_t i = 0; i < n; i += most) {
      const int64_t count = least(most, n - i);
      random_run(plan.random_bits, plan.seed, plan.stream, first + i,
                 (count + kBlock - 1) / kBlock * kBlock, run);
      body(i, count, run);
    }
  }
}

template <class R, class V>
CPD_FN Unsigned<V> load_random(const uint32_t* random) {
  if constexpr (R::mode == Rounding::stochastic) {
    return load_u32<V>(random);
  } else {
    return Unsigned<V>{};
  }
}

// --- rounding
// -------------------------------------------------------------------------------------

/// V's lanes from memory of either width, scaled by 2^shift given as a factor.
template <class V>
CPD_FN V load_value(const float* x) {
  return load_f32<V>(x);
}
template <class V>
CPD_FN V load_value(const double* x) {
  return load<V>(x);
}
template <class V>
CPD_FN void store_value(float* y, V v) {
  store_f32(y, v);
}
template <class V>
CPD_FN void store_value(double* y, V v) {
  store(y, v);
}

template <class R, class V, bool kStreaming, class T, class Map>
CPD_FN void round_span(RoundPlan plan, int64_t n, const T* x, const uint32_t* random, T* y,
                       Map map) {
  for_lanes<V>(
      n,
      [&](int64_t i) {
        if constexpr (kStreaming) __builtin_prefetch(reinterpret_cast<const char*>(x + i) + 2048);
        const V v = round<R>(map(load_value<V>(x + i)), load_random<R, V>(random + i), plan);
        if constexpr (kStreaming && sizeof(V) == Lanes<V>::count * sizeof(T)) {
          store_streaming(y + i, v);
        } else {
          store_value(y + i, v);
        }
      },
      [&](int64_t i, int64_t rest) {
        T in[Lanes<V>::count] = {};
        T out[Lanes<V>::count];
        uint32_t r[Lanes<V>::count] = {};
        copy(in, x + i, rest);
        if constexpr (R::mode == Rounding::stochastic) copy(r, random + i, rest);
        store_value(out, round<R>(map(load_value<V>(in)), load_random<R, V>(r), plan));
        copy(y + i, out, rest);
      });
}

struct Identity {
  template <class V>
  CPD_FN V operator()(V x) const {
    return x;
  }
};
template <class S>
struct Scaled {
  S factor;
  template <class V>
  CPD_FN V operator()(V x) const {
    return x * splat<V>(factor);
  }
};

template <class V, bool kStreaming, class T, class Map>
CPD_FN void round_all(const RoundPlan& shared, int64_t first, int64_t n, const T* x,
                      const uint32_t* random, T* y, Map map) {
  const RoundPlan plan = shared;  // a local copy that stores to y cannot change
  with_rule(plan, [&]<class R>() {
    with_random<R>(plan, first, n, random, n, [&](int64_t i, int64_t count, const uint32_t* r) {
      round_span<R, V, kStreaming>(plan, count, x + i, r, y + i, map);
    });
  });
}

CPD_BODY void round_f32_body(const RoundPlan* plan, int64_t first, int64_t n, const float* x,
                             const uint32_t* random, float* y, bool streaming) {
  if (plan->wide) {
    round_all<D, false>(*plan, first, n, x, random, y, Identity{});
  } else if (streaming && is_aligned(y)) {
    round_all<F, true>(*plan, first, n, x, random, y, Identity{});
    fence_streaming();
  } else {
    round_all<F, false>(*plan, first, n, x, random, y, Identity{});
  }
}

CPD_BODY void round_f64_body(const RoundPlan* plan, int64_t first, int64_t n, const double* x,
                             const uint32_t* random, double* y) {
  round_all<D, false>(*plan, first, n, x, random, y, Identity{});
}

/// Calls run.operator()<V>(map) with lanes in which x * 2^shift, given by map, may be rounded.
template <class Run>
CPD_FN auto with_scale(const RoundPlan& plan, int shift, Run run) {
  if (shift == 0) {
    return plan.wide ? run.template operator()<D>(Identity{})
                     : run.template operator()<F>(Identity{});
  }
  if (plan.scale_in_binary32 && shift >= -126 && shift <= 127) {
    const auto factor = bits_as<float>(static_cast<uint32_t>(shift + 127) << 23);
    return run.template operator()<F>(Scaled<float>{factor});
  }
  return run.template operator()<D>(Scaled<double>{exact_power(shift)});
}

CPD_BODY void round_scaled_body(const RoundPlan* plan, int shift, int64_t first, int64_t n,
                                const float* x, const uint32_t* random, float* y) {
  with_scale(*plan, shift,
             [&]<class V>(auto map) { round_all<V, false>(*plan, first, n, x, random, y, map); });
}

// --- encode, decode
// -------------------------------------------------------------------------------

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

/// Copies whole blocks past the caches: size is a multiple of 64, both aligned.
CPD_FN void copy_streaming(uint8_t* to, const uint8_t* from, int64_t size) {
  for (int64_t i = 0; i < size; i += static_cast<int64_t>(sizeof(F))) {
    store_streaming(to + i, load<F>(from + i));
  }
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
  fence_streaming();
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
    fence_streaming();
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
CPD_FN void decode_scaled(const RoundPlan& plan, int shift, float last, int64_t n,
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
    decode_scaled<false>(*plan, shift, 1.0F / divisor, n, packed, y, streaming);
  } else {
    decode_scaled<true>(*plan, shift, divisor, n, packed, y, streaming);
  }
}

// --- single operations
// ----------------------------------------------------------------------------

template <Operation op, class V>
CPD_FN V exact_operation(V x, V y, V z, Rounding mode) {
  if constexpr (op == Operation::mul) {
    return exact_product(x, y);
  } else {
    const V a = op == Operation::fma ? exact_product(x, y) : x;
    const V b = op == Operation::fma ? z : y;
    return mode == Rounding::down ? exact_sum<Rounding::down>(a, b)
                                  : exact_sum<Rounding::nearest_even>(a, b);
  }
}

template <Operation op, class R>
CPD_FN void operate(const RoundPlan& plan, int64_t n, const float* x, const float* y,
                    const float* z, const uint32_t* random, float* out) {
  for (int64_t i = 0; i < n; i += Lanes<D>::count) {
    float a[Lanes<D>::count] = {};
    float b[Lanes<D>::count] = {};
    float c[Lanes<D>::count] = {};
    uint32_t r[Lanes<D>::count] = {};
    const int64_t count = least(Lanes<D>::count, n - i);
    copy(a, x + i, count);
    copy(b, y + i, count);
    if constexpr (op == Operation::fma) copy(c, z + i, count);
    if constexpr (R::mode == Rounding::stochastic) copy(r, random + i, count);
    const D exact = exact_operation<op>(load_f32<D>(a), load_f32<D>(b), load_f32<D>(c), R::mode);
    store_f32(a, round<R>(exact, load_u32<D>(r), plan));
    copy(out + i, a, count);
  }
}

CPD_BODY void arithmetic_body(Operation op, const RoundPlan* shared, int64_t first, int64_t n,
                              const float* x, const float* y, const float* z,
                              const uint32_t* random, float* out) {
  const RoundPlan plan = *shared;
  with_rule(plan, [&]<class R>() {
    with_random<R>(plan, first, n, random, n, [&](int64_t i, int64_t count, const uint32_t* r) {
      switch (op) {
        case Operation::add:
          return operate<Operation::add, R>(plan, count, x + i, y + i, nullptr, r, out + i);
        case Operation::mul:
          return operate<Operation::mul, R>(plan, count, x + i, y + i, nullptr, r, out + i);
        case Operation::fma:
          return operate<Operation::fma, R>(plan, count, x + i, y + i, z + i, r, out + i);
      }
    });
  });
}

// --- ranges
// -----------------------------------------------------------------------------------------

CPD_BODY float max_abs_body(int64_t n, const float* x, int64_t* non_finite) {
  using I = Signed<F>;
  using U = Unsigned<F>;
  using P = Pattern<F>;
  I largest{};
  I finite{};  // counts down: a set mask is -1, or 1 for one lane
  std::int32_t best = 0;
  int64_t bad = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = least(kBlock, n - begin);
    for_lanes<F>(
        count,
        [&](int64_t i) {
          const I a = (I)(load<U>(x + begin + i) & splat<U>(P::magnitude));
          const auto is_finite = a < splat<I>(P::infinity);
          largest = max(largest, select(is_finite, a, I{}));
          finite = finite + select(is_finite, I{}, splat<I>(1));
        },
        [&](int64_t i, int64_t rest) {
          for (int64_t j = begin + i; j < begin + i + rest; ++j) {
            const auto a = static_cast<std::int32_t>(load<uint32_t>(x + j) & P::magnitude);
            if (a >= static_cast<std::int32_t>(P::infinity)) {
              ++bad;
            } else {
              best = max(best, a);
            }
          }
        });
    std::int32_t lane[Lanes<F>::count];
    store(lane, finite);
    for (const std::int32_t each : lane) bad += each;
    finite = I{};
  }
  std::int32_t lane[Lanes<F>::count];
  store(lane, largest);
  for (const std::int32_t each : lane) best = max(best, each);
  *non_finite += bad;
  return bits_as<float>(best);
}

// --- the table
// ------------------------------------------------------------------------------------

constexpr KernelTable kTable = {
    CPD_STRING(CPD_ISA),
    Lanes<F>::count,
    calls,
    [](const RoundPlan& plan, int64_t first, int64_t n, const float* x, const uint32_t* random,
       float* y,
       bool streaming) { enter<round_f32_body>(&plan, first, n, x, random, y, streaming); },
    [](const RoundPlan& plan, int64_t first, int64_t n, const double* x, const uint32_t* random,
       double* y) { enter<round_f64_body>(&plan, first, n, x, random, y); },
    [](const RoundPlan& plan, int shift, int64_t first, int64_t n, const float* x,
       const uint32_t* random,
       float* y) { enter<round_scaled_body>(&plan, shift, first, n, x, random, y); },
    [](const RoundPlan& plan, int shift, int64_t first, int64_t n, const float* x,
       const uint32_t* random, uint8_t* packed, bool streaming) {
      return enter<encode_f32_body>(&plan, shift, first, n, x, random, packed, streaming);
    },
    [](const RoundPlan& plan, int64_t first, int64_t n, const double* x, const uint32_t* random,
       uint8_t* packed) { return enter<encode_f64_body>(&plan, first, n, x, random, packed); },
    [](const RoundPlan& plan, int64_t n, const uint8_t* packed, float* y, bool streaming) {
      enter<decode_f32_body>(&plan, n, packed, y, streaming);
    },
    [](const RoundPlan& plan, int shift, float divisor, int64_t n, const uint8_t* packed, float* y,
       bool streaming) {
      enter<decode_scaled_body>(&plan, shift, divisor, n, packed, y, streaming);
    },
    [](Operation op, const RoundPlan& plan, int64_t first, int64_t n, const float* x,
       const float* y, const float* z, const uint32_t* random,
       float* out) { enter<arithmetic_body>(op, &plan, first, n, x, y, z, random, out); },
    fold,
    [](int64_t n, const float* x, int64_t* non_finite) {
      return enter<max_abs_body>(n, x, non_finite);
    },
    kGemmRows,
    kGemmColumns,
    pack,
    gemm,
    block_fma,
    [](int bits, uint64_t seed, uint64_t stream, int64_t first, int64_t n, uint32_t* out) {
      enter<random_integers_body>(bits, seed, stream, first, n, out);
    },
    crc32c,
};

}  // namespace

const KernelTable& kernel_table() { return kTable; }

}  // namespace CPD_ISA
}  // namespace cpd
