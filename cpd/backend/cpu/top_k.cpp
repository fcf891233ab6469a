// SPDX-License-Identifier: Apache-2.0
//
// Operations on the values of largest magnitude. The first operation finds these values and stores
// them. Later operations then read no other values of the layer.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "cpd/backend/cpu/codec_spans.h"
#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/cpu/largest.h"
#include "cpd/backend/cpu/spans.h"
#include "cpd/backend/roster.h"
#include "cpd/base/guarded.h"
#include "cpd/numeric/scaled/gap_codes.h"

namespace cpd::cpu {
namespace {

/// Writes to `y` what a receiver decodes for the call's values begin … end - 1. For selected values
/// it is `terms`, their rounded values, and for all others +0. `ranks`: the range of the selected
/// values in the Selection.
void PlaceTerms(const TopKCall& call, RankRange ranks, const float* terms, std::int64_t begin,
                std::int64_t end, float* y) {
  std::fill_n(y, end - begin, 0.0F);
  const std::vector<std::int64_t>& places = call.selection->places;
  for (std::int64_t rank = ranks.first; rank < ranks.last; ++rank) {
    y[places[rank] - begin] = terms[rank - ranks.first];
  }
}

/// Writes to call.y `terms` for the selected values and +0 for all others. Compares call.y with
/// call.x, and adds the numbers of NaN, infinities, underflows and zeros to call.counts
/// (CountLosses).
void PlaceCounted(const TopKCall& call, RankRange ranks, const float* terms) {
  std::vector<float> y(static_cast<std::size_t>(kStage));
  ForRanges(call.begin, call.end, kStage, [&](std::int64_t i, std::int64_t n) {
    const RankRange part = call.selection->Within(i, i + n);
    PlaceTerms(call, part, terms + (part.first - ranks.first), i, i + n, y.data());
    AddLosses(n, call.x + i, y.data(), *call.counts);
    std::copy_n(y.data(), n, call.y + (i - call.begin));
  });
}

/// Writes the errors of selected values to call.next, the next residual. An error is the value
/// minus what a receiver decodes from its term. `ranks`: the range of the values in the Selection.
void StoreErrors(const TopKCall& call, RankRange ranks, const float* terms) {
  std::vector<float> scratch;
  if (call.unit != 1) {
    scratch.assign(terms, terms + ranks.size());
    Guarded([&] {
      for (float& term : scratch) term *= call.unit;
    });
    terms = scratch.data();
  }
  std::vector<float> unshifted;
  terms = Shifted(-call.shift, ranks.size(), terms, unshifted);
  const Selection& selection = *call.selection;
  Guarded([&] {
    for (std::int64_t rank = ranks.first; rank < ranks.last; ++rank) {
      call.next[selection.places[rank]] =
          error_of(selection.values[rank], terms[rank - ranks.first]);
    }
  });
}

}  // namespace

int select_top_k(const Launch& /*launch*/, const TopKCall& call) {
  Summands v{.n = call.n, .x = call.x};
  if (call.kept != nullptr) {
    v.r = call.kept;
    v.sum = call.next;
  }
  Selection& selection = *call.selection;
  FindLargest(v, call.k, selection);
  call.search->kept = static_cast<std::int64_t>(selection.values.size());
  std::int64_t non_finite = 0;
  call.search->largest = std::bit_cast<std::uint32_t>(
      Kernels().max_abs(call.search->kept, selection.values.data(), &non_finite));
  return 0;
}

int round_top_k(const Launch& /*launch*/, const TopKCall& call) {
  const RankRange ranks = call.selection->Within(call.begin, call.end);
  const float* terms = call.terms;
  std::vector<float> cast;
  if (terms == nullptr) {
    RoundPlan plan = call.cast;
    plan.stream = call.stream;
    cast.resize(static_cast<std::size_t>(ranks.size()));
    CastSpan(plan, call.shift, ranks.first, ranks.size(),
             call.selection->values.data() + ranks.first, cast.data());
    terms = cast.data();
  }
  if (call.counts != nullptr) {
    PlaceCounted(call, ranks, terms);
  } else if (call.y != nullptr) {
    PlaceTerms(call, ranks, terms, call.begin, call.end, call.y);
  }
  if (call.kept != nullptr) StoreErrors(call, ranks, terms);
  return 0;
}

int gather_top_k(const Launch& /*launch*/, const TopKCall& call) {
  std::ranges::copy(call.selection->values, call.gathered);
  return 0;
}

int count_top_k(const Launch& /*launch*/, const TopKCall& call) {
  const std::vector<std::int64_t>& places = call.selection->places;
  TopKPlaces* to = call.places;
  ForRanges(0, call.n, call.block, [&](std::int64_t begin, std::int64_t n) {
    const RankRange ranks = call.selection->Within(begin, begin + n);
    const int low = ranks.size() == 0 ? 0 : gap_low_bits(n, ranks.size());
    std::int64_t bits = 0;
    std::int64_t next = begin;  // the place after the last one
    for (std::int64_t rank = ranks.first; rank < ranks.last; ++rank) {
      bits += gap_bits(places[rank] - next, low);
      next = places[rank] + 1;
    }
    *to++ = {static_cast<std::uint32_t>(ranks.size()), static_cast<std::uint32_t>(bits)};
  });
  return 0;
}

}  // namespace cpd::cpu
