// SPDX-License-Identifier: Apache-2.0
//
// The fast path `veltkamp`: rounds products and sums to nearest-even, in formats of p <= 11
// significant bits, by Veltkamp's splitting (veltkamp_rounding.h has the proofs and sources). A sum
// of two numbers of p bits may be rounded in binary32 first and then rounded to p bits, because 24
// >= 2p + 2 (Figueroa 1995). A sum of multiples of the sum's least spacing needs no rounding below
// 2^emin, so no product may have a finer spacing. A step of an ordered sum takes 7 operations, or 3
// if products need no rounding; a step of Kahan's sum takes 16.
#pragma once

#include "cpd/numeric/fast/asked.h"
#include "cpd/numeric/fast/bounds.h"
#include "cpd/numeric/fast/veltkamp_rounding.h"

namespace cpd {

struct Veltkamp {
  static constexpr bool kTakesProducts = true;
  static constexpr bool kAnyValues = false;
  static constexpr bool kAddsExact = false;
  static constexpr bool kStochastic = false;

  static constexpr NoPath applies(const ProductsAsked& asked) {
    if (asked.options.mode != Rounding::nearest_even) return no_nearest_even(asked.options.mode);
    if (asked.exact_products) return NoPath::other;
    const auto& [scheme, product, exact_products, sum, options, product_plan, sum_plan] = asked;
    if (!takes_magnets(sum, sum_plan) || !takes_magnets(product, product_plan)) {
      return NoPath::special_values;
    }
    if (product.min_quantum_exponent() < sum.min_quantum_exponent()) return NoPath::grid;
    if (product.precision() > sum.precision() || 2 * sum.precision() + 2 > 24) {
      return NoPath::precision;
    }
    const bool powers = sum.man == 0 || product.man == 0;
    return scheme == Scheme::pairwise && powers ? NoPath::powers : NoPath::has_one;
  }
  static constexpr NoPath applies(const TermsAsked& asked) {
    const bool fits = takes_veltkamp(asked) && asked.format.man >= 1 && asked.are_known();
    return fits ? NoPath::has_one : NoPath::other;
  }
  static constexpr void bound(FastPlan& plan, const ProductsAsked& asked) {
    bound_veltkamp(plan, asked);
    plan.takes_logs = true;
    plan.least_bits_within = plan.man_product;
  }
  static constexpr float limit_of_terms(const TermsAsked& asked) { return limit_of(asked); }
};

inline namespace CPD_ISA {

template <class V>
class ProductSteps<Veltkamp, V> {
 public:
  CPD_FN explicit ProductSteps(const FastPlan& plan)
      : product_(plan.man_product, plan.product_quantum, true),
        sum_(plan.man_sum, plan.sum_quantum, plan.keeps_negative_zero),
        guarded_product_(plan.man_product, plan.product_quantum, true, plan.product_limit),
        guarded_sum_(plan.man_sum, plan.sum_quantum, plan.keeps_negative_zero, plan.limit) {}

  /// The constant in LogOperands::log_b = fixed_log(b) + log_magnet(). log_a + log_b is then a bit
  /// pattern with the exponent of the magnet, the number whose addition rounds a * b.
  template <How kHow>
  [[nodiscard]] CPD_FN std::int32_t log_magnet() const {
    return is_guarded(kHow) ? guarded_product_.log_magnet : product_.magnet;
  }
  /// The factor K of Veltkamp's splitting. FactorOperands holds b and K * b.
  [[nodiscard]] CPD_FN V factor() const { return product_.factor; }

  template <How kHow, ProductKind kProducts>
  CPD_FN V product(const LogOperands<V>& x, [[maybe_unused]] Seen<V>& seen) const {
    if constexpr (kProducts == ProductKind::narrow) {
      return x.a * x.b;
    } else if constexpr (is_guarded(kHow)) {
      return guarded_product<kHow == How::saturating>(x.a, x.b, x.log_a, x.log_b, guarded_product_,
                                                      seen.product);
    } else {
      return split_product(x.a, x.b, x.log_a, x.log_b, product_);
    }
  }
  template <How, ProductKind kProducts>
  CPD_FN V product(const FactorOperands<V>& x, Seen<V>& /*seen*/) const {
    return kProducts == ProductKind::few ? split_short(x.a * x.b, product_)
                                         : split_product(x.a, x.b, x.factor_b, product_);
  }
  template <How kHow>
  CPD_FN V sum(V t, [[maybe_unused]] Seen<V>& seen) const {
    if constexpr (is_guarded(kHow)) {
      return guarded<kHow == How::saturating>(t, guarded_sum_, seen.sum);
    } else {
      return split(t, sum_);
    }
  }
  template <How kHow, ProductKind kProducts, class Operands>
  CPD_FN V add_product(const Operands& x, V s, Seen<V>& seen) const {
    if constexpr (kProducts == ProductKind::narrow) {
      return split(fma(x.a, x.b, s), sum_);
    } else {
      return sum<kHow>(s + product<kHow, kProducts>(x, seen), seen);
    }
  }
  template <How kHow, ProductKind kProducts, int kSums, class Operands>
  CPD_FN void add_kahan(const Operands (&x)[kSums], V* sum, V* lost, Seen<V>& seen) const {
    V products[kSums];
    for (int i = 0; i < kSums; ++i) products[i] = product<kHow, kProducts>(x[i], seen);
    split_kahan<kSums>(products, sum, lost, [&](V t) { return this->sum<kHow>(t, seen); });
  }

 private:
  SplitFormat<V> product_, sum_;
  GuardedFormat<V> guarded_product_, guarded_sum_;
};

template <class V>
class TermSteps<Veltkamp, V> {
 public:
  static constexpr bool kAnyTerms = false;
  CPD_FN explicit TermSteps(const RoundedInto& into)
      : format_(into.man, into.quantum, into.keeps_negative_zero) {}
  CPD_FN V rounded(V t) const { return with_sign_of(split(t, format_), t, format_.sign); }

 private:
  SplitFormat<V> format_;
};

}  // namespace CPD_ISA
}  // namespace cpd
