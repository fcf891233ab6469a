// SPDX-License-Identifier: Apache-2.0
//
// Computes the sums over ranks for one block of values (ReduceTask::fold), in one thread's memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpd/backend/cpu/spans.h"
#include "cpd/numeric/draws/streams.h"

namespace cpd {

/// Returns a copy of the plan `of` with the random streams of one sum of the layer. The sum is over
/// the ranks of group number `position` or, if `position` is kAcross, across groups.
inline SumPlan PlanOfSum(const ReduceCall& call, const SumPlan& of, std::int64_t layer,
                         std::int64_t position) {
  SumPlan plan = of;
  const std::uint64_t stream = StreamFrom(call.sum_stream, layer, position);
  plan.terms.round.stream = plan.sums.round.stream = stream;
  plan.result.stream = StreamFrom(call.result_stream, layer, position);
  return plan;
}

/// Computes the sums over ranks of one call, in one thread.
class RankSums {
 public:
  /// `n`: the maximum number of values of a block.
  RankSums(const ReduceCall& call, std::int64_t n)
      : call_(call),
        across_(call.rounds.units, planes_of_sum(call.across.order.scheme, call.rounds.units),
                !in_place(call) || call.group_size > 0, n),
        group_(Members(), planes_of_sum(call.group.order.scheme, Members()), !in_place(call), n) {}

  /// Returns the sums over ranks of values begin … begin + n - 1 of the layer to which the segment
  /// (a range of values) belongs. The returned memory is valid until the next call. load(r, row)
  /// must return n values of message from[r], and may store them in `row`.
  template <class Load>
  const float* Fold(const ReduceSegment& segment, std::int64_t begin, std::int64_t n,
                    const Load& load) {
    if (call_.unit >= 0) {
      Group(segment, call_.unit, 0, call_.from_count, begin, 0, n, load);
      return group_.state(0);
    }
    const SumPlan plan = PlanOfSum(call_, call_.across, segment.layer, kAcross);
    const Rounds& rounds = call_.rounds;
    for (std::int64_t i = 0; i < n;) {  // a ring's slices begin at different units
      const std::int64_t slice = rounds.slice_of(segment.size, begin + i);
      const std::int64_t end = std::min(n, rounds.begin(segment.size, slice + 1) - begin);
      const auto term = [&](std::int64_t k, float* row) -> const float* {
        const std::int64_t unit = rounds.unit_of_term(k, slice);
        if (call_.group_size == 0) return load(unit, row);
        const std::int64_t first = unit * call_.group_size;
        Group(segment, unit, first, std::min(call_.group_size, call_.world - first), begin, i, end,
              load);
        std::copy(group_.state(0) + i, group_.state(0) + end, row + i);
        return row;
      };
      across_.Add(plan, rounds.units, begin, i, end, term);
      i = end;
    }
    return across_.state(0);
  }

 private:
  /// The running sums of one level (within a group of ranks, or across groups or ranks), and memory
  /// for the terms that are added together.
  class Level {
   public:
    /// `has_rows`: whether to allocate memory for terms. Terms need it if they are decoded from
    /// messages, or are themselves sums over a group of ranks.
    Level(std::int64_t terms, int planes, bool has_rows, std::int64_t n)
        : together_(std::min(kTogether, terms)),
          planes_(planes),
          rows_(terms > 0 ? planes + (has_rows ? together_ : 0) : 0, n) {}
    [[nodiscard]] float* state(std::int64_t plane) const { return rows_[plane]; }

    /// Adds `terms` terms to the sums of values i … end - 1. term(k, row) must return term k.
    template <class Term>
    void Add(const SumPlan& plan, std::int64_t terms, std::int64_t begin, std::int64_t i,
             std::int64_t end, const Term& term) {
      const float* rows[kTogether];
      for (std::int64_t k = 0; k < terms; k += together_) {
        const std::int64_t count = std::min(together_, terms - k);
        for (std::int64_t j = 0; j < count; ++j) rows[j] = term(k + j, rows_[planes_ + j]) + i;
        AddTerms(plan, terms, k, {rows, static_cast<std::size_t>(count)}, begin + i, end - i,
                 state(0) + i, rows_.width());
      }
    }

   private:
    static constexpr std::int64_t kTogether = 8;
    std::int64_t together_;
    int planes_;
    AlignedRows rows_;
  };

  /// Returns whether messages hold the terms as binary32 values, so that none must be decoded.
  static bool in_place(const ReduceCall& call) { return call.from_codes == Codes::values; }

  [[nodiscard]] std::int64_t Members() const {
    return call_.unit >= 0 ? call_.from_count : call_.group_size;
  }

  template <class Load>
  void Group(const ReduceSegment& segment, std::int64_t unit, std::int64_t first,
             std::int64_t members, std::int64_t begin, std::int64_t i, std::int64_t end,
             const Load& load) {
    group_.Add(PlanOfSum(call_, call_.group, segment.layer, unit), members, begin, i, end,
               [&](std::int64_t m, float* row) { return load(first + m, row); });
  }

  const ReduceCall& call_;
  Level across_, group_;
};

}  // namespace cpd
