// SPDX-License-Identifier: Apache-2.0
//
// Sums and sums of products with the exceptions of all their roundings (host only), one element at
// a time by soft_float.h, in the order and by the draws of fold_walk.h, gemm_sums.h, block_fma.h
// and fixed_number.h.
//
// In a matrix unit (adder aligned alone) a cut that drops a bit that is set is inexact, and its
// sum's rounding raises exceptions as any other. In an integer a term that loses bits is inexact, a
// sum that wraps or saturates overflows, and an infinite term is invalid.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cpd/numeric/draws/given_draws.h"
#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/round/soft_float.h"
#include "cpd/numeric/sums/fixed_number.h"
#include "cpd/numeric/units/accumulator_plan.h"

namespace cpd::soft {

/// The index of a sum's element and its random integers: draw t is given.random[t], or philox.h's
/// of `key` where that is null.
struct SumElement {
  std::uint64_t index = 0;
  GivenDraws given{};
  RandomKey key{};
};

/// The roundings of one element's sum, in program order, and the exceptions that they raise.
class Roundings {
 public:
  Roundings(const RoundingOptions& options, const SumElement& element)
      : options_(options), element_(element) {}

  /// Sets the number of the next draw.
  void from(std::uint64_t draw) { draw_ = draw; }
  double operator()(const Number& x, const Target& to) {
    const Rounded y = round(x, to, to.plan.mode == Rounding::stochastic ? draw() : 0);
    flags |= y.flags;
    return y.value;
  }

  std::uint8_t flags = 0;

 private:
  std::uint32_t draw() {
    const std::uint64_t t = draw_++;
    if (element_.given.random != nullptr) return element_.given.random[t];
    return fold_draw(options_.random_bits, element_.key.seed, element_.key.stream,
                     static_cast<std::uint32_t>(element_.index), element_.index, t);
  }

  const RoundingOptions& options_;
  const SumElement& element_;
  std::uint64_t draw_ = 0;
};

/// An ordered sum of terms, each an exact number formed when it is added.
class FlaggedSum {
 public:
  FlaggedSum(const Accumulator& accumulator, Tininess tininess, const SumElement& element)
      : accumulator_(accumulator),
        format_(target(accumulator.format, accumulator.rounding, tininess)),
        inner_(
            target(accumulator.inner.value_or(accumulator.format), accumulator.rounding, tininess)),
        product_(target(accumulator.product.value_or(accumulator.format), accumulator.rounding,
                        tininess)),
        rounded_(accumulator.rounding, element) {}

  /// An element of Gemm: c, then a[k] * b[k] in order. `is_given`: draws are the caller's.
  Rounded product(std::span<const double> a, std::span<const double> b, double c, bool is_given) {
    const double start = rounded_(number(c), format_);
    rounded_.from(is_given ? 1 : first_draw(accumulator_.rounding));
    const auto term = [&](std::size_t k) {
      const Number exact = mul(number(a[k]), number(b[k]));
      return accumulator_.exact_products ? exact : number(rounded_(exact, product_));
    };
    const std::size_t n = a.size();
    switch (accumulator_.scheme) {
      case Scheme::kahan:
        return done(kahan(start, 0, n, term));
      case Scheme::chunked:
        return done(chunks(start, n, term));
      case Scheme::pairwise:
        return done(n == 0 ? start : add(start, tree(n, term), format_));
      default:
        return done(sequential(start, 0, n, term, format_));
    }
  }

  /// An element of Sum.
  Rounded sum(std::span<const double> x) {
    const auto term = [&](std::size_t k) { return number(x[k]); };
    const std::size_t n = x.size();
    if (n == 0) return round(zero(false), target(accumulator_.format));
    switch (accumulator_.scheme) {
      case Scheme::kahan: {
        const double start = rounded_(term(0), format_);
        return done(kahan(start, 1, n, term));
      }
      case Scheme::chunked:
        return done(chunks_of_terms(n, term));
      case Scheme::pairwise:
        return done(n == 1 ? rounded_(term(0), format_) : rounded_tree(n, term));
      default:
        return done(from_first(0, n, term, format_));
    }
  }

 private:
  [[nodiscard]] Rounded done(double value) const { return {value, rounded_.flags}; }

