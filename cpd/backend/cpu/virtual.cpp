// SPDX-License-Identifier: Apache-2.0
//
// The sums of virtual ranks. Blocks of values are computed on threads, with the terms of some ranks
// at a time. The terms stay in the L2 cache, and a running sum is read and written once for these
// ranks.
#include <algorithm>
#include <bit>
#include <cmath>

#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/cpu/spans.h"
#include "cpd/base/parallel.h"

namespace cpd::cpu {
namespace {

constexpr int kTogether = 8;  ///< ranks whose terms are made before the first is added

/// Does one thread's part of a VirtualCall: adds values of the call's ranks to the running sums,
/// one block of values after the other.
class RankBlocks {
 public:
  RankBlocks(const VirtualCall& call, const SumPlan& plan, std::int64_t n)
      : call_(call),
        plan_(plan),
        planes_(call.halves == nullptr ? 0 : planes_of_sum(plan.order.scheme, call.count)),
        rows_(planes_ + (call.casts ? std::min(call.ranks, kTogether) + 1 : 0), n) {}

  /// Adds values begin … begin + n - 1 of all of the call's ranks to the running sums.
  void Fold(std::int64_t begin, std::int64_t n) {
    for (int first = 0; first < call_.ranks; first += kTogether) {
      const int count = std::min(kTogether, call_.ranks - first);
      const float* terms[kTogether];
      for (int j = 0; j < count; ++j) {
        const float* x = call_.x[first + j] + (begin - call_.begin);
        terms[j] = call_.casts ? Cast(first + j, begin, n, x, rows_[planes_ + 1 + j]) : x;
      }
      Add(first, {terms, static_cast<std::size_t>(count)}, begin, n);
    }
  }

  /// Casts one rank's values to `terms`. Counts NaN, infinities, underflows and zeros
  /// (CountLosses). Returns `terms`.
  const float* Cast(int rank, std::int64_t begin, std::int64_t n, const float* x, float* terms) {
    if (call_.divisor != 1) {
      float* const quotients = rows_[planes_];
      UnscaleSpan(0, call_.divisor, n, x, quotients);
      x = quotients;
    }
    RoundPlan cast = call_.cast;
    cast.stream = call_.cast_stream[rank];
    CastSpan(cast, call_.shift, begin, n, x, terms);
    if (call_.counts != nullptr) CountLosses(n, x, terms, lost_);
    return terms;
  }

  void AddLosses() const {
    if (call_.counts != nullptr) AddCounts(lost_, *call_.counts);
  }

 private:
  /// Adds to the running sums the terms of some ranks of the call: rank number `first` and the
  /// ranks after it. If a rank's term has a different number in each slice of the layer (order
  /// ring), adds the terms slice by slice.
  void Add(int first, std::span<const float* const> terms, std::int64_t begin, std::int64_t n) {
    if (call_.visit < 0) return Take(call_.k + first, terms, begin, n);
    const Rounds& rounds = call_.rounds;
    for (std::int64_t i = begin; i < begin + n;) {
      const std::int64_t slice = rounds.slice_of(call_.size, i);
      const std::int64_t end = std::min(begin + n, rounds.begin(call_.size, slice + 1));
      const std::int64_t k = rounds.term(call_.visit, slice);
      const float* rest[kTogether];
      for (std::size_t j = 0; j < terms.size(); ++j) rest[j] = terms[j] + (i - begin);
      if (k >= 0) Take(k + first, {rest, terms.size()}, i, end - i);
      i = end;
    }
  }

  void Take(std::int64_t k, std::span<const float* const> terms, std::int64_t begin,
            std::int64_t n) {
    if (call_.halves == nullptr) {
      return AddTerms(plan_, call_.count, k, terms, begin, n, call_.planes + begin, call_.size);
    }
    float* const state = rows_[0];
    for (int q = 0; q < planes_ && k > 0; ++q) {
      Kernels().widen_bf16(n, Halves(q, begin), state + q * rows_.width());
    }
    AddTerms(plan_, call_.count, k, terms, begin, n, state, rows_.width());
    for (int q = 0; q < planes_; ++q) {
      const float* from = state + q * rows_.width();
      std::uint16_t* to = Halves(q, begin);
      for (std::int64_t i = 0; i < n; ++i) {
        to[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(from[i]) >> 16);
      }
    }
  }
  [[nodiscard]] std::uint16_t* Halves(int plane, std::int64_t begin) const {
    return call_.halves + plane * call_.size + begin;
  }

  const VirtualCall& call_;
  const SumPlan& plan_;
  int planes_;
  AlignedRows rows_;  ///< planes, quotients, terms
  SegmentCounts lost_;
};

/// Divides the call's values into blocks among threads, and calls run(blocks, begin, n) for each
/// block of n values from value `begin` on. `blocks` has the thread's memory. Afterwards adds the
/// thread's counts (CountLosses) to the call's counts.
template <class Run>
void ForBlocks(const VirtualCall& call, Run run) {
  SumPlan plan = call.plan;
  plan.terms.round.stream = plan.sums.round.stream = call.sum_stream;
  plan.result.stream = call.result_stream;
  parallel_for(call.end - call.begin, kStage, kSerialRanksBelow / call.ranks,
               [&](std::int64_t begin, std::int64_t end) {
                 RankBlocks blocks(call, plan, std::min(kStage, end - begin));
                 for (std::int64_t i = begin; i < end; i += kStage) {
                   run(blocks, call.begin + i, std::min(kStage, end - i));
                 }
                 blocks.AddLosses();
               });
}

}  // namespace

int cast_terms(const Launch& /*launch*/, const VirtualCall& call) {
  ForBlocks(call, [&](RankBlocks& blocks, std::int64_t begin, std::int64_t n) {
    const float* x = call.x[0] + (begin - call.begin);
    float* const terms = call.terms + (begin - call.begin);
    float values[kStage];
    if (call.counts != nullptr && x == terms) {  // losses are counted after the cast
      std::copy_n(x, n, values);
      x = values;
    }
    blocks.Cast(0, begin, n, x, terms);
  });
  return 0;
}

int fold_ranks(const Launch& /*launch*/, const VirtualCall& call) {
  ForBlocks(call,
            [](RankBlocks& blocks, std::int64_t begin, std::int64_t n) { blocks.Fold(begin, n); });
  return 0;
}

int finish_sums(const Launch& /*launch*/, const VirtualCall& call) {
  parallel_for(call.size, kStage, kSerialRanksBelow, [&](std::int64_t begin, std::int64_t end) {
    SegmentCounts bad;
    for (std::int64_t i = begin; i < end; i += kStage) {
      const std::int64_t n = std::min(kStage, end - i);
      float* const out = call.out + i;
      const float* sums = call.planes + i;
      if (call.halves != nullptr) {
        Kernels().widen_bf16(n, call.halves + i, out);
        sums = out;
      }
      if (call.scale != 1) {
        for (std::int64_t j = 0; j < n; ++j) out[j] = sums[j] * call.scale;
        sums = out;
      }
      UnscaleSpan(-call.shift, call.divisor, n, sums, out);
      for (std::int64_t j = 0; j < n; ++j) {
        bad.non_finite += static_cast<unsigned long long>(!std::isfinite(out[j]));
      }
    }
    AddCounts(bad, *call.counts);
  });
  return 0;
}

}  // namespace cpd::cpu
