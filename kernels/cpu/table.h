// SPDX-License-Identifier: Apache-2.0
//
// Declarations shared by the source files of one ISA: the lane types, the kernels (operations.def)
// and the kernels' entries. Do not include the standard library here: the linker could use an
// inline function that was compiled with ISA flags for other objects too.
#pragma once

#include "cpd/backend/kernel_table.h"
#include "cpd/numeric/lanes/environment.h"
#include "cpd/numeric/lanes/lanes.h"
#include "cpd/numeric/round/round.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/gemm_plan.h"

namespace cpd {
inline namespace CPD_ISA {

#if defined(__AVX512F__)
using F = F32x16;
using D = F64x8;
constexpr int kRegisters = 32;
constexpr int kGemmRows = 8;
constexpr int kGemmColumns = 32;
#elif defined(__AVX2__)
using F = F32x8;
using D = F64x4;
constexpr int kRegisters = 16;
constexpr int kGemmRows = 8;
constexpr int kGemmColumns = 16;
#elif defined(CPD_NEON)
using F = F32x4;
using D = F64x2;
constexpr int kRegisters = 32;
constexpr int kGemmRows = 4;
constexpr int kGemmColumns = 16;
#else
using F = float;
using D = double;
constexpr int kRegisters = 16;
constexpr int kGemmRows = 4;
constexpr int kGemmColumns = 16;
#endif

#define CPD_BODY __attribute__((noinline))  // computed between the environment's set and restore

/// The number of kernel calls since the program started.
extern std::uint64_t g_calls;

/// The entry of a kernel: counts the call and runs the kernel in the default floating-point
/// environment.
template <auto kKernel>
struct Entry;
template <class Result, class... Args, Result (*kKernel)(Args...)>
struct Entry<kKernel> {
  static Result Run(Args... args) {
    __atomic_fetch_add(&g_calls, 1, __ATOMIC_RELAXED);
    const Environment environment;
    return kKernel(args...);
  }
};

CPD_FN constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Selects the rounding rule of a plan that does not round to nearest-even or stochastically, and
/// passes it to `run` as a template argument. Rounding by an addition has one rule for each mode,
/// so that no loop branches on the mode; other forms share the rule kOtherMode.
template <class Run>
CPD_FN void with_other_form(const RoundPlan& plan, Run run) {
  constexpr Form kForm = Form::addition;
  if (plan.form != kForm) return with_form<kOtherMode>(plan.form, run);
  if (plan.mode == Rounding::up) return run.template operator()<Rule<Rounding::up, kForm>>();
  if (plan.mode == Rounding::down) return run.template operator()<Rule<Rounding::down, kForm>>();
  run.template operator()<Rule<Rounding::toward_zero, kForm>>();
}

/// Selects the plan's rounding rule for lanes V, and passes it to `run` as a template argument:
/// run.operator()<Rule<…>>(). The form of a rule for binary64 lanes is Form::simple or
/// Form::general.
template <class V, class Run>
CPD_FN void with_rule(const RoundPlan& plan, Run run) {
  with_mode(plan.mode, [&]<Rounding mode>() {
    if constexpr (Lanes<V>::mantissa == 23 && mode == kOtherMode) {
      with_other_form(plan, run);
    } else if constexpr (Lanes<V>::mantissa == 23) {
      with_form<mode>(plan.form, run);
    } else if (mode != kOtherMode && is_simple(plan.form)) {
      run.template operator()<Rule<mode, Form::simple>>();
    } else {
      run.template operator()<Rule<mode, Form::general>>();
    }
  });
}

template <class T>
CPD_FN void copy(T* to, const T* from, std::int64_t n) {
  __builtin_memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
}

/// Calls whole(i) for each full group of V's lanes, then rest(i, count) once if count < lanes
/// elements remain.
template <class V, class Whole, class Rest>
CPD_FN void for_lanes(std::int64_t n, Whole whole, Rest rest) {
  constexpr int kLanes = Lanes<V>::count;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) whole(i);
  if (i < n) rest(i, n - i);
}

/// load_value loads V's lanes from binary32, binary64 or bf16 memory. store_value stores V's lanes
/// to such memory.
template <class V>
CPD_FN V load_value(const float* x) {
  return load_f32<V>(x);
}
template <class V>
CPD_FN V load_value(const double* x) {
  return load<V>(x);
}
template <class V>
CPD_FN void store_value(float* y, V v) {
  store_f32(y, v);
}
template <class V>
CPD_FN void store_value(double* y, V v) {
  store(y, v);
}

/// A bf16 value in memory: the upper 16 bits of a binary32 number.
struct Bf16 {
  std::uint16_t half;
};

template <class V>
CPD_FN V load_value(const Bf16* x) {
  using U = Unsigned<V>;
  if constexpr (Lanes<V>::count == 1) {
    return bits_as<V>(static_cast<U>(x->half) << 16);
  } else {
    return bits_as<V>(load_halves<U>(reinterpret_cast<const std::uint8_t*>(x)) << 16);
  }
}
/// Stores values that bf16 represents exactly: cuts off the lower 16 bits.
template <class V>
CPD_FN void store_value(Bf16* y, V v) {
  const auto half = bits_as<Unsigned<V>>(v) >> 16;
  if constexpr (Lanes<V>::count == 1) {
    y->half = static_cast<std::uint16_t>(half);
  } else {
    store_halves(reinterpret_cast<std::uint8_t*>(y), half);
  }
}

/// Declares the kernels and the functions that choose their paths, under the names of KernelTable's
/// members.
#define CPD_CPU(Result, name, ...) CPD_BODY Result name(__VA_ARGS__);
#define CPD_CPU_PATH(Result, name, ...) Result name(__VA_ARGS__);
#include "cpd/backend/operations.def"

}  // namespace CPD_ISA
}  // namespace cpd
