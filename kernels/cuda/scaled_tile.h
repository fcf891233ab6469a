// SPDX-License-Identifier: Apache-2.0
//
// The work of one thread in the kernels of scaled formats: finds largest magnitudes, computes
// scales, and casts elements. Compiles for host and device.
#pragma once

#include "cpd/numeric/round/codec.h"
#include "cpd/numeric/scaled/scaled_choice.h"
#include "cpd/numeric/scaled/scaled_elements.h"
#include "kernels/cuda/strided.h"

namespace cpd::cuda {

// --- largest magnitudes --------------------------------------------------------------------------

/// Divides the blocks of a tensor into items for the search for the largest magnitudes. An item is
/// `rows` x `columns` neighboring elements of one block. One thread searches an item or, if
/// `by_warp`, the 32 threads of a warp do.
struct MaxItems {
  std::int64_t rows = 1, columns = 1;
  std::int64_t row_parts = 1, column_parts = 1;  ///< items in a block's height and width
  std::int64_t size = 0;                         ///< of all blocks
  bool by_warp = false;
};

constexpr std::int64_t kMaxItem = 1024;  ///< elements of an item of a warp, at most

inline MaxItems max_items(const BlockLayout& layout) {
  MaxItems items;
  items.by_warp = layout.columns % 32 == 0;
  const std::int64_t most = items.by_warp ? kMaxItem : 32;
  items.columns = items.by_warp ? 32 : layout.columns;
  if (!items.by_warp && items.columns > most) items.columns = most;
  while (items.by_warp && 2 * items.columns <= most && layout.columns % (2 * items.columns) == 0) {
    items.columns *= 2;
  }
  items.rows = most / items.columns < layout.rows ? most / items.columns : layout.rows;
  items.row_parts = (layout.rows + items.rows - 1) / items.rows;
  items.column_parts = (layout.columns + items.columns - 1) / items.columns;
  items.size = layout.blocks() * items.row_parts * items.column_parts;
  return items;
}

/// Returns the bit pattern of |x|. Without `with_nan`, returns 0 for a NaN.
CPD_FN std::uint32_t magnitude_bits(float x, bool with_nan) {
  const std::uint32_t bits = bits_as<std::uint32_t>(x) & 0x7FFFFFFFU;
  return with_nan || bits <= 0x7F800000U ? bits : 0U;
}

/// Finds the largest magnitude in a part of an item (MaxItems): in every `lanes`-th column, from
/// column `lane` on. Stores its bit pattern in `most` and returns the number of the item's block.
CPD_FN std::int64_t largest_of_item(const BlockLayout& layout, const MaxItems& items,
                                    const Strided& x, bool with_nan, std::int64_t item, int lane,
                                    int lanes, std::uint32_t* most) {
  const std::int64_t across = layout.across();
  const std::int64_t c = item % items.column_parts;
  std::int64_t rest = item / items.column_parts;
  const std::int64_t g = rest % across;
  rest /= across;
  const std::int64_t t = rest % layout.middle;
  rest /= layout.middle;
  const std::int64_t r = rest % items.row_parts;
  rest /= items.row_parts;
  const std::int64_t band = rest % layout.bands();
  const std::int64_t p = rest / layout.bands();
  const auto least = [](std::int64_t a, std::int64_t b) { return a < b ? a : b; };
  const std::int64_t top = band * layout.rows + r * items.rows;
  const std::int64_t bottom =
      least(least(top + items.rows, (band + 1) * layout.rows), layout.height);
  const std::int64_t left = g * layout.columns + c * items.columns;
  const std::int64_t right =
      least(least(left + items.columns, (g + 1) * layout.columns), layout.width);
  *most = 0;
  CPD_ROLLED for (std::int64_t i = top; i < bottom; ++i) {
    const std::int64_t row = layout.index(p, i, t, 0);
    CPD_ROLLED for (std::int64_t j = left + lane; j < right; j += lanes) {
      const std::uint32_t bits = magnitude_bits(load_element<float>(x, row + j), with_nan);
      *most = bits > *most ? bits : *most;
    }
  }
  return ((p * layout.bands() + band) * layout.middle + t) * across + g;
}

// --- scales --------------------------------------------------------------------------------------

/// Computes the outer scale and the multiplier of cell c (the values that share an outer scale)
/// from the largest magnitude in the cell.
CPD_FN void form_outer(const ScaledPlan& plan, const OuterTables& tables, std::int64_t c) {
  const OuterScale<double> outer = outer_scale(static_cast<double>(tables.largest[c]), plan);
  tables.scale[c] = static_cast<float>(outer.scale);
  tables.encode[c] = static_cast<float>(outer.encode);
}

/// Returns the outer scale of block b, which other blocks may share; 1 if the format has no outer
/// scales.
template <class W>
CPD_FN OuterScale<W> outer_of(const ScaledCall& call, const OuterTables& cells, std::int64_t b) {
  if (!call.plan.two_levels) return {1, 1};
  const std::int64_t cell = call.cells.extent == 0 ? 0 : call.cells.cell(call.layout.first_of(b));
  return {cells.scale[cell], cells.encode[cell]};
}

/// Returns the scales of block b, given the block's largest magnitude.
template <class W>
CPD_FN ElementScale<float> scale_of_largest(const ScaledCall& call, const OuterTables& cells,
                                            double share, std::int64_t b, float largest) {
  const OuterScale<W> outer = outer_of<W>(call, cells, b);
  const BlockScale<W> block = block_scale(static_cast<W>(largest), outer, share, call.plan);
  return {static_cast<float>(element_by(call.route, block)), static_cast<float>(block.scale),
          static_cast<float>(outer.scale)};
}
CPD_FN void set_scale(const ScaleTables& tables, std::int64_t b, ElementScale<float> at) {
  tables.factor[b] = at.factor;
  tables.scale[b] = at.scale;
  tables.outer[b] = at.outer;
}
/// Sets the scales of block b, given the block's largest magnitude.
CPD_FN void form_scale(const ScaledCall& call, const OuterTables& cells, double share,
                       std::int64_t b, float largest, const ScaleTables& tables) {
  set_scale(tables, b, scale_of_largest<double>(call, cells, share, b, largest));
}

/// Sets the scales of block b to scales that the caller gives.
CPD_FN void take_scale(const ScaledCall& call, const OuterTables& cells, std::int64_t b,
                       float given, const ScaleTables& tables) {
  const std::int64_t cell = call.cells.cell(call.layout.first_of(b));
  const auto scale = static_cast<double>(given);
  const double factor = factor_of(scale, static_cast<double>(cells.scale[cell]), call.plan);
  tables.scale[b] = given;
  tables.factor[b] = static_cast<float>(element_by(call.route, BlockScale<double>{scale, factor}));
  tables.outer[b] = cells.scale[cell];
}

// --- elements ------------------------------------------------------------------------------------

/// Returns the number of the block that holds an element. Int must be able to hold the layout's
/// number of elements; 32-bit integers are divided faster.
template <class Int>
CPD_FN Int block_of(const BlockLayout& layout, Int index) {
  const auto width = static_cast<Int>(layout.width), middle = static_cast<Int>(layout.middle);
  const auto height = static_cast<Int>(layout.height), rows = static_cast<Int>(layout.rows);
  const auto columns = static_cast<Int>(layout.columns);
  const Int line = index / width, j = index - line * width;
  const Int row = middle == 1 ? line : line / middle, t = line - row * middle;
  const Int p = row / height, i = row - p * height;
  const Int bands = (height - 1) / rows + 1;
  const Int across = columns == 1 ? width : (width - 1) / columns + 1;
  const Int g = columns == 1 ? j : j / columns;
  return ((p * bands + i / rows) * middle + t) * across + g;
}
/// Returns the number of the block that holds an element. Requires blocks of one column.
CPD_FN std::uint32_t column_block_of(BlockLayout layout, std::uint32_t index) {
  layout.columns = layout.middle = 1;
  return block_of(layout, index);
}
CPD_FN std::int64_t block_of(const ScaledCall& call, std::int64_t index) {
  const BlockLayout& layout = call.layout;
  const bool is_one_row = layout.planes * layout.height * layout.middle == 1;
  if (call.n > 0xFFFFFFFF) {
    const auto i = static_cast<std::uint64_t>(index);
    return static_cast<std::int64_t>(is_one_row ? i / static_cast<std::uint64_t>(layout.columns)
                                                : block_of(layout, i));
  }
  const auto i = static_cast<std::uint32_t>(index);
  return is_one_row ? i / static_cast<std::uint32_t>(layout.columns) : block_of(layout, i);
}

/// Returns the route (method of division) for the elements of a block with this scale.
CPD_FN ElementRoute route_at(const ScaledCall& call, float scale) {
  if (call.plan.arithmetic != Arithmetic::exact) return call.route;
  // Besides the scales that is_outside reports, division in binary32 excludes a scale of 0 that the
  // caller gives, because its block may contain an infinity.
  const bool beyond = is_outside(call.route, scale) || (call.given && scale == 0);
  return beyond ? ElementRoute::wide : call.route;
}

/// Returns the value of x in the scaled format. Divides by the scales in binary32.
template <class R, ElementRoute kRoute>
CPD_FN float cast_value(const ScaledPlan& plan, float x, ElementScale<float> at,
                        std::uint32_t random) {
  return scaled_value(round<R>(scaled_down<kRoute>(x, at, plan), random, plan.element), at);
}

/// Divides x by its block's scales and calls take(quotient, scales). route_at selects the route
/// (method of division) by the scale; the route `wide` computes in binary64, others in binary32.
template <class Take>
CPD_FN auto by_route(const ScaledCall& call, const ScaledPlan& plan, float x,
                     ElementScale<float> at, Take take) {
  const ElementRoute route = route_at(call, at.scale);
  if (route == ElementRoute::multiply) {
    return take(scaled_down<ElementRoute::multiply>(x, at, plan), at);
  }
  if (route == ElementRoute::divide) {
    return take(scaled_down<ElementRoute::divide>(x, at, plan), at);
  }
  const ElementScale<double> wide{at.factor, at.scale, at.outer};
  return take(scaled_down<ElementRoute::wide>(static_cast<double>(x), wide, plan), wide);
}

CPD_FN ElementScale<float> scale_of(const ScaleTables& tables, std::int64_t block) {
  return {tables.factor[block], tables.scale[block], tables.outer[block]};
}

/// Returns the value of x in the scaled format, in a block with these scales.
template <Rounding mode>
CPD_FN float cast_by(const ScaledCall& call, float x, ElementScale<float> at,
                     std::uint32_t random) {
  return by_route(call, call.plan, x, at, [&]<class V>(V quotient, ElementScale<V> scale) {
    return scaled_value(round<mode>(quotient, Unsigned<V>{random}, call.plan.element), scale);
  });
}
/// Returns the value of element i of x in the scaled format.
template <Rounding mode>
CPD_FN float cast_element(const ScaledCall& call, std::int64_t i, std::uint32_t random) {
  return cast_by<mode>(call, load_element<float>(call.x, i),
                       scale_of(call.tables, block_of(call, i)), random);
}

/// Returns the code of x in a block with these scales. Sets *is_lost if x is NaN and has no code,
/// unless the block's scale is NaN.
template <Rounding mode>
CPD_FN std::uint32_t code_by(const ScaledCall& call, float x, ElementScale<float> at,
                             std::uint32_t random, bool* is_lost) {
  *is_lost = !call.plan.element.has_nan && x != x && at.scale == at.scale;
  return by_route(call, call.plan, x, at, [&]<class V>(V quotient, ElementScale<V>) {
    return static_cast<std::uint32_t>(
        round_to_whole_code<mode>(quotient, Unsigned<V>{random}, call.plan.element));
  });
}
/// Returns the code of element i of x. Sets *is_lost if the element is NaN and has no code, unless
/// the block's scale is NaN.
template <Rounding mode>
CPD_FN std::uint32_t code_element(const ScaledCall& call, std::int64_t i, std::uint32_t random,
                                  bool* is_lost) {
  return code_by<mode>(call, load_element<float>(call.x, i),
                       scale_of(call.tables, block_of(call, i)), random, is_lost);
}

/// Returns the value of element i, given its code.
CPD_FN float decode_element(const ScaledCall& call, std::int64_t i, std::uint32_t code) {
  const ElementScale<float> at = scale_of(call.tables, block_of(call, i));
  const float q = value_of_code<float>(code, call.plan.element);
  if (!call.plan.wide_values) return scaled_value(q, at);
  return scaled_value(static_cast<double>(q), ElementScale<double>{at.factor, at.scale, at.outer});
}

// --- the choice between two candidates of a scale
// -------------------------------------------------

/// Returns the sum of the errors (or squared errors, if `squares`) in one row of block b, if its
/// elements are cast with the scales in `tables` and rounded by the plan `nearest`.
CPD_FN double error_of_row(const ScaledCall& call, const ScaledPlan& nearest, bool squares,
                           const OuterTables& cells, const ScaleTables& tables, std::int64_t b,
                           std::int64_t row) {
  const std::int64_t first = call.layout.first_of(b);
  const std::int64_t j = first % call.layout.width;
  const std::int64_t end = j + call.layout.columns;
  const std::int64_t count = (end < call.layout.width ? end : call.layout.width) - j;
  const ElementScale<float> at = scale_of(tables, b);
  const bool te = call.plan.arithmetic == Arithmetic::te;
  const ElementScale<float> decoding{at.factor, te ? 1 : at.scale, te ? 1 : at.outer};
  SumOfErrors sum(call.plan, squares, {at.scale, at.outer, cells.largest[call.cells.cell(first)]});
  CPD_ROLLED for (std::int64_t k = 0; k < count; ++k) {
    const float x = load_element<float>(call.x, first + row * call.layout.row_stride() + k);
    const float q = by_route(call, nearest, x, at, [&]<class V>(V quotient, ElementScale<V>) {
      const ElementScale<V> by{decoding.factor, decoding.scale, decoding.outer};
      return scaled_value(round<Rounding::nearest_even>(quotient, Unsigned<V>{}, nearest.element),
                          by);
    });
    sum.add(q, x);
  }
  return sum.value();
}

/// Returns the number of rows of block b.
CPD_FN std::int64_t rows_of(const BlockLayout& layout, std::int64_t b) {
  const std::int64_t band = b / (layout.across() * layout.middle) % layout.bands();
  const std::int64_t rest = layout.height - band * layout.rows;
  return rest < layout.rows ? rest : layout.rows;
}

/// Replaces the scales of block b in `tables` by the candidate in `other`, if the candidate causes
/// a smaller sum of errors. `usual` has the error of each row of each block with the scales in
/// `tables`, and `others` with those in `other`. Both arrays are overwritten.
CPD_FN void choose_scale(const ScaledCall& call, std::int64_t b, double* usual, double* others,
                         const ScaleTables& tables, const ScaleTables& other) {
  const std::int64_t rows = rows_of(call.layout, b);
  const std::int64_t at = b * call.layout.rows;
  if (!(sum_of_rows(call.plan, rows, others + at) < sum_of_rows(call.plan, rows, usual + at))) {
    return;
  }
  tables.scale[b] = other.scale[b];
  tables.factor[b] = other.factor[b];
}

}  // namespace cpd::cuda
