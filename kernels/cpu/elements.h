// SPDX-License-Identifier: Apache-2.0
//
// Functions shared by the loops over single elements: they generate the random integers of a range
// of elements and scale values before rounding.
#pragma once

#include <cstdint>

#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/round/round.h"
#include "cpd/numeric/round/round_plan.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {

constexpr std::int64_t kRun = 4 * kBlock;  ///< elements whose codes or random integers stay in L1

CPD_FN bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 64 == 0; }

/// Copies n values. Writes whole cache lines of `to` by non-temporal stores, and the incomplete
/// first and last line by ordinary stores.
template <class T>
CPD_CALL void copy_streaming(T* to, const T* from, std::int64_t n) {
  constexpr std::int64_t kStep = sizeof(F) / sizeof(T);
  constexpr std::int64_t kCacheLine = 64 / sizeof(T);
  std::int64_t i = 0;
  if (!is_aligned(to)) {
    const auto within =
        static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) % 64 / sizeof(T));
    i = least(kCacheLine - within, n);
    copy(to, from, i);
  }
  for (; i + kCacheLine <= n; i += kCacheLine) {
    for (std::int64_t k = i; k < i + kCacheLine; k += kStep)
      store_streaming(to + k, load<F>(from + k));
  }
  copy(to + i, from + i, n - i);
}

// --- random integers -----------------------------------------------------------------------------

/// Generates the random words of the Philox indices index + k, index + k + 1, …, one index for each
/// lane of kSets vectors. The words of one index yield the random integers of several elements.
/// Stores each integer in `out` at its element's position, counted from the first element of
/// `index`.
template <int kSets>
CPD_FN void random_part(int bits, std::uint64_t seed, std::uint64_t stream, std::uint64_t index,
                        std::int64_t k, std::uint32_t* out) {
  using U = Unsigned<F>;
  const int draws = draws_per_word(bits);
  const U mask = splat<U>((1U << bits) - 1);
  const auto words = random_words<U, kSets>(index + static_cast<std::uint64_t>(k), 0, seed, stream);
  for (int s = 0; s < kSets; ++s, k += Lanes<F>::count) {
    std::uint32_t* to = out + k / 16 * 64 * draws + k % 16;
    for (int q = 0; q < draws; ++q) {
      for (int w = 0; w < 4; ++w) {
        store(to + 64 * q + 16 * w, (words.set[s].word[w] >> (q * (32 / draws))) & mask);
      }
    }
  }
}

/// Stores the random integers of elements i … i + n - 1 in `out`. i and n must be multiples of
/// kBlock.
CPD_CALL void random_run(int bits, std::uint64_t seed, std::uint64_t stream, std::int64_t i,
                         std::int64_t n, std::uint32_t* out) {
  constexpr int kSets = kWordSets<Unsigned<F>>;
  const std::int64_t served = 4 * draws_per_word(bits);
  const auto index = static_cast<std::uint64_t>(i / served);
  const std::int64_t indices = n / served;
  const bool share_high = (index + static_cast<std::uint64_t>(indices)) >> 32 == index >> 32;
  std::int64_t k = 0;
  for (; share_high && k + kSets * Lanes<F>::count <= indices; k += kSets * Lanes<F>::count) {
    random_part<kSets>(bits, seed, stream, index, k, out);
  }
  for (; k < indices; k += Lanes<F>::count) random_part<1>(bits, seed, stream, index, k, out);
}

/// Calls body(begin, count, integers) for consecutive ranges of [0, n), each of at most `step`
/// elements. `step` must be n or a multiple of kBlock. If R rounds stochastically, `integers` has
/// the range's random integers: those in `random` or, if `random` is null, generated ones (a range
/// then has at most kRun elements). Otherwise `integers` is null.
template <class R, class Body>
CPD_FN void with_random(const RoundPlan& plan, std::int64_t first, std::int64_t n,
                        const std::uint32_t* random, std::int64_t step, Body body) {
  if constexpr (R::mode != Rounding::stochastic) {
    for (std::int64_t i = 0; i < n; i += step) body(i, least(step, n - i), nullptr);
  } else {
    alignas(64) std::uint32_t run[kRun];
    const bool fresh = random == nullptr;
    const std::int64_t most = fresh ? least(step, kRun) : step;
    for (std::int64_t i = 0; i < n; i += most) {
      const std::int64_t count = least(most, n - i);
      if (fresh) {
        random_run(plan.random_bits, plan.seed, plan.stream, first + i,
                   (count + kBlock - 1) / kBlock * kBlock, run);
      }
      body(i, count, fresh ? run : random + i);
    }
  }
}

