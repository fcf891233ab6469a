// SPDX-License-Identifier: Apache-2.0
//
// Matrix products: packing, and tiles of sums over a block of k. Compiled once per ISA like
// kernels.cpp. The arithmetic is numeric/'s; here it is walked over rows, columns and k.

#include "cpd/numeric/gemm_sums.h"
#include "cpd/numeric/split.h"
#include "kernels/cpu/tables.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int32_t;
using std::int64_t;
using std::uint32_t;
using std::uint64_t;

// --- packing
// --------------------------------------------------------------------------------------

/// The least last bit of n values; zeros have none (Inf), of NaN and Inf it means nothing.
CPD_FN float least_bit_of(int64_t n, const float* x) {
  using P = Pattern<float>;
  auto least = static_cast<int32_t>(P::infinity);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = bits_as<uint32_t>(x[i]) & P::magnitude;
    // Without its last bit x is smaller by just that; a power of two is its own last bit.
    const float rest =
        (magnitude & P::fraction) == 0 ? 0.0F : bits_as<float>(magnitude & (magnitude - 1));
    const auto bit = static_cast<int32_t>(bits_as<uint32_t>(bits_as<float>(magnitude) - rest));
    const int32_t counted = magnitude == 0 ? static_cast<int32_t>(P::infinity) : bit;
    least = counted < least ? counted : least;
  }
  return bits_as<float>(least);
}

/// Copies one panel; lines beyond the last are +0.
template <int kWidth>
CPD_FN void pack_values(int64_t lines, int64_t count, const float* x, int64_t line_stride,
                        int64_t k_stride, float* packed) {
  for (int64_t k = 0; k < count; ++k, x += k_stride, packed += kWidth) {
    if (lines == kWidth && line_stride == 1) {
      __builtin_memcpy(packed, x, sizeof(float) * kWidth);
    } else if (lines == kWidth) {
#pragma GCC unroll 32
      for (int line = 0; line < kWidth; ++line) packed[line] = x[line * line_stride];
    } else {
      for (int line = 0; line < kWidth; ++line) {
        packed[line] = line < lines ? x[line * line_stride] : 0.0F;
      }
    }
  }
}

/// The largest magnitude of n values, as a pattern; ors all patterns into `bits`.
CPD_FN int32_t largest_of(int64_t n, const float* x, uint32_t& bits) {
  int32_t most = 0;
  uint32_t all = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto pattern = bits_as<uint32_t>(x[i]);
    const auto magnitude = static_cast<int32_t>(pattern & Pattern<float>::magnitude);
    most = magnitude > most ? magnitude : most;
    all |= pattern;
  }
  bits |= all;
  return most;
}

/// The panel's ranges; totals of columns, least bits where asked for.
template <int kWidth>
CPD_FN void pack_ranges(int64_t count, const float* packed, bool last_bits, PanelRange* range) {
  PanelRange* const first = range;
  uint32_t fraction = 0;
  for (int64_t k = 0; k < count; k += kRangeGroup, ++range) {
    const int64_t here = count - k < kRangeGroup ? count - k : kRangeGroup;
    PanelRange group;
    if (kWidth == kGemmRows) {
      const int32_t most = here == kRangeGroup ? largest_of(kRangeGroup * kWidth, packed, fraction)
                                               : largest_of(here * kWidth, packed, fraction);
      group.largest = bits_as<float>(most);
    } else {
      int32_t largest = 0;
      for (int64_t i = 0; i < here; ++i) {
        const int32_t most = largest_of(kWidth, packed + i * kWidth, fraction);
        group.total += bits_as<float>(most);
        largest = most > largest ? most : largest;
      }
      group.largest = bits_as<float>(largest);
    }
    for (int64_t i = 0; last_bits && i < here; i += 2) {
      group.least_bit[i / 2] = i + 2 <= here ? least_bit_of(2 * kWidth, packed + i * kWidth)
                                             : least_bit_of(kWidth, packed + i * kWidth);
    }
    *range = group;
    packed += here * kWidth;
  }
  first->fraction = fraction & Pattern<float>::fraction;
}

