// SPDX-License-Identifier: Apache-2.0
//
// Matrix products summed in integers (numeric/sums/fixed_number.h), one tile at a time. A tile is
// one panel of a times one panel of b. A unit is the value of the integer's last bit. The bounds of
// the panels' values determine the method (Route) by which the products of a tile are added:
//
// - whole32, whole64: every product is a multiple of the unit, and the sum of the tile's products
//   is exact in binary32 or binary64. A product takes one fused operation.
// - rounded: every product is below 2^51 units and exact in binary64. Adding 1.5 * 2^52 units
//   rounds the product to a whole number of units. A product takes one fused operation and one
//   integer addition when it is rounded to nearest-even, and three or more operations in other
//   modes.
// - cut: products up to 2^62 units that are cut toward zero or are whole numbers of units. Needs an
//   instruction that converts binary64 to integers.
// - saturating: as rounded, but limits the sum after each addition. Used if a sum may leave
//   the range.
// - general: word by word, for any values.
//
// All methods but general and saturating first sum the products of up to kMostK values of k, and
// then add this sum to the integer, whatever the integer's width. Sums that wrap are right modulo
// 2^width in any order, and so are sums that cannot leave the range.

#include "cpd/numeric/sums/fixed_number.h"
#include "cpd/numeric/sums/fixed_plan.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint64_t;

using I = Signed<D>;
using U = Unsigned<D>;

constexpr int kRows = kGemmRows;
constexpr int kVectors = 2;      ///< vectors of columns whose sums stay in registers
constexpr int64_t kMostK = 128;  ///< values of k whose operands are converted at once
constexpr int kMostScale = 500;  ///< the largest fraction with products in units within binary64

constexpr double kMagnet = 0x1.8p52;  ///< in its binade binary64's last place is 1
constexpr uint64_t kMagnetBits = 0x4338000000000000;
constexpr double kMostTerm = 0x1p51;

/// True if one instruction converts binary64 to integers by truncation.
constexpr bool kConverts = Lanes<D>::count == 8;

/// One tile: its sums (`state`), and `count` consecutive k of its panels a and b (packed rows of a
/// and columns of b), whose products are added.
struct Tile {
  const FixedPlan& plan;
  const GemmBlock& block;
  int64_t rows, columns;  ///< of the result that this tile covers
  const float *a, *b;
  int64_t count;
  float* state;

  [[nodiscard]] CPD_FN float* at(int64_t row, int64_t column) const {
    return state + row * block.state_columns + column;
  }
  [[nodiscard]] CPD_FN float* not_finite(int64_t row, int64_t column) const {
    return at(row, column) + plan.words * block.plane;
  }
};

// --- routes --------------------------------------------------------------------------------------

enum class Route : std::uint8_t { whole32, whole64, rounded, cut, saturating, general };

/// Bounds of the products of a tile, in units of the integer's last bit: of each product (`each`),
/// and of the sum of their magnitudes (`all`).
struct Bounds {
  double each = 0;
  double all = 0;  ///< the sum of their magnitudes; NaN or Inf where an operand is
  bool whole = true;
};

CPD_FN Bounds bounds_of(double unit, int64_t count, const PanelRange* a, const PanelRange* b) {
  Bounds bounds;
  for (int64_t k = 0; k < count; k += kRangeGroup, ++a, ++b) {
    const double largest = unit * static_cast<double>(a->largest);
    const double each = largest * static_cast<double>(b->largest);
    bounds.each = each > bounds.each ? each : bounds.each;
    bounds.all += largest * static_cast<double>(b->total);
    for (int64_t pair = 0; 2 * pair < least(kRangeGroup, count - k); ++pair) {
      const double bit = unit * static_cast<double>(a->least_bit[pair]);
      bounds.whole &= bit * static_cast<double>(b->least_bit[pair]) >= 1;
    }
  }
  return bounds;
}

