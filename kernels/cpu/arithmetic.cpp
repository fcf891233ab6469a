// SPDX-License-Identifier: Apache-2.0
//
// Single operations (add, mul, fma): the exact result, rounded once.
#include "cpd/numeric/round/exact.h"
#include "cpd/numeric/round/exact64.h"
#include "kernels/cpu/elements.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint64_t;

/// x op y (op z) rounded to odd, of binary32 values or, with kAny, of any binary64 values; `down`
/// as in exact_sum.
template <Operation op, bool kAny, class V>
CPD_FN V exact_operation(V x, V y, V z, bool down) {
  if constexpr (kAny && op == Operation::fma) {
    return fma_as_seen(x, y, z, down);
  } else if constexpr (op == Operation::mul) {
    return kAny ? product_as_seen(x, y) : exact_product(x, y);
  } else if constexpr (op == Operation::fma) {
    return exact_sum(exact_product(x, y), z, down);
  } else {
    return kAny ? sum_as_seen(x, y, down) : exact_sum(x, y, down);
  }
}

template <Operation op, class R, class T>
CPD_FN void operate(const RoundPlan& plan, int64_t n, const T* x, const T* y, const T* z,
                    const uint32_t* random, T* out) {
  constexpr bool kAny = sizeof(T) == sizeof(double);
  const auto one = [&](const T* a, const T* b, const T* c, const uint32_t* r, T* to) {
    D third{};
    if constexpr (op == Operation::fma) third = load_value<D>(c);
    const D exact =
        exact_operation<op, kAny>(load_value<D>(a), load_value<D>(b), third, R::is_down(plan));
    store_value(to, round<R>(exact, load_random<R, D>(r), plan));
  };
  for_lanes<D>(
      n,
      [&](int64_t i) { one(x + i, y + i, op == Operation::fma ? z + i : z, random + i, out + i); },
      [&](int64_t i, int64_t rest) {
        T a[Lanes<D>::count] = {};
        T b[Lanes<D>::count] = {};
        T c[Lanes<D>::count] = {};
        uint32_t r[Lanes<D>::count] = {};
        copy(a, x + i, rest);
        copy(b, y + i, rest);
        if constexpr (op == Operation::fma) copy(c, z + i, rest);
        if constexpr (R::mode == Rounding::stochastic) copy(r, random + i, rest);
        one(a, b, c, r, a);
        copy(out + i, a, rest);
      });
}

template <class R, class T>
CPD_FN void operate_all(Operation op, const RoundPlan& plan, int64_t first, int64_t n, const T* x,
                        const T* y, const T* z, const uint32_t* random, T* out) {
  with_random<R>(plan, first, n, random, n, [&](int64_t i, int64_t count, const uint32_t* r) {
    switch (op) {
      case Operation::add:
        return operate<Operation::add, R, T>(plan, count, x + i, y + i, nullptr, r, out + i);
      case Operation::mul:
        return operate<Operation::mul, R, T>(plan, count, x + i, y + i, nullptr, r, out + i);
      default:
        return operate<Operation::fma, R, T>(plan, count, x + i, y + i, z + i, r, out + i);
    }
  });
}

CPD_BODY void arithmetic_body(Operation op, const RoundPlan* shared, int64_t first, int64_t n,
                              const float* x, const float* y, const float* z,
                              const uint32_t* random, float* out) {
  const RoundPlan plan = *shared;
  with_rule<D>(plan, [&]<class R>() { operate_all<R>(op, plan, first, n, x, y, z, random, out); });
}

CPD_BODY void arithmetic_f64_body(Operation op, const RoundPlan* shared, int64_t first, int64_t n,
                                  const double* x, const double* y, const double* z,
                                  const uint32_t* random, double* out) {
  const RoundPlan plan = *shared;
  with_rule<D>(plan, [&]<class R>() { operate_all<R>(op, plan, first, n, x, y, z, random, out); });
}

}  // namespace

void arithmetic(Operation op, const RoundPlan& plan, int64_t first, int64_t n, const float* x,
                const float* y, const float* z, const uint32_t* random, float* out) {
  enter<arithmetic_body>(op, &plan, first, n, x, y, z, random, out);
}

void arithmetic_f64(Operation op, const RoundPlan& plan, int64_t first, int64_t n, const double* x,
                    const double* y, const double* z, const uint32_t* random, double* out) {
  enter<arithmetic_f64_body>(op, &plan, first, n, x, y, z, random, out);
}

}  // namespace CPD_ISA
}  // namespace cpd
