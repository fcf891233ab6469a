// SPDX-License-Identifier: Apache-2.0
//
// Encodes to codes of 4 or 8 bits in blocks of 16, 32 or 128 values of a column and computes the
// scales in the same kernel, so that values are read only once. The general path computes the
// scales in separate kernels, and encode_elements encodes one element at a time.
#include "kernels/cuda/fast_kernels.h"
#include "kernels/cuda/scaled_squares.cuh"

namespace cpd::cuda {
namespace {

/// Encodes in blocks of a column to codes of 4 or 8 bits.
template <class R, ElementRoute kRoute, DType type, int kLength>
__global__ void __launch_bounds__(square_threads(kLength))
    encode_columns(const __grid_constant__ ScalesCall of, const __grid_constant__ ShortForm form,
                   CodesOut to) {
  __shared__ SquareMaxima shared;
  const ScaledCall& call = of.call;
  for_patches<WarpPatch<type, true, kLength>>(call, [&](const auto& patch) {
    const LaneScales<4> at = scales_of_columns<kRoute>(
        patch, of, form, &shared, [&](std::int64_t b, ElementScale<float> own) {
          if (patch.down == 0) call.tables.scale[b] = own.scale;
        });
    CPD_IN_REGISTERS for (int j = 0; j < kLaneRows; ++j) {
      if (j >= patch.rows || patch.columns <= 0) continue;
      const std::int64_t i = patch.first + j * patch.width;
      store_four(to.packed, call.plan.element.bits, i / 4,
                 code_pack<R, kRoute>(call, i, patch.values[j], at, to.first_nan));
    }
  });
}

bool column_codes_applies(const ScalesCall& of) {
  const ColumnBlocks blocks(of.call);
  return blocks.rows != 0 && blocks.packed && forms_by_largest(of) && codes_fours(of);
}
int start_column_codes(const Launch& launch, const ScalesCall& of) {
  with_packed_columns(of, ColumnBlocks(of.call).rows, [&]<DType type, int kLength>() {
    start_squares<kLength>(encode_columns<NearestByAddition, ElementRoute::multiply, type, kLength>,
                           launch, of, codes_out(of));
  });
  return cudaGetLastError();
}
const FastKernel<encode_scaled> kColumnCodes(FastPath::column_codes, column_codes_applies,
                                             start_column_codes);

}  // namespace
}  // namespace cpd::cuda