  double add(double s, const Number& x, const Target& to) {
    return rounded_(soft::add(number(s), x, to.plan.mode == Rounding::down), to);
  }

  template <class Term>
  double sequential(double s, std::size_t begin, std::size_t end, Term term, const Target& to) {
    for (std::size_t k = begin; k < end; ++k) {
      const Number x = term(k);
      s = add(s, x, to);
    }
    return s;
  }
  template <class Term>
  double from_first(std::size_t begin, std::size_t end, Term term, const Target& to) {
    const double s = rounded_(term(begin), to);
    return sequential(s, begin + 1, end, term, to);
  }

  template <class Term>
  double kahan(double s, std::size_t begin, std::size_t end, Term term) {
    double lost = 0;
    for (std::size_t k = begin; k < end; ++k) {
      const Number x = term(k);
      const double y = add(-lost, x, format_);
      const double t = add(s, number(y), format_);
      const double grown = add(-s, number(t), format_);
      lost = add(-y, number(grown), format_);
      if (!std::isfinite(t)) lost = 0;
      s = t;
    }
    return s;
  }

  [[nodiscard]] std::size_t chunk_end(std::size_t begin, std::size_t n) const {
    const auto chunk = static_cast<std::size_t>(accumulator_.chunk);
    return n - begin < chunk ? n : begin + chunk;
  }
  template <class Term>
  double chunks(double s, std::size_t n, Term term) {
    for (std::size_t k = 0; k < n; k = chunk_end(k, n)) {
      const double part = sequential(0, k, chunk_end(k, n), term, inner_);
      s = add(s, number(part), format_);
    }
    return s;
  }
  template <class Term>
  double chunks_of_terms(std::size_t n, Term term) {
    double s = 0;
    for (std::size_t k = 0; k < n; k = chunk_end(k, n)) {
      const double part = from_first(k, chunk_end(k, n), term, inner_);
      s = k == 0 ? rounded_(number(part), format_) : add(s, number(part), format_);
    }
    return s;
  }

  /// The pairwise sum of n >= 1 terms. Trees with equal numbers of terms merge at once, at the end
  /// those that remain, the smallest first. A single term is a tree, unrounded.
  template <class Term>
  Number tree(std::size_t n, Term term) {
    std::vector<std::pair<Number, std::size_t>> trees;
    const auto merge = [&] {
      const auto [right, terms] = trees.back();
      trees.pop_back();
      auto& [left, count] = trees.back();
      const bool down = format_.plan.mode == Rounding::down;
      left = number(rounded_(soft::add(left, right, down), format_));
      count += terms;
    };
    for (std::size_t k = 0; k < n; ++k) {
      trees.emplace_back(term(k), 1);
      while (trees.size() > 1 && trees[trees.size() - 2].second == trees.back().second) merge();
    }
    while (trees.size() > 1) merge();
    return trees[0].first;
  }
  /// The pairwise sum of at least two terms.
  template <class Term>
  double rounded_tree(std::size_t n, Term term) {
    return round(tree(n, term), format_).value;  // a value of the format, which round keeps
  }

  const Accumulator& accumulator_;
  Target format_, inner_, product_;
  Roundings rounded_;
};

/// A sum in an integer of fixed width, term by term.
class FlaggedInteger {
 public:
  FlaggedInteger(const Accumulator& accumulator, Tininess tininess)
      : plan_(make_fixed_plan(accumulator)),
        end_(target(accumulator.format, accumulator.rounding, tininess)),
        words_{},
        sum_(plan_, words_, 1) {}

  void add(double x) {
    const FixedTerm term = fixed_term(x, plan_.point.fraction, plan_.point.rounding);
    if (!term.finite) {
      finite_ = false;
      flags_ |= std::isnan(x) ? 0 : kInvalid;
      return;
    }
    flags_ |= term.exact ? 0 : kInexact;
    if (!sum_.add(term, plan_.saturates)) flags_ |= kOverflow | kInexact;
  }
  /// Adds a product; Inf * 0 counts as an infinite term, which is invalid.
  void add(double x, double y) {
    const bool given = std::isnan(x) || std::isnan(y);
    add(!given && std::isnan(x * y) ? HUGE_VAL : x * y);
  }
  [[nodiscard]] Rounded done() const {
    const Number x = finite_ ? number(sum_.value(plan_.point.fraction)) : nan();
    Rounded y = round(x, end_);
    y.flags |= flags_;
    return y;
  }

