// SPDX-License-Identifier: Apache-2.0
//
// Resolves axes of tensors that front ends pass as positive or negative numbers.
#pragma once

#include <string>

#include "cpd/spec/error.h"

namespace cpd {

/// Returns `axis` as 0 … rank - 1. A negative axis counts from the end. Throws Error if a tensor of
/// this rank has no such axis.
inline int ResolveAxis(int axis, int rank) {
  if (axis < -rank || axis >= rank) {
    throw Error("axis must be " + std::to_string(-rank) + "…" + std::to_string(rank - 1) +
                ", got " + std::to_string(axis));
  }
  return axis < 0 ? axis + rank : axis;
}

}  // namespace cpd
