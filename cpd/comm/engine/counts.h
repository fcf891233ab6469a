// SPDX-License-Identifier: Apache-2.0
//
// Counts NaN, infinities, zeros and bytes of a rank's layers for a reduction's report.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpd/comm/engine/message_ops.h"
#include "cpd/comm/report.h"

namespace cpd {

/// The number of counts that a rank makes of a layer: NaN and infinities, values that the cast
/// turned into zero, results that are not finite, zeros, bytes, and the bits that the codec chose
/// (-1 if it chooses none).
constexpr std::size_t kCounts = 6;
constexpr std::size_t kCountOfResults = 2;

/// Returns this rank's counts, layer by layer. Call it before results replace the layers' values.
/// The counts of results are 0.
std::vector<std::int64_t> CountContributions(const MessageOps& ops, const Layers& layers);

/// Sets the counts in `reports` to sums over all ranks. `of_ranks`: the counts of each rank, by
/// ascending rank. `sizes`: the number of values of each layer.
void SumCounts(std::span<const std::uint8_t> of_ranks, std::span<const std::int64_t> sizes,
               std::span<TensorReport> reports);

}  // namespace cpd
