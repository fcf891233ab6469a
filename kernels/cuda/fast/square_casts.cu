// SPDX-License-Identifier: Apache-2.0
//
// Casts a tensor both in blocks of a column and in blocks of a row, because a gradient is an
// operand of two products that sum over different dimensions. Values are read only once. The
// general path casts each direction separately.
#include "kernels/cuda/fast_kernels.h"
#include "kernels/cuda/scaled_squares.cuh"

namespace cpd::cuda {
namespace {

/// Casts a patch (32 x 32 values) in blocks of rows, with a single outer scale. All threads of the
/// thread block must call it.
template <class R, ElementRoute kRoute, class Patch>
CPD_DEVICE void cast_by_rows(const Patch& patch, const ScalesCall& of, const ShortForm& form,
                             void* out, SquareMaxima* shared) {
  const ScaledCall& call = of.call;
  std::uint32_t most[kLaneRows];
  patch.find_rows(call.plan.makes_nan, most, shared);
  ElementScale<float> own[Patch::kOwnRows] = {};
  CPD_IN_REGISTERS for (int o = 0; o < Patch::kOwnRows; ++o) {
    own[o] = scale_of_bits(of, form, 0, most[o]);
  }
  LaneScales<kLaneRows> at;
  CPD_IN_REGISTERS for (int j = 0; j < kLaneRows; ++j) {
    at.set(call, kRoute, j, patch.at_row(own, j, call.plan.two_levels));
  }
  cast_patch<R, kRoute, true>(patch, patch.values, call, at, out);
}

/// Casts in blocks of a column and in blocks of a row of the same tensor.
template <class R, ElementRoute kRoute, DType type, int kLength>
__global__ void __launch_bounds__(square_threads(kLength))
    cast_squares(const __grid_constant__ ScalesCall of, const __grid_constant__ ShortForm form,
                 void* by_columns, void* by_rows) {
  __shared__ SquareMaxima shared;
  for_patches<WarpPatch<type, true, kLength>>(of.call, [&](const auto& patch) {
    cast_by_columns<R, kRoute>(patch, of, form, by_columns, &shared);
    cast_by_rows<R, kRoute>(patch, of, form, by_rows, &shared);
  });
}

/// Returns whether the two layouts differ only in the direction of their blocks: `rows` must have
/// blocks of one row, `columns` must have blocks of as many values of one column.
bool is_turned(const BlockLayout& rows, const BlockLayout& columns) {
  const bool is_merged = rows.planes * rows.height * rows.middle == 1;
  const bool is_along = is_merged ? columns.width % rows.columns == 0 : rows.width == columns.width;
  return rows.rows == 1 && rows.columns == columns.rows && is_along;
}

bool square_casts_applies(const CastBothCall& both) {
  const ScaledCall& call = both.columns.call;
  const ColumnBlocks blocks(call);
  const auto is_like_x = [&](const Strided& t) { return t.dtype == call.x.dtype && has_packs(t); };
  return blocks.rows != 0 && blocks.packed && is_turned(both.rows.call.layout, call.layout) &&
         is_nearest_by_addition(call) && forms_by_largest(both.columns) && call.cells.extent == 0 &&
         is_like_x(both.rows.out) && is_like_x(both.columns.out);
}
int start_square_casts(const Launch& launch, const CastBothCall& both) {
  const ScalesCall& of = both.columns;
  if (of.two_levels) {
    const int formed = form_cell_scales(launch, of);
    if (formed != cudaSuccess) return formed;
  }
  with_packed_columns(of, ColumnBlocks(of.call).rows, [&]<DType type, int kLength>() {
    start_squares<kLength>(cast_squares<NearestByAddition, ElementRoute::multiply, type, kLength>,
                           launch, of, of.out.data, both.rows.out.data);
  });
  return cudaGetLastError();
}
const FastKernel<cast_both> kSquareCasts(FastPath::square_casts, square_casts_applies,
                                         start_square_casts);

}  // namespace
}  // namespace cpd::cuda
