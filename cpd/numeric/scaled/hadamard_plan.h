// SPDX-License-Identifier: Apache-2.0
//
// The plan of a Hadamard transform (cpd/spec/hadamard.h) in one direction, as constants for the
// kernels.
#pragma once

#include <cstdint>

#include "cpd/numeric/round/round_plan.h"
#include "cpd/spec/hadamard.h"

namespace cpd {

/// The constants of a Hadamard transform in one direction.
struct HadamardPlan {
  std::int32_t size = 16;
  bool to_bf16 = false;
  /// 1 / sqrt(size), rounded to nearest in binary64. A conversion of this number to binary32 gives
  /// the binary32 number that is nearest to 1 / sqrt(size).
  double scale = 0.25;
  /// The signs, +1 or -1, that multiply values before and after the stages of the transform. Entry
  /// i is for values i, i + size, i + 2 size, ….
  float before[Hadamard::kMostSize]{};
  float after[Hadamard::kMostSize]{};
  RoundPlan bf16;
};

constexpr HadamardPlan make_hadamard_plan(const Hadamard& transform, bool inverse) {
  HadamardPlan plan;
  plan.size = transform.size;
  plan.to_bf16 = transform.to_bf16;
  plan.scale = 1;
  int n = transform.size;
  for (; n >= 4; n /= 4) plan.scale /= 2;
  if (n == 2) plan.scale *= 0x1.6a09e667f3bcdp-1;
  for (int i = 0; i < Hadamard::kMostSize; ++i) {
    const float sign = transform.negates(i % transform.size) ? -1.0F : 1.0F;
    plan.before[i] = inverse ? 1.0F : sign;
    plan.after[i] = inverse ? sign : 1.0F;
  }
  plan.bf16 = make_plan(Format{8, 7, 127}, {});
  return plan;
}

}  // namespace cpd
