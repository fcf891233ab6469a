// SPDX-License-Identifier: Apache-2.0
//
// Matrix products on a GPU whose operands may have scales (ops/gemm.h). The values of k are divided
// into blocks. For each block, a thread sums the products as in gemm_general.h, multiplies the sum
// by the block's scales and adds it to the total. A product without scales has one block, whose sum
// is the result.
#pragma once

#include "cpd/numeric/scaled/scaled_sum.h"
#include "kernels/cuda/block_fma.h"
#include "kernels/cuda/gemm_general.h"

namespace cpd::cuda {

/// Converts a product without scales to a product with scales of a single block of k, in which no
/// scale changes the sum.
CPD_FN ScaledGemmCall without_scales(const GemmCall& call) {
  ScaledGemmCall scaled{call, {}};
  scaled.scales.sums = 1;
  scaled.scales.block = call.product.depth;
  scaled.scales.start = -0.0F;  // to which even -0 may be added
  return scaled;
}

/// The position of an element: the matrix of the batch, the row and the column.
struct ElementPlace {
  std::int64_t batch = 0, row = 0, column = 0;

  /// Returns the matrix, row and column of element number `index` of the result. `index` may be
  /// beyond the last element.
  CPD_FN static ElementPlace of(const MatrixProduct& product, std::uint64_t index) {
    const auto element = static_cast<std::int64_t>(index);
    return {element / product.columns / product.rows % product.batch(),
            element / product.columns % product.rows, element % product.columns};
  }
};

/// Returns the value at (row, column) of one matrix of a batch.
CPD_FN float matrix_value(const MatrixProduct& product, const ProductOperand& x, std::int64_t batch,
                          std::int64_t row, std::int64_t column) {
  std::int64_t at = row * x.row_stride + column * x.column_stride;
  for (int d = product.batch_rank - 1; d >= 0; --d) {
    at += batch % product.batch_shape[d] * x.batch_stride[d];
    batch /= product.batch_shape[d];
  }
  return value_at(x.data, x.dtype, at);
}

/// The scales by which a product in one element's sum is multiplied: a(k) returns the scale of a's
/// factor at k, b(k) the scale of b's.
struct ElementScales {
  const MatrixProduct& product;
  const GridsOfScales& grids;
  ElementPlace place;
  std::int64_t first_k = 0;  ///< the k from which k is counted

  CPD_FN float a(std::int64_t k) const { return at(grids.a, place.row, k); }
  CPD_FN float b(std::int64_t k) const { return at(grids.b, place.column, k); }

 private:
  CPD_FN float at(const GridOfScales& grid, std::int64_t line, std::int64_t k) const {
    if (grid.at.data == nullptr) return 1.0F;
    return matrix_value(product, grid.at, place.batch, line / grid.lines,
                        (first_k + k) / grid.block);
  }
};

/// Returns how many of the values at k, k + 1, … the next step copies to shared memory: at most
/// `step`, and none beyond the end of the block that contains k.
CPD_FN int values_in_step(const ScaledGemmCall& call, std::int64_t k, int step) {
  const std::int64_t left = call.scales.block - k % call.scales.block;
  const int count = values_in_step(static_cast<const GemmCall&>(call), k, step);
  return left < count ? static_cast<int>(left) : count;
}

/// Computes one element of a product with scales. `Sum` computes the sum of each block of k. These
/// sums are multiplied by the block's scales and added.
template <class Sum>
class ScaledSum {
 public:
  CPD_FN void begin(const ScaledGemmCall& call, std::uint64_t index, float c) {
    index_ = index;
    place_ = ElementPlace::of(call.product, index);
    total_ = call.scales.start;
    start(call, 0, c);
  }

  CPD_FN void add(const ScaledGemmCall& call, const float* a, const float* b, std::int64_t k,
                  int count, const TileRange* ranges) {
    const ElementScales in_unit{call.product, call.scales.in_unit, place_, k};
    sum_.add(call, a, b, k - first_k_, count, ranges, in_unit);
    const std::int64_t next_k = first_k_ + call.scales.block;
    if (k + count == next_k && next_k < call.product.depth) {
      end_block(call);
      start(call, next_k, 0.0F);
    }
  }

  CPD_FN float end(const ScaledGemmCall& call) {
    if (call.scales.sums > 0) end_block(call);
    const ElementScales factors{call.product, call.scales.factors, place_};
    const ProductOperand& c = call.scales.c;
    const float addend =
        c.data == nullptr ? -0.0F
                          : matrix_value(call.product, c, place_.batch, place_.row, place_.column);
    return add_scaled(addend, factors.a(0), factors.b(0), total_);
  }

 private:
  CPD_FN static std::int64_t least(std::int64_t x, std::int64_t y) { return x < y ? x : y; }

  /// Starts the sum over the block of k whose first product is at k. The sum begins with the addend
  /// c.
  CPD_FN void start(const ScaledGemmCall& call, std::int64_t k, float c) {
    const ProductScales& s = call.scales;
    first_k_ = k;
    const std::int64_t number = s.block > 0 ? k / s.block : 0;
    sum_.begin(
        call, index_, c,
        {least(s.block, call.product.depth - k), static_cast<std::uint64_t>(number * s.draws)});
  }
  CPD_FN void end_block(const ScaledGemmCall& call) {
    const ElementScales scales{call.product, call.scales.of_sums, place_};
    total_ = add_scaled(total_, scales.a(first_k_), scales.b(first_k_), sum_.end(call));
  }

  Sum sum_;
  ElementPlace place_;
  std::uint64_t index_ = 0;
  std::int64_t first_k_ = 0;
  float total_ = 0.0F;
};

}  // namespace cpd::cuda
