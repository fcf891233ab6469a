// SPDX-License-Identifier: Apache-2.0
//
// Computes sums and sums of products, and the exceptions that their roundings raise (host only).
// soft_float.h computes one element at a time. order.h, block_fma.h and fixed_number.h define the
// order of additions and the number of the random integer that each rounding uses.
//
// In a matrix unit (only with adder `aligned`), a cut that drops a nonzero bit raises inexact, and
// the rounding of the matrix unit's sum raises exceptions as any rounding does. In an integer sum,
// a term that loses bits raises inexact, a sum that wraps or saturates raises overflow, and an
// infinite term raises invalid.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

#include "cpd/numeric/draws/given_draws.h"
#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/round/soft_float.h"
#include "cpd/numeric/sums/fixed_number.h"
#include "cpd/numeric/sums/order.h"
#include "cpd/numeric/units/accumulator_plan.h"

namespace cpd::soft {

/// The index of a sum's element, and the source of its random integers. Random integer t is
/// given.random[t]. If given.random is null, philox.h generates the integers from `key`.
struct SumElement {
  std::uint64_t index = 0;
  GivenDraws given{};
  RandomKey key{};
};

/// Rounds the sums of one element in program order, and collects the exceptions that the roundings
/// raise.
class Roundings {
 public:
  Roundings(const RoundingOptions& options, const SumElement& element)
      : options_(options), element_(element) {}

  /// Sets the number of the random integer (draw) that the next stochastic rounding uses.
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

/// An ordered sum of terms. Each term is an exact number that is formed when it is added.
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

  /// Returns an element of the result of Gemm: the sum of c and of all a[k] * b[k], in order.
  /// `is_given` is true if the caller passes the random integers.
  Rounded product(std::span<const double> a, std::span<const double> b, double c, bool is_given) {
    sums_[0] = rounded_(number(c), format_);
    rounded_.from(is_given ? 1 : first_draw(accumulator_.rounding));
    return run(product_order(accumulator_), a.size(), [&](std::int64_t k) {
      const auto at = static_cast<std::size_t>(k);
      const Number exact = mul(number(a[at]), number(b[at]));
      return accumulator_.exact_products ? exact : number(rounded_(exact, product_));
    });
  }

  /// Returns the ordered sum of the terms x, one element of the result of Sum (ops/arithmetic.h).
  Rounded sum(std::span<const double> x) {
    if (x.empty()) return round(zero(false), target(accumulator_.format));
    return run(sum_order(accumulator_), x.size(),
               [&](std::int64_t k) { return number(x[static_cast<std::size_t>(k)]); });
  }

 private:
  template <class Term>
  Rounded run(const SumOrder& order, std::size_t n, Term term) {
    Steps<Term> steps{*this, order, term};
    SumWalk walk(order, 0);
    walk.take(steps, static_cast<std::int64_t>(n));
    walk.end(steps);
    return {sums_[0], rounded_.flags};
  }

  double add(double s, const Number& x, const Target& to) {
    return rounded_(soft::add(number(s), x, to.plan.mode == Rounding::down), to);
  }

  /// The functions that SumWalk (the loop over terms, order.h) calls.
  template <class Term>
  struct Steps {
    FlaggedSum& sum;
    const SumOrder& order;
    Term term;
    std::map<int, Number> trees{};  ///< indexed by level
    Number tree{};

    void add_terms(int plane, bool starts, std::int64_t, std::int64_t first, std::int64_t count) {
      const Target& to = order.scheme == Scheme::chunked ? sum.inner_ : sum.format_;
      double& s = sum.sums_[plane];
      std::int64_t k = first;
      if (starts) s = order.from_start ? 0 : sum.rounded_(term(k++), to);
      for (; k < first + count; ++k) s = sum.add(s, term(k), to);
    }
    void add_compensated(bool starts, std::int64_t, std::int64_t k, std::int64_t count) {
      auto& [s, lost] = sum.sums_;
      const Target& to = sum.format_;
      if (starts) s = sum.rounded_(term(k), to);
      for (std::int64_t end = k + count, i = k + (starts ? 1 : 0); i < end; ++i) {
        const double y = sum.add(-lost, term(i), to);
        const double t = sum.add(s, number(y), to);
        const double grown = sum.add(-s, number(t), to);
        lost = sum.add(-y, number(grown), to);
        if (!std::isfinite(t)) lost = 0;
        s = t;
      }
    }
    void add_chunk(bool starts, std::int64_t) {
      auto& [s, chunk] = sum.sums_;
      s = starts ? sum.rounded_(number(chunk), sum.format_)
                 : sum.add(s, number(chunk), sum.format_);
    }
    void open_tree(int, std::int64_t k) { tree = term(k); }
    void merge_term(int, std::int64_t, std::int64_t k) { merge(tree, term(k)); }
    void merge_trees(int level, std::int64_t, bool) {
      merge(level == 0 ? number(sum.sums_[0]) : trees.at(level), tree);
    }
    void merge(const Number& left, const Number& right) {
      const bool down = sum.format_.plan.mode == Rounding::down;
      tree = number(sum.rounded_(soft::add(left, right, down), sum.format_));
    }
    void round_tree(std::int64_t) { tree = number(sum.rounded_(tree, sum.format_)); }
    void load_tree(int level) { tree = trees.at(level); }
    void store_tree(int level) {
      if (level > 0) trees[level] = tree;
      // Stored at level 0, `tree` is the finished sum. It is already a value of the format, so
      // `round` converts its type without a change of value.
      if (level == 0) sum.sums_[0] = round(tree, sum.format_).value;
    }
  };

  const Accumulator& accumulator_;
  Target format_, inner_, product_;
  Roundings rounded_;
  double sums_[2] = {};  ///< the sum; and the sum of a chunk, or Kahan's compensation
};

/// A sum in an integer of fixed width. The sum takes one term at a time.
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
  /// Adds a product. Inf * 0 counts as an infinite term, which raises invalid.
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

/// Computes the sum of products of a matrix unit with Adder::aligned and without scales, and its
/// exceptions.
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
    // block_total takes a rounding rule but does not round, so any rule serves.
    using Down = Rule<Rounding::toward_zero>;
    const double total = block_total<Down>(units, s, std::int64_t{greatest}, plan_);
    const double rounded = rounded_(number(total), sum_);
    const bool is_cut = plan_.sum.mode == Rounding::toward_zero;
    if (is_cut && std::fabs(total) >= plan_.beyond) return std::copysign(HUGE_VAL, total);
    return rounded == 0 ? 0 : rounded;
  }

  static int exponent(double x, int emin) { return static_cast<int>(scaled_exponent(x, emin)); }
  /// Returns x in units of 2^(greatest - F), cut toward zero to an integer. `greatest` is the
  /// block's greatest exponent, and F is plan_.fraction_bits. Raises inexact if the cut changes x.
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