/// The logarithms of n packed values.
CPD_FN void pack_logs(int64_t n, const float* packed, int32_t* logs) {
  constexpr int kLanes = Lanes<F>::count;
  for (int64_t i = 0; i < n; i += kLanes) {
    if (n - i < kLanes) {
      float values[kLanes] = {};
      int32_t results[kLanes];
      for (int64_t j = i; j < n; ++j) values[j - i] = packed[j];
      store(results, fixed_log(load<F>(values)));
      for (int64_t j = i; j < n; ++j) logs[j] = results[j - i];
    } else {
      store(logs + i, fixed_log(load<F>(packed + i)));
    }
  }
}

template <int kWidth>
CPD_BODY void pack_panels(int64_t lines, int64_t count, const float* x, int64_t line_stride,
                          int64_t k_stride, bool last_bits, float* packed, PanelRange* range,
                          int32_t* logs) {
  const int64_t groups = (count + kRangeGroup - 1) / kRangeGroup;
  for (int64_t first = 0; first < lines; first += kWidth) {
    const int64_t here = lines - first < kWidth ? lines - first : kWidth;
    pack_values<kWidth>(here, count, x + first * line_stride, line_stride, k_stride, packed);
    pack_ranges<kWidth>(count, packed, last_bits, range);
    if (logs != nullptr) {
      pack_logs(count * kWidth, packed, logs);
      logs += count * kWidth;
    }
    packed += count * kWidth;
    range += groups;
  }
}

CPD_BODY void pack_body(int64_t lines, int64_t count, const float* x, int64_t line_stride,
                        int64_t k_stride, int width, bool last_bits, float* packed,
                        PanelRange* range, int32_t* logs) {
  if (width == kGemmRows) {
    pack_panels<kGemmRows>(lines, count, x, line_stride, k_stride, last_bits, packed, range, logs);
  } else {
    pack_panels<kGemmColumns>(lines, count, x, line_stride, k_stride, last_bits, packed, range,
                              logs);
  }
}

// --- any scheme, any rounding
// ---------------------------------------------------------------------

/// The sums in V's lanes, of one row: where their operands and their state are.
struct Place {
  const float* a;  ///< the row's operand of the block's first k; the next is kGemmRows further
  const float* b;  ///< the first lane's; the next is kGemmColumns further
  float* state;
  uint64_t index;
  GivenDraws given;  ///< from the first lane's element on
};

/// Operands and state for GemmSums.
template <class V>
struct PackedOperands {
  const float *a_, *b_;
  CPD_FN V a(int64_t k) const { return splat<V>(static_cast<Scalar<V>>(a_[k * kGemmRows])); }
  CPD_FN V b(int64_t k) const { return load_f32<V>(b_ + k * kGemmColumns); }
};
template <class V>
struct PlaneState {
  float* sums;
  int64_t plane;
  CPD_FN V load(int q) const { return load_f32<V>(sums + q * plane); }
  CPD_FN void store(int q, V x) const { store_f32(sums + q * plane, x); }
};

/// The lanes' draws from number `first` on; so many lanes are elements of the result.
template <class R, class V, bool kGiven>
CPD_FN auto draws_of(const GemmPlan& plan, const Place& at, int64_t lanes, uint64_t first) {
  if constexpr (kGiven) {
    return TakenDraws<V>(at.given, lanes, first);
  } else {
    const RoundPlan& sum = plan.sum;
    return SumDraws<R, V>(sum.random_bits, sum.seed, sum.stream, at.index, first);
  }
}

