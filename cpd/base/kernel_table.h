// SPDX-License-Identifier: Apache-2.0
//
// What a CPU backend provides: loops over contiguous memory, compiled once per ISA. They decide
// nothing: every rounding is numeric/'s, every choice is in the plan. They neither allocate nor
// throw. `first` is the row-major index of element 0, which random bits depend on; it is a multiple
// of kBlock. A stochastic plan takes its integers from `random`, or, where that is null, from its
// seed and stream.
#pragma once

#include <cstdint>

#include "cpd/numeric/plan.h"

namespace cpd {

/// Elements after which codes of any width end on a byte and random words start afresh.
constexpr std::int64_t kBlock = 256;

enum class Operation : std::uint8_t { add, mul, fma };

struct KernelTable {
  const char* name;
  int lanes;
  /// Kernel calls since the program started.
  std::uint64_t (*calls)();

  /// y[i] = round(x[i]); y may be x. `streaming`: y is not needed in cache.
  void (*round_f32)(const RoundPlan& plan, std::int64_t first, std::int64_t n, const float* x,
                    const std::uint32_t* random, float* y, bool streaming);
  void (*round_f64)(const RoundPlan& plan, std::int64_t first, std::int64_t n, const double* x,
                    const std::uint32_t* random, double* y);
  /// y[i] = round(x[i] * 2^shift).
  void (*round_scaled)(const RoundPlan& plan, int shift, std::int64_t first, std::int64_t n,
                       const float* x, float* y);

  /// Rounds and packs. Returns the least i whose NaN has no code, or -1.
  std::int64_t (*encode_f32)(const RoundPlan& plan, std::int64_t first, std::int64_t n,
                             const float* x, const std::uint32_t* random, std::uint8_t* packed,
                             bool streaming);
  std::int64_t (*encode_f64)(const RoundPlan& plan, std::int64_t first, std::int64_t n,
                             const double* x, const std::uint32_t* random, std::uint8_t* packed);
  void (*decode_f32)(const RoundPlan& plan, std::int64_t n, const std::uint8_t* packed, float* y,
                     bool streaming);

  /// out[i] = round(x[i] op y[i] (+ z[i])); z only for fma.
  void (*arithmetic)(Operation op, const RoundPlan& plan, std::int64_t first, std::int64_t n,
                     const float* x, const float* y, const float* z, float* out);
  /// One term of an ordered sum per element: FoldStep in ops/reduce.h.
  void (*fold)(const FoldPlan& plan, std::int64_t k, std::int64_t first, std::int64_t n,
               const float* terms, float* sum, float* compensation);
  /// Largest finite |x[i]|; adds the number of NaN and Inf to *non_finite.
  float (*max_abs)(std::int64_t n, const float* x, std::int64_t* non_finite);

  void (*random_integers)(int random_bits, std::uint64_t seed, std::uint64_t stream,
                          std::int64_t first, std::int64_t n, std::uint32_t* out);
};

}  // namespace cpd
