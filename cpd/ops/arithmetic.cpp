// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/arithmetic.h"

#include <algorithm>

#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"
#include "cpd/base/plans.h"
#include "cpd/ops/call.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/exact.h"
#include "cpd/ops/reduce.h"
#include "cpd/spec/error.h"
#include "cpd/spec/wide_format.h"

namespace cpd {
namespace {

/// Returns whether a kernel computes the operation for these operands.
bool HasKernel(Operation op, const Operands& in, const Format& format) {
  if (is_wide(format) || op == Operation::cast) return false;
  const bool has_remainder = op == Operation::div || op == Operation::sqrt;
  return !has_remainder || !in.has(DType::f64);
}

void CheckElementwise(const Operands& in, const Format& format, const RoundingOptions& options,
                      const TensorView& out, const RandomKey& key, const TensorView* random) {
  CheckOperands(in);
  Check(out, "out");
  CheckStorage(out.dtype, format);
  CheckSameShape(in.x, out, "x and out");
  CheckSameDevice(in.x, out);
  CheckRandom(random, out, options, key);
}

void Operate(soft::Operation op, const Operands& in, const Format& format,
             const RoundingOptions& options, const TensorView& out, const RandomKey& key,
             const TensorView* random) {
  CheckElementwise(in, format, options, out, key, random);
  if (!HasKernel(op, in, format)) return Compute(op, in, format, options, out, key, random);
  const RoundPlan plan = PlanOf(format, options, key);
  if (Explains()) {
    NotePath(ToString(op).c_str(), PathOf(format, options, in.has(DType::f64)));
  }
  if (out.size() == 0 || Notes(out, "arithmetic")) return;
  QueueOf(out).arithmetic({.op = op,
                           .n = out.size(),
                           .x = Merge(in.x),
                           .y = Merge(in.y),
                           .z = Merge(in.z),
                           .random = Merge(random),
                           .out = Merge(out),
                           .plan = &plan,
                           .key = KeyOf(options, key)});
}

/// Returns a view of the first term of each sum over `dim`.
TensorView FirstTerms(const TensorView& x, int dim) {
  TensorView first = x;
  std::copy(x.shape.begin() + dim + 1, x.shape.end(), first.shape.begin() + dim);
  std::copy(x.stride.begin() + dim + 1, x.stride.end(), first.stride.begin() + dim);
  --first.rank;
  return first;
}

void NotePathOfSum(const TensorView& x, const Accumulator& accumulator, bool given) {
  if (accumulator.fixed) {
    return NotePath("sum", PathOfTerms(accumulator, FastPath::none, 1, false));
  }
  if (!x.on_host()) {
    return NotePath("sum", {"general", NameOf(x) + "'s sums of terms have no fast path"});
  }
  if (x.dtype == DType::f64) {
    return NotePath("sum", {"general", "terms of binary64 have no fast path"});
  }
  const KernelTable& kernels = Kernels();
  const FastPath path = kernels.fold_path(TermsPlanOf(accumulator, kFp32), given);
  NotePath("sum", PathOfTerms(accumulator, path, kernels.lanes, given));
}

}  // namespace

void Add(const TensorView& x, const TensorView& y, const Format& format,
         const RoundingOptions& options, const TensorView& out, const RandomKey& key,
         const TensorView* random) {
  Operate(soft::Operation::add, {x, &y}, format, options, out, key, random);
}
void Mul(const TensorView& x, const TensorView& y, const Format& format,
         const RoundingOptions& options, const TensorView& out, const RandomKey& key,
         const TensorView* random) {
  Operate(soft::Operation::mul, {x, &y}, format, options, out, key, random);
}
void Fma(const TensorView& x, const TensorView& y, const TensorView& z, const Format& format,
         const RoundingOptions& options, const TensorView& out, const RandomKey& key,
         const TensorView* random) {
  Operate(soft::Operation::fma, {x, &y, &z}, format, options, out, key, random);
}
void Div(const TensorView& x, const TensorView& y, const Format& format,
         const RoundingOptions& options, const TensorView& out, const RandomKey& key,
         const TensorView* random) {
  Operate(soft::Operation::div, {x, &y}, format, options, out, key, random);
}
void Sqrt(const TensorView& x, const Format& format, const RoundingOptions& options,
          const TensorView& out, const RandomKey& key, const TensorView* random) {
  Operate(soft::Operation::sqrt, {x}, format, options, out, key, random);
}

void Sum(const TensorView& x, int dim, const Accumulator& accumulator, const TensorView& out,
         const RandomKey& key, const TensorView* random) {
  CheckFloat(x, "x");
  if (dim < 0 || dim >= x.rank) {
    throw Error("dim must be 0…" + std::to_string(x.rank - 1) + ", got " + std::to_string(dim));
  }
  Check(out, "out");
  CheckStorage(out.dtype, accumulator.format);
  const TensorView first = FirstTerms(x, dim);
  CheckSameShape(first, out, "x without dim and out");
  CheckSameDevice(x, out);
  const std::int64_t terms = x.shape[dim];
  accumulator.fixed ? Check(accumulator) : CheckFold(accumulator, terms);
  CheckKey(key, x);
  const std::int64_t draws = DrawsOfSum(accumulator, terms);
  CheckDraws(random, out, draws, accumulator.rounding);
  if (Explains()) NotePathOfSum(x, accumulator, random != nullptr);
  if (out.size() == 0 || Notes(x, accumulator.fixed ? "sum_fixed" : "sum")) return;
  if (accumulator.fixed) {
    return QueueOf(x).sum_fixed({.plan = AccumulatorPlanOf(accumulator, terms).fixed,
                                 .n = out.size(),
                                 .terms = terms,
                                 .step = x.stride[dim],
                                 .x = Merge(first),
                                 .out = Merge(out)});
  }
  const GivenIntegers integers(random, draws);
  QueueOf(x).sum({.plan = {.order = sum_order(accumulator),
                           .terms = TermsPlanOf(accumulator, kFp32, key),
                           .sums = SumsPlanOf(accumulator, key),
                           .result = {}},
                  .n = out.size(),
                  .terms = terms,
                  .step = x.stride[dim],
                  .x = Merge(first),
                  .out = Merge(out),
                  .empty = PlanOf(accumulator.format),
                  .key = KeyOf(accumulator.rounding, key),
                  .random = integers.draws()});
}

}  // namespace cpd
