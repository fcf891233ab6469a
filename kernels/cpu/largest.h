// SPDX-License-Identifier: Apache-2.0
//
// Finds the largest lanes of several vectors.
#pragma once

#include "cpd/numeric/lanes/lanes.h"

namespace cpd {
inline namespace CPD_ISA {

/// Returns the largest lane of each vector in `each`, which holds as many vectors as a vector has
/// lanes. Each step moves the larger of two neighboring lanes to the even lane and then joins the
/// even lanes of two vectors.
template <class V>
CPD_FN Signed<V> largest_lanes(Signed<V>* each) {
  using U = Unsigned<V>;
  const auto pairs = [](Signed<V> x) {
    return bits_as<U>(max(x, bits_as<Signed<V>>(bits_as<SplitOf<U>>(x) >> 32)));
  };
  for (int count = Lanes<V>::count; count > 1; count /= 2) {
    for (int k = 0; k < count / 2; ++k) {
      each[k] = bits_as<Signed<V>>(even_words(pairs(each[2 * k]), pairs(each[2 * k + 1])));
    }
  }
  return each[0];
}

}  // namespace CPD_ISA
}  // namespace cpd
