// SPDX-License-Identifier: Apache-2.0
//
// The kernel launches that calls of scaled formats consist of, and the conditions of kernels that
// read neighboring values with one instruction.
#pragma once

#include <bit>

#include "kernels/cuda/scaled_elements.cuh"

namespace cpd::cuda {

// --- passes --------------------------------------------------------------------------------------

/// Queues the kernels that compute the outer scales. Several blocks share one outer scale.
int form_cell_scales(const Launch& launch, const ScalesCall& of);
/// Queues the kernels that compute the scales of blocks. The outer scales, which several blocks
/// share, must have been computed before.
int form_block_scales(const Launch& launch, const ScalesCall& of);
/// Queues the kernels that cast elements; decode_formed queues those that decode elements. Both use
/// the scales in the call's tables.
int cast_formed(const Launch& launch, const ScalesCall& of);
int decode_formed(const Launch& launch, const ScalesCall& of);

// --- calls ---------------------------------------------------------------------------------------

/// Describes how kernels read a tensor in Packs (four neighboring values each). `fit` is true if
/// they can: the values must be contiguous, in consecutive blocks of 2^shift values.
struct PackLayout {
  bool fit = false;
  int shift = 0;

  PackLayout(const BlockLayout& layout, const Strided& x) {
    const auto columns = static_cast<std::uint64_t>(layout.columns);
    const bool in_one_row = layout.planes * layout.height * layout.middle == 1;
    shift = std::countr_zero(columns);
    if (layout.columns == layout.width) shift = 62;  // one block
    const bool is_power = shift == 62 || columns == std::uint64_t{1} << shift;
    fit = in_one_row && is_power && shift >= 2 && has_packs(x);
  }
};

inline unsigned blocks_of(std::int64_t threads) {
  return blocks_for((threads + kThreads - 1) / kThreads);
}

/// Returns the shift if the kernels of scaled_blocks.cuh support the call, whose blocks then have
/// 2^shift neighboring values. Returns 0 for other calls.
inline int neighbors_shift(const ScaledCall& call) {
  const PackLayout packs(call.layout, call.x);
  const bool is_short = packs.shift >= 4 && packs.shift <= 7;
  return packs.fit && is_short && call.n % 4 == 0 ? packs.shift : 0;
}

/// Returns whether the scales of the call's blocks depend on the blocks' largest magnitudes alone.
inline bool forms_by_largest(const ScalesCall& of) {
  const bool is_given = of.given.largest != nullptr && !of.two_levels;
  return of.given.blocks == nullptr && !is_given && of.choose == ScaleChoice::none;
}

/// The only rounding rule of kernels that cast in one pass or encode four values at a time. These
/// kernels multiply values by the inverse of a scale, and round to nearest-even by an addition.
using NearestByAddition = Rule<Rounding::nearest_even, Form::addition>;
inline bool is_nearest_by_addition(const ScaledCall& call) {
  const RoundPlan& element = call.plan.element;
  return element.mode == NearestByAddition::mode && element.form == Form::addition &&
         call.route == ElementRoute::multiply && call.random.data == nullptr;
}

inline CodesOut codes_out(const ScalesCall& of) { return {of.packed, of.first_nan}; }
/// Returns whether kernels encode the call's values four at a time.
inline bool codes_fours(const ScalesCall& of) {
  return is_nearest_by_addition(of.call) && has_four_codes(of.call.plan.element.bits, of.packed);
}

/// Returns whether kernels may read the scales of four neighboring columns together, for the Packs
/// of tensor t. Requires blocks of one column.
inline bool has_four_scales(const ScaledCall& call, const Strided& t) {
  return call.layout.columns == 1 && call.layout.width % 4 == 0 && call.cells.extent == 0 &&
         call.n <= 0xFFFFFFFF && has_packs(t) && is_aligned(call.tables.factor) &&
         is_aligned(call.tables.scale);
}

/// Queues a kernel for blocks of neighboring values: calls run.operator()<type, kPacks>(thread
/// blocks).
template <class Run>
void with_neighbors(const ScalesCall& of, int shift, Run run) {
  const std::int64_t threads = (of.call.n / 4 + 3) / 4;
  with_pack_type(of.call.x.dtype, [&]<DType type>() {
    if (shift == 4) return run.template operator()<type, packs_of(4)>(blocks_of(threads));
    run.template operator()<type, packs_of(5)>(blocks_of(threads / 2 + 1));
  });
}

/// Calls run.operator()<R, kRoute, type>() with the rounding rule, the binary32 route (method of
/// division) and the type of a call's elements.
template <class Run>
void with_packs_route(const ScaledCall& call, Run run) {
  with_mode(call.plan.element.mode, [&]<Rounding mode>() {
    with_form<mode>(call.plan.element.form, [&]<class R>() {
      with_pack_type(call.x.dtype, [&]<DType type>() {
        if (call.route == ElementRoute::multiply) {
          return run.template operator()<R, ElementRoute::multiply, type>();
        }
        run.template operator()<R, ElementRoute::divide, type>();
      });
    });
  });
}

}  // namespace cpd::cuda
