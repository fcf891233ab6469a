// SPDX-License-Identifier: Apache-2.0
//
// Computes tiles of sequential or Kahan sums in registers, by the steps of a fast path
// (numeric/fast), while no sum can overflow. Only gemm.cpp may include this file: its functions are
// compiled for one ISA and must not be linked into other object files.
#pragma once

#include <cstdint>

#include "cpd/numeric/fast/choose.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "kernels/cpu/gemm_general.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

/// Returns the number of groups of successive k for which the bounds of a panel's values are
/// stored. (A panel holds packed rows of a or columns of b.)
CPD_FN std::int64_t groups_of(const GemmBlock& block) {
  return (block.count + kRangeGroup - 1) / kRangeGroup;
}

/// A tile and the bounds of the values in its panels (packed rows of a or columns of b). Bounds are
/// stored for each group of kRangeGroup successive k.
struct BoundedTile {
  const GemmPlan* plan;
  const GemmBlock* block;
  Tile tile;
  const PanelRange *a, *b;  ///< the bounds of each group of k
  bool binary32;            ///< fits_binary32 for the whole block

  /// Returns a bound of the sum of the magnitudes of the rounded products at k … k + count - 1
  /// (bound_products). These k must belong to one group.
  [[nodiscard]] CPD_FN float products(std::int64_t k, std::int64_t count) const {
    const PanelRange& of_a = a[k / kRangeGroup];
    const PanelRange& of_b = b[k / kRangeGroup];
    float sum = of_a.largest * of_b.total;
    if (count < kRangeGroup) {
      const float each = of_a.largest * of_b.largest * static_cast<float>(count);
      sum = each < sum ? each : sum;  // a NaN in `sum` stays
    }
    return bound_products(plan->fast, sum, static_cast<int>(count), of_b.largest);
  }
  [[nodiscard]] CPD_FN float all_products() const {
    float sum = 0;
    for (std::int64_t k = 0; k < block->count; k += kRangeGroup) sum += products(k, kRangeGroup);
    return sum;
  }
  /// Returns a power of two that divides the exact products at k … k + count - 1. k must be even,
  /// and these k must belong to one group.
  [[nodiscard]] CPD_FN float least_bit(std::int64_t k, std::int64_t count) const {
    const float* of_a = a[k / kRangeGroup].least_bit;
    const float* of_b = b[k / kRangeGroup].least_bit;
    const std::int64_t first = k % kRangeGroup / 2;
    float bit = of_a[first] * of_b[first];
    for (std::int64_t pair = first + 1; 2 * pair < k % kRangeGroup + count; ++pair) {
      const float next = of_a[pair] * of_b[pair];
      bit = next < bit ? next : bit;
    }
    return bit;
  }
  /// Returns a power of two that divides all exact products of the tile.
  [[nodiscard]] CPD_FN float least_bit() const {
    float bit = least_bit(0, 2);
    for (std::int64_t k = 0; k < block->count; k += kRangeGroup) {
      const float next = least_bit(k, cpd::least(block->count - k, kRangeGroup));
      bit = next < bit ? next : bit;
    }
    return bit;
  }
};

/// Adds the products at k … k + count - 1 of the block to the sums of `tile`, by the general path.
/// `last`: no products follow, so trees of pairwise sums are merged.
[[maybe_unused]] CPD_BODY void general_steps(const BoundedTile* bounded, Tile tile, std::int64_t k,
                                             std::int64_t count, bool last = false) {
  GemmBlock part = *bounded->block;
  part.first_k += k;
  part.count = count;
  part.last = last;
  tile.at.a += k * kGemmRows;
  tile.at.b += k * kGemmColumns;
  general_tile(*bounded->plan, part, tile, bounded->binary32);
}

/// Guarded roundings (with a check for overflow) are used only if the magnitudes of all sums, and
/// the bounds of all groups' products, are at most this number. The rounding constants, which are
/// 2^23 times the sums, are then finite.
constexpr float kMostGuarded = 0x1p96F;

/// Returns whether every product is exact in the product format, or larger than the format's
/// largest value: each product has few enough bits and is a multiple of the format's least spacing.
[[maybe_unused]] CPD_FN bool are_narrow(const BoundedTile& bounded) {
  const FastPlan& fast = bounded.plan->fast;
  return significant_bits(bounded.a->fraction) + significant_bits(bounded.b->fraction) <=
             fast.man_product + 1 &&
         bounded.least_bit() >= static_cast<float>(fast.product_quantum);
}

