// SPDX-License-Identifier: Apache-2.0
//
// Single operations on a GPU: one rounding an element. For host and device, so that tests run it on
// the CPU.
#pragma once

#include "cpd/numeric/round/exact64.h"
#include "cpd/numeric/round/quotient.h"
#include "kernels/cuda/strided.h"

namespace cpd::cuda {

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

/// The share of an operation of thread number `thread` of `threads`. kAny: an operand is binary64.
template <Rounding mode, bool kAny>
CPD_FN void operate(const ArithmeticCall& call, std::int64_t thread, std::int64_t threads) {
  const RoundPlan& plan = call.plan;
  const Source source = source_of(plan, call.key, call.random);
  const std::int64_t indices = indices_of(mode, plan.random_bits, call.n);
  CPD_ROLLED for (std::int64_t at = thread; at < indices; at += threads) {
    for_elements<mode>(at, call.n, plan, source, [&](std::int64_t i, std::uint32_t random) {
      const auto x = load_element<double>(call.x, i);
      const double y = call.op != Operation::sqrt ? load_element<double>(call.y, i) : 0.0;
      const double z = call.op == Operation::fma ? load_element<double>(call.z, i) : 0.0;
      const double exact = exact_result<kAny>(call.op, x, y, z, Rule<mode>::is_down(plan));
      store_element(call.out, i, round<mode>(exact, std::uint64_t{random}, plan));
    });
  }
}

}  // namespace cpd::cuda
