// SPDX-License-Identifier: Apache-2.0
//
// The loop over the terms of an ordered sum: the order of the additions, the draw of each rounding,
// where chunks end, which trees are open. The CPU adds spans of elements with it, a CUDA thread one
// element in its registers.
//
// sequential: k = 0: s = round(x); later s = round(s + x). Draw k.
// kahan: k = 0: s = round(x), c = +0; later kahan_step (accumulate.h). Draw 0, then draws 4k - 3 …
//   4k.
// chunked: sequential into accumulator.inner within each chunk of terms; a finished chunk's sum is
//   the next term of the outer sum (sequential, accumulator.format). Term k, in chunk q, takes draw
//   k + q, the chunk's end the next one.
// pairwise: after term k, as many merges s = round(a + b) of equal trees as k + 1 has trailing zero
//   bits; a single term is a tree, unrounded. At the end the remaining trees merge, smallest first;
//   a sum of one term is rounded. Draws are numbered in the order of the merges.
#pragma once

#include <cstdint>

#include "cpd/numeric/sums/accumulate.h"
#include "cpd/numeric/sums/fold_plan.h"

namespace cpd {

/// The order of a sum's operations. Scheme block_fma, which sums products, has none.
struct FoldOrder {
  Scheme scheme = Scheme::sequential;
  std::int64_t chunk = 64;  ///< chunked: terms per chunk, at least 1
};

constexpr FoldOrder fold_order(const Accumulator& accumulator) {
  return {accumulator.scheme, accumulator.chunk};
}

inline namespace CPD_ISA {

/// The number of trees that are open after `terms` terms: the bits set in that number.
CPD_FN constexpr int open_trees(std::int64_t terms) {
  int open = 0;
  for (auto rest = static_cast<std::uint64_t>(terms); rest != 0; rest &= rest - 1) ++open;
  return open;
}

/// The number of state values that a sum of `terms` terms needs for each element (FoldWalk).
CPD_FN constexpr int fold_planes(Scheme scheme, std::int64_t terms) {
  switch (scheme) {
    case Scheme::kahan:
    case Scheme::chunked:
      return 2;
    case Scheme::pairwise: {
      int planes = 1;
      while (terms >> planes != 0) ++planes;
      return planes;
    }
    default:
      return 1;
  }
}

/// The number of draws that the first k terms, and the chunks and trees that they finish, take.
CPD_FN constexpr std::int64_t draws_before(const FoldOrder& order, std::int64_t k) {
  switch (order.scheme) {
    case Scheme::kahan:
      return k > 0 ? 4 * k - 3 : 0;
    case Scheme::chunked:
      return k + k / order.chunk;
    case Scheme::pairwise:
      return k - open_trees(k);
    default:
      return k;
  }
}

/// The number of draws that a sum of `terms` terms takes.
CPD_FN constexpr std::int64_t draws_of_fold(const FoldOrder& order, std::int64_t terms) {
  if (terms <= 0) return 0;
  const std::int64_t draws = draws_before(order, terms);
  if (order.scheme == Scheme::chunked) return draws + (terms % order.chunk != 0 ? 1 : 0);
  if (order.scheme == Scheme::pairwise) return terms == 1 ? 1 : terms - 1;
  return draws;
}

/// The most terms whose sum takes at most `draws` draws, at least 1.
CPD_FN constexpr std::int64_t most_terms(const FoldOrder& order, std::int64_t draws) {
  switch (order.scheme) {
    case Scheme::kahan:
      return (draws + 3) / 4;
    case Scheme::chunked: {
      const std::int64_t chunk = order.chunk < draws ? order.chunk : draws;
      const std::int64_t rest = draws % (chunk + 1);
      return draws / (chunk + 1) * chunk + (rest > 0 ? rest - 1 : 0);
    }
    case Scheme::pairwise:
      return draws + 1;
    default:
      return draws;
  }
}

/// Runs a sum: calls `Backend`, which operates on planes of sums:
///   add_terms(plane, starts, draw, first, count): adds terms first … first + count - 1 of the call
///     to the sum in `plane`, one by one (Kahan: with plane 1 as the compensation); `starts`: the
///     first of them is the sum's first;
///   add_chunk(starts, draw): adds plane 1's sum to plane 0's;
///   open_tree(plane, term): stores that term, unrounded;
///   merge_term(plane, draw, term): adds that term to the tree in `plane`;
///   merge_trees(plane, draw, of_term): adds the tree in plane + 1 to the one in `plane`; of_term:
///     one of the two is a single term;
///   round_tree(draw): rounds the term in plane 0.
/// Draw numbers ascend without gaps from first_draw() on: one a rounding, in Kahan's sum four a
/// term (one for the first).
class FoldWalk {
 public:
  /// Continues a sum from term k on.
  CPD_FN constexpr FoldWalk(const FoldOrder& order, std::int64_t k)
      : order_(order),
        k_(k),
        draw_(draws_before(order, k)),
        open_(order.scheme == Scheme::pairwise ? open_trees(k) : 0) {}

  [[nodiscard]] CPD_FN constexpr std::int64_t first_draw() const { return draw_; }

  /// Adds the next `count` terms.
  template <class Backend>
  CPD_FN constexpr void take(Backend& to, std::int64_t count) {
    switch (order_.scheme) {
      case Scheme::chunked:
        return take_chunked(to, count);
      case Scheme::pairwise:
        return take_pairwise(to, count);
      default:
        to.add_terms(0, k_ == 0, draw_, std::int64_t{0}, count);
        k_ += count;
        draw_ = draws_before(order_, k_);
    }
  }

  /// Ends a sum of at least one term: leaves it in plane 0.
  template <class Backend>
  CPD_FN constexpr void end(Backend& to) {
    if (order_.scheme == Scheme::chunked && k_ % order_.chunk != 0) {
      to.add_chunk(k_ < order_.chunk, draw_++);
    }
    if (order_.scheme != Scheme::pairwise) return;
    if (k_ == 1) return to.round_tree(draw_++);
    for (bool odd = k_ % 2 != 0; open_ > 1; odd = false) merge(to, odd);
  }

 private:
  template <class Backend>
  CPD_FN constexpr void take_chunked(Backend& to, std::int64_t count) {
    for (std::int64_t taken = 0; taken < count;) {
      const std::int64_t in_chunk = k_ % order_.chunk;
      const std::int64_t left = order_.chunk - in_chunk;
      const std::int64_t run = left < count - taken ? left : count - taken;
      to.add_terms(1, in_chunk == 0, draw_, taken, run);
      taken += run;
      k_ += run;
      draw_ += run;
      if (run == left) to.add_chunk(k_ == order_.chunk, draw_++);
    }
  }

  template <class Backend>
  CPD_FN constexpr void take_pairwise(Backend& to, std::int64_t count) {
    for (std::int64_t term = 0; term < count; ++term, ++k_) {
      if (k_ % 2 == 0) {
        to.open_tree(open_++, term);
        continue;
      }
      to.merge_term(open_ - 1, draw_++, term);
      for (std::int64_t rest = k_ >> 1; rest % 2 != 0; rest >>= 1) merge(to, false);
    }
  }
  /// Merges the smallest open tree into the next one.
  template <class Backend>
  CPD_FN constexpr void merge(Backend& to, bool of_term) {
    --open_;
    to.merge_trees(open_ - 1, draw_++, of_term);
  }

  FoldOrder order_;
  std::int64_t k_, draw_;
  int open_;
};

}  // namespace CPD_ISA

// --- the plans of its steps ----------------------------------------------------------------------

/// The format that FoldPlan may assume for terms in `terms_in` that are added in pairs before
/// either has been rounded into `format`: `terms_in` where its values are on the format's grid,
/// else fp32. (Next to a term halfway between two of the format's subnormals, the sign of a much
/// smaller one decides the rounding.)
constexpr Format known_of_pairs(const Format& terms_in, const Format& format) {
  const bool on_grid = terms_in.min_quantum_exponent() >= format.min_quantum_exponent();
  return on_grid ? terms_in : kFp32;
}

/// The plan by which terms, values of `terms_in`, are added.
constexpr FoldPlan plan_of_terms(const Accumulator& accumulator, const Format& terms_in,
                                 const RandomKey& key = {}, FastPaths on = {}) {
  const Format& format = accumulator.format;
  switch (accumulator.scheme) {
    case Scheme::chunked:
      return make_fold_plan(
          {accumulator.inner.value_or(format), accumulator.scheme, accumulator.rounding}, terms_in,
          key, on);
    case Scheme::pairwise:
      return make_fold_plan(accumulator, known_of_pairs(terms_in, format), key, on);
    default:
      return make_fold_plan(accumulator, terms_in, key, on);
  }
}
/// The plan by which the sums of chunks, and trees, are added.
constexpr FoldPlan plan_of_sums(const Accumulator& accumulator, const RandomKey& key = {},
                                FastPaths on = {}) {
  const Format& format = accumulator.format;
  const bool chunked = accumulator.scheme == Scheme::chunked;
  return make_fold_plan(accumulator, chunked ? accumulator.inner.value_or(format) : format, key,
                        on);
}

}  // namespace cpd