template <class R, class V, bool kExactProducts, bool kGiven>
CPD_FN void sum_lanes(const GemmPlan& plan, const GemmBlock& block, Place at, int64_t lanes) {
  auto draws =
      draws_of<R, V, kGiven>(plan, at, lanes, plan.first_draw + draws_before(plan, block.first_k));
  GemmSums<R, V, kExactProducts, PackedOperands<V>, PlaneState<V>, decltype(draws)> sums(
      plan, {at.a, at.b}, {at.state, block.plane}, draws);
  switch (plan.scheme) {
    case Scheme::kahan:
      return sums.kahan(block.count);
    case Scheme::pairwise:
      return sums.pairwise(block.first_k, block.count, block.last);
    default:
      return sums.sequential(block.count);
  }
}

/// One panel of rows by one of columns.
struct Tile {
  int64_t rows, columns;
  Place at;
};

template <class R, class V, bool kExactProducts, bool kGiven = false>
CPD_BODY void sum_tile(const GemmPlan* plan, const GemmBlock* block, const Tile* tile) {
  for (int64_t i = 0; i < tile->rows; ++i) {
    for (int64_t j = 0; j < tile->columns; j += Lanes<V>::count) {
      const auto element = i * static_cast<int64_t>(block->index_row) + j;
      const Place at{tile->at.a + i, tile->at.b + j, tile->at.state + i * block->state_columns + j,
                     tile->at.index + static_cast<uint64_t>(element), tile->at.given.from(element)};
      sum_lanes<R, V, kExactProducts, kGiven>(*plan, *block, at, tile->columns - j);
    }
  }
}

CPD_FN void general_tile(const GemmPlan& plan, const GemmBlock& block, const Tile& tile,
                         bool binary32) {
  with_mode(plan.sum.mode, [&]<Rounding mode>() {
    using General = Rule<mode, Form::general>;
    if (plan.exact_products) return sum_tile<General, D, true>(&plan, &block, &tile);
    if constexpr (is_nearest(mode)) {
      if (binary32) return sum_tile<General, F, false>(&plan, &block, &tile);
    }
    sum_tile<General, D, false>(&plan, &block, &tile);
  });
}

/// With the draws that the caller gave.
CPD_FN void given_tile(const GemmPlan& plan, const GemmBlock& block, const Tile& tile) {
  using General = Rule<Rounding::stochastic, Form::general>;
  if (plan.exact_products) return sum_tile<General, D, true, true>(&plan, &block, &tile);
  sum_tile<General, D, false, true>(&plan, &block, &tile);
}

// --- short roundings (split.h)
// ------------------------------------------------------------------------

/// A tile, and what its panels' values are bounded by.
struct BoundedTile {
  const GemmPlan* plan;
  const GemmBlock* block;
  Tile tile;
  const PanelRange *a, *b;  ///< of the groups of k
  bool binary32;            ///< fits_binary32 for the whole block

  /// The bound of `count` rounded products within k's group.
  [[nodiscard]] CPD_FN float products(int64_t k, int64_t count) const {
    const PanelRange& of_a = a[k / kRangeGroup];
    const PanelRange& of_b = b[k / kRangeGroup];
    float sum = of_a.largest * of_b.total;
    if (count < kRangeGroup) {
      const float each = of_a.largest * of_b.largest * static_cast<float>(count);
      sum = each < sum ? each : sum;  // a NaN in `sum` stays
    }
    return bound_products(plan->split, sum, static_cast<int>(count), of_b.largest);
  }
  [[nodiscard]] CPD_FN float all_products() const {
    float sum = 0;
    for (int64_t k = 0; k < block->count; k += kRangeGroup) sum += products(k, kRangeGroup);
    return sum;
  }
  [[nodiscard]] CPD_FN float least_bit(int64_t k) const {
    const int64_t pair = k % kRangeGroup / 2;
    return a[k / kRangeGroup].least_bit[pair] * b[k / kRangeGroup].least_bit[pair];
  }
};

/// `count` values of k from number k of the block on, by the general route.
[[maybe_unused]] CPD_BODY void general_steps(const BoundedTile* bounded, Tile tile, int64_t k,
                                             int64_t count) {
  GemmBlock part = *bounded->block;
  part.first_k += k;
  part.count = count;
  tile.at.a += k * kGemmRows;
  tile.at.b += k * kGemmColumns;
  general_tile(*bounded->plan, part, tile, bounded->binary32);
}

