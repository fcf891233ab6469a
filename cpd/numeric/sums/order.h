// SPDX-License-Identifier: Apache-2.0
//
// The order of a sum's operations, without their arithmetic: which term is added to which sum, the
// number of each random integer (draw), the ends of chunks, and the merges of trees. Sums over an
// axis, over ranks and over k of a matrix product use this order. Each of these sums has its own
// arithmetic steps.
//
// Term k of a sum, counted from 0, is x.
// - sequential: the first term gives s = round(x); a later term gives s = round(s + x). Term k
//   takes draw k.
// - kahan: the first term gives s = round(x) and c = +0; a later term takes kahan_step
//   (accumulate.h). The first term takes draw 0, and term k takes draws 4k - 3 … 4k.
// - chunked: terms are added sequentially into accumulator.inner within each chunk. The sum of a
//   finished chunk is the next term of the outer sum (sequential, accumulator.format). Term k, in
//   chunk q, takes draw k + q, and the end of a chunk takes the next draw.
// - pairwise: a single term is a tree and is not rounded. After term k, equal trees are merged by s
//   = round(a + b), once for each trailing zero bit of k + 1. At the end, the remaining trees are
//   merged, the smallest first; a sum of one term is rounded. Draws are numbered in the order of
//   the merges.
//
// The sum of a matrix product starts from the rounded c. So no term is the first term of a
// sequential or a Kahan sum, a chunk starts from +0, and a pairwise sum ends with c + its tree. A
// rounded product takes a draw before the draw of its sum.
#pragma once

#include <cstdint>

#include "cpd/numeric/sums/accumulate.h"
#include "cpd/numeric/sums/fold_plan.h"

