// SPDX-License-Identifier: Apache-2.0
//
// Computes the sums of a matrix unit on a GPU by the arithmetic of numeric/units/block_fma.h. A
// thread of gemm_general.h computes one sum.
#pragma once

#include "cpd/backend/message_calls.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/units/block_adders.h"
#include "cpd/numeric/units/block_fma.h"
#include "kernels/cuda/gemm_general.h"

namespace cpd::cuda {

/// The sums of one element: `unit` is the matrix unit's sum, `sum` the accumulator's sum. Promotion
/// adds `unit` to `sum` repeatedly. Without promotion, `sum` is unused.
struct UnitState {
  float sum = 0.0F;
  float unit = 0.0F;
};

/// Calls run.operator()<Rule<…>>() with the rule that rounds the matrix unit's sum.
template <class Run>
CPD_FN void with_unit_rule(const BlockFmaPlan& plan, Run run) {
  if (plan.sum.mode == Rounding::toward_zero) {
    run.template operator()<Rule<Rounding::toward_zero>>();
  } else {
    run.template operator()<Rule<Rounding::nearest_even>>();
  }
}

/// Returns the initial sums of an element. The rounded `c` is the accumulator's sum or, if the
/// matrix unit's sum is not added to an accumulator, the matrix unit's sum. `mode` is the rounding
/// of additions to the accumulator's sum and of the result.
template <Rounding mode>
CPD_FN UnitState begin_unit(const GemmCall& call, const RandomKey& key, float c) {
  using R = Rule<mode, Form::general>;
  const BlockFmaPlan& plan = call.plan.unit;
  const double start = c;
  UnitState state;
  if (plan.promote > 0) {
    const auto random = draw<R, double>(plan.promoted, key, 0);
    state.sum = static_cast<float>(round<R>(start, random, plan.promoted));
  } else {
    with_unit_rule(plan, [&]<class Unit>() {
      state.unit = static_cast<float>(round<Unit>(start, std::uint64_t{0}, call.plan.first.round));
    });
  }
  return state;
}

/// With promotion, adds the matrix unit's sum to the accumulator's sum and sets the matrix unit's
/// sum to +0. Otherwise rounds the matrix unit's sum into the accumulator's format. `done` is the
/// number of products in the sum so far, which selects the random integer. `draws` is the number of
/// random integers that earlier sums of the element have used.
template <Rounding mode>
CPD_FN void promote_unit(const GemmCall& call, const RandomKey& key, std::uint64_t draws,
                         std::int64_t done, UnitState& state) {
  using R = Rule<mode, Form::general>;
  const BlockFmaPlan& plan = call.plan.unit;
  const bool adds = plan.promote > 0;
  const auto number = static_cast<std::uint64_t>(adds ? (done - 1) / plan.promote : 0);
  const auto random = draw<R, double>(plan.promoted, key, plan.first_draw + draws + number);
  const double unit = state.unit;
  const bool down = R::is_down(plan.promoted);
  const double exact = adds ? exact_sum(static_cast<double>(state.sum), unit, down) : unit;
  const auto rounded = static_cast<float>(round<R>(exact, random, plan.promoted));
  (adds ? state.sum : state.unit) = rounded;
  if (adds) state.unit = 0.0F;
}

/// Returns an element's result after all products: the accumulator's sum or, without promotion
/// (adding the matrix unit's sum to the accumulator's), the matrix unit's sum.
CPD_FN float unit_result(const GemmCall& call, const UnitState& state) {
  return result_of(call.plan.unit.promote > 0 ? state.sum : state.unit);
}

/// Computes one element's sum of products in a thread, by a matrix unit's arithmetic. `mode` is the
/// rounding of the result and of promotions (additions of the matrix unit's sum to the
/// accumulator's sum).
template <Rounding mode>
class UnitSum {
 public:
  CPD_FN void begin(const GemmCall& call, std::uint64_t index, float c, const SumSpan& span) {
    span_ = span;
    key_ = random_key(call.plan.unit.promoted, call, index);
    state_ = begin_unit<mode>(call, key_, c);
  }

