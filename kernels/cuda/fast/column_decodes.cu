// SPDX-License-Identifier: Apache-2.0
//
// Decodes codes of 4 or 8 bits to tensors in blocks of one column. A thread decodes four codes at a
// time, each with the scales of its block. The general kernel decode_elements decodes one element
// at a time.
#include "kernels/cuda/fast_kernels.h"
#include "kernels/cuda/scaled_calls.cuh"

namespace cpd::cuda {
namespace {

template <class R, DType type>
__global__ void __launch_bounds__(kThreads)
    decode_columns(const __grid_constant__ ScaledCall call, const std::uint8_t* packed, void* out) {
  decode_fours<R, type>(call, packed, out,
                        [&](std::int64_t q) { return column_scales(call, call.route, 4 * q); });
}

bool column_decodes_applies(const ScalesCall& of) {
  return has_four_scales(of.call, of.out) && !of.call.plan.wide_values &&
         has_four_codes(of.call.plan.element.bits, of.packed);
}
int start_column_decodes(const Launch& launch, const ScalesCall& of) {
  const std::uint8_t* const packed = of.packed;
  with_codes(of.call.plan.element, [&]<class R>() {
    with_pack_type(of.out.dtype, [&]<DType type>() {
      start_kernel(decode_columns<R, type>, blocks_of(of.call.n / 16 + 1), kThreads,
                   static_cast<cudaStream_t>(launch.stream), of.call, packed, of.out.data);
    });
  });
  return cudaGetLastError();
}
const FastKernel<decode_formed> kColumnDecodes(FastPath::column_decodes, column_decodes_applies,
                                               start_column_decodes);

}  // namespace
}  // namespace cpd::cuda