/// Returns whether a sum of the tile may leave the integer's range. `all` bounds the sum of the
/// products' magnitudes, in units of the integer's last bit. The result allows for the rounding of
/// products, which changes each by at most one unit.
CPD_FN bool may_leave(const Tile& tile, double all) {
  double most = 0;
  for (int64_t i = 0; i < tile.rows; ++i) {
    for (int64_t j = 0; j < tile.columns; ++j) {
      const double s = FixedNumber(tile.plan, tile.at(i, j), tile.block.plane).value(0);
      most = magnitude(s) > most ? magnitude(s) : most;
    }
  }
  const double reached = (most + all + static_cast<double>(tile.count)) * (1 + 0x1p-20);
  return !(reached < exact_power(least(tile.plan.point.width - 1, 900)));
}

CPD_FN Route route_of(const Tile& tile, const PanelRange* a, const PanelRange* b) {
  const FixedPoint& point = tile.plan.point;
  if (point.fraction < -kMostScale || point.fraction > kMostScale) return Route::general;
  const Bounds bounds = bounds_of(exact_power(point.fraction), tile.count, a, b);
  if (!(bounds.all < 0x1p58 && bounds.each < kMostTerm)) {
    const bool cuts = kConverts && (bounds.whole || point.rounding == Rounding::toward_zero);
    const bool fits = cuts && bounds.all < 0x1p62;
    return fits && !(tile.plan.saturates && may_leave(tile, bounds.all)) ? Route::cut
                                                                         : Route::general;
  }
  if (tile.plan.saturates && may_leave(tile, bounds.all)) {
    return point.width < 64 ? Route::saturating : Route::general;
  }
  if (!bounds.whole || !(bounds.all < kMostTerm)) return Route::rounded;
  // whole32 adds products of magnitude below 2^24 units in binary32, without multiplying them by
  // 2^fraction. Binary32 must represent one unit (2^-fraction) and 2^24 units, so the fraction must
  // be in the range that `narrow` tests.
  const bool narrow = point.fraction >= -100 && point.fraction <= 126;
  return narrow && bounds.all < 0x1p23 ? Route::whole32 : Route::whole64;
}

// --- the integers --------------------------------------------------------------------------------

CPD_FN U load_word(const float* at) { return convert<U>(load<typename Narrow<D>::U32>(at)); }
CPD_FN void store_word(float* at, U word) { store(at, convert<typename Narrow<D>::U32>(word)); }

/// load_sums reads one vector of integer sums from `at` on: the low 64 bits of each sum, or 32 bits
/// if a sum has a single word. store_sums writes such sums.
CPD_FN U load_sums(const Tile& tile, const float* at) {
  const U low = load_word(at);
  return tile.plan.words == 1 ? low : low | (load_word(at + tile.block.plane) << 32);
}
CPD_FN void store_sums(const Tile& tile, float* at, U sums) {
  store_word(at, sums);
  if (tile.plan.words > 1) store_word(at + tile.block.plane, sums >> 32);
}

/// Adds units[l] to the sum at (row, column + l) for each lane l. Both are integers whose unit is
/// the value of the sum's last bit.
CPD_FN void add_units(const Tile& tile, int64_t row, int64_t column, U units) {
  float* at = tile.at(row, column);
  if (tile.plan.words <= 2) return store_sums(tile, at, load_sums(tile, at) + units);
  int64_t each[Lanes<D>::count];
  store(each, units);
  for (int lane = 0; lane < Lanes<D>::count; ++lane) {
    FixedTerm term;
    term.negative = each[lane] < 0;
    term.significand = static_cast<uint64_t>(term.negative ? -each[lane] : each[lane]);
    FixedNumber sum(tile.plan, at + lane, tile.block.plane);
    sum.add(term, false);
    sum.store(at + lane, tile.block.plane);
  }
}

/// Converts integral values of magnitude below 2^51 to integers, with one floating-point addition
/// and one integer subtraction.
CPD_FN U units_of(D whole) { return bits_as<U>(whole + splat<D>(kMagnet)) - splat<U>(kMagnetBits); }

// --- products in whole units ---------------------------------------------------------------------

/// Returns sum + a * b. The result must be exact.
template <class V>
CPD_FN V add_product(V a, V b, V sum) {
  if constexpr (Lanes<V>::count > 1) {
    return fma(a, b, sum);
  } else {
    return sum + a * b;
  }
}

