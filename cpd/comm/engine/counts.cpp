// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/counts.h"

#include <cstring>

#include "cpd/comm/reduction.h"
#include "cpd/compress/codec.h"

namespace cpd {

std::vector<std::int64_t> CountContributions(const MessageOps& ops, const Layers& layers) {
  const Reduction& reduction = ops.reduction();
  const std::vector<Losses> losses = ops.CountLosses();
  std::vector<std::int64_t> counts;
  for (std::size_t l = 0; l < losses.size(); ++l) {
    const auto layer = static_cast<std::int64_t>(l);
    CodecState* const state = layers.states.empty() ? nullptr : layers.states[l];
    const float scale = layers.scales.empty() ? 0 : layers.scales[l];
    const Piece whole =
        reduction.PieceOf(layer, ops.rank(), layers.shifts[l], scale, 0, layers.sizes[l]);
    const std::int64_t bytes = LayerBytes(*reduction.wire(layer), whole, state, layers.x[l]);
    const int bits = state == nullptr ? -1 : state->ChosenBits().value_or(-1);
    counts.insert(counts.end(),
                  {losses[l].non_finite, losses[l].underflowed, 0, losses[l].zeros, bytes, bits});
  }
  return counts;
}

void SumCounts(std::span<const std::uint8_t> of_ranks, std::span<const std::int64_t> sizes,
               std::span<TensorReport> reports) {
  for (TensorReport& report : reports) report = {.shift = report.shift};
  std::int64_t counts[kCounts];
  std::size_t at = 0;
  while (at < of_ranks.size()) {
    for (std::size_t l = 0; l < reports.size(); ++l, at += sizeof(counts)) {
      std::memcpy(counts, of_ranks.data() + at, sizeof(counts));
      TensorReport& report = reports[l];
      report.non_finite += counts[0];
      report.underflowed += counts[1];
      report.overflowed += counts[kCountOfResults];
      report.values += sizes[l];
      report.zeros += counts[3];
      report.bytes += counts[4];
      if (counts[5] >= 0) report.bits.push_back(static_cast<int>(counts[5]));
    }
  }
  for (TensorReport& report : reports) {
    if (report.non_finite != 0) report.overflowed = 0;
  }
}

}  // namespace cpd
