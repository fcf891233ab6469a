// SPDX-License-Identifier: Apache-2.0
//
// Casts short blocks of contiguous tensors. A block's values stay in registers between the search
// for the largest magnitude and the rounding, so that each value is read once and written once.
#pragma once

#include "cpd/numeric/scaled/short_scale.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/scaled_tile.h"

namespace cpd::cuda {

constexpr unsigned kAllLanes = 0xFFFFFFFFU;
constexpr int kWarpSize = 32;

/// Describes how a kernel computes the scales of short blocks.
struct ShortForm {
  PowerRule power;
  bool in_binary32 = false;

  explicit ShortForm(const ScaledPlan& plan)
      : power(power_rule_of(plan)), in_binary32(steps_in_binary32(plan)) {}
};

/// Computes the scales of a block from its largest magnitude, by any rule. The function is not
/// inlined, because there are many rules.
inline CPD_CALL ElementScale<float> scale_by_rules(const ScalesCall& of, bool in_binary32,
                                                   std::int64_t b, float largest) {
  if (in_binary32) return scale_of_largest<float>(of.call, of.cells, 1.0, b, largest);
  return scale_of_largest<double>(of.call, of.cells, 1.0, b, largest);
}

/// Returns the scales of block b, given the bit pattern of the block's largest magnitude.
CPD_DEVICE ElementScale<float> scale_of_bits(const ScalesCall& of, const ShortForm& form,
                                             std::int64_t b, std::uint32_t largest) {
  BlockScale<float> block;
  if (form.power.fits && power_scale_of_bits(largest, form.power, &block)) {
    return {element_by(of.call.route, block), block.scale, 1};
  }
  return scale_by_rules(of, form.in_binary32, b, bits_as<float>(largest));
}

/// The scales of kCount columns, rows or values that one lane casts.
template <int kCount>
struct LaneScales {
  ElementScale<float> of[kCount];
  bool fit = true;  ///< a route takes the elements of all

  CPD_DEVICE void set(const ScaledCall& call, ElementRoute route, int i, ElementScale<float> at) {
    of[i] = at;
    fit = fit && route_at(call, at.scale) == route;
  }
};

template <DType type>
CPD_DEVICE std::uint32_t largest_bits(Pack<type> v, bool with_nan) {
  const std::uint32_t left =
      max(magnitude_bits(v.get(0), with_nan), magnitude_bits(v.get(1), with_nan));
  const std::uint32_t right =
      max(magnitude_bits(v.get(2), with_nan), magnitude_bits(v.get(3), with_nan));
  return max(left, right);
}

/// cast_one, code_one, cast_alone and cast_pack_alone cast or encode by any route (method of
/// division), out of line. Kernels call them for the few values that their own route does not
/// support, and for values that do not fill a Pack (four neighboring values).
template <Rounding mode>
CPD_CALL float cast_one(const ScaledCall& call, std::int64_t i, std::uint32_t random) {
  return cast_element<mode>(call, i, random);
}
template <Rounding mode>
CPD_CALL std::uint32_t code_one(const ScaledCall& call, std::int64_t i, bool* is_lost) {
  return code_element<mode>(call, i, 0, is_lost);
}
template <Rounding mode>
CPD_CALL float cast_alone(const ScaledCall& call, float x, ElementScale<float> at,
                          std::uint32_t random = 0) {
  return cast_by<mode>(call, x, at, random);
}
template <Rounding mode, DType type>
CPD_CALL Pack<type> cast_pack_alone(const ScaledCall& call, Pack<type> values,
                                    ElementScale<float> at) {
  return changed<Stored::nearest>(values, [&](float v) { return cast_alone<mode>(call, v, at); });
}

/// Returns the values of a Pack (four neighboring values) in the scaled format, given the scales of
/// their block. Divides in binary32, by the route (method of division) kRoute, if that route
/// supports the scales.
template <class R, ElementRoute kRoute, DType type>
CPD_DEVICE Pack<type> cast_pack(const ScaledCall& call, Pack<type> values, ElementScale<float> at) {
  if (route_at(call, at.scale) == kRoute) {
    return changed<Stored::nearest>(
        values, [&](float v) { return cast_value<R, kRoute>(call.plan, v, at, 0); });
  }
  return cast_pack_alone<R::mode>(call, values, at);
}

// --- blocks of neighbors ------------------------------------------------------------------------

/// Returns the number of Packs (four neighboring values each) that a lane holds, for blocks of
/// 2^shift values. In blocks of 16 or 32 values, a warp holds 32 blocks, so each lane computes the
/// scales of one block. In longer blocks the registers limit the number of Packs, and a warp holds
/// fewer blocks.
constexpr int packs_of(int shift) { return shift == 4 ? 4 : 8; }

/// A range of 32 * kPacks Packs (four neighboring values each) that one warp casts, in blocks of
/// 2^shift values. Lane l holds the range's Packs l, 32 + l, 64 + l …: values[0], values[1], …. A
/// block is the values[j] of 2^(shift - 2) neighboring lanes. Among these lanes, the one at
/// position j computes the block's scales.
template <DType type, int kPacks>
struct WarpBlocks {
  std::int64_t first;  ///< number of the warp's first Pack
  std::int64_t packs;  ///< of the tensor
  int shift;
  int lane;
  Pack<type> values[kPacks];