/// The values of one panel of a (a group of packed rows), divided by the value of the integer's
/// last bit, as binary64 numbers.
struct Scaled {
  alignas(64) double value[kMostK * kRows];

  CPD_FN Scaled(const Tile& tile) {
    const D unit = splat<D>(exact_power(tile.plan.point.fraction));
    for (int64_t i = 0; i < tile.count * kRows; i += Lanes<D>::count) {
      cpd::store(value + i, load_f32<D>(tile.a + i) * unit);
    }
  }
};

CPD_BODY void add_whole32(const Tile* tile) {
  constexpr int kLanes = Lanes<F>::count;
  const D unit = splat<D>(exact_power(tile->plan.point.fraction));
  for (int64_t j = 0; j < kGemmColumns; j += kVectors * kLanes) {
    F sum[kRows][kVectors] = {};
    for (int64_t k = 0; k < tile->count; ++k) {
      F b[kVectors];
      for (int v = 0; v < kVectors; ++v)
        b[v] = load<F>(tile->b + k * kGemmColumns + j + v * kLanes);
      for (int row = 0; row < kRows; ++row) {
        const F a = splat<F>(tile->a[k * kRows + row]);
        for (int v = 0; v < kVectors; ++v) sum[row][v] = add_product(a, b[v], sum[row][v]);
      }
    }
    for (int row = 0; row < kRows; ++row) {
      alignas(64) float whole[kVectors * kLanes];
      for (int v = 0; v < kVectors; ++v) store(whole + v * kLanes, sum[row][v]);
      for (int lane = 0; lane < kVectors * kLanes; lane += Lanes<D>::count) {
        add_units(*tile, row, j + lane, units_of(load_f32<D>(whole + lane) * unit));
      }
    }
  }
}

/// Calls step(row, v, a, b) for each k, each row of the tile, and each vector v of kVectors vectors
/// of the tile's columns, from column j on. `a` holds a's value at (row, k) in all lanes, divided
/// by the value of the integers' last bit; `b` holds b's values.
template <class Step>
CPD_FN void for_products(const Tile& tile, const Scaled& scaled, int64_t j, Step step) {
  for (int64_t k = 0; k < tile.count; ++k) {
    D b[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      b[v] = load_f32<D>(tile.b + k * kGemmColumns + j + v * Lanes<D>::count);
    }
    for (int row = 0; row < kRows; ++row) {
      const D a = splat<D>(scaled.value[k * kRows + row]);
      for (int v = 0; v < kVectors; ++v) step(row, v, a, b[v]);
    }
  }
}

/// Calls run(row, v, column) for each row of a tile and each of kVectors vectors v of its columns,
/// from column j on. `column` is the vector's first column.
template <class Run>
CPD_FN void for_vectors(int64_t j, Run run) {
  for (int row = 0; row < kRows; ++row) {
    for (int v = 0; v < kVectors; ++v) run(row, v, j + v * Lanes<D>::count);
  }
}

CPD_BODY void add_whole64(const Tile* tile) {
  const Scaled scaled(*tile);
  for (int64_t j = 0; j < kGemmColumns; j += kVectors * Lanes<D>::count) {
    D sum[kRows][kVectors] = {};
    for_products(*tile, scaled, j,
                 [&](int row, int v, D a, D b) { sum[row][v] = add_product(a, b, sum[row][v]); });
    for_vectors(j, [&](int row, int v, int64_t column) {
      add_units(*tile, row, column, units_of(sum[row][v]));
    });
  }
}

// --- products rounded to units -------------------------------------------------------------------

/// The constant that rounded_units adds to each product. A sum of N rounded products therefore
/// exceeds the correct sum by N times the constant.
template <Rounding mode>
constexpr uint64_t kBias = mode == Rounding::toward_zero && kConverts ? 0 : kMagnetBits;

