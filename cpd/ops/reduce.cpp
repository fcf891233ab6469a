// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/reduce.h"

#include "cpd/backend/roster.h"
#include "cpd/numeric/error.h"

namespace cpd {

void CheckFold(const Accumulator& accumulator, std::int64_t terms) {
  if (accumulator.rounding.mode != Rounding::stochastic) return;
  const int bits = accumulator.rounding.random_bits;
  const std::int64_t draws = bits > 16 ? 1 : bits > 8 ? 2 : 4;
  const std::int64_t per_term = accumulator.scheme == Scheme::kahan ? 4 : 1;
  const std::int64_t most = (std::int64_t{4} << 24) * draws / per_term;
  if (terms > most) {
    throw Error("a stochastic sum takes at most " + std::to_string(most) +
                " terms with these options, got " + std::to_string(terms));
  }
}

void FoldStep(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
              std::int64_t first, std::int64_t n, const float* terms, FoldState state) {
  Kernels().fold(make_fold_plan(accumulator, terms_in), k, first, n, terms, state.sum,
                 state.compensation);
}

void CastScaled(const Format& format, const RoundingOptions& options, int shift, std::int64_t first,
                std::int64_t n, const float* x, float* y) {
  const RoundPlan plan = make_plan(format, options);
  if (shift == 0) return Kernels().round_f32(plan, first, n, x, nullptr, y, false);
  Kernels().round_scaled(plan, shift, first, n, x, y);
}

}  // namespace cpd
