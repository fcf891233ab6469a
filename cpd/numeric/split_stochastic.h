// SPDX-License-Identifier: Apache-2.0
//
// Short stochastic roundings, variant A, under split.h's conditions: nothing overflows, operands
// are finite, and no sum is -0.
#pragma once

#include "cpd/numeric/exact.h"
#include "cpd/numeric/round.h"

namespace cpd {
inline namespace CPD_ISA {

/// Stochastic rounding A with N bits: t cut to N bits beyond the format's last place, R added
/// there, and the N bits dropped. The cut is exact for truncated t of man + N + 1 bits or more.
template <class V>
struct SplitStochastic {
  using U = Unsigned<V>;
  int shift;     ///< of R to the first N bits that a sum drops; at least 2 (make_split_plan)
  U kept;        ///< mask of a sum's bits that stay
  V factor;      ///< 2^(23 - man - N)
  V least;       ///< 1.5 * 2^23 spacings * 2^-N
  U kept_units;  ///< mask of what stays of a number of 2^-N spacings

  CPD_FN SplitStochastic(int man, int random_bits, double quantum) {
    using S = Scalar<V>;
    using E = typename ElementOf<U>::type;
    const int dropped = Lanes<V>::mantissa - man;
    const double units = quantum * exact_power(-random_bits);
    shift = dropped - random_bits;
    kept = splat<U>(static_cast<E>(~E{0} << dropped));
    kept_units = splat<U>(static_cast<E>(~E{0} << random_bits));
    factor = splat<V>(static_cast<S>(exact_power(shift)));
    least = splat<V>(static_cast<S>(1.5 * units * exact_power(Lanes<V>::mantissa)));
  }
};

/// s + x rounded; both are multiples of the least spacing.
template <class V>
CPD_FN V split_sum(V s, V x, Unsigned<V> random, const SplitStochastic<V>& format) {
  using U = Unsigned<V>;
  const V t = add_toward_zero(s, x);
  return bits_as<V>((bits_as<U>(t) + (random << format.shift)) & format.kept);
}

/// a * b rounded: 1.5 * 2^j of t's sign, j so that its last place is 2^-N of t's, takes t,
/// truncated, without leaving its binade.
template <class V>
CPD_FN V split_product(V a, V b, V factor_b, Unsigned<V> random, const SplitStochastic<V>& format) {
  using U = Unsigned<V>;
  using P = Pattern<V>;
  const V scaled = fma_toward<Toward::zero>(a, factor_b, V{});
  const U binade =
      (bits_as<U>(scaled) & splat<U>(P::sign | P::infinity)) | splat<U>(P::implicit >> 1);
  const V m = at_least(bits_as<V>(binade), format.least);
  const U sum = bits_as<U>(fma_toward<Toward::zero>(a, b, m)) + random;
  return bits_as<V>(sum & format.kept_units) - m;
}

}  // namespace CPD_ISA
}  // namespace cpd