/// Returns p rounded to an integral value. |p| must be below 2^51.
template <Rounding mode>
CPD_FN D whole_number(D p) {
  const D whole = truncate(p);
  const D rest = p - whole;
  const D away = whole + sized(1.0, p);
  if constexpr (mode == Rounding::up) return select(rest > D{}, away, whole);
  if constexpr (mode == Rounding::down) return select(rest < D{}, away, whole);
  if constexpr (mode == Rounding::nearest_away) {
    return select(magnitude(rest) >= splat<D>(0.5), away, whole);
  }
  if constexpr (mode == Rounding::to_odd) {
    const auto even = (units_of(whole) & splat<U>(1)) == U{};
    const auto inexact = (rest < D{}) | (rest > D{});
    return select(even & inexact, away, whole);
  }
  return whole;
}

/// Returns a * b rounded to an integer, plus kBias<mode>. |a * b| must be below 2^51.
template <Rounding mode, class V>
CPD_FN Unsigned<V> rounded_units(V a, V b) {
  const V magnet = splat<V>(kMagnet);
  if constexpr (mode == Rounding::nearest_even) {
    return bits_as<Unsigned<V>>(add_product(a, b, magnet));
  } else if constexpr (mode == Rounding::down && kHasDirectedRounding<V>) {
    return bits_as<Unsigned<V>>(fma_toward<Toward::down>(a, b, magnet));
  } else if constexpr (mode == Rounding::up && kHasDirectedRounding<V>) {
    return bits_as<Unsigned<V>>(fma_toward<Toward::up>(a, b, magnet));
  } else if constexpr (kBias<mode> == 0) {
    return (Unsigned<V>)convert<Signed<V>>(a * b);
  } else {
    return bits_as<Unsigned<V>>(whole_number<mode>(a * b) + magnet);
  }
}

template <Rounding mode>
CPD_BODY void add_rounded(const Tile* tile) {
  const Scaled scaled(*tile);
  const U bias = splat<U>(uint64_t{0} - static_cast<uint64_t>(tile->count) * kBias<mode>);
  for (int64_t j = 0; j < kGemmColumns; j += kVectors * Lanes<D>::count) {
    U sum[kRows][kVectors];
    for_vectors(j, [&](int row, int v, int64_t) { sum[row][v] = bias; });
    for_products(*tile, scaled, j, [&](int row, int v, D a, D b) {
      sum[row][v] = sum[row][v] + rounded_units<mode>(a, b);
    });
    for_vectors(
        j, [&](int row, int v, int64_t column) { add_units(*tile, row, column, sum[row][v]); });
  }
}

/// Adds the products of a tile to its sums and saturates after each addition. The integers must
/// have fewer than 64 bits.
template <Rounding mode>
CPD_BODY void add_saturating(const Tile* tile) {
  const Scaled scaled(*tile);
  const int unused = 64 - tile->plan.point.width;
  const I greatest = splat<I>((int64_t{1} << (tile->plan.point.width - 1)) - 1);
  const I lowest = I{} - greatest - splat<I>(1);
  for (int64_t j = 0; j < kGemmColumns; j += kVectors * Lanes<D>::count) {
    I sum[kRows][kVectors];
    for_vectors(j, [&](int row, int v, int64_t column) {
      sum[row][v] = (I)(load_sums(*tile, tile->at(row, column)) << unused) >> unused;
    });
    for_products(*tile, scaled, j, [&](int row, int v, D a, D b) {
      const I units = (I)(rounded_units<mode>(a, b) - splat<U>(kBias<mode>));
      sum[row][v] = min(max(sum[row][v] + units, lowest), greatest);
    });
    for_vectors(j, [&](int row, int v, int64_t column) {
      store_sums(*tile, tile->at(row, column), (U)sum[row][v]);
    });
  }
}

// --- anything ------------------------------------------------------------------------------------

CPD_BODY void add_generally(const Tile* tile) {
  const FixedPoint& point = tile->plan.point;
  for (int64_t i = 0; i < tile->rows; ++i) {
    for (int64_t j = 0; j < tile->columns; ++j) {
      FixedNumber sum(tile->plan, tile->at(i, j), tile->block.plane);
      bool finite = true;
      for (int64_t k = 0; k < tile->count; ++k) {
        const auto a = static_cast<double>(tile->a[k * kRows + i]);
        const auto b = static_cast<double>(tile->b[k * kGemmColumns + j]);
        const FixedTerm term = fixed_term(a * b, point.fraction, point.rounding);
        finite = finite && term.finite;
        if (finite) sum.add(term, tile->plan.saturates);
      }
      sum.store(tile->at(i, j), tile->block.plane);
      if (!finite) *tile->not_finite(i, j) = 1.0F;
    }
  }
}

