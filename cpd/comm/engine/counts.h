// SPDX-License-Identifier: Apache-2.0
//
// The counts that ranks make of their layers for a reduction's report.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpd/comm/engine/message_ops.h"
#include "cpd/comm/report.h"

namespace cpd {

/// The number of counts of a layer on a rank: NaN and Inf, values that became zero, results that
/// are not finite, zeros, bytes, and the bits that its codec chose (or -1).
constexpr std::size_t kCounts = 6;
constexpr std::size_t kCountOfResults = 2;

/// Returns the rank's counts, layer by layer, before results may replace its values. The counts of
/// results are 0.
std::vector<std::int64_t> CountContributions(const MessageOps& ops, const Layers& layers);

/// Sets the counts of layers' reports, of these sizes, to the sums of all ranks': `of_ranks` holds
/// one rank's after the other's.
void SumCounts(std::span<const std::uint8_t> of_ranks, std::span<const std::int64_t> sizes,
               std::span<TensorReport> reports);

}  // namespace cpd
