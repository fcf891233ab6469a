// SPDX-License-Identifier: Apache-2.0
//
// A tensor's layout in blocks, and in cells of the second level.
#pragma once

#include <cstdint>
#include <span>

#include "cpd/numeric/scaled/block_layout.h"
#include "cpd/spec/scaled.h"

namespace cpd {

/// The layout of a tensor of at least one element. axis: 0 … rank - 1; any for rank 0.
CPD_API BlockLayout LayoutOf(const BlockShape& block, std::span<const std::int64_t> shape,
                             int axis);

/// Returns the second level's cells of a tensor of that shape; one if there is no such level.
OuterCells CellsOf(const Scaled& scaled, std::span<const std::int64_t> shape, int axis);

}  // namespace cpd
