// SPDX-License-Identifier: Apache-2.0
//
// The order of a sum's operations, apart from their arithmetic: which term is added where, the
// number of each random integer (draw), where chunks end, which trees merge. Sums over an axis,
// over ranks and over k of a matrix product run in this order; each supplies its own steps.
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
//
// The sum of a matrix product starts from the rounded c: no term is the first of a sequential or a
// Kahan sum, a chunk starts from +0, and a pairwise sum ends with c + its tree. A rounded product
// takes a draw before its sum's.
#pragma once

#include <cstdint>

#include "cpd/numeric/sums/accumulate.h"
#include "cpd/numeric/sums/fold_plan.h"

namespace cpd {

/// The order of a sum's operations. Scheme block_fma, which sums products, has none.
struct SumOrder {
  Scheme scheme = Scheme::sequential;
  std::int64_t chunk = 64;      ///< chunked: terms per chunk, at least 1
  bool from_start = false;      ///< plane 0 holds a value before the first term is added
  std::int64_t term_draws = 0;  ///< draws that a term takes before its sum's
};

/// The order of a sum of terms.
constexpr SumOrder sum_order(const Accumulator& accumulator) {
  return {accumulator.scheme, accumulator.chunk};
}
/// The order of the sums of a matrix product.
CPD_FN constexpr SumOrder product_order(Scheme scheme, bool exact_products,
                                        std::int64_t chunk = 64) {
  return {scheme, chunk, true, exact_products ? 0 : 1};
}
constexpr SumOrder product_order(const Accumulator& accumulator) {
  return product_order(accumulator.scheme, accumulator.exact_products, accumulator.chunk);
}

inline namespace CPD_ISA {

/// The number of trees that are open after `terms` terms: the bits set in that number.
CPD_FN constexpr int open_trees(std::int64_t terms) {
  int open = 0;
  for (auto rest = static_cast<std::uint64_t>(terms); rest != 0; rest &= rest - 1) ++open;
  return open;
}

/// The number of state values that a sum of `terms` terms needs for each element (SumWalk).
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

/// The number of draws that the first k terms, and the chunks and trees that they finish, take.
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

/// The number of draws that a sum of `terms` terms takes.
CPD_FN constexpr std::int64_t draws_of_sum(const SumOrder& order, std::int64_t terms) {
  if (terms <= 0) return 0;
  const std::int64_t draws = draws_before(order, terms);
  if (order.scheme == Scheme::chunked) return draws + (terms % order.chunk != 0 ? 1 : 0);
  if (order.scheme != Scheme::pairwise) return draws;
  return draws + open_trees(terms) - (order.from_start || terms == 1 ? 0 : 1);
}

/// The most terms whose sum takes at most `draws` draws, at least 1.
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

/// A backend that holds the last tree apart from the planes, as in registers. The walk has it store
/// a finished tree of 2^level terms in plane `level`, and load one when the sum ends.
template <class Backend>
concept HoldsTree = requires(Backend& to) {
  to.store_tree(1);
  to.load_tree(1);
};

/// Runs a sum: calls `Backend`, which has the steps of the orders that it is given:
///   add_terms(plane, starts, draw, first, count): adds terms first … first + count - 1 of the call
///     to the sum in `plane`, one by one; `starts`: the first of them is the sum's first;
///   add_compensated(starts, draw, first, count): the same in plane 0, with plane 1 as Kahan's
///     compensation;
///   add_chunk(starts, draw): adds plane 1's sum to plane 0's;
///   open_tree(plane, term): stores that term, unrounded by the sum's format;
///   merge_term(plane, draw, term): adds that term to the tree in `plane`;
///   merge_trees(plane, draw, of_term): adds the tree in plane + 1 to the one in `plane`; of_term:
///     one of the two is a single term;
///   round_tree(draw): rounds the term in plane 0.
/// A backend that HoldsTree gets the trees' levels as planes. Its merge_trees adds the tree that it
/// holds to the one in `plane`, or, for plane 0, to the sum's first value. It takes terms in pairs:
/// only the last call before end() may have an odd number. Pairwise sums with from_start need it.
/// Draw numbers ascend without gaps from first_draw() on: one a rounding, in Kahan's sum four a
/// term (one for the first).
class SumWalk {
 public:
  /// Continues a sum from term k on.
  CPD_FN constexpr SumWalk(const SumOrder& order, std::int64_t k)
      : order_(order),
        k_(k),
        draw_(draws_before(order, k)),
        open_(order.scheme == Scheme::pairwise ? open_trees(k) : 0) {}

  [[nodiscard]] CPD_FN constexpr std::int64_t first_draw() const { return draw_; }

  /// Adds the next `count` terms.
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

  /// Ends a sum: leaves it in plane 0.
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
  /// Takes the first term of a pair.
  template <class Backend>
  CPD_FN constexpr void take_first(Backend& to, std::int64_t term) {
    to.open_tree(HoldsTree<Backend> ? 0 : open_, term);
    ++open_;
    ++k_;
    draw_ += order_.term_draws;
  }
  /// Takes the second term of a pair, and merges the trees that are equal then.
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
  /// Merges the smallest open tree into the next one, which has 2^level terms.
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
