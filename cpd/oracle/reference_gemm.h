// SPDX-License-Identifier: Apache-2.0
//
// The oracle of one element of Gemm (host only): every scheme, rounding by rounding, from
// ops/gemm.h's words. It shares no arithmetic with the kernels: exact numbers and roundings are
// those of its `Arithmetic`, by default reference.h's; random integers are computed here from the
// definition in philox.h.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cpd/oracle/reference.h"
#include "cpd/oracle/reference_block_fma.h"
#include "cpd/spec/accumulator.h"

namespace cpd::reference {

// --- Random integers -----------------------------------------------------------------------------

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011, section 3.3).
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

// The roundings of one sum: gives the options of the next one, its random integer included. Draw 0
// belongs to the addend, the loop's begin with the next block of words.
class Draws {
 public:
  Draws(const RoundingOptions& o, std::uint64_t index)
      : options_{o.mode, o.overflow, o.variant, o.random_bits, 0},
        seed_(o.seed),
        stream_(o.stream),
        index_(index),
        per_word_(o.random_bits > 16  ? 1
                  : o.random_bits > 8 ? 2
                                      : 4),
        next_(4 * per_word_) {}

  Options of_addend() { return with(0); }
  Options next() { return with(next_++); }

  // For what depends on the mode alone.
  const Options& options() const { return options_; }

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

// --- Arithmetic ----------------------------------------------------------------------------------

// What the schemes below need of numbers.
struct ExactArithmetic {
  using Number = Exact;
  static Number number(float x) { return exact(x); }
  static Number product(float x, float y) { return multiply(exact(x), exact(y)); }
  // The exact sum, as it enters a rounding with these options.
  static Number sum(const Number& x, const Number& y, const Options& o) { return add_for(o, x, y); }
  static Number minus(const Number& x) { return negate(x); }
  static Number rounded(const Spec& spec, const Number& x, const Options& o) {
    return round_exact(spec, x, o);
  }
  static bool is_finite(const Number& x) { return x.kind == Exact::Kind::finite; }
  static float to_float(const Number& x) { return reference::to_float(x); }
};

// --- Ordered sums of products --------------------------------------------------------------------

template <class Arithmetic = ExactArithmetic>
class Dot {
 public:
  using Number = typename Arithmetic::Number;

  // The roundings take their integers from `draws`, which goes on.
  Dot(const Accumulator& accumulator, std::span<const float> a, std::span<const float> b,
      Draws& draws)
      : accumulator_(accumulator),
        format_(spec_of(accumulator.format)),
        product_(spec_of(accumulator.product.value_or(accumulator.format))),
        inner_(spec_of(accumulator.inner.value_or(accumulator.format))),
        a_(a),
        b_(b),
        draws_(draws) {
    if (a.size() != b.size()) throw std::invalid_argument("operands of different lengths");
  }

  float from(float c) {
    const Number start = Arithmetic::rounded(format_, Arithmetic::number(c), draws_.of_addend());
    switch (accumulator_.scheme) {
      case Scheme::sequential:
        return Arithmetic::to_float(sequential(start, 0, a_.size(), format_));
      case Scheme::kahan:
        return Arithmetic::to_float(kahan(start));
      case Scheme::chunked:
        return Arithmetic::to_float(chunked(start));
      case Scheme::pairwise:
        return Arithmetic::to_float(pairwise(start));
      case Scheme::block_fma:
      case Scheme::fixed:
        break;
    }
    throw std::invalid_argument("scheme without ordered sum");
  }

 private:
  Number product(std::size_t k) {
    const Number exact_product = Arithmetic::product(a_[k], b_[k]);
    if (accumulator_.exact_products) return exact_product;
    return Arithmetic::rounded(product_, exact_product, draws_.next());
  }

  Number plus(const Spec& spec, const Number& x, const Number& y) {
    return Arithmetic::rounded(spec, Arithmetic::sum(x, y, draws_.options()), draws_.next());
  }

  Number sequential(Number s, std::size_t begin, std::size_t end, const Spec& spec) {
    for (std::size_t k = begin; k < end; ++k) {
      const Number p = product(k);
      s = plus(spec, s, p);
    }
    return s;
  }

  Number kahan(Number s) {
    Number compensation = Arithmetic::number(0.0f);
    for (std::size_t k = 0; k < a_.size(); ++k) {
      const Number p = product(k);
      const Number y = plus(format_, p, Arithmetic::minus(compensation));
      const Number t = plus(format_, s, y);
      const Number grown = plus(format_, t, Arithmetic::minus(s));
      compensation = plus(format_, grown, Arithmetic::minus(y));
      if (!Arithmetic::is_finite(t)) compensation = Arithmetic::number(0.0f);
      s = t;
    }
    return s;
  }

