// SPDX-License-Identifier: Apache-2.0
//
// The fast path `binary32`: computes sums in fp32 with binary32's own operations, which round to
// nearest-even and overflow as IEEE 754 specifies. The path is exact for all values. With exact
// products, a step is one fused multiply-add, else a multiplication and an addition. In Kahan's
// sum, a step is a multiplication and kahan_step.
#pragma once

#include "cpd/numeric/fast/asked.h"
#include "cpd/numeric/fast/bounds.h"
#include "cpd/numeric/fast/steps.h"
#include "cpd/numeric/round/kahan.h"

namespace cpd {

struct Binary32 {
  static constexpr bool kTakesProducts = true;
  /// The path `binary32` is correct for all values, however large. If a sum is NaN, the caller must
  /// replace it by the canonical NaN.
  static constexpr bool kAnyValues = true;
  static constexpr bool kAddsExact = false;
  static constexpr bool kStochastic = false;

  static constexpr NoPath applies(const ProductsAsked& asked) {
    if (asked.options.mode != Rounding::nearest_even) return no_nearest_even(asked.options.mode);
    const bool is_fp32 = asked.options.overflow == Overflow::ieee && asked.sum == kFp32 &&
                         (asked.exact_products || asked.product == kFp32);
    const bool fuses = !asked.exact_products || asked.scheme == Scheme::sequential;
    return is_fp32 && fuses ? NoPath::has_one : NoPath::other;
  }
  static constexpr NoPath applies(const TermsAsked& asked) {
    const bool fits = asked.round.mode == Rounding::nearest_even && asked.format == kFp32;
    return fits ? NoPath::has_one : NoPath::other;
  }
  static constexpr void bound(FastPlan& /*plan*/, const ProductsAsked& /*asked*/) {}
  /// Returns the limit on |sum| before its rounding, for sums of terms: binary32's largest finite
  /// number.
  static constexpr float limit_of_terms(const TermsAsked& asked) { return asked.round.max_value; }
};

inline namespace CPD_ISA {

template <class V>
class ProductSteps<Binary32, V> {
 public:
  CPD_FN explicit ProductSteps(const FastPlan& /*plan*/) {}

  template <How, ProductKind, class Operands>
  CPD_FN V product(const Operands& x, Seen<V>& /*seen*/) const {
    return x.a * x.b;
  }
  template <How>
  CPD_FN V sum(V t, Seen<V>& /*seen*/) const {
    return t;
  }
  template <How, ProductKind kProducts, class Operands>
  CPD_FN V add_product(const Operands& x, V s, Seen<V>& /*seen*/) const {
    return kProducts == ProductKind::exact ? fma(x.a, x.b, s) : s + x.a * x.b;
  }
  template <How, ProductKind, int kSums, class Operands>
  CPD_FN void add_kahan(const Operands (&x)[kSums], V* sum, V* lost, Seen<V>& /*seen*/) const {
    for (int i = 0; i < kSums; ++i) {
      kahan_step(x[i].a * x[i].b, sum[i], lost[i], [](V y, V z) { return y + z; });
    }
  }
};

template <class V>
class TermSteps<Binary32, V> {
 public:
  static constexpr bool kAnyTerms = false;
  CPD_FN explicit TermSteps(const RoundedInto& /*into*/) {}
  CPD_FN V rounded(V t) const { return t; }
};

}  // namespace CPD_ISA
}  // namespace cpd
