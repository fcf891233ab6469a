// SPDX-License-Identifier: Apache-2.0
//
// Explains an all-reduce of virtual ranks: records which kernels it would run, and runs none of
// them.
#pragma once

#include <cstdint>
#include <vector>

#include "cpd/comm/reduction.h"
#include "cpd/comm/spec.h"

namespace cpd {

/// Records what VirtualReduce would run for the largest layer, on a thread that only explains a
/// call (records what the call would run, base/explaining.h). Records the codec's rounding of
/// contributions, the sums within groups if there are groups, and the sums across ranks or groups.
/// `like`: a tensor on the layers' device. Throws Error as VirtualReduce does.
CPD_API void NoteReduction(const Reduce& spec, int world, const std::vector<std::int64_t>& sizes,
                           const TensorOptions& layers, const TensorView& like = {});

}  // namespace cpd
