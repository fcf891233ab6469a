// SPDX-License-Identifier: Apache-2.0
//
// The fold of the most usual all-reduce in few instructions: codes of 8 bits, one rank after the
// other without groups, sums to nearest-even that a FoldPlan splits (numeric/sums/split.h). A
// thread has four neighbouring values, whose codes are one word of each rank's message; a table in
// shared memory has the codes' values. For host and device; the bits are those of reduce_tile.h's
// sum_of, which computes what leaves the plan's limit.
#pragma once

#include "cpd/numeric/sums/short_sum.h"
#include "kernels/cuda/reduce_tile.h"

namespace cpd::cuda {

constexpr int kWordCodes = 4;
constexpr int kWordsAtOnce = 4;  ///< of as many ranks, that are read before the first is added

struct ShortFoldTile {
  float values[256];  ///< of the codes
  ReduceTile tile;
};

/// Whether short_fold_block computes the call's sums.
CPD_FN bool has_short_fold(const ReduceCall& call) {
  const RoundPlan& wire = call.codes[static_cast<int>(Codes::wire)];
  const FoldPlan& sums = call.across.terms;
  return call.unit < 0 && call.group_size == 0 && call.rounds.order == Order::sequential &&
         call.across.order.scheme == Scheme::sequential &&
         (sums.kind == Split::plain || sums.kind == Split::rounded) && wire.bits == 8 &&
         !call.codes[static_cast<int>(call.to_codes)].wide;
}

CPD_FN std::uint32_t word_at(const std::uint8_t* from) {
  return *reinterpret_cast<const std::uint32_t*>(from);
}
/// Whether the codes from value `at` of a segment on begin at a word in every message.
CPD_FN bool has_words(const ReduceCall& call, const ReduceSegment& segment, std::int64_t at) {
  const std::int64_t offset = segment.start[static_cast<int>(Codes::wire)] + at;
  bool all = true;
  CPD_ROLLED for (std::int64_t r = 0; r < call.rounds.units; ++r) {
    all = all && is_word_aligned(call.from[r] + offset);
  }
  return all;
}

CPD_FN std::uint32_t byte_of(std::uint32_t word, int j) { return (word >> (8 * j)) & 0xFF; }

/// Four sums, and whether each is the ordered sum.
struct WordSums {
  float sum[kWordCodes];
  bool is_good[kWordCodes];
};

/// The sums of values `at` … `at` + 3 of a segment.
template <Split kind>
CPD_FN WordSums add_words(const ReduceCall& call, const ReduceSegment& segment, std::int64_t at,
                          const float* values) {
  using Steps = ShortSums<kind, float>;
  const FoldPlan& plan = call.across.terms;
  const std::int64_t offset = segment.start[static_cast<int>(Codes::wire)] + at;
  Steps steps[kWordCodes] = {Steps(plan), Steps(plan), Steps(plan), Steps(plan)};
  WordSums sums;
  const std::uint32_t first = word_at(call.from[0] + offset);
  for (int j = 0; j < kWordCodes; ++j) {
    const float term = values[byte_of(first, j)];
    sums.sum[j] = plan.round.keeps_negative_zero ? term : term + 0.0F;
  }
  const auto add = [&](std::uint32_t word) {
    for (int j = 0; j < kWordCodes; ++j) steps[j].add(values[byte_of(word, j)], sums.sum[j]);
  };
  std::int64_t r = 1;
  CPD_ROLLED for (; r + kWordsAtOnce <= call.rounds.units; r += kWordsAtOnce) {
    std::uint32_t words[kWordsAtOnce];
    for (int k = 0; k < kWordsAtOnce; ++k) words[k] = word_at(call.from[r + k] + offset);
    for (const std::uint32_t word : words) add(word);
  }
  CPD_ROLLED for (; r < call.rounds.units; ++r) add(word_at(call.from[r] + offset));
  for (int j = 0; j < kWordCodes; ++j) {
    sums.is_good[j] = steps[j].is_good() && sums.sum[j] - sums.sum[j] == 0;
  }
  return sums;
}

/// The codes of four results: of values `at` … `at` + 3.
CPD_FN void code_words(const ReduceCall& call, const ReduceSegment& segment, std::int64_t at,
                       const WordSums& sums, std::uint32_t* codes) {
  const RoundPlan& plan = call.codes[static_cast<int>(call.to_codes)];
  const std::uint64_t stream = StreamFrom(call.result_stream, segment.layer, kAcross);
  with_form<Rounding::nearest_even>(plan.form, [&]<class R>() {
    for (int j = 0; j < kWordCodes; ++j) {
      float result = sums.sum[j];
      if (!sums.is_good[j]) {
        result = sum_of<Rounding::nearest_even>(call, segment, at + j);
      } else if (call.across.rounds) {
        result = rounded_result<Rounding::nearest_even>(result, call.across, stream,
                                                        segment.begin + at + j);
      }
      codes[j] = round_to_whole_code<R>(result, 0U, plan);
    }
  });
}

template <class Block>
CPD_FN void short_fold_block(const Block& block, const ReduceCall& call, ShortFoldTile& memory) {
  const RoundPlan& wire = call.codes[static_cast<int>(Codes::wire)];
  const bool is_plain = call.across.terms.kind == Split::plain;
  std::uint32_t* const codes = memory.tile.codes[0];
  float* const values = memory.values;
  block.each(
      [&](int thread) { values[thread] = value_of(static_cast<std::uint32_t>(thread), wire); });
  for_tiles(block, call, [&](const ReduceSegment& segment, std::int64_t begin, int count) {
    block.each([&](int thread) {
      const int words = has_words(call, segment, begin) ? count / kWordCodes : 0;
      CPD_ROLLED for (int q = thread; q < words; q += kThreads) {
        const std::int64_t at = begin + kWordCodes * q;
        const WordSums sums = is_plain ? add_words<Split::plain>(call, segment, at, values)
                                       : add_words<Split::rounded>(call, segment, at, values);
        code_words(call, segment, at, sums, codes + kWordCodes * q);
      }
      CPD_ROLLED for (int i = words * kWordCodes + thread; i < count; i += kThreads) {
        codes[i] = code_of(sum_of<Rounding::nearest_even>(call, segment, begin + i),
                           call.codes[static_cast<int>(call.to_codes)]);
      }
    });
    store_tile(block, call, segment, begin, count, call.to_codes, codes, memory.tile.bytes);
  });
}

}  // namespace cpd::cuda
