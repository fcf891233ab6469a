// SPDX-License-Identifier: Apache-2.0
//
// Matrix products in tests: the accumulators, formats and roundings that tests go through.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "cpd/base/tensor.h"
#include "cpd/ops/gemm.h"
#include "cpd/oracle/reference.h"
#include "tests/testing/formats.h"
#include "tests/testing/gemm.h"
#include "tests/testing/sanitized.h"

namespace cpd::testing {

/// Selects one case in N in the exhaustive tier, about one in 2 N in the quick tier, and one in 23
/// N under a sanitizer.
class Turns {
 public:
  bool one_of(std::uint64_t cases) {
    ++count_;
    if (kSanitized) return count_ % (cases * 23) == 0;
    return count_ % cases == 0 && is_chosen(count_ / cases, 2);
  }

 private:
  std::uint64_t count_ = 0;
};

inline Accumulator accumulator_of(const char* format, Scheme scheme = Scheme::sequential) {
  Accumulator a;
  a.format = ParseFormat(format);
  a.scheme = scheme;
  return a;
}

inline Accumulator exact_products(Accumulator a) {
  a.exact_products = true;
  return a;
}

/// Returns accumulators with every ordered scheme: for each scheme `base`, `base` with exact
/// products, and `other`. Removes the chunk and the inner format, except from chunked schemes.
inline std::vector<Accumulator> ordered_schemes(const Accumulator& base, const Accumulator& other) {
  std::vector<Accumulator> all;
  for (const Scheme scheme :
       {Scheme::sequential, Scheme::kahan, Scheme::chunked, Scheme::pairwise}) {
    for (Accumulator a : {base, exact_products(base), other}) {
      a.scheme = scheme;
      if (scheme != Scheme::chunked) {
        a.chunk = Accumulator{}.chunk;
        a.inner.reset();
      }
      all.push_back(a);
    }
  }
  return all;
}

/// Returns accumulators with every scheme and sums in `format`. Products are rounded to this
/// format, rounded to another format, or exact.
inline std::vector<Accumulator> schemes(const Format& format) {
  Accumulator base;
  base.format = format;
  base.chunk = 4;
  Accumulator other = base;
  other.product = ParseFormat("e5m2");
  std::vector<Accumulator> all = ordered_schemes(base, other);
  Accumulator chunks;
  chunks.format = format;
  chunks.scheme = Scheme::chunked;
  chunks.inner = ParseFormat("e5m7");
  chunks.chunk = 7;
  all.push_back(chunks);
  chunks.exact_products = true;
  chunks.chunk = 1;
  all.push_back(chunks);
  return all;
}

/// Returns schemes for the GPU's tiles, which add a fixed number of values of k in each step. Some
/// schemes have chunks that end within a step, others have chunks that end with a step.
inline std::vector<Accumulator> schemes_of_tiles(const Format& format) {
  Accumulator base;
  base.format = format;
  base.chunk = 7;
  Accumulator other = base;
  other.product = ParseFormat("e5m7");
  other.inner = ParseFormat("e5m4");
  other.chunk = 8;
  std::vector<Accumulator> all = ordered_schemes(base, other);
  Accumulator chunks;
  chunks.format = format;
  chunks.scheme = Scheme::chunked;
  chunks.chunk = 12;
  chunks.product = chunks.inner = ParseFormat("e4m3");
  all.push_back(chunks);
  return all;
}

inline std::vector<Format> gemm_formats() {
  std::vector<Format> all;
  for (const char* name :
       {"e4m3",        "e5m2",         "e3m2:nosub",  "e3m0",        "e2m1",       "e3m4",
        "e6m9",        "e5m10",        "e8m7",        "e8m10",       "e8m23",      "e4m3fn",
        "e4m3fnuz",    "e5m2fnuz",     "binary8p4se", "binary8p3sf", "e4m3:nosub", "e4m3:bias=11",
        "e5m2:bias=3", "e6m9:bias=60", "e4m0",        "e1m2",        "e8m3",       "e5m11",
        "e8m12",       "e8m22"}) {
    all.push_back(ParseFormat(name));
  }
  all.push_back(MakeFormat(3, 2));
  all.push_back(MakeFormat(2, 1));
  all.push_back(MakeFormat(2, 3));
  return thinned(std::move(all));
}

/// Returns every deterministic rounding mode with each overflow policy, and stochastic rounding
/// with each overflow policy.
inline std::vector<RoundingOptions> gemm_roundings() {
  std::vector<RoundingOptions> all;
  for (const Overflow overflow : kPolicies) {
    RoundingOptions o;
    o.overflow = overflow;
    for (const Rounding mode : kDeterministicModes) {
      o.mode = mode;
      all.push_back(o);
    }
    o.mode = Rounding::stochastic;
    o.random_bits = overflow == Overflow::ieee ? 24 : 7;
    o.variant = overflow == Overflow::ieee ? Variant::A : Variant::C;
    all.push_back(o);
  }
  return all;
}

/// Returns the values of all codes of an 8-bit format, including NaN and infinities.
inline std::vector<float> all_values(const Format& format) {
  std::vector<float> values;
  values.reserve(std::size_t{1} << format.bits());
  for (std::uint64_t code = 0; code < (std::uint64_t{1} << format.bits()); ++code) {
    values.push_back(reference::decode(reference::spec_of(format), code));
  }
  return values;
}

/// A test whose operands are made from consecutive seeds.
template <class Test>
class WithTensors : public Test {
 protected:
  Tensor Make(const Shape& shape, Values kind, const Format& format,
              Layout layout = Layout::contiguous, DType type = DType::f32) {
    const auto n = static_cast<std::size_t>(count_of(shape));
    return {shape, operands(kind, format, n, ++seed_), layout, type};
  }
  /// Returns a tensor whose values are all rounded to the format.
  Tensor MakeRounded(const Shape& shape, Values kind, const Format& format,
                     Layout layout = Layout::contiguous) {
    std::vector<float> values =
        operands(kind, format, static_cast<std::size_t>(count_of(shape)), ++seed_);
    for (float& x : values) x = reference::cast(reference::spec_of(format), x);
    return {shape, values, layout};
  }