  CPD_DEVICE WarpBlocks(std::int64_t first, std::int64_t packs, int shift, const void* x)
      : first(first), packs(packs), shift(shift), lane(static_cast<int>(threadIdx.x) % kWarpSize) {
    CPD_IN_REGISTERS for (int j = 0; j < kPacks; ++j) {
      if (has(j)) values[j] = static_cast<const Pack<type>*>(x)[number(j)];
    }
  }

  [[nodiscard]] CPD_DEVICE int lanes() const { return 1 << (shift - 2); }
  [[nodiscard]] CPD_DEVICE std::int64_t number(int j) const { return first + kWarpSize * j + lane; }
  [[nodiscard]] CPD_DEVICE bool has(int j) const { return number(j) < packs; }

  /// Returns the number of the block whose scales this lane computes, or -1 if the lane computes
  /// none.
  [[nodiscard]] CPD_DEVICE std::int64_t own_block() const {
    const int j = lane % lanes();
    const std::int64_t begin = number(j) - j;  // the block's first Pack
    return j < kPacks && begin < packs ? 4 * begin >> shift : -1;
  }
  /// Returns the bit pattern of the largest magnitude of this lane's own block. All lanes of the
  /// warp must call it.
  [[nodiscard]] CPD_DEVICE std::uint32_t own_largest(bool with_nan) const {
    std::uint32_t own = 0;
    CPD_IN_REGISTERS for (int j = 0; j < kPacks; ++j) {
      std::uint32_t most = largest_bits(values[j], with_nan);
      CPD_ROLLED for (int apart = 1; apart < lanes(); apart *= 2) {
        most = max(most, __shfl_xor_sync(kAllLanes, most, apart));
      }
      if (lane % lanes() == j) own = most;
    }
    return own;
  }
  /// Returns the scales of the block of Pack j (four neighboring values), given the scales that
  /// each lane has computed. All lanes must call it.
  [[nodiscard]] CPD_DEVICE ElementScale<float> scale_at(ElementScale<float> own, int j,
                                                        bool two_levels) const {
    const int from = lane / lanes() * lanes() + j;
    return {__shfl_sync(kAllLanes, own.factor, from), __shfl_sync(kAllLanes, own.scale, from),
            two_levels ? __shfl_sync(kAllLanes, own.outer, from) : 1.0F};
  }
};

/// Calls visit(blocks) for each range of values (WarpBlocks) that this warp casts, of n values in
/// all; n must be a multiple of 4. Starts with the last range, because the L2 cache still has the
/// end of the data that the previous kernel has read.
template <DType type, int kPacks, class Visit>
CPD_DEVICE void for_warp_blocks(std::int64_t n, int shift, const void* x, Visit visit) {
  constexpr std::int64_t kPart = std::int64_t{kWarpSize} * kPacks;
  const std::int64_t step = std::int64_t{gridDim.x} * (kThreads / kWarpSize);
  std::int64_t part = (n / 4 + kPart - 1) / kPart - 1;
  part -= (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarpSize;
  for (; part >= 0; part -= step) visit(WarpBlocks<type, kPacks>(part * kPart, n / 4, shift, x));
}

/// Returns the scales of the block that this lane computes, if it computes one. All lanes must call
/// it.
template <class Blocks>
CPD_DEVICE ElementScale<float> own_scale(const ScalesCall& of, const ShortForm& form,
                                         const Blocks& blocks) {
  const std::uint32_t largest = blocks.own_largest(of.call.plan.makes_nan);
  const std::int64_t b = blocks.own_block();
  return b >= 0 ? scale_of_bits(of, form, b, largest) : ElementScale<float>{};
}

template <DType type, int kPacks>
__global__ void __launch_bounds__(kThreads)
    form_short_blocks(const __grid_constant__ ScalesCall of, const __grid_constant__ ShortForm form,
                      int shift) {
  for_warp_blocks<type, kPacks>(of.call.n, shift, of.call.x.data, [&](const auto& blocks) {
    const ElementScale<float> own = own_scale(of, form, blocks);
    const std::int64_t b = blocks.own_block();
    if (b >= 0) set_scale(of.call.tables, b, own);
  });
}

template <class R, ElementRoute kRoute, DType type, int kPacks>
__global__ void __launch_bounds__(kThreads)
    cast_short_blocks(const __grid_constant__ ScalesCall of, const __grid_constant__ ShortForm form,
                      int shift, void* out) {
  auto* to = static_cast<Pack<type>*>(out);
  for_warp_blocks<type, kPacks>(of.call.n, shift, of.call.x.data, [&](const auto& blocks) {
    const ElementScale<float> own = own_scale(of, form, blocks);
    CPD_IN_REGISTERS for (int j = 0; j < kPacks; ++j) {
      const ElementScale<float> at = blocks.scale_at(own, j, of.call.plan.two_levels);
      if (blocks.has(j)) {
        to[blocks.number(j)] = cast_pack<R, kRoute>(of.call, blocks.values[j], at);
      }
    }
  });
}

}  // namespace cpd::cuda