/// Computes the sums of kRows rows and kVectors vectors of columns in registers. With
/// ProductKind::exact and Path::kAddsExact, a sum is computed in binary32 if it is exact there, and
/// else rounded to odd.
template <class Path, Scheme kScheme, ProductKind kProducts, int kRows, int kVectors>
class RegisterTile {
 public:
  CPD_FN explicit RegisterTile(const BoundedTile& bounded, Tile tile)
      : bounded_(bounded),
        block_(*bounded.block),
        fast_(bounded.plan->fast),
        tile_(tile),
        steps_(fast_),
        adds_in_parts_(adds_in_parts(fast_, significant_bits(bounded.a->fraction) +
                                                significant_bits(bounded.b->fraction))) {}

  /// Adds the products at k, k + 1, … until the bounds show that a sum may overflow. Returns the
  /// first k whose product was not added.
  CPD_FN std::int64_t run(std::int64_t k) {
    Sums s;
    load_sums(s);
    if constexpr (Path::kAnyValues) {
      steps<How::bounded>(s, k, block_.count - k);
      canonicalize(s);
      k = block_.count;
    } else {
      if (!are_ordinary(s)) return k;
      for (std::int64_t taken = -1; k < block_.count && taken != 0; k += taken)
        taken = advance(s, k);
    }
    store_sums(s);
    return k;
  }

  /// Adds the products at k … k + count - 1 by guarded roundings, which check for overflow. Returns
  /// false and adds nothing if a result may be wrong.
  CPD_FN bool run_guarded(std::int64_t k, std::int64_t count) {
    for (std::int64_t group = k - k % kRangeGroup; group < k + count; group += kRangeGroup) {
      if (!(bounded_.products(group, kRangeGroup) <= kMostGuarded)) return false;
    }
    Sums s;
    load_sums(s);
    if (!are_ordinary(s) || !all_at_most(largest(s.sum), kMostGuarded)) return false;
    if (kHasCompensation && !all_at_most(largest(s.lost), kMostGuarded)) return false;
    if (fast_.saturates) {
      steps<How::saturating>(s, k, count);
    } else {
      steps<How::guarded>(s, k, count);
      if (!all_at_most(s.seen.product, fast_.product_limit) ||
          !all_at_most(s.seen.sum, fast_.limit)) {
        return false;
      }
    }
    store_sums(s);
    return true;
  }

 private:
  struct Sums {
    F sum[kRows][kVectors];
    F lost[kRows][kVectors];
    Seen<F> seen;  ///< of guarded steps
  };
  static constexpr bool kHasCompensation = kScheme == Scheme::kahan;
  /// The number of rows that are interleaved to hide the latency of a row's long chain of
  /// operations. The number is smaller on CPUs with few registers, so that products stay in
  /// registers.
  static constexpr int kTogether = !kHasCompensation || Path::kAnyValues || kRows == 1 ? 1
                                   : kRegisters < 32                                   ? 2
                                                                                       : kRows;
  static constexpr bool kNarrow = kProducts == ProductKind::narrow;
  static constexpr bool kTakesLogs = !kNarrow && !Path::kAnyValues && !Path::kAddsExact;
  /// True if advance() first calls exact_steps, for products whose sums binary32 represents
  /// exactly.
  static constexpr bool kTriesExact = Path::kAddsExact && kProducts == ProductKind::exact;

  /// True if exact_steps also uses split_fma_in_parts (veltkamp_rounding.h), for sums that binary32
  /// may not represent exactly. On CPUs without instructions that round in a given direction, that
  /// function takes half the operations of rounding to odd.
  static constexpr bool kTriesParts = kTriesExact && !kHasDirectedRounding<F>;

