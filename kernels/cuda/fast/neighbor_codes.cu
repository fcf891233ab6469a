// SPDX-License-Identifier: Apache-2.0
//
// Encodes to codes of 4 or 8 bits in short blocks of neighboring values and computes the scales in
// the same kernel, so that values are read only once. In the general path, one kernel computes the
// scales and another kernel encodes.
#include "kernels/cuda/fast_kernels.h"
#include "kernels/cuda/scaled_calls.cuh"

namespace cpd::cuda {
namespace {

/// Encodes short blocks. Divides by scales in binary32, by the route (method of division) kRoute,
/// and rounds to nearest-even.
template <class R, ElementRoute kRoute, DType type, int kPacks>
__global__ void __launch_bounds__(kThreads)
    encode_short_blocks(const __grid_constant__ ScalesCall of,
                        const __grid_constant__ ShortForm form, int shift, CodesOut to) {
  const ScaledCall& call = of.call;
  for_warp_blocks<type, kPacks>(call.n, shift, call.x.data, [&](const auto& blocks) {
    const ElementScale<float> own = own_scale(of, form, blocks);
    const std::int64_t b = blocks.own_block();
    if (b >= 0) call.tables.scale[b] = own.scale;
    CPD_IN_REGISTERS for (int j = 0; j < kPacks; ++j) {
      const ElementScale<float> at = blocks.scale_at(own, j, call.plan.two_levels);
      if (!blocks.has(j)) continue;
      const std::int64_t q = blocks.number(j);
      store_four(to.packed, call.plan.element.bits, q,
                 code_pack<R, kRoute>(call, 4 * q, blocks.values[j], same_scales(call, kRoute, at),
                                      to.first_nan));
    }
  });
}

bool neighbor_codes_applies(const ScalesCall& of) {
  return neighbors_shift(of.call) != 0 && forms_by_largest(of) && codes_fours(of);
}
int start_neighbor_codes(const Launch& launch, const ScalesCall& of) {
  const int shift = neighbors_shift(of.call);
  with_neighbors(of, shift, [&]<DType type, int kPacks>(unsigned count) {
    start_kernel(encode_short_blocks<NearestByAddition, ElementRoute::multiply, type, kPacks>,
                 count, kThreads, static_cast<cudaStream_t>(launch.stream), of,
                 ShortForm(of.call.plan), shift, codes_out(of));
  });
  return cudaGetLastError();
}
const FastKernel<encode_scaled> kNeighborCodes(FastPath::neighbor_codes, neighbor_codes_applies,
                                               start_neighbor_codes);

}  // namespace
}  // namespace cpd::cuda
