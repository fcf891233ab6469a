// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpd/numeric/round/round.h"

namespace cpd {
inline namespace CPD_ISA {

/// Does one step of Kahan's sum (1965): y = x - c; t = s + y; c = (t - s) - y; s = t. Calls add(a,
/// b), a sum rounded once, 4 times in this order. The last 3 additions are Dekker's FastTwoSum
/// (1971). If t is infinite or NaN, c becomes +0, so that no later step computes Inf - Inf.
template <class V, class Add>
CPD_FN constexpr void kahan_step(V x, V& sum, V& compensation, Add add) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using P = Pattern<V>;
  const V y = add(x, -compensation);
  const V t = add(sum, y);
  const V gained = add(t, -sum);
  const V lost = add(gained, -y);
  const auto finite = (I)(bits_as<U>(t) & splat<U>(P::magnitude)) < splat<I>(P::infinity);
  compensation = select(finite, lost, V{});
  sum = t;
}

}  // namespace CPD_ISA
}  // namespace cpd