  template <class Scales>
  CPD_FN void add(const GemmCall& call, const float* a, const float* b, std::int64_t k, int count,
                  const TileRange* ranges, const Scales& scales) {
    const BlockFmaPlan& plan = call.plan.unit;
    const bool narrow =
        block_fits_binary32(plan, least(ranges[0], plan.emin_a), greatest(ranges[0], plan.emin_a),
                            least(ranges[1], plan.emin_b), greatest(ranges[1], plan.emin_b));
    // A group may extend beyond the products of the matrix. load_lines has stored +0 for the
    // operands that do not exist.
    const int whole = plan.group > 0 ? (count + plan.group - 1) / plan.group * plan.group : count;
    with_unit_rule(plan, [&]<class Unit>() {
      float& unit = state_.unit;
      for (int at = 0; at < whole; at += plan.block) {
        const int length = whole - at < plan.block ? whole - at : plan.block;
        const float* a_block = a + at * (kSide + 1);
        const float* b_block = b + at * (kSide + 1);
        if (plan.takes_scales) {
          const Scaled<Scales> operands{{a_block, b_block}, scales, at};
          unit = static_cast<float>(
              add_scaled_block<Unit>(plan, operands, length, static_cast<double>(unit)));
        } else if (plan.adder != Adder::aligned) {
          const TileOperands<double> operands{a_block, b_block};
          unit = static_cast<float>(
              add_block<Unit>(plan, operands, length, static_cast<double>(unit)));
        } else {
          const TileOperands<float> x{a_block, b_block};
          const std::int32_t e = greatest_exponent(plan, x, length, unit);
          const double units = narrow ? static_cast<double>(sum_of_units<float>(plan, x, length, e))
                                      : sum_of_units<double>(plan, x, length, e);
          unit = static_cast<float>(
              end_block<Unit>(units, static_cast<double>(unit), std::int64_t{e}, plan));
        }
        const std::int64_t done = k + at + length;
        const bool promotes = plan.promote > 0 && done % plan.promote == 0;
        const bool is_end = at + length == whole && k + count == span_.depth;
        if (promotes || is_end) promote(call, done);
      }
    });
  }

  CPD_FN float end(const GemmCall& call) {
    if (span_.depth == 0 && call.plan.unit.promote == 0) promote(call, 0);
    return unit_result(call, state_);
  }

 private:
  /// The operands of one block of a matrix unit, and their scales. `operands` begins at the block's
  /// first operand. `scales` begins `first` operands earlier, at the first operand in shared
  /// memory.
  template <class Scales>
  struct Scaled {
    TileOperands<double> operands;
    const Scales& scales;
    int first;

    CPD_FN double a(int k) const { return operands.a(k); }
    CPD_FN double b(int k) const { return operands.b(k); }
    CPD_FN double a_scale(int k) const { return scales.a(first + k); }
    CPD_FN double b_scale(int k) const { return scales.b(first + k); }
  };

  /// Returns `sum` plus the products of a block, added by the rules of plan.adder, which must not
  /// be Adder::aligned.
  template <class Unit>
  CPD_CALL static double add_block(const BlockFmaPlan& plan, const TileOperands<double>& x,
                                   int count, double sum) {
    if (plan.adder == Adder::exact) return add_exactly<Unit>(plan, x, count, sum);
    if (plan.adder == Adder::flushed_pairs) return add_flushed_pairs<Unit>(plan, x, count, sum);
    return add_in_two_steps<Unit>(plan, x, count, sum, plan.adder == Adder::two_steps_even);
  }
  CPD_FN static int greatest(const TileRange& range, int emin) {
    return exponent_from(bits_as<float>(range.largest), emin);
  }
  CPD_FN static int least(const TileRange& range, int emin) {
    return range.largest == 0 ? -kNoExponent : exponent_from(bits_as<float>(range.smallest), emin);
  }

  CPD_FN void promote(const GemmCall& call, std::int64_t done) {
    promote_unit<mode>(call, key_, span_.draws, done, state_);
  }

  SumSpan span_;
  RandomKey key_;
  UnitState state_;
};

}  // namespace cpd::cuda