/// The sums of kRows rows and kVectors vectors of columns, in registers.
/// With kFits, exact sums are tried as binary32 numbers before they are taken to odd.
template <Split kKind, bool kFits, int kRows, int kVectors>
class SplitTile {
 public:
  CPD_FN explicit SplitTile(const BoundedTile& bounded, Tile tile)
      : bounded_(bounded),
        block_(*bounded.block),
        split_(bounded.plan->split),
        tile_(tile),
        product_(split_.man_product, split_.product_quantum, true),
        sum_(split_.man_sum, split_.sum_quantum, bounded.plan->sum.keeps_negative_zero) {}

  /// Takes the values of k from k on, as long as nothing can overflow, and returns the next one.
  CPD_FN int64_t run(int64_t k) {
    Sums s;
    load_sums(s);
    if constexpr (kKind == Split::plain) {
      steps<false>(s, k, block_.count - k);
      canonicalize(s);
      k = block_.count;
    } else {
      if (!are_ordinary(s)) return k;
      for (int64_t taken = -1; k < block_.count && taken != 0; k += taken) taken = advance(s, k);
    }
    store_sums(s);
    return k;
  }

 private:
  struct Sums {
    F sum[kRows][kVectors];
    F lost[kRows][kVectors];
  };
  static constexpr bool kHasCompensation = kKind == Split::kahan;
  static constexpr bool kTakesLogs = kKind == Split::rounded || kKind == Split::kahan;

  /// Takes a few values of k, if nothing can overflow; returns how many.
  CPD_FN int64_t advance(Sums& s, int64_t k) {
    const F most = weighed(s);
    if (kKind == Split::rounded && k == 0) {
      if (all_at_most(most, sum_limit(split_, bounded_.all_products()))) {
        steps<false>(s, 0, block_.count);
        return block_.count;
      }
    }
    const int64_t count = least(block_.count - k, kFits ? 2 : split_.steps);
    const float products = bounded_.products(k, count);
    if (!all_at_most(most, sum_limit(split_, products))) return 0;
    if constexpr (kFits) {
      if (all_at_most(most, exact_limit(split_, products, bounded_.least_bit(k)))) {
        steps<true>(s, k, count);
        return count;
      }
    }
    steps<false>(s, k, count);
    return count;
  }
  /// What of SplitPlan's limit the sums take.
  CPD_FN F weighed(const Sums& s) const {
    const F most = largest(s.sum);
    if constexpr (kHasCompensation) {
      return most * splat<F>(split_.of_sum) + largest(s.lost) * splat<F>(split_.of_compensation);
    }
    return most;
  }
  /// Row by row, so that no long chain of maxima waits for the last sum.
  CPD_FN static F largest(const F (&x)[kRows][kVectors]) {
    F of_row[kRows];
    for (int i = 0; i < kRows; ++i) {
      of_row[i] = larger_magnitude(x[i][0], x[i][kVectors - 1]);
      for (int j = 1; j + 1 < kVectors; ++j) of_row[i] = larger_magnitude(of_row[i], x[i][j]);
    }
    for (int i = 1; i < kRows; ++i) of_row[i % 2] = larger_magnitude(of_row[i % 2], of_row[i]);
    return kRows > 1 ? larger_magnitude(of_row[0], of_row[1 % kRows]) : of_row[0];
  }

