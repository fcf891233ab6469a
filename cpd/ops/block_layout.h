// SPDX-License-Identifier: Apache-2.0
//
// The layout of a tensor in blocks, and in the cells (groups of elements) that share an outer
// scale.
#pragma once

#include <cstdint>
#include <span>

#include "cpd/numeric/scaled/block_layout.h"
#include "cpd/spec/scaled.h"

namespace cpd {

/// Returns the layout in blocks of a tensor of at least one element. `axis`: 0 … rank - 1; ignored
/// for rank 0.
CPD_API BlockLayout LayoutOf(const BlockShape& block, std::span<const std::int64_t> shape,
                             int axis);

/// Returns the cells that share an outer scale in a tensor of this shape; one cell if the format
/// has no outer scale.
OuterCells CellsOf(const Scaled& scaled, std::span<const std::int64_t> shape, int axis);

}  // namespace cpd
