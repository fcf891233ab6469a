// SPDX-License-Identifier: Apache-2.0
//
// One operation of one element on a GPU: one rounding, in binary64.
#pragma once

#include "cpd/backend/calls.h"
#include "cpd/numeric/round/exact64.h"
#include "cpd/numeric/round/quotient.h"
#include "kernels/cuda/strided.h"

namespace cpd::cuda {

/// A call and its plan, for a kernel's parameters.
struct ArithmeticTask : ArithmeticCall {
  RoundPlan rounding;
};
static_assert(sizeof(ArithmeticTask) <= 4000, "a kernel's parameters have at most 4096 bytes");

/// x op y (op z) rounded to odd, of binary32 values or, with kAny, of any binary64 values, which
/// have no quotients and square roots; `down` as in exact_sum.
template <bool kAny>
CPD_FN double exact_result(Operation op, double x, double y, double z, bool down) {
  if constexpr (!kAny) {
    if (op == Operation::div) return quotient_to_odd(x, y);
    if (op == Operation::sqrt) return root_to_odd(x);
  }
  if (op == Operation::mul) return kAny ? product_as_seen(x, y) : exact_product(x, y);
  if (op == Operation::add) return kAny ? sum_as_seen(x, y, down) : exact_sum(x, y, down);
  return kAny ? fma_as_seen(x, y, z, down) : exact_sum(exact_product(x, y), z, down);
}

/// Computes element i in binary64. kAny: an operand is binary64.
template <Rounding mode, bool kAny>
CPD_FN void operate_one(const ArithmeticTask& call, std::int64_t i, std::uint32_t random) {
  const auto x = load_element<double>(call.x, i);
  const double y = call.op != Operation::sqrt ? load_element<double>(call.y, i) : 0.0;
  const double z = call.op == Operation::fma ? load_element<double>(call.z, i) : 0.0;
  const double exact = exact_result<kAny>(call.op, x, y, z, Rule<mode>::is_down(call.rounding));
  store_element(call.out, i, round<mode>(exact, std::uint64_t{random}, call.rounding));
}

}  // namespace cpd::cuda