  /// Adds the next few products, from k on, to each sum. Returns how many it added: 0 if a sum may
  /// overflow.
  CPD_FN std::int64_t advance(Sums& s, std::int64_t k) {
    const F most = weighed(s);
    if (!kHasCompensation && (!Path::kAddsExact || kNarrow) && k == 0) {
      if (all_at_most(most, sum_limit(fast_, bounded_.all_products()))) {
        steps<How::bounded>(s, 0, block_.count);
        return block_.count;
      }
    }
    if constexpr (kTriesExact) {
      if (const std::int64_t exact = exact_steps(s, k, most); exact != 0) return exact;
    }
    const std::int64_t count = least(block_.count - k, kTriesExact ? 2 : fast_.steps);
    if (!all_at_most(most, sum_limit(fast_, bounded_.products(k, count)))) return 0;
    steps<How::bounded>(s, k, count);
    return count;
  }
  /// Adds the next products, from k on, to each sum: a group of kRangeGroup products or, if that is
  /// not possible, two. `most` bounds the sums' magnitudes. Adds nothing if a sum may overflow, or
  /// if an exact sum may be no binary32 number and split_fma_in_parts may not round it. Returns the
  /// number of products that it added to each sum.
  CPD_FN std::int64_t exact_steps(Sums& s, std::int64_t k, F most) const {
    for (std::int64_t wanted = k % kRangeGroup == 0 ? kRangeGroup : 2;; wanted = 2) {
      const std::int64_t count = least(block_.count - k, wanted);
      const float products = bounded_.products(k, count);
      const float finite = sum_limit(fast_, products);
      const auto stay_below = [&](float limit) {
        return all_at_most(most, finite < limit ? finite : limit);  // a NaN stays
      };
      if (stay_below(exact_limit(fast_, products, bounded_.least_bit(k, count)))) {
        steps<How::fits>(s, k, count);
        return count;
      }
      if constexpr (kTriesParts) {
        if (adds_in_parts_ && stay_below(parts_limit(fast_, products))) {
          steps<How::parts>(s, k, count);
          return count;
        }
      }
      if (wanted == 2) return 0;
    }
  }
  /// Returns s * of_sum + c * of_compensation in each lane, a part of FastPlan's bound for
  /// overflow. s is the largest magnitude of the lane's sums, and c of the lane's compensations.
  CPD_FN F weighed(const Sums& s) const {
    const F most = largest(s.sum);
    if constexpr (kHasCompensation) {
      return most * splat<F>(fast_.of_sum) + largest(s.lost) * splat<F>(fast_.of_compensation);
    }
    return most;
  }
  /// Returns, for each lane, the largest magnitude in x, over all rows and vectors of x. Compares
  /// within rows first, to keep the chain of dependent maxima short.
  CPD_FN static F largest(const F (&x)[kRows][kVectors]) {
    F of_row[kRows];
    for (int i = 0; i < kRows; ++i) {
      of_row[i] = larger_magnitude(x[i][0], x[i][kVectors - 1]);
      for (int j = 1; j + 1 < kVectors; ++j) of_row[i] = larger_magnitude(of_row[i], x[i][j]);
    }
    for (int i = 1; i < kRows; ++i) of_row[i % 2] = larger_magnitude(of_row[i % 2], of_row[i]);
    return kRows > 1 ? larger_magnitude(of_row[0], of_row[1 % kRows]) : of_row[0];
  }

  template <How kHow>
  CPD_FN void steps(Sums& s, std::int64_t k, std::int64_t count) const {
    const float* a = tile_.at.a + k * kGemmRows;
    const float* b = tile_.at.b + k * kGemmColumns;
    for (std::int64_t end = k + count; k < end; ++k, a += kGemmRows, b += kGemmColumns) {
      F of_b[kVectors];
      Signed<F> log_b[kVectors] = {};
      for (int j = 0; j < kVectors; ++j) {
        of_b[j] = load<F>(b + j * Lanes<F>::count);
        if constexpr (kTakesLogs) log_b[j] = log_of_b<kHow>(b + j * Lanes<F>::count);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; i += kTogether) {
        LogOperands<F> x[kTogether * kVectors];
        for (int row = 0; row < kTogether; ++row) {
          const F of_a = splat<F>(a[i + row]);
          Signed<F> log_a{};
          if constexpr (kTakesLogs) log_a = splat<Signed<F>>(block_.a_logs[a + i + row - block_.a]);
          for (int j = 0; j < kVectors; ++j) {
            x[row * kVectors + j] = {of_a, of_b[j], log_a, log_b[j]};
          }
        }
        step<kHow>(x, s, s.sum[i], s.lost[i]);
      }
    }
  }

  template <How kHow>
  CPD_FN Signed<F> log_of_b(const float* b) const {
    return load<Signed<F>>(block_.b_logs + (b - block_.b)) +
           splat<Signed<F>>(steps_.template log_magnet<kHow>());
  }