 private:
  std::uint64_t seed_ = 0;
};

/// Makes operands and addends of matrix products near a limit of the exponent, `least` or `most`.
/// In each case, most products and addends are at most one binade from one limit. Others are far
/// below or zero, and a few operands are Inf, NaN or subnormal. Operands have 8 significant bits.
class LimitCases {
 public:
  struct Case {
    Tensor a, b, c;
  };

  LimitCases(int least, int most) : least_(least), most_(most) {}

  [[nodiscard]] Case make(std::size_t turn, const Shape& a, const Shape& b) const {
    std::mt19937_64 generator(turn);
    const int product = (turn % 2 == 0 ? least_ : most_) + static_cast<int>(turn / 2 % 3) - 1;
    const int of_a = product / 2;
    const bool special = turn % 4 == 3;
    return {values(a, of_a, special, generator), values(b, product - of_a, false, generator),
            values({a.front(), b.back()}, product, special, generator)};
  }

 private:
  static Tensor values(const Shape& shape, int exponent, bool special, std::mt19937_64& generator) {
    constexpr std::array kSpecial = {HUGE_VALF, -HUGE_VALF, NAN, 0x1p-133F, 0x1p-126F};
    std::vector<float> all(static_cast<std::size_t>(count_of(shape)));
    for (float& x : all) {
      const auto kind = static_cast<int>(generator() % 64);
      const auto significand = static_cast<float>(128 + generator() % 128);
      const int below = kind < 40 ? 0 : kind - 39;  // mostly the greatest exponent
      x = std::ldexp(significand, exponent - 7 - below);
      if (kind >= 56) x = 0;
      if (special && generator() % 32 == 0) x = kSpecial.at(generator() % kSpecial.size());
      if (generator() % 2 == 0) x = -x;
    }
    return {shape, all};
  }

  int least_, most_;
};

}  // namespace cpd::testing