  template <bool kSumsFit>
  CPD_FN void steps(Sums& s, int64_t k, int64_t count) {
    const float* a = tile_.at.a + k * kGemmRows;
    const float* b = tile_.at.b + k * kGemmColumns;
    for (int64_t end = k + count; k < end; ++k, a += kGemmRows, b += kGemmColumns) {
      F of_b[kVectors];
      Signed<F> log_b[kVectors] = {};
      for (int j = 0; j < kVectors; ++j) {
        of_b[j] = load<F>(b + j * Lanes<F>::count);
        if constexpr (kTakesLogs) log_b[j] = log_of_b(b + j * Lanes<F>::count);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const F of_a = splat<F>(a[i]);
        Signed<F> log_a{};
        if constexpr (kTakesLogs) log_a = splat<Signed<F>>(block_.a_logs[a + i - block_.a]);
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) {
          step<kSumsFit>({of_a, of_b[j], log_a, log_b[j]}, s.sum[i][j], s.lost[i][j]);
        }
      }
    }
  }

  struct Operands {
    F a, b;
    Signed<F> log_a, log_b;
  };
  CPD_FN Signed<F> log_of_b(const float* b) const {
    return load<Signed<F>>(block_.b_logs + (b - block_.b)) + splat<Signed<F>>(product_.magnet);
  }
  CPD_FN F product(const Operands& x) const {
    return split_product(x.a, x.b, x.log_a, x.log_b, product_);
  }

  template <bool kSumsFit>
  CPD_FN void step(const Operands& x, F& sum, [[maybe_unused]] F& lost) const {
    if constexpr (kKind == Split::plain) {
      sum = bounded_.plan->exact_products ? fma(x.a, x.b, sum) : sum + x.a * x.b;
    } else if constexpr (kKind == Split::exact) {
      sum = split_fma<kSumsFit>(x.a, x.b, sum, sum_);
    } else if constexpr (kKind == Split::kahan) {
      split_kahan(product(x), sum, lost, sum_);
    } else {
      sum = split(sum + product(x), sum_);
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
  /// Whether all sums are finite and, where a product's -0 matters, none is -0.
  CPD_FN bool are_ordinary(const Sums& s) const {
    using U = Unsigned<F>;
    using I = Signed<F>;
    using P = Pattern<F>;
    I odd{};
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kVectors; ++j) {
        const U pattern = bits_as<U>(s.sum[i][j]);
        odd |= (I)((pattern & splat<U>(P::magnitude)) >= splat<U>(P::infinity));
        if constexpr (kKind != Split::exact) odd |= (I)(pattern == splat<U>(P::sign));
      }
    }
    int32_t lanes[Lanes<F>::count];
    store(lanes, odd);
    int32_t any = 0;
    for (const int32_t lane : lanes) any |= lane;
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
  /// One NaN for all.
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
  const SplitPlan& split_;
  Tile tile_;
  SplitFormat<F> product_, sum_;
};

template <Split kKind, bool kFits, int kRows, int kVectors>
CPD_BODY int64_t split_steps(const BoundedTile* bounded, const Tile* tile, int64_t k) {
  return SplitTile<kKind, kFits, kRows, kVectors>(*bounded, *tile).run(k);
}

/// Short roundings where nothing can overflow, else the general route for the rest of a group.
template <Split kKind, bool kFits, int kRows, int kVectors>
CPD_FN void split_rows(const BoundedTile& bounded, const Tile& tile) {
  const int64_t end = bounded.block->count;
  for (int64_t k = 0; k < end;) {
    k = split_steps<kKind, kFits, kRows, kVectors>(&bounded, &tile, k);
    if (k == end) return;
    const int64_t count = least(end - k, kRangeGroup - k % kRangeGroup);
    general_steps(&bounded, tile, k, count);
    k += count;
  }
}

constexpr int kVectorsOfPanel = kGemmColumns / Lanes<F>::count;

template <Split kKind, bool kFits, int kRows>
CPD_FN void split_some_rows(const BoundedTile& bounded, int64_t first) {
  Tile part = bounded.tile;
  part.rows = least(kRows, part.rows - first);
  part.at.a += first;
  part.at.state += first * bounded.block->state_columns;
  part.at.index += static_cast<uint64_t>(first) * bounded.block->index_row;
  if (kVectorsOfPanel > 1 && part.columns <= Lanes<F>::count) {
    split_rows<kKind, kFits, kRows, 1>(bounded, part);
  } else {
    split_rows<kKind, kFits, kRows, kVectorsOfPanel>(bounded, part);
  }
}