  /// Adds the product x[i] to sum[i] for each i < kSums: the products at one k.
  template <How kHow, int kSums>
  CPD_FN void step(const LogOperands<F> (&x)[kSums], Sums& s, F* sum,
                   [[maybe_unused]] F* lost) const {
    if constexpr (kHasCompensation) {
      steps_.template add_kahan<kHow, kProducts>(x, sum, lost, s.seen);
    } else {
      for (int i = 0; i < kSums; ++i) {
        sum[i] = steps_.template add_product<kHow, kProducts>(x[i], sum[i], s.seen);
      }
    }
  }

  CPD_FN float* at(int i, int j) {
    return tile_.at.state + i * block_.state_columns + j * Lanes<F>::count;
  }
  CPD_FN void load_sums(Sums& s) {
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kVectors; ++j) {
        s.sum[i][j] = load<F>(at(i, j));
        if constexpr (kHasCompensation) s.lost[i][j] = load<F>(at(i, j) + block_.plane);
      }
    }
  }
  /// Returns whether all sums are finite and, on paths whose products may lose the sign of a zero,
  /// no sum is -0.
  CPD_FN bool are_ordinary(const Sums& s) const {
    using U = Unsigned<F>;
    using I = Signed<F>;
    using P = Pattern<F>;
    I odd{};
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kVectors; ++j) {
        const U pattern = bits_as<U>(s.sum[i][j]);
        odd |= (I)((pattern & splat<U>(P::magnitude)) >= splat<U>(P::infinity));
        if constexpr (!Path::kAddsExact || kNarrow) odd |= (I)(pattern == splat<U>(P::sign));
      }
    }
    std::int32_t lanes[Lanes<F>::count];
    store(lanes, odd);
    std::int32_t any = 0;
    for (const std::int32_t lane : lanes) any |= lane;
    return any == 0;
  }
  CPD_FN void store_sums(const Sums& s) {
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kVectors; ++j) {
        store(at(i, j), s.sum[i][j]);
        if constexpr (kHasCompensation) store(at(i, j) + block_.plane, s.lost[i][j]);
      }
    }
  }
  /// Replaces every NaN among the sums by the canonical quiet NaN.
  CPD_FN void canonicalize(Sums& s) {
    const F nan = bits_as<F>(splat<Unsigned<F>>(Pattern<F>::quiet_nan));
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kVectors; ++j) {
        s.sum[i][j] = select(s.sum[i][j] == s.sum[i][j], s.sum[i][j], nan);
      }
    }
  }

  const BoundedTile& bounded_;
  const GemmBlock& block_;
  const FastPlan& fast_;
  Tile tile_;
  ProductSteps<Path, F> steps_;
  bool adds_in_parts_;
};

template <class Path, Scheme kScheme, ProductKind kProducts, int kRows, int kVectors>
CPD_BODY std::int64_t bounded_steps(const BoundedTile* bounded, const Tile* tile, std::int64_t k) {
  return RegisterTile<Path, kScheme, kProducts, kRows, kVectors>(*bounded, *tile).run(k);
}
template <class Path, Scheme kScheme, int kRows, int kVectors>
CPD_BODY bool guarded_steps(const BoundedTile* bounded, const Tile* tile, std::int64_t k,
                            std::int64_t count) {
  return RegisterTile<Path, kScheme, ProductKind::any, kRows, kVectors>(*bounded, *tile)
      .run_guarded(k, count);
}

constexpr int kVectorsOfPanel = kGemmColumns / Lanes<F>::count;
/// The number of rows whose sums fill half of the registers, but at most kGemmRows.
constexpr int kRowsInRegisters =
    static_cast<int>(least(kGemmRows, kRegisters / 2 / kVectorsOfPanel));

constexpr std::int64_t kGuardedSteps = 4 * kRangeGroup;

/// Returns the part of `tile` that has `rows` rows, from row `first` on, or the remaining rows if
/// there are fewer.
CPD_FN Tile rows_of(const GemmBlock& block, Tile tile, std::int64_t first, std::int64_t rows) {
  tile.rows = least(rows, tile.rows - first);
  tile.at.a += first;
  tile.at.state += first * block.state_columns;
  tile.at.index += static_cast<std::uint64_t>(first) * block.index_row;
  return tile;
}