// --- the result ----------------------------------------------------------------------------------

/// Returns the value of one sum, not yet rounded into the result's format. Returns NaN if a product
/// was not finite.
CPD_FN double value_of(const Tile& tile, int64_t row, int64_t column) {
  if (*tile.not_finite(row, column) != 0.0F) {
    return bits_as<double>(Pattern<double>::quiet_nan);
  }
  const FixedNumber sum(tile.plan, tile.at(row, column), tile.block.plane);
  return sum.value(tile.plan.point.fraction);
}

CPD_BODY void end_tile(const Tile* tile) {
  alignas(64) double value[kGemmColumns] = {};
  for (int64_t i = 0; i < tile->rows; ++i) {
    for (int64_t j = 0; j < tile->columns; ++j) value[j] = value_of(*tile, i, j);
    with_mode(tile->plan.end.mode, [&]<Rounding mode>() {
      for (int64_t j = 0; j < kGemmColumns; j += Lanes<D>::count) {
        store_f32(tile->at(i, j), round<mode>(load<D>(value + j), U{}, tile->plan.end));
      }
    });
  }
}

// --- the loops -----------------------------------------------------------------------------------

/// Passes the rounding mode of a fixed-point accumulator to `run` as a template argument:
/// run.operator()<mode>(). The compiler then makes a loop for each mode.
template <class Run>
CPD_FN void with_point_rounding(Rounding mode, Run run) {
  switch (mode) {
    case Rounding::nearest_even:
      return run.template operator()<Rounding::nearest_even>();
    case Rounding::nearest_away:
      return run.template operator()<Rounding::nearest_away>();
    case Rounding::up:
      return run.template operator()<Rounding::up>();
    case Rounding::down:
      return run.template operator()<Rounding::down>();
    case Rounding::to_odd:
      return run.template operator()<Rounding::to_odd>();
    default:
      return run.template operator()<Rounding::toward_zero>();
  }
}

CPD_FN void add_tile(const Tile& tile, Route route) {
  switch (route) {
    case Route::whole32:
      return add_whole32(&tile);
    case Route::whole64:
      return add_whole64(&tile);
    case Route::cut:
      return add_rounded<Rounding::toward_zero>(&tile);
    case Route::general:
      return add_generally(&tile);
    default:
      break;
  }
  with_point_rounding(tile.plan.point.rounding, [&]<Rounding mode>() {
    route == Route::rounded ? add_rounded<mode>(&tile) : add_saturating<mode>(&tile);
  });
}

CPD_FN void multiply_panels(const FixedPlan& plan, const GemmBlock& block, int64_t row,
                            int64_t column) {
  const int64_t groups = (block.count + kRangeGroup - 1) / kRangeGroup;
  Tile tile{plan,
            block,
            least(kRows, block.rows - row),
            least(kGemmColumns, block.columns - column),
            block.a + row * block.count,
            block.b + column * block.count,
            0,
            block.state + row * block.state_columns + column};
  for (int64_t k = 0; k < block.count; k += tile.count) {
    tile.count = least(kMostK, block.count - k);
    const int64_t group = k / kRangeGroup;
    const PanelRange* a = block.a_range + row / kRows * groups + group;
    const PanelRange* b = block.b_range + column / kGemmColumns * groups + group;
    add_tile(tile, route_of(tile, a, b));
    tile.a += tile.count * kRows;
    tile.b += tile.count * kGemmColumns;
  }
  if (block.last) end_tile(&tile);
}

}  // namespace

void fixed(const FixedPlan& plan, const GemmBlock& block) {
  for (int64_t column = 0; column < block.columns; column += kGemmColumns) {
    for (int64_t row = 0; row < block.rows; row += kRows) {
      multiply_panels(plan, block, row, column);
    }
  }
}

}  // namespace CPD_ISA
}  // namespace cpd