template <Split kKind, bool kFits = false>
CPD_FN void split_tile(const BoundedTile& bounded) {
  // Kahan's sums take two registers each.
  constexpr int kRows = kKind == Split::kahan ? kGemmRows / 2 : kGemmRows;
  const int64_t rows = bounded.tile.rows;
  if (rows <= 2) {
    for (int64_t i = 0; i < rows; ++i) split_some_rows<kKind, kFits, 1>(bounded, i);
  } else {
    for (int64_t i = 0; i < rows; i += kRows) split_some_rows<kKind, kFits, kRows>(bounded, i);
  }
}

/// Whether small sums stay binary32 numbers, for most of a few k.
[[maybe_unused]] CPD_FN bool often_fits(const BoundedTile& bounded) {
  int fitting = 0;
  for (int64_t k = 0; k < bounded.block->count; k += 2 * kRangeGroup) {
    const float products = bounded.products(k, 2);
    fitting += exact_limit(bounded.plan->split, products, bounded.least_bit(k)) > 0 ? 1 : -1;
  }
  return fitting > 0;
}

// --- stochastic, short
// --------------------------------------------------------------------------------

/// Random words of one row of a tile for a run of k, made before they are used: neither their
/// computation nor the sums' then waits for the other.
class RandomRun {
 public:
  static constexpr int kBlocks = 16;  ///< blocks of four words for each sum

  CPD_FN void make(const GemmPlan& plan, uint64_t index, uint64_t first_block, int64_t blocks) {
    using U = Unsigned<F>;
    for (int64_t block = 0; block < blocks; ++block) {
      for (int j = 0; j < kGemmColumns; j += Lanes<F>::count) {
        const Words<U> words = fold_words<U>(index + static_cast<uint64_t>(j),
                                             first_block + static_cast<uint64_t>(block),
                                             plan.sum.seed, plan.sum.stream);
        for (int w = 0; w < 4; ++w) store(words_[block][w] + j, words.word[w]);
      }
    }
  }
  [[nodiscard]] CPD_FN const uint32_t* words(int64_t block, int word) const {
    return words_[block][word];
  }

 private:
  alignas(64) uint32_t words_[kBlocks][4][kGemmColumns];
};

/// The sums of one row and a panel's columns; kDraws random integers a word.
template <class V, int kDraws>
class StochasticRow {
 public:
  CPD_FN StochasticRow(const BoundedTile& bounded, Tile tile)
      : bounded_(bounded),
        plan_(*bounded.plan),
        block_(*bounded.block),
        tile_(tile),
        product_(plan_.split.man_product, plan_.sum.random_bits, plan_.split.product_quantum),
        sum_(plan_.split.man_sum, plan_.sum.random_bits, plan_.split.sum_quantum),
        mask_(splat<U32>((1U << plan_.sum.random_bits) - 1)) {}

  CPD_FN void run() {
    load_sums();
    for (int64_t k = 0; k < block_.count; k += kRun) {
      const int64_t count = block_.count - k < kRun ? block_.count - k : kRun;
      const uint64_t first = plan_.first_draw + draws_before(plan_, block_.first_k + k);
      random_.make(plan_, tile_.at.index, first / (4 * kDraws), (count + kSteps - 1) / kSteps);
      for (int64_t at = 0; at < count; at += kGuard) {
        guarded(k + at, at, count - at < kGuard ? count - at : kGuard);
      }
    }
    store_sums();
  }

 private:
  using U32 = typename Narrow<V>::U32;
  static constexpr int kVectors = kGemmColumns / Lanes<V>::count;
  static constexpr int kSteps = 2 * kDraws;  ///< values of k that a block of random words serves
  static constexpr int kRun = kSteps * RandomRun::kBlocks;
  static constexpr int kGuard = kShortSteps;

