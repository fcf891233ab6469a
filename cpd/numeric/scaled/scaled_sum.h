// SPDX-License-Identifier: Apache-2.0
//
// Multiplies sums of products of scaled operands by the operands' scales.
#pragma once

#include "cpd/numeric/round/round.h"

namespace cpd {
inline namespace CPD_ISA {

/// Returns total + (a_scale * b_scale) * sum, in 3 operations of binary32. Each operation is
/// rounded to nearest even; none is contracted to a fused multiply-add. A NaN result is the
/// canonical quiet NaN.
template <class V>
CPD_FN constexpr V add_scaled(V total, V a_scale, V b_scale, V sum) {
  const V factor = a_scale * b_scale;
  const V scaled = factor * sum;
  const V result = total + scaled;
  const V nan = bits_as<V>(splat<Unsigned<V>>(Pattern<V>::quiet_nan));
  return select(result == result, result, nan);
}

}  // namespace CPD_ISA
}  // namespace cpd
