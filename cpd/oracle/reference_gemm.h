// SPDX-License-Identifier: Apache-2.0
//
// The oracle of one element of Gemm's result (host only). Computes every scheme rounding by
// rounding, by the definitions in ops/gemm.h. It shares no arithmetic with the kernels: the
// template argument `Arithmetic` (by default ExactArithmetic) has the numbers and the roundings,
// and random integers are computed here from the definition in philox.h.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "cpd/oracle/reference.h"
#include "cpd/oracle/reference_block_fma.h"
#include "cpd/oracle/reference_sum.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/random_key.h"

namespace cpd::reference {

// --- Random integers -----------------------------------------------------------------------------

/// Returns the four words of Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011, section 3.3).
inline std::array<std::uint32_t, 4> philox_words(std::array<std::uint32_t, 4> counter,
                                                 std::uint64_t seed) {
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(p0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// Returns the options of the roundings of one sum, one rounding after the other. The options
/// include the random integer that the key gives for the rounding. Random integer 0 is for the
/// addend. The integers of the loop over k begin with the next four Philox words.
class Draws {
 public:
  Draws(const RoundingOptions& o, const RandomKey& key, std::uint64_t index)
      : options_{o.mode, o.overflow, o.variant, o.random_bits, 0},
        seed_(key.seed),
        stream_(key.stream),
        index_(index),
        per_word_(o.random_bits > 16  ? 1
                  : o.random_bits > 8 ? 2
                                      : 4),
        next_(4 * per_word_) {}

  Options of_addend() { return with(0); }
  Options next() { return with(next_++); }

 private:
  Options with(std::uint64_t draw) {
    if (options_.rounding != Rounding::stochastic) return options_;
    const std::uint64_t block = draw / (4 * per_word_);
    if (block != block_) {
      words_ = philox_words(
          {static_cast<std::uint32_t>(index_),
           static_cast<std::uint32_t>(((index_ >> 32) & 0xFF) | (block << 8)),
           static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)},
          seed_);
      block_ = block;
    }
    const std::uint32_t word = words_[draw / per_word_ % 4];
    Options o = options_;
    o.random = (word >> (draw % per_word_ * (32 / per_word_))) & ((1u << o.random_bits) - 1);
    return o;
  }

  Options options_;
  std::uint64_t seed_, stream_, index_, per_word_, next_;
  std::uint64_t block_ = ~std::uint64_t{0};
  std::array<std::uint32_t, 4> words_{};
};

// --- Ordered sums of products --------------------------------------------------------------------

/// Returns start + a[0] b[0] + …, where `start` is already rounded. next() returns the options of
/// each rounding.
template <class Arithmetic, class Next>
typename Arithmetic::Number sum_products(const Accumulator& accumulator, std::span<const float> a,
                                         std::span<const float> b,
                                         const typename Arithmetic::Number& start, Next next,
                                         Arithmetic arithmetic) {
  if (a.size() != b.size()) throw std::invalid_argument("operands of different lengths");
  const Spec spec = spec_of(accumulator.product.value_or(accumulator.format));
  const auto product = [&](std::size_t k) {
    const auto exact_product = arithmetic.product(a[k], b[k]);
    if (accumulator.exact_products) return exact_product;
    return arithmetic.rounded(spec, exact_product, next());
  };
  const auto next_of_sum = [&] { return next(); };
  return OrderedSum(order_of(accumulator), a.size(), product, next_of_sum, arithmetic).from(start);
}

/// Returns c + a[0] b[0] + …, summed by an ordered scheme. Each rounding uses the next options,
/// with the next random integer, that `draws` returns.
template <class Arithmetic = ExactArithmetic>
float dot_ordered(const Accumulator& accumulator, std::span<const float> a,
                  std::span<const float> b, float c, Draws& draws) {
  const auto start =
      Arithmetic::rounded(spec_of(accumulator.format), Arithmetic::number(c), draws.of_addend());
  const auto next = [&] { return draws.next(); };
  return Arithmetic::to_float(sum_products(accumulator, a, b, start, next, Arithmetic{}));
}

// --- Block FMA -----------------------------------------------------------------------------------

/// Implements the steps that unit_sum calls, in exact numbers.
class ExactUnit {
 public:
  ExactUnit(const Accumulator& accumulator, Draws& draws)
      : unit_(accumulator.unit.value()), format_(spec_of(accumulator.format)), draws_(draws) {
    into_unit_.rounding = unit_.rounding;
  }

  Exact addend(const Exact& c) { return round_exact(format_, c, draws_.of_addend()); }
  Exact addend_in_unit(const Exact& c) { return round_exact(spec_of(unit_.sum), c, into_unit_); }
  Exact block(const BlockOperands& x, const Exact& s) { return block_sum(unit_, x, s); }
  Exact promoted(const Exact& sum, const Exact& s) {
    const Options o = draws_.next();
    return round_exact(format_, add_for(o, sum, s), o);
  }
  Exact result(const Exact& s) { return round_exact(format_, s, draws_.next()); }

 private:
  const BlockFma& unit_;
  Spec format_;
  Draws& draws_;
  Options into_unit_{};
};

inline float dot_block_fma(const Accumulator& accumulator, const BlockOperands& operands, float c,
                           Draws& draws) {
  const auto order = unit_order(accumulator.unit.value(), operands.a.size());
  ExactUnit steps(accumulator, draws);
  return to_float(unit_sum(accumulator, order, operands, c, steps));
}

/// Returns element number `index` of Gemm's result, given a row of a, a column of b, and an addend.
template <class Arithmetic = ExactArithmetic>
float dot(const Accumulator& accumulator, std::span<const float> a, std::span<const float> b,
          float c = 0.0f, std::uint64_t index = 0, const RandomKey& key = {}) {
  Draws draws(accumulator.rounding, key, index);
  if (accumulator.scheme == Scheme::block_fma) {
    return dot_block_fma(accumulator, {a, b}, c, draws);
  }
  return dot_ordered<Arithmetic>(accumulator, a, b, c, draws);
}

// --- Scaled operands -----------------------------------------------------------------------------

/// The operands of one element of GemmScaled: for each k two elements and two scales; the factors
/// (second scales) of a and b; and c, if any. `block` consecutive values of k have equal scales.
struct ScaledDot {
  BlockOperands operands;
  std::size_t block = 0;
  float a_factor = 1.0f, b_factor = 1.0f;
  bool has_factors = false;
  std::optional<float> c{};
};

/// Returns total + (x * y) * sum, with every operation rounded to binary32.
inline float add_scaled(float total, float x, float y, float sum) {
  const Spec binary32;
  return add(binary32, total, mul(binary32, mul(binary32, x, y), sum));
}

template <class Arithmetic = ExactArithmetic>
float dot_scaled(const Accumulator& accumulator, const ScaledDot& x, bool epilogue,
                 std::uint64_t index = 0, const RandomKey& key = {}) {
  Draws draws(accumulator.rounding, key, index);
  const bool is_unit = accumulator.unit && accumulator.unit->scale;
  const auto sum = [&](const BlockOperands& part, float start) {
    if (accumulator.unit) return dot_block_fma(accumulator, part, start, draws);
    return dot_ordered<Arithmetic>(accumulator, part.a, part.b, start, draws);
  };
  const auto scale = [](std::span<const float> scales, std::size_t k) {
    return scales.empty() ? 1.0f : scales[k];
  };
  const std::size_t depth = x.operands.a.size();
  const bool c_in_unit = is_unit && !x.has_factors;
  float total = 0.0f;
  if (is_unit) {
    total = sum(x.operands, c_in_unit ? x.c.value_or(0.0f) : 0.0f);
  } else {
    const std::size_t block = epilogue ? std::max<std::size_t>(1, depth) : x.block;
    if (epilogue) total = -0.0f;
    for (std::size_t k = 0; k < depth || (epilogue && k == 0); k += block) {
      const std::size_t count = std::min(block, depth - k);
      const float p = sum({x.operands.a.subspan(k, count), x.operands.b.subspan(k, count)}, 0.0f);
      total = add_scaled(total, scale(x.operands.a_scales, k), scale(x.operands.b_scales, k), p);
    }
  }
  const Spec binary32;
  if (x.has_factors) {
    total = mul(binary32, mul(binary32, x.a_factor, x.b_factor), total);
  }
  return x.c && !c_in_unit ? add(binary32, total, *x.c) : total;
}

}  // namespace cpd::reference
