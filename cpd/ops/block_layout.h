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

/// The cells of the second level of a tensor of that shape; one, where there is none.
OuterCells CellsOf(const Scaled& scaled, std::span<const std::int64_t> shape, int axis);

}  // namespace cpd
