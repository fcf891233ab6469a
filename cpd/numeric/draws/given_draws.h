// SPDX-License-Identifier: Apache-2.0
//
// Random integers that a caller passes to an ordered sum in place of philox.h's.
#pragma once

#include <cstdint>

#include "cpd/numeric/lanes/lanes.h"

namespace cpd {

/// Draw t of element i is random[i * stride + t]; null: philox.h makes the draws.
struct GivenDraws {
  const std::uint32_t* random = nullptr;
  std::int64_t stride = 0;

  /// The draws of the elements from i on.
  [[nodiscard]] CPD_FN constexpr GivenDraws from(std::int64_t i) const {
    return random == nullptr ? GivenDraws{} : GivenDraws{random + i * stride, stride};
  }
};

inline namespace CPD_ISA {

/// Successive draws from a caller's integers for the first `lanes` lanes of V, each an element; the
/// other lanes draw 0.
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
