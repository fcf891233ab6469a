// SPDX-License-Identifier: Apache-2.0
//
// Computes one operation on one element in a CUDA thread: in binary64, with one rounding.
#pragma once

#include "cpd/backend/calls.h"
#include "cpd/numeric/round/exact64.h"
#include "cpd/numeric/round/quotient.h"
#include "kernels/cuda/strided.h"

namespace cpd::cuda {

/// The argument of a kernel: a call, and a copy of its rounding plan, which is on the host.
struct ArithmeticTask : ArithmeticCall {
  RoundPlan rounding;
};
static_assert(sizeof(ArithmeticTask) <= 4000, "a kernel's parameters have at most 4096 bytes");

/// Returns the result of the call's operation on x, y and z, rounded to odd. The operands are
/// binary32 values or, with kAny, any binary64 values; kAny does not support quotients and square
/// roots. `down`: the caller then rounds down, so x + (-x) is -0 (IEEE 754, 6.3).
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

/// Computes element i of the call's result in binary64 and rounds it. kAny: an operand has the type
/// binary64.
template <Rounding mode, bool kAny>
CPD_FN void operate_one(const ArithmeticTask& call, std::int64_t i, std::uint32_t random) {
  const auto x = load_element<double>(call.x, i);
  const double y = call.op != Operation::sqrt ? load_element<double>(call.y, i) : 0.0;
  const double z = call.op == Operation::fma ? load_element<double>(call.z, i) : 0.0;
  const double exact = exact_result<kAny>(call.op, x, y, z, Rule<mode>::is_down(call.rounding));
  store_element(call.out, i, round<mode>(exact, std::uint64_t{random}, call.rounding));
}

}  // namespace cpd::cuda