namespace cpd {

/// The order of a sum's operations. The scheme block_fma, which sums products, does not use a
/// SumOrder.
struct SumOrder {
  Scheme scheme = Scheme::sequential;
  std::int64_t chunk = 64;  ///< chunked: terms per chunk, at least 1
  /// True if a sum has an initial value, in state value 0 (plane 0), to which the first term is
  /// added.
  bool from_start = false;
  std::int64_t term_draws = 0;  ///< random integers that a term takes before its sum takes one
};

/// Returns the order in which an accumulator adds terms.
constexpr SumOrder sum_order(const Accumulator& accumulator) {
  return {accumulator.scheme, accumulator.chunk};
}
/// Returns the order in which a matrix product adds its products.
CPD_FN constexpr SumOrder product_order(Scheme scheme, bool exact_products,
                                        std::int64_t chunk = 64) {
  return {scheme, chunk, true, exact_products ? 0 : 1};
}
constexpr SumOrder product_order(const Accumulator& accumulator) {
  return product_order(accumulator.scheme, accumulator.exact_products, accumulator.chunk);
}

inline namespace CPD_ISA {

/// Returns the number of trees that are open (not yet merged) after `terms` terms: the number of
/// bits that are set in `terms`.
CPD_FN constexpr int open_trees(std::int64_t terms) {
  int open = 0;
  for (auto rest = static_cast<std::uint64_t>(terms); rest != 0; rest &= rest - 1) ++open;
  return open;
}

/// Returns the number of state values (planes) that a sum of `terms` terms needs for each element.
CPD_FN constexpr int planes_of_sum(Scheme scheme, std::int64_t terms) {
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

/// Returns the number of random integers (draws) that the first k terms take, including the chunks
/// and trees that these terms finish.
CPD_FN constexpr std::int64_t draws_before(const SumOrder& order, std::int64_t k) {
  const std::int64_t of_terms = order.term_draws * k;
  switch (order.scheme) {
    case Scheme::kahan:
      return of_terms + (order.from_start || k == 0 ? 4 * k : 4 * k - 3);
    case Scheme::chunked:
      return of_terms + k + k / order.chunk;
    case Scheme::pairwise:
      return of_terms + k - open_trees(k);
    default:
      return of_terms + k;
  }
}

/// Returns the number of random integers (draws) that a sum of `terms` terms takes.
CPD_FN constexpr std::int64_t draws_of_sum(const SumOrder& order, std::int64_t terms) {
  if (terms <= 0) return 0;
  const std::int64_t draws = draws_before(order, terms);
  if (order.scheme == Scheme::chunked) return draws + (terms % order.chunk != 0 ? 1 : 0);
  if (order.scheme != Scheme::pairwise) return draws;
  return draws + open_trees(terms) - (order.from_start || terms == 1 ? 0 : 1);
}

/// Returns the largest number of terms for which a sum takes at most `draws` random integers.
/// `draws` must be at least 1.
CPD_FN constexpr std::int64_t most_terms(const SumOrder& order, std::int64_t draws) {
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

/// A backend that keeps the newest tree (partial sum) of a pairwise sum in a variable, for example
/// in registers. SumWalk calls store_tree(level) to copy a finished tree of 2^level terms to state
/// value (plane) `level`, and load_tree(level) when the sum ends.
template <class Backend>
concept HoldsTree = requires(Backend& to) {
  to.store_tree(1);
  to.load_tree(1);
};

/// Runs a sum in the order of a SumOrder by calling the steps of `Backend`. A backend needs only
/// the steps of the schemes that it is used with:
/// - add_terms(plane, starts, draw, first, count) adds terms first … first + count - 1 of the call,
///   one by one, to the sum in `plane`. `starts`: term `first` is the first term of the sum.
/// - add_compensated(starts, draw, first, count) does the same in plane 0, with Kahan's
///   compensation in plane 1.
/// - add_chunk(starts, draw) adds the sum in plane 1 to the sum in plane 0.
/// - open_tree(plane, term) stores the term in `plane` without rounding it into the sum's format.
/// - merge_term(plane, draw, term) adds the term to the tree in `plane`.
/// - merge_trees(plane, draw, of_term) adds the tree in plane + 1 to the tree in `plane`.
///   `of_term`: one of the trees is a single term.
/// - round_tree(draw) rounds the term in plane 0.
/// `draw` is the number of the step's first draw. A backend that HoldsTree gets the level of a tree
/// as `plane`. Its merge_trees adds the tree that the backend holds to the tree in `plane`, or, for
/// plane 0, to the sum's first value. Such a backend takes terms in pairs: only the last call
/// before end() may have an odd number of terms. Pairwise sums with from_start need such a backend.
/// Draw numbers ascend without gaps from first_draw() on: one for each rounding, and in Kahan's sum
/// four for each term (one for the first).
class SumWalk {
 public:
  /// Begins a sum (k = 0), or continues a sum with term k. For k > 0, the planes (the values of the
  /// sum's state) hold the sum of the first k terms.
  CPD_FN constexpr SumWalk(const SumOrder& order, std::int64_t k)
      : order_(order),
        k_(k),
        draw_(draws_before(order, k)),
        open_(order.scheme == Scheme::pairwise ? open_trees(k) : 0) {}

  [[nodiscard]] CPD_FN constexpr std::int64_t first_draw() const { return draw_; }

  /// Adds the next `count` terms to the sum.
  template <class Backend>
  CPD_FN constexpr void take(Backend& to, std::int64_t count) {
    const bool starts = k_ == 0 && !order_.from_start;
    switch (order_.scheme) {
      case Scheme::kahan:
        if constexpr (requires { to.add_compensated(starts, draw_, k_, count); }) {
          to.add_compensated(starts, draw_, std::int64_t{0}, count);
        }
        break;
      case Scheme::chunked:
        if constexpr (requires { to.add_chunk(starts, draw_); }) take_chunked(to, count);
        return;
      case Scheme::pairwise:
        if constexpr (requires { to.open_tree(0, k_); }) take_pairwise(to, count);
        return;
      default:
        to.add_terms(0, starts, draw_, std::int64_t{0}, count);
    }
    k_ += count;
    draw_ = draws_before(order_, k_);
  }

  /// Ends a sum: adds the sum of an unfinished last chunk, or the remaining trees of a pairwise
  /// sum. The result is then in value 0 of the sum's state (plane 0).
  template <class Backend>
  CPD_FN constexpr void end(Backend& to) {
    if constexpr (requires { to.add_chunk(true, draw_); }) {
      if (order_.scheme == Scheme::chunked && k_ % order_.chunk != 0) end_chunk(to);
    }
    if constexpr (requires { to.open_tree(0, k_); }) {
      if (order_.scheme == Scheme::pairwise) end_pairwise(to);
    }
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
      draw_ += run * (1 + order_.term_draws);
      if (run == left) end_chunk(to);
    }
  }
  template <class Backend>
  CPD_FN constexpr void end_chunk(Backend& to) {
    to.add_chunk(k_ <= order_.chunk && !order_.from_start, draw_++);
  }

  template <class Backend>
  CPD_FN constexpr void take_pairwise(Backend& to, std::int64_t count) {
    for (std::int64_t term = 0; term < count; ++term) {
      if (HoldsTree<Backend> || k_ % 2 == 0) {
        take_first(to, term);
        if (!HoldsTree<Backend> || ++term == count) continue;
      }
      take_second(to, term);
    }
  }
  /// Starts a tree of a pairwise sum with the first term of a pair.
  template <class Backend>
  CPD_FN constexpr void take_first(Backend& to, std::int64_t term) {
    to.open_tree(HoldsTree<Backend> ? 0 : open_, term);
    ++open_;
    ++k_;
    draw_ += order_.term_draws;
  }
  /// Adds the second term of a pair to its tree, and merges that tree with older trees as long as
  /// two trees have the same size.
  template <class Backend>
  CPD_FN constexpr void take_second(Backend& to, std::int64_t term) {
    to.merge_term(HoldsTree<Backend> ? 0 : open_ - 1, draw_, term);
    draw_ += 1 + order_.term_draws;
    int level = 1;
    for (; (k_ >> level & 1) != 0; ++level) merge(to, level, false);
    if constexpr (HoldsTree<Backend>) to.store_tree(level);
    ++k_;
  }
  template <class Backend>
  CPD_FN constexpr void end_pairwise(Backend& to) {
    if (k_ == 0) return;
    if (k_ == 1 && !order_.from_start) to.round_tree(draw_++);
    int level = 0;
    while ((k_ >> level & 1) == 0) ++level;
    bool of_term = level == 0;
    if constexpr (HoldsTree<Backend>) {
      if (!of_term) to.load_tree(level);
    }
    for (++level; k_ >> level != 0; ++level) {
      if ((k_ >> level & 1) == 0) continue;
      merge(to, level, of_term);
      of_term = false;
    }
    if constexpr (HoldsTree<Backend>) {
      if (order_.from_start) to.merge_trees(0, draw_++, of_term);
      to.store_tree(0);
    }
  }
  /// Merges the smallest tree that is still open (unmerged) into the next larger one, which has
  /// 2^level terms.
  template <class Backend>
  CPD_FN constexpr void merge(Backend& to, int level, bool of_term) {
    --open_;
    to.merge_trees(HoldsTree<Backend> ? level : open_ - 1, draw_++, of_term);
  }

  SumOrder order_;
  std::int64_t k_, draw_;
  int open_;
};

}  // namespace CPD_ISA

// --- the plans of a sum's steps ------------------------------------------------------------------

/// Returns the format that make_fold_plan must assume for the terms of a pairwise sum, which adds
/// pairs of terms that have not been rounded into `format`. The result is `terms_in` if its values
/// are multiples of the least spacing of `format`, else fp32. (If one term is halfway between two
/// subnormal numbers of `format`, the sign of a much smaller second term decides the rounding.)
constexpr Format known_of_pairs(const Format& terms_in, const Format& format) {
  const bool on_grid = terms_in.min_quantum_exponent() >= format.min_quantum_exponent();
  return on_grid ? terms_in : kFp32;
}

/// Returns the plan of the additions of single terms. Each term is a number of the format
/// `terms_in`.
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
/// Returns the plan of the additions that combine partial sums: the sums of chunks (scheme chunked)
/// or of trees (pairwise).
constexpr FoldPlan plan_of_sums(const Accumulator& accumulator, const RandomKey& key = {},
                                FastPaths on = {}) {
  const Format& format = accumulator.format;
  const bool chunked = accumulator.scheme == Scheme::chunked;
  return make_fold_plan(accumulator, chunked ? accumulator.inner.value_or(format) : format, key,
                        on);
}

}  // namespace cpd
