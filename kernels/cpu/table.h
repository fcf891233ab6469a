// SPDX-License-Identifier: Apache-2.0
//
// Declarations that the files of one ISA share: its lane types, the entry of a kernel, and the
// functions of which table.cpp makes the table. No standard library: the linker could choose an
// inline function compiled with ISA flags for other objects.
#pragma once

#include "cpd/base/kernel_table.h"
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

/// Kernel calls since the program started.
extern std::uint64_t g_calls;

/// Every kernel's entry: counts the call and runs its body in the default environment.
template <auto kBody, class... Args>
CPD_FN auto enter(Args... args) {
  __atomic_fetch_add(&g_calls, 1, __ATOMIC_RELAXED);
  const Environment environment;
  return kBody(args...);
}

CPD_FN constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// with_form for the modes that a plan holds at run time. Directed additions have a rule for each
/// mode, so that no loop asks for it.
template <class Run>
CPD_FN void with_other_form(const RoundPlan& plan, Run run) {
  constexpr Form kForm = Form::addition;
  if (plan.form != kForm) return with_form<kOtherMode>(plan.form, run);
  if (plan.mode == Rounding::up) return run.template operator()<Rule<Rounding::up, kForm>>();
  if (plan.mode == Rounding::down) return run.template operator()<Rule<Rounding::down, kForm>>();
  run.template operator()<Rule<Rounding::toward_zero, kForm>>();
}

/// Calls run.operator()<Rule<…>>() with the plan's rule for V. Binary64 lanes have no shorter form
/// than `simple`.
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

/// Calls run(i, count) for whole groups of V's lanes and once for the rest, count < lanes.
template <class V, class Whole, class Rest>
CPD_FN void for_lanes(std::int64_t n, Whole whole, Rest rest) {
  constexpr int kLanes = Lanes<V>::count;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) whole(i);
  if (i < n) rest(i, n - i);
}

/// load_value: V's lanes from binary32, binary64 or bf16 memory; store_value: to it.
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

/// A bf16 value in memory, the upper half of a binary32 one.
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
/// Stores values that bf16 holds.
template <class V>
CPD_FN void store_value(Bf16* y, V v) {
  const auto half = bits_as<Unsigned<V>>(v) >> 16;
  if constexpr (Lanes<V>::count == 1) {
    y->half = static_cast<std::uint16_t>(half);
  } else {
    store_halves(reinterpret_cast<std::uint8_t*>(y), half);
  }
}

/// KernelTable's members of these names.
void round_f32(const RoundPlan& plan, std::int64_t first, std::int64_t n, const float* x,
               const std::uint32_t* random, float* y, bool streaming);
void round_f64(const RoundPlan& plan, std::int64_t first, std::int64_t n, const double* x,
               const std::uint32_t* random, double* y);
void round_rows(const RoundPlan& plan, std::int64_t rows, std::int64_t n, const float* x,
                std::int64_t x_stride, const std::uint32_t* random, std::int64_t random_stride,
                float* y, std::int64_t y_stride, bool streaming);
bool flags_f32(const FlagLimits<float>& limits, std::int64_t n, const float* x, const float* y,
               std::uint8_t* raised);
bool flags_f64(const FlagLimits<double>& limits, std::int64_t n, const double* x, const double* y,
               std::uint8_t* raised);
void round_bf16(const RoundPlan& plan, std::int64_t first, std::int64_t n, const std::uint16_t* x,
                const std::uint32_t* random, std::uint16_t* y);
void widen_bf16(std::int64_t n, const std::uint16_t* x, float* y);
void round_scaled(const RoundPlan& plan, int shift, std::int64_t first, std::int64_t n,
                  const float* x, const std::uint32_t* random, float* y, bool streaming);
std::int64_t encode_f32(const RoundPlan& plan, int shift, std::int64_t first, std::int64_t n,
                        const float* x, const std::uint32_t* random, std::uint8_t* packed,
                        bool streaming);
std::int64_t encode_f64(const RoundPlan& plan, std::int64_t first, std::int64_t n, const double* x,
                        const std::uint32_t* random, std::uint8_t* packed);
void decode_f32(const RoundPlan& plan, std::int64_t n, const std::uint8_t* packed, float* y,
                bool streaming);
void decode_scaled(const RoundPlan& plan, int shift, float divisor, std::int64_t n,
                   const std::uint8_t* packed, float* y, bool streaming);
void arithmetic(Operation op, const RoundPlan& plan, std::int64_t first, std::int64_t n,
                const float* x, const float* y, const float* z, const std::uint32_t* random,
                float* out);
