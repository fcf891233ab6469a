// SPDX-License-Identifier: Apache-2.0
//
// Casts to nearest-even in blocks of 16, 32 or 128 values of a column and computes the scales in
// the same kernel, so that values are read only once. The general path computes the scales in
// separate kernels, and cast_elements casts one element at a time.
#include "kernels/cuda/fast_kernels.h"
#include "kernels/cuda/scaled_squares.cuh"

namespace cpd::cuda {
namespace {

template <class R, ElementRoute kRoute, DType type, bool kPacked, int kLength>
__global__ void __launch_bounds__(square_threads(kLength))
    cast_columns(const __grid_constant__ ScalesCall of, const __grid_constant__ ShortForm form,
                 void* out) {
  __shared__ SquareMaxima shared;
  for_patches<WarpPatch<type, kPacked, kLength>>(of.call, [&](const auto& patch) {
    cast_by_columns<R, kRoute>(patch, of, form, out, &shared);
  });
}

/// Returns whether the rows of the tensor and of the result are aligned to Packs (four neighboring
/// values each).
bool is_packed(const ScalesCall& of) {
  return ColumnBlocks(of.call).packed && is_aligned(of.out.data);
}
bool column_casts_applies(const ScalesCall& of) {
  const int rows = ColumnBlocks(of.call).rows;
  return (rows == 16 || rows == 32 || (rows == 128 && is_packed(of))) &&
         is_nearest_by_addition(of.call) && forms_by_largest(of) &&
         of.call.x.dtype == of.out.dtype && is_contiguous(of.out, of.out.dtype);
}
int start_column_casts(const Launch& launch, const ScalesCall& of) {
  const int rows = ColumnBlocks(of.call).rows;
  with_columns(of, rows, is_packed(of), [&]<DType type, bool kPacked, int kLength>() {
    start_squares<kLength>(
        cast_columns<NearestByAddition, ElementRoute::multiply, type, kPacked, kLength>, launch, of,
        of.out.data);
  });
  return cudaGetLastError();
}
const FastKernel<cast_scaled> kColumnCasts(FastPath::column_casts, column_casts_applies,
                                           start_column_casts);

}  // namespace
}  // namespace cpd::cuda
