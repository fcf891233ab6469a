// SPDX-License-Identifier: Apache-2.0
//
// Single operations (add, mul, fma, div, sqrt): the exact result, rounded once. Computes in
// binary32 if binary32 suffices (short_exact.h), else in binary64.
#include "cpd/numeric/round/exact.h"
#include "cpd/numeric/round/exact64.h"
#include "cpd/numeric/round/quotient.h"
#include "cpd/numeric/round/short_exact.h"
#include "kernels/cpu/elements.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint64_t;

/// Returns the quotient or the square root of binary32 values, rounded to odd.
template <Operation op, class V>
CPD_FN V exact_quotient(V x, V y) {
  V rest;
  if constexpr (Lanes<V>::count == 1) {  // fma of one lane may be a library function
    return op == Operation::div ? quotient_to_odd(x, y) : root_to_odd(x);
  } else if constexpr (op == Operation::div) {
    return quotient_to_odd(x, y, &rest);
  } else {
    return root_to_odd(x, &rest);
  }
}

/// Returns the result of `op` for x, y and z, rounded to odd. The operands are binary32 values or,
/// with kAny, any binary64 values; kAny does not support div and sqrt. `down`: the caller then
/// rounds down, so x + (-x) is -0 (IEEE 754, 6.3).
template <Operation op, bool kAny, class V>
CPD_FN V exact_operation(V x, V y, V z, bool down) {
  if constexpr (op == Operation::div || op == Operation::sqrt) {
    static_assert(!kAny);
    return exact_quotient<op>(x, y);
  } else if constexpr (kAny && op == Operation::fma) {
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
  constexpr int kOperands = operands_of(op);
  const auto one = [&](const T* a, const T* b, const T* c, const uint32_t* r, T* to) {
    D second{};
    D third{};
    if constexpr (kOperands > 1) second = load_value<D>(b);
    if constexpr (kOperands > 2) third = load_value<D>(c);
    const D exact = exact_operation<op, kAny>(load_value<D>(a), second, third, R::is_down(plan));
    store_value(to, round<R>(exact, load_random<R, D>(r), plan));
  };
  for_lanes<D>(
      n,
      [&](int64_t i) {
        one(x + i, kOperands > 1 ? y + i : y, kOperands > 2 ? z + i : z, random + i, out + i);
      },
      [&](int64_t i, int64_t rest) {
        T a[Lanes<D>::count] = {};
        T b[Lanes<D>::count] = {};
        T c[Lanes<D>::count] = {};
        uint32_t r[Lanes<D>::count] = {};
        copy(a, x + i, rest);
        if constexpr (kOperands > 1) copy(b, y + i, rest);
        if constexpr (kOperands > 2) copy(c, z + i, rest);
        if constexpr (R::mode == Rounding::stochastic) copy(r, random + i, rest);
        one(a, b, c, r, a);
        copy(out + i, a, rest);
      });
}

template <class R, class T>
CPD_FN void operate_all(Operation op, const RoundPlan& plan, int64_t first, int64_t n, const T* x,
                        const T* y, const T* z, const uint32_t* random, T* out) {
  with_random<R>(plan, first, n, random, n, [&](int64_t i, int64_t count, const uint32_t* r) {
    with_operation<sizeof(T) == sizeof(double)>(op, [&]<Operation kOp>() {
      operate<kOp, R, T>(plan, count, x + i, operands_of(kOp) > 1 ? y + i : nullptr,
                         operands_of(kOp) > 2 ? z + i : nullptr, r, out + i);
    });
  });
}

// --- in binary32 ---------------------------------------------------------------------------------

constexpr int kVectors = 4;
constexpr int64_t kGroup = kVectors * Lanes<F>::count;

/// The operands and the results of n consecutive elements. `random` holds one random integer for
/// each element, or is null if rounding is not stochastic.
struct Elements {
  int64_t n;
  const float *x, *y, *z;
  const uint32_t* random;
  float* out;

  [[nodiscard]] CPD_FN Elements part(int64_t i, int64_t count) const {
    const auto from = [i](const auto* p) { return p == nullptr ? p : p + i; };
    return {count, x + i, from(y), from(z), from(random), out + i};
  }
};

/// Computes operation `op` on the operands in `*of` in binary64 lanes, and stores the rounded
/// results.
template <Operation op>
CPD_BODY void operate_wide(const RoundPlan* plan, const Elements* of) {
  with_rule<D>(*plan, [&]<class R>() {
    operate<op, R, float>(*plan, of->n, of->x, of->y, of->z, of->random, of->out);
  });
}

/// Computes operation `op` on kGroup elements in binary32. Returns false and stores nothing if
/// binary32 may give a wrong result.
template <Operation op, bool kSmall, class R>
CPD_FN bool operate_group(const RoundPlan& plan, const Elements& of) {
  Doubt<F> doubt;
  F exact[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const int64_t i = v * Lanes<F>::count;
    F second{};
    F third{};
    if constexpr (operands_of(op) > 1) second = load<F>(of.y + i);
    if constexpr (operands_of(op) > 2) third = load<F>(of.z + i);
    exact[v] = operation_to_odd<op, kSmall>(load<F>(of.x + i), second, third, doubt);
  }
  if (doubt.any()) return false;
  for (int v = 0; v < kVectors; ++v) {
    const int64_t i = v * Lanes<F>::count;
    store(of.out + i, round<R>(exact[v], load_random<R, F>(of.random + i), plan));
  }
  return true;
}

/// The number of groups computed in binary64 after a group whose results may be wrong, because
/// neighboring groups are likely to fail too.
constexpr int64_t kWideGroups = 8;

template <Operation op, bool kSmall, class R>
CPD_FN void operate_short(const RoundPlan& plan, const Elements& of) {
  for (int64_t i = 0; i < of.n;) {
    const bool whole = i + kGroup <= of.n;
    if (whole && operate_group<op, kSmall, R>(plan, of.part(i, kGroup))) {
      i += kGroup;
      continue;
    }
    const Elements wide = of.part(i, least(of.n - i, kWideGroups * kGroup));
    operate_wide<op>(&plan, &wide);
    i += wide.n;
  }
}

[[maybe_unused]] CPD_FN void operate_all_short(Operation op, const RoundPlan& plan, int64_t first,
                                               const Elements& all) {
  with_short_rule(plan, [&]<class R>() {
    with_random<R>(plan, first, all.n, all.random, all.n,
                   [&](int64_t i, int64_t count, const uint32_t* random) {
                     Elements of = all.part(i, count);
                     of.random = random;
                     with_operation<false>(op, [&]<Operation kOp>() {
                       constexpr bool kMaySee = kOp != Operation::add && kOp != Operation::fma;
                       if (kMaySee && sees_small(plan))
                         return operate_short<kOp, kMaySee, R>(plan, of);
                       operate_short<kOp, false, R>(plan, of);
                     });
                   });
  });
}

// --- without a rounding --------------------------------------------------------------------------

/// Stores out[i] = of(x[i], y[i], z[i]) for i < n. `of` takes and returns vectors V. The operands'
/// lanes beyond element n - 1 are zero.
template <class V, class T, class Of>
CPD_FN void map(int64_t n, const T* x, const T* y, const T* z, T* out, Of of) {
  const auto part = [&](int64_t i, int64_t count) {
    T a[3][Lanes<V>::count] = {};
    copy(a[0], x + i, count);
    if (y != nullptr) copy(a[1], y + i, count);
    if (z != nullptr) copy(a[2], z + i, count);
    store_value(a[0], of(load_value<V>(a[0]), load_value<V>(a[1]), load_value<V>(a[2])));
    copy(out + i, a[0], count);
  };
  for_lanes<V>(n, [&](int64_t i) { part(i, Lanes<V>::count); }, part);
}

/// Computes all elements of a call whose operands and results have the type T in memory.
template <class T>
CPD_FN void operate_in(const ArithmeticCall& call) {
  const RoundPlan plan = *call.plan;
  const auto of = [](const Strided& x) { return static_cast<const T*>(x.data); };
  const auto* const random = static_cast<const uint32_t*>(call.random.data);
  auto* const out = static_cast<T*>(call.out.data);
  if constexpr (sizeof(T) == sizeof(float) && Lanes<F>::count > 1) {  // one lane may call fma()
    if (call.n >= kGroup && rounds_from_odd(plan)) {
      return operate_all_short(call.op, plan, call.first,
                               {call.n, of(call.x), of(call.y), of(call.z), random, out});
    }
  }
  with_rule<D>(plan, [&]<class R>() {
    operate_all<R>(call.op, plan, call.first, call.n, of(call.x), of(call.y), of(call.z), random,
                   out);
  });
}

/// Calls `map` with the operands and the results of `call`, which have the type T in memory.
template <class V, class T, class Of>
CPD_FN void map_call(const ArithmeticCall& call, Of of) {
  map<V>(call.n, static_cast<const T*>(call.x.data), static_cast<const T*>(call.y.data),
         static_cast<const T*>(call.z.data), static_cast<T*>(call.out.data), of);
}

}  // namespace

void to_odd(const ArithmeticCall& call) {
  with_operation<false>(call.op, [&]<Operation kOp>() {
    if (call.x.dtype == DType::f64) {
      return map_call<D, double>(
          call, [](D a, D b, D c) { return exact_operation<kOp, false>(a, b, c, false); });
    }
    map_call<F, float>(call, [](F a, F b, F c) {
      Doubt<F> doubt;
      const F odd = operation_to_odd<kOp, true>(a, b, c, doubt);
      return select(doubt.lanes(), bits_as<F>(splat<Unsigned<F>>(Pattern<F>::quiet_nan)), odd);
    });
  });
}

void arithmetic(const ArithmeticCall& call) {
  call.x.dtype == DType::f64 ? operate_in<double>(call) : operate_in<float>(call);
}

}  // namespace CPD_ISA
}  // namespace cpd
