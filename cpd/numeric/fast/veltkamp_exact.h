// SPDX-License-Identifier: Apache-2.0
//
// The fast path `veltkamp_exact` adds terms one after the other. The terms are unrounded products,
// or binary32 numbers that the sum's format may not contain. After each addition, the sum is
// rounded to nearest-even into a format of at most 11 significant bits. If the operands guarantee
// that the unrounded sum is a binary32 number, one binary32 operation forms the sum. Otherwise the
// sum is first rounded to odd, or formed in two parts. The addition of a magnet (a large number)
// then rounds the sum (veltkamp_rounding.h counts the operations). If all products are numbers of
// the products' format, each addition is one fused multiply-add and the two operations of `split`.
#pragma once

#include "cpd/numeric/fast/asked.h"
#include "cpd/numeric/fast/bounds.h"
#include "cpd/numeric/fast/veltkamp_rounding.h"

namespace cpd {

struct VeltkampExact {
  static constexpr bool kTakesProducts = true;
  static constexpr bool kAnyValues = false;
  static constexpr bool kAddsExact = true;  ///< a product and a sum are rounded once together
  static constexpr bool kStochastic = false;

  static constexpr NoPath applies(const ProductsAsked& asked) {
    if (asked.options.mode != Rounding::nearest_even) return no_nearest_even(asked.options.mode);
    if (!asked.exact_products) return NoPath::other;
    if (asked.scheme != Scheme::sequential) return NoPath::exact_products;
    if (!takes_magnets(asked.sum, asked.sum_plan)) return NoPath::special_values;
    return asked.sum.precision() <= 11 ? NoPath::has_one : NoPath::precision;
  }
  static constexpr NoPath applies(const TermsAsked& asked) {
    const bool fits = takes_veltkamp(asked) && asked.format.man >= 1 && !asked.are_known();
    return fits ? NoPath::has_one : NoPath::other;
  }
  static constexpr void bound(FastPlan& plan, const ProductsAsked& asked) {
    bound_veltkamp(plan, asked);
    plan.least_bits_within = 24;
    plan.adds_exact = true;
  }
  static constexpr float limit_of_terms(const TermsAsked& asked) { return limit_of(asked); }
};

inline namespace CPD_ISA {

template <class V>
class ProductSteps<VeltkampExact, V> {
 public:
  CPD_FN explicit ProductSteps(const FastPlan& plan)
      : sum_(plan.man_sum, plan.sum_quantum, plan.keeps_negative_zero),
        guarded_sum_(plan.man_sum, plan.sum_quantum, plan.keeps_negative_zero, plan.limit) {}

  template <How kHow, ProductKind kProducts, class Operands>
  CPD_FN V add_product(const Operands& x, V s, [[maybe_unused]] Seen<V>& seen) const {
    if constexpr (kProducts == ProductKind::narrow) {
      return split(fma(x.a, x.b, s), sum_);
    } else if constexpr (is_guarded(kHow)) {
      return guarded_fma<kHow == How::saturating>(x.a, x.b, s, guarded_sum_, seen.sum);
    } else if constexpr (kHow == How::parts) {
      return split_fma_in_parts(x.a, x.b, s, sum_);
    } else {
      return split_fma<kHow == How::fits>(x.a, x.b, s, sum_);
    }
  }

 private:
  SplitFormat<V> sum_;
  GuardedFormat<V> guarded_sum_;
};

template <class V>
class TermSteps<VeltkampExact, V> {
 public:
  static constexpr bool kAnyTerms = true;
  CPD_FN explicit TermSteps(const RoundedInto& into)
      : format_(into.man, into.quantum, into.keeps_negative_zero) {}
  CPD_FN V rounded(V t) const { return with_sign_of(split(t, format_), t, format_.sign); }
  /// Returns t, a sum that was already rounded to odd, rounded to nearest-even into the format.
  CPD_FN V rounded_odd(V t) const { return split_any(t, format_); }

 private:
  SplitFormat<V> format_;
};

}  // namespace CPD_ISA
}  // namespace cpd
