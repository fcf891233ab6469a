// SPDX-License-Identifier: Apache-2.0
//
// Computes the scales of blocks of 16, 32 or 128 values of a column, with squares of the tensor in
// the threads' registers. In the general path, one kernel finds the largest magnitudes by atomic
// maxima, and another kernel computes the scales.
#include "kernels/cuda/fast_kernels.h"
#include "kernels/cuda/scaled_squares.cuh"

namespace cpd::cuda {
namespace {

template <DType type, bool kPacked, int kLength>
__global__ void __launch_bounds__(square_threads(kLength))
    form_columns(const __grid_constant__ ScalesCall of, const __grid_constant__ ShortForm form) {
  __shared__ SquareMaxima shared;
  for_patches<WarpPatch<type, kPacked, kLength>>(of.call, [&](const auto& patch) {
    std::uint32_t most[4];
    patch.find_columns(of.call.plan.makes_nan, most, &shared);
    patch.for_own_columns([&](int o, std::int64_t b) {
      if (patch.down == 0) set_scale(of.call.tables, b, scale_of_bits(of, form, b, most[o]));
    });
  });
}

bool column_forms_applies(const ScalesCall& of) {
  return ColumnBlocks(of.call).rows != 0 && forms_by_largest(of);
}
int start_column_forms(const Launch& launch, const ScalesCall& of) {
  const ColumnBlocks blocks(of.call);
  with_columns(of, blocks.rows, blocks.packed, [&]<DType type, bool kPacked, int kLength>() {
    start_squares<kLength>(form_columns<type, kPacked, kLength>, launch, of);
  });
  return cudaGetLastError();
}
const FastKernel<form_block_scales> kColumnForms(FastPath::column_forms, column_forms_applies,
                                                 start_column_forms);

}  // namespace
}  // namespace cpd::cuda