/// Adds the products at k … k + count - 1 to the rows of `tile`. Uses guarded roundings, which
/// check for overflow, or the general path if a result may be wrong. Takes fewer rows at a time
/// than unguarded steps, so that a sum that overflows slows down fewer rows.
template <class Path, Scheme kScheme, int kRows, int kVectors>
CPD_FN void guarded_rows(const BoundedTile& bounded, const Tile& tile, std::int64_t k,
                         std::int64_t count) {
  constexpr int kMost = kScheme == Scheme::kahan ? kGemmRows / 2 : kRowsInRegisters;
  constexpr int kPart = kRows < kMost ? kRows : kMost;
  for (std::int64_t i = 0; i < tile.rows; i += kPart) {
    const Tile part = rows_of(*bounded.block, tile, i, kPart);
    if (!guarded_steps<Path, kScheme, kPart, kVectors>(&bounded, &part, k, count)) {
      general_steps(&bounded, part, k, count);
    }
  }
}

/// Adds all products of the block to the rows of `tile`. Calls steps(k), which must add products
/// from k on by the fast path until a sum may overflow, and return the next k. Then guarded_rows,
/// which checks for overflow, adds the products of a few groups of k. Then steps is called again.
template <class Path, Scheme kScheme, int kRows, int kVectors, class Steps>
CPD_FN void fast_rows(const BoundedTile& bounded, const Tile& tile, Steps steps) {
  const std::int64_t end = bounded.block->count;
  for (std::int64_t k = 0; k < end;) {
    if (!bounded.plan->fast.guarded) {
      k = steps(k);
      if (k == end) return;
    }
    if constexpr (!Path::kAnyValues) {
      const std::int64_t count = least(end - k, kGuardedSteps - k % kRangeGroup);
      guarded_rows<Path, kScheme, kRows, kVectors>(bounded, tile, k, count);
      k += count;
    }
  }
}
template <class Path, Scheme kScheme, ProductKind kProducts, int kRows, int kVectors>
CPD_FN void register_rows(const BoundedTile& bounded, const Tile& tile) {
  fast_rows<Path, kScheme, kRows, kVectors>(bounded, tile, [&](std::int64_t k) {
    return bounded_steps<Path, kScheme, kProducts, kRows, kVectors>(&bounded, &tile, k);
  });
}

template <class Path, Scheme kScheme, ProductKind kProducts, int kRows>
CPD_FN void some_rows(const BoundedTile& bounded, std::int64_t first) {
  const Tile part = rows_of(*bounded.block, bounded.tile, first, kRows);
  if (kVectorsOfPanel > 1 && part.columns <= Lanes<F>::count) {
    register_rows<Path, kScheme, kProducts, kRows, 1>(bounded, part);
  } else {
    register_rows<Path, kScheme, kProducts, kRows, kVectorsOfPanel>(bounded, part);
  }
}

template <class Path, Scheme kScheme, ProductKind kProducts = ProductKind::any>
CPD_FN void register_tile(const BoundedTile& bounded) {
  // Adding a product to a sum takes about 20 to 40 cycles. Only the sums of all rows together keep
  // the CPU's arithmetic units busy. This holds even if they need more registers than the CPU has.
  constexpr bool kIsShort = Path::kAnyValues && kScheme == Scheme::sequential;
  constexpr auto kRows = static_cast<int>(kIsShort ? kRowsInRegisters : kGemmRows);
  const std::int64_t rows = bounded.tile.rows;
  if (rows <= 2) {
    for (std::int64_t i = 0; i < rows; ++i) some_rows<Path, kScheme, kProducts, 1>(bounded, i);
  } else {
    for (std::int64_t i = 0; i < rows; i += kRows) {
      some_rows<Path, kScheme, kProducts, kRows>(bounded, i);
    }
  }
}

/// Returns whether trying exact sums is worth its time: for most of the tested k, binary32
/// represents sums of small magnitude exactly. Tests two products of every second group of k.
[[maybe_unused]] CPD_FN bool often_fits(const BoundedTile& bounded) {
  int fitting = 0;
  for (std::int64_t k = 0; k < bounded.block->count; k += 2 * kRangeGroup) {
    const float products = bounded.products(k, 2);
    fitting += exact_limit(bounded.plan->fast, products, bounded.least_bit(k, 2)) > 0 ? 1 : -1;
  }
  return fitting > 0;
}

}  // namespace
}  // namespace CPD_ISA
}  // namespace cpd