  /// k counts from the block's first, `at` from the run's.
  CPD_FN void guarded(int64_t k, int64_t at, int64_t count) {
    V most = larger_magnitude(sums_[0], sums_[0]);
    for (int j = 1; j < kVectors; ++j) most = larger_magnitude(most, sums_[j]);
    const V weighed = most * splat<V>(plan_.split.of_sum);
    const float products = bounded_.products(k, count);
    if (ordinary_ && all_at_most(weighed, sum_limit(plan_.split, products))) {
      for (int64_t step = 0; step < count; ++step) add(k + step, at + step);
      return;
    }
    store_sums();
    general_steps(&bounded_, tile_, k, count);
    load_sums();
  }

  CPD_FN void add(int64_t k, int64_t at) {
    const V a = splat<V>(static_cast<Scalar<V>>(tile_.at.a[k * kGemmRows]));
    const auto number = static_cast<int>(2 * (at % kSteps));
    const uint32_t* words = random_.words(at / kSteps, number / kDraws);
    const uint32_t* next = random_.words(at / kSteps, (number + 1) / kDraws);
    for (int j = 0; j < kVectors; ++j) {
      const int column = j * Lanes<V>::count;
      const V b = load_f32<V>(tile_.at.b + k * kGemmColumns + column);
      const V x =
          split_product(a, b, b * product_.factor, random(words + column, number), product_);
      sums_[j] = split_sum(sums_[j], x, random(next + column, number + 1), sum_);
    }
  }
  CPD_FN Unsigned<V> random(const uint32_t* words, int number) const {
    const int shift = number % kDraws * (32 / kDraws);
    return convert<Unsigned<V>>((load<U32>(words) >> shift) & mask_);
  }

  CPD_FN void load_sums() {
    ordinary_ = true;
    for (int j = 0; j < kVectors; ++j) {
      const float* from = tile_.at.state + j * Lanes<V>::count;
      sums_[j] = load_f32<V>(from);
      for (int lane = 0; lane < Lanes<V>::count; ++lane) {
        const auto pattern = bits_as<uint32_t>(from[lane]);
        const bool finite = (pattern & Pattern<float>::magnitude) < Pattern<float>::infinity;
        if (!finite || pattern == Pattern<float>::sign) ordinary_ = false;
      }
    }
  }
  CPD_FN void store_sums() {
    for (int j = 0; j < kVectors; ++j) {
      store_f32(tile_.at.state + j * Lanes<V>::count, sums_[j]);
    }
  }

  const BoundedTile& bounded_;
  const GemmPlan& plan_;
  const GemmBlock& block_;
  Tile tile_;
  SplitStochastic<V> product_, sum_;
  U32 mask_;
  V sums_[kVectors];
  RandomRun random_;
  bool ordinary_ = true;
};

template <class V, int kDraws>
CPD_BODY void stochastic_tile(const BoundedTile* bounded) {
  for (int64_t i = 0; i < bounded->tile.rows; ++i) {
    Tile row = bounded->tile;
    row.rows = 1;
    row.at.a += i;
    row.at.state += i * bounded->block->state_columns;
    row.at.index += static_cast<uint64_t>(i) * bounded->block->index_row;
    StochasticRow<V, kDraws>(*bounded, row).run();
  }
}

template <class V>
CPD_FN void with_draws(const BoundedTile& bounded) {
  switch (draws_per_word(bounded.plan->sum.random_bits)) {
    case 1:
      return stochastic_tile<V, 1>(&bounded);
    case 2:
      return stochastic_tile<V, 2>(&bounded);
    default:
      return stochastic_tile<V, 4>(&bounded);
  }
}

// --- the choice
// ----------------------------------------------------------------------------------------

/// Whether all the tile's products are binary32 numbers.
CPD_FN bool products_are_exact(const BoundedTile& bounded) {
  if (significant_bits(bounded.a->fraction) + significant_bits(bounded.b->fraction) > 24) {
    return false;
  }
  float least = bounded.least_bit(0);
  for (int64_t k = 2; k < bounded.block->count; k += 2) {
    const float bit = bounded.least_bit(k);
    least = bit < least ? bit : least;
  }
  return least >= 0x1p-149F;
}