void arithmetic_f64(Operation op, const RoundPlan& plan, std::int64_t first, std::int64_t n,
                    const double* x, const double* y, const double* z, const std::uint32_t* random,
                    double* out);
void to_odd_f32(Operation op, std::int64_t n, const float* x, const float* y, const float* z,
                float* out);
void to_odd_f64(Operation op, std::int64_t n, const double* x, const double* y, const double* z,
                double* out);
float max_abs(std::int64_t n, const float* x, std::int64_t* non_finite);
std::int64_t find_large(std::uint32_t mask, std::uint32_t least, std::int64_t n, const float* x,
                        const float* r, float* y, std::uint32_t* places);
void random_integers(int bits, std::uint64_t seed, std::uint64_t stream, std::int64_t first,
                     std::int64_t n, std::uint32_t* out);
void pack(std::int64_t lines, std::int64_t count, const float* x, std::int64_t line_stride,
          std::int64_t k_stride, int width, int least_bits_within, float* packed, PanelRange* range,
          std::int32_t* logs);
void gemm(const GemmPlan& plan, const GemmBlock& block);
GemmPath gemm_path(const GemmPlan& plan, bool given);
void block_fma(const BlockFmaPlan& plan, const GemmBlock& block);
void fixed(const FixedPlan& plan, const GemmBlock& block);
void add_scaled_sums(std::int64_t rows, std::int64_t columns, std::int64_t stride,
                     const float* a_scale, const float* b_scale, float* sum, float* total);
void fold(const FoldPlan& plan, bool starts, std::int64_t draw, std::int64_t first, std::int64_t n,
          std::int64_t count, const float* const* terms, float* sum, float* compensation,
          GivenDraws given);
void fold_f64(const FoldPlan& plan, bool starts, std::int64_t draw, std::int64_t first,
              std::int64_t n, std::int64_t count, const double* const* terms, double* sum,
              double* compensation, GivenDraws given);
Split fold_path(const FoldPlan& plan, bool given);
void transpose(std::int64_t rows, std::int64_t columns, const std::uint32_t* from,
               std::int64_t from_stride, std::uint32_t* to, std::int64_t to_stride);
void hadamard(const HadamardPlan& plan, std::int64_t groups, std::int64_t count,
              std::int64_t stride, const float* x, float* y, bool streaming);
void block_max(bool with_nan, std::int64_t run, std::int64_t n, const float* x, float* largest);
void column_max(bool with_nan, std::int64_t rows, std::int64_t stride, std::int64_t n,
                const float* x, float* largest);
void outer_scales(const ScaledPlan& plan, std::int64_t n, const float* largest, float* scale,
                  float* encode);
bool block_scales(const ScaledPlan& plan, ElementRoute route, double share, std::int64_t n,
                  const float* largest, const float* outer, const float* encode, float* scale,
                  float* by, float* decode);
bool given_scales(const ScaledPlan& plan, ElementRoute route, std::int64_t n, const float* scale,
                  const float* outer, float* by);
void spread(std::int64_t run, std::int64_t n, const float* each, float* all);
void round_blocks(const ScaledPlan& plan, ElementRoute route, const ScaledRun& run, float* y,
                  std::int64_t y_stride, bool streaming);
bool round_blocks_bf16(const ScaledPlan& plan, ElementRoute route, const ScaledRun& run,
                       std::uint16_t* y, std::int64_t y_stride);
std::int64_t cast_power_blocks(const PowerBlocks& blocks, const PowerRun& run);
void encode_blocks(const ScaledPlan& plan, ElementRoute route, const ScaledRun& run,
                   std::uint8_t* packed, bool streaming);
void scale_blocks(bool wide, const ScaledRun& run, float* y);
void encode_levels(const LevelPlan& plan, std::int64_t first, std::int64_t before, std::int64_t n,
                   const float* x, const float* norms, const std::uint32_t* random,
                   std::uint8_t* packed);
void decode_levels(const LevelPlan& plan, int shift, float divisor, std::int64_t before,
                   std::int64_t n, const std::uint8_t* packed, const float* norms, float* y);
void moments(std::int64_t n, const float* x, double mean, Moments* result);
void one_bit_means(const OneBitRun& run, const float* x, const float* residual, float* means);
void one_bit_encode(const OneBitRun& run, const float* x, const float* residual, const float* means,
                    std::uint8_t* bits, float* next);
void one_bit_decode(const OneBitRun& run, const std::uint8_t* bits, const float* means, float* y);
std::uint32_t crc32c(std::uint32_t crc, std::int64_t n, const std::uint8_t* data);

}  // namespace CPD_ISA
}  // namespace cpd