 private:
  FixedPlan plan_;
  Target end_;
  std::uint32_t words_[kMostFixedWords];
  FixedNumber sum_;
  bool finite_ = true;
  std::uint8_t flags_ = 0;
};

/// A sum in a matrix unit with Adder::aligned and without scales.
class FlaggedUnit {
 public:
  FlaggedUnit(const Accumulator& accumulator, Tininess tininess, const SumElement& element)
      : accumulator_(accumulator),
        plan_(make_block_fma_plan(accumulator)),
        sum_(target(accumulator.unit.value_or(BlockFma{}).sum, {.mode = plan_.sum.mode}, tininess)),
        format_(target(accumulator.format, accumulator.rounding, tininess)),
        rounded_(accumulator.rounding, element) {}

  Rounded product(std::span<const double> a, std::span<const double> b, double c, bool is_given) {
    const bool promotes = plan_.promote > 0;
    double promoted = promotes ? rounded_(number(c), format_) : 0;
    double s = promotes ? 0 : rounded_(number(c), sum_);
    rounded_.from(is_given ? 1 : first_draw(accumulator_.rounding));
    const std::size_t stretch = promotes ? static_cast<std::size_t>(plan_.promote) : a.size();
    const auto block = static_cast<std::size_t>(plan_.block);
    for (std::size_t begin = 0; begin < a.size(); begin += stretch) {
      const std::size_t end = std::min(a.size(), begin + stretch);
      for (std::size_t k = begin; k < end; k += block) {
        const std::size_t count = std::min(block, end - k);
        s = add_block(a.subspan(k, count), b.subspan(k, count), s);
      }
      if (!promotes) break;
      const bool down = format_.plan.mode == Rounding::down;
      promoted = rounded_(add(number(promoted), number(s), down), format_);
      s = 0;
    }
    const double result = promotes ? promoted : rounded_(number(s), format_);
    return {result, rounded_.flags};
  }

 private:
  double add_block(std::span<const double> a, std::span<const double> b, double s) {
    Number special = zero(false);  // the sum of the terms that are not finite
    int greatest = plan_.min_exponent;
    const auto counts = [&](int exponent) { greatest = max(greatest, exponent); };
    for (std::size_t k = 0; k < a.size(); ++k) {
      const Number p = mul(number(a[k]), number(b[k]));
      if (!p.is(Kind::finite) && !p.is(Kind::zero)) special = add(special, p, false);
      counts(exponent(a[k], plan_.emin_a) + exponent(b[k], plan_.emin_b));
    }
    if (!std::isfinite(s)) special = add(special, number(s), false);
    if (!special.is(Kind::zero)) return rounded_(special, sum_);
    if (plan_.aligns_addend) counts(exponent(s, plan_.emin_sum));

    double units = 0;
    for (std::size_t k = 0; k < a.size(); ++k) units += cut(a[k] * b[k], greatest);
    if (plan_.aligns_addend) cut(s, greatest);
    using Down = Rule<Rounding::toward_zero>;  // all rules have this total, but for a zero's sign
    const double total = block_total<Down>(units, s, std::int64_t{greatest}, plan_);
    const double rounded = rounded_(number(total), sum_);
    const bool is_cut = plan_.sum.mode == Rounding::toward_zero;
    if (is_cut && std::fabs(total) >= plan_.beyond) return std::copysign(HUGE_VAL, total);
    return rounded == 0 ? 0 : rounded;
  }

  static int exponent(double x, int emin) { return static_cast<int>(scaled_exponent(x, emin)); }
  /// x in units, cut toward zero to an integer; inexact where that changes it.
  double cut(double x, int greatest) {
    const double exact = x * exact_power(plan_.fraction_bits - greatest);
    const double whole = truncate(exact);
    if (whole != exact) rounded_.flags |= kInexact;
    return whole;
  }

  const Accumulator& accumulator_;
  BlockFmaPlan plan_;
  Target sum_, format_;
  Roundings rounded_;
};

}  // namespace cpd::soft
