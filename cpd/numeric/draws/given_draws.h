// SPDX-License-Identifier: Apache-2.0
//
// Random integers that a caller passes to an ordered sum. They replace the integers that philox.h
// would generate.
#pragma once

#include <cstdint>

#include "cpd/numeric/lanes/lanes.h"

namespace cpd {

/// A view of the caller's random integers: integer t of element i is random[i * stride + t]. If
/// `random` is null, philox.h generates the integers instead.
struct GivenDraws {
  const std::uint32_t* random = nullptr;
  std::int64_t stride = 0;

  /// Returns the view without the first i elements: its element 0 is element i of this view.
  [[nodiscard]] CPD_FN constexpr GivenDraws from(std::int64_t i) const {
    return random == nullptr ? GivenDraws{} : GivenDraws{random + i * stride, stride};
  }
};

inline namespace CPD_ISA {

/// Returns successive random integers from a caller's array (GivenDraws). Each of the first `lanes`
/// lanes of V gets the next integer of its own element; the other lanes get 0.
template <class V>
class TakenDraws {
 public:
  CPD_FN constexpr TakenDraws(GivenDraws given, std::int64_t lanes, std::uint64_t first)
      : given_(given), lanes_(lanes), next_(static_cast<std::int64_t>(first)) {}
  CPD_FN Unsigned<V> next() {
    std::uint32_t integers[Lanes<V>::count] = {};
    for (std::int64_t lane = 0; lane < lanes_ && lane < Lanes<V>::count; ++lane) {
      integers[lane] = given_.random[lane * given_.stride + next_];
    }
    ++next_;
    return load_u32<V>(integers);
  }

 private:
  GivenDraws given_;
  std::int64_t lanes_, next_;
};

}  // namespace CPD_ISA
}  // namespace cpd