/// The plan's short roundings, where this ISA has them for the tile.
[[maybe_unused]] CPD_FN Split split_of(const BoundedTile& bounded) {
  const GemmPlan& plan = *bounded.plan;
  const Split kind = plan.split.kind;
  if constexpr (!kHasDirectedRounding<F>) {
    if (kind == Split::stochastic) return Split::none;
    if (kind == Split::exact && !products_are_exact(bounded)) return Split::none;
  }
  if (kind == Split::stochastic) {
    const uint64_t first = plan.first_draw + draws_before(plan, bounded.block->first_k);
    const auto in_block = 4 * static_cast<uint64_t>(draws_per_word(plan.sum.random_bits));
    if (first % in_block != 0) return Split::none;
  }
  return kind;
}

CPD_FN void run_tile(const BoundedTile& bounded) {
  const GemmPlan& plan = *bounded.plan;
  if (bounded.block->given.random != nullptr) {
    return given_tile(plan, *bounded.block, bounded.tile);
  }
  if constexpr (Lanes<F>::count > 1) {
    switch (split_of(bounded)) {
      case Split::plain:
        return split_tile<Split::plain>(bounded);
      case Split::rounded:
        return split_tile<Split::rounded>(bounded);
      case Split::exact:
        return often_fits(bounded) ? split_tile<Split::exact, true>(bounded)
                                   : split_tile<Split::exact>(bounded);
      case Split::kahan:
        return split_tile<Split::kahan>(bounded);
      case Split::stochastic:
        if constexpr (kHasDirectedRounding<F>) {
          return plan.split.in_binary64 ? with_draws<D>(bounded) : with_draws<F>(bounded);
        }
        break;
      case Split::none:
        break;
    }
  }
  general_tile(plan, *bounded.block, bounded.tile, bounded.binary32);
}

constexpr int64_t kRowsInCache = 128;  ///< of a, which stay in cache while b's panels pass

/// The tile of row panel i and column panel j, both counted in rows and columns.
CPD_FN void gemm_tile(const GemmPlan& plan, const GemmBlock& block, int64_t i, int64_t j) {
  const int64_t groups = (block.count + kRangeGroup - 1) / kRangeGroup;
  const PanelRange* a = block.a_range + i / kGemmRows * groups;
  const PanelRange* b = block.b_range + j / kGemmColumns * groups;
  const auto element = i * static_cast<int64_t>(block.index_row) + j;
  const Place at{block.a + i * block.count, block.b + j * block.count,
                 block.state + i * block.state_columns + j,
                 block.index + static_cast<uint64_t>(element), block.given.from(element)};
  const Tile tile{block.rows - i < kGemmRows ? block.rows - i : kGemmRows,
                  block.columns - j < kGemmColumns ? block.columns - j : kGemmColumns, at};
  run_tile({&plan, &block, tile, a, b, fits_binary32(plan, a->fraction, b->fraction)});
}

CPD_BODY void gemm_body(const GemmPlan* plan, const GemmBlock* block) {
  for (int64_t first = 0; first < block->rows; first += kRowsInCache) {
    const int64_t end = first + kRowsInCache < block->rows ? first + kRowsInCache : block->rows;
    for (int64_t j = 0; j < block->columns; j += kGemmColumns) {
      for (int64_t i = first; i < end; i += kGemmRows) gemm_tile(*plan, *block, i, j);
    }
  }
}

}  // namespace

void pack(int64_t lines, int64_t count, const float* x, int64_t line_stride, int64_t k_stride,
          int width, bool last_bits, float* packed, PanelRange* range, int32_t* logs) {
  enter<pack_body>(lines, count, x, line_stride, k_stride, width, last_bits, packed, range, logs);
}

void gemm(const GemmPlan& plan, const GemmBlock& block) { enter<gemm_body>(&plan, &block); }

}  // namespace CPD_ISA
}  // namespace cpd