template <class R, class V>
CPD_FN Unsigned<V> load_random(const std::uint32_t* random) {
  if constexpr (R::mode == Rounding::stochastic) {
    return load_u32<V>(random);
  } else {
    return Unsigned<V>{};
  }
}

// --- scales --------------------------------------------------------------------------------------

struct Identity {
  template <class V>
  CPD_FN V operator()(V x) const {
    return x;
  }
};
template <class S>
struct Times {
  S factor;
  template <class V>
  CPD_FN V operator()(V x) const {
    return x * splat<V>(factor);
  }
};

/// Returns x * 2^-k in binary32, for 0 < k <= 126. The result is exact if it is normal, else
/// rounded to odd. Uses integer operations, because a multiplication with a subnormal result costs
/// some CPUs a hundred cycles.
template <class V>
CPD_FN V scaled_to_odd(V x, int k) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using P = Pattern<V>;
  const U u = bits_as<U>(x);
  const I a = (I)(u & splat<U>(P::magnitude));
  const I exponent = max(a & splat<I>(P::infinity), splat<I>(P::implicit));
  const U sig = (U)(a - exponent) + splat<U>(P::implicit);
  const I least = splat<I>((k + 1) << P::mantissa);  // 2^-126 * 2^k
  const U lost = (U)(least - exponent) >> P::mantissa;
  const U kept = shift_right(sig, lost);
  const U odd = kept | select(shift_left(kept, lost) == sig, U{}, splat<U>(1));
  const U normal = (U)(a - splat<I>(k << P::mantissa));
  const U finite = select(a < least, odd, normal);
  return bits_as<V>(select(a < splat<I>(P::infinity), finite, (U)a) | (u & splat<U>(P::sign)));
}
/// Multiplies by a power of two in binary32: by `factor` or, if `down` is not 0, by 2^-down. The
/// result is rounded to odd if it is subnormal (scaled_to_odd).
struct ScaledFloat {
  float factor;
  int down;
  template <class V>
  CPD_FN V operator()(V x) const {
    return down > 0 ? scaled_to_odd(x, down) : x * splat<V>(factor);
  }
};

/// Function objects that convert the value of a code to a result in binary32. AsItIs does not
/// change the value. Rescaled multiplies by a power of two, converts to binary32, and divides by a
/// divisor or multiplies by its inverse.
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

/// Returns whether x is +2^k or -2^k and 1 / x is a normal number.
CPD_FN bool is_power_of_two(float x) {
  const std::uint32_t bits = bits_as<std::uint32_t>(x) & Pattern<float>::magnitude;
  return (bits & Pattern<float>::fraction) == 0 && bits >= Pattern<float>::implicit &&
         bits < (254U << 23);
}

/// Chooses the lane type V and the function `map` that multiplies by 2^shift, and calls
/// run.operator()<V>(map). map(x) is exact, or rounding map(x) gives the same result as rounding
/// the exact product.
template <class Run>
CPD_FN auto with_scale(const RoundPlan& plan, int shift, Run run) {
  if (shift == 0) {
    return plan.wide ? run.template operator()<D>(Identity{})
                     : run.template operator()<F>(Identity{});
  }
  const bool in_range = shift >= -126 && shift <= 127;
  const bool direct = plan.scale_in_binary32 || (shift > 0 && plan.scale_up_in_binary32);
  if (in_range && (direct || (shift < 0 && plan.scale_down_to_odd))) {
    const auto factor = bits_as<float>(static_cast<std::uint32_t>(shift + 127) << 23);
    return run.template operator()<F>(ScaledFloat{factor, direct ? 0 : -shift});
  }
  return run.template operator()<D>(Times<double>{exact_power(shift)});
}

}  // namespace CPD_ISA
}  // namespace cpd