  Number chunked(Number s) {
    const auto chunk = static_cast<std::size_t>(accumulator_.chunk);
    for (std::size_t begin = 0; begin < a_.size(); begin += chunk) {
      const std::size_t end = begin + std::min(chunk, a_.size() - begin);
      const Number t = sequential(Arithmetic::number(0.0f), begin, end, inner_);
      s = plus(format_, s, t);
    }
    return s;
  }

  // A stack of finished subtrees, each with its number of terms: equal ones merge at once; what is
  // left merges from the smallest, which is where an odd neighbour that passes up ends.
  Number pairwise(const Number& start) {
    std::vector<std::pair<Number, std::size_t>> trees;
    const auto merge = [&] {
      const auto [right, terms] = trees.back();
      trees.pop_back();
      trees.back() = {plus(format_, trees.back().first, right), trees.back().second + terms};
    };
    for (std::size_t k = 0; k < a_.size(); ++k) {
      trees.emplace_back(product(k), 1);
      while (trees.size() > 1 && trees[trees.size() - 2].second == trees.back().second) merge();
    }
    if (trees.empty()) return start;
    while (trees.size() > 1) merge();
    return plus(format_, start, trees.back().first);
  }

  const Accumulator& accumulator_;
  Spec format_, product_, inner_;
  std::span<const float> a_, b_;
  Draws& draws_;
};

// --- Block FMA -----------------------------------------------------------------------------------

inline float dot_block_fma(const Accumulator& accumulator, const BlockOperands& given, float c,
                           Draws& draws) {
  const BlockFma& unit = accumulator.unit.value();
  const std::vector<float> a = in_order(unit, given.a);
  const std::vector<float> b = in_order(unit, given.b);
  const BlockOperands x{a, b, given.a_scales, given.b_scales};
  const Spec format = spec_of(accumulator.format);
  const std::size_t depth = x.a.size();
  Options into_unit;
  into_unit.rounding = unit.rounding;
  const bool promotes = unit.promote > 0;
  Exact promoted = round_exact(format, exact(c), draws.of_addend());
  Exact s =
      promotes ? exact_finite(false, 0, 0) : round_exact(spec_of(unit.sum), exact(c), into_unit);
  const std::size_t stretch = promotes ? static_cast<std::size_t>(unit.promote) : depth;
  for (std::size_t begin = 0; begin < depth; begin += stretch) {
    const std::size_t end = std::min(depth, begin + stretch);
    for (std::size_t k = begin; k < end; k += static_cast<std::size_t>(unit.block)) {
      const std::size_t count = std::min(end - k, static_cast<std::size_t>(unit.block));
      s = block_sum(unit, x.part(k, count), s);
    }
    if (!promotes) break;
    promoted = round_exact(format, add_for(draws.options(), promoted, s), draws.next());
    s = exact_finite(false, 0, 0);
  }
  return to_float(promotes ? promoted : round_exact(format, s, draws.next()));
}

// Element number `index` of Gemm's result: a row of a, a column of b, and its addend.
template <class Arithmetic = ExactArithmetic>
float dot(const Accumulator& accumulator, std::span<const float> a, std::span<const float> b,
          float c = 0.0f, std::uint64_t index = 0) {
  Draws draws(accumulator.rounding, index);
  if (accumulator.scheme == Scheme::block_fma) {
    return dot_block_fma(accumulator, {a, b}, c, draws);
  }
  return Dot<Arithmetic>(accumulator, a, b, draws).from(c);
}

// --- Scaled operands -----------------------------------------------------------------------------

// One element of GemmScaled: of each k the elements and their scales; `block` values of k share
// them. `factor`s where there are some, c where there is one.
struct ScaledDot {
  BlockOperands operands;
  std::size_t block = 0;
  float a_factor = 1.0f, b_factor = 1.0f;
  bool has_factors = false;
  std::optional<float> c{};
};

// total + (x * y) * sum in binary32.
inline float add_scaled(float total, float x, float y, float sum) {
  const Spec binary32;
  return add(binary32, total, mul(binary32, mul(binary32, x, y), sum));
}

template <class Arithmetic = ExactArithmetic>
float dot_scaled(const Accumulator& accumulator, const ScaledDot& x, bool epilogue,
                 std::uint64_t index = 0) {
  Draws draws(accumulator.rounding, index);
  const bool is_unit = accumulator.unit && accumulator.unit->scale;
  const auto sum = [&](const BlockOperands& part, float start) {
    if (accumulator.unit) return dot_block_fma(accumulator, part, start, draws);
    return Dot<Arithmetic>(accumulator, part.a, part.b, draws).from(start);
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
