// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/hadamard.h"

#include "cpd/backend/explain.h"
#include "cpd/base/guarded.h"
#include "cpd/ops/call.h"
#include "cpd/ops/checks.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

void CheckArguments(const TensorView& x, const Hadamard& transform, int axis,
                    const TensorView& out) {
  Check(transform);
  CheckFloat(x, "x");
  Check(out, "out");
  if (x.dtype == DType::f64) throw Error("x must be fp32, bf16 or fp16, got fp64");
  if (out.dtype != x.dtype) {
    throw Error("out must have x's type, " + ToString(x.dtype) + ", got " + ToString(out.dtype));
  }
  if (transform.to_bf16) CheckStorage(x.dtype, MakeFormat(8, 7));
  CheckSameShape(x, out, "x and out");
  CheckSameDevice(x, out);
  if (axis < 0 || axis >= x.rank) {
    throw Error("axis must be 0…" + std::to_string(x.rank - 1) + ", got " + std::to_string(axis));
  }
  if (x.shape[axis] % transform.size != 0) {
    throw Error("the extent along axis " + std::to_string(axis) +
                " must be a multiple of the transform's size, " + std::to_string(transform.size) +
                ", got " + std::to_string(x.shape[axis]));
  }
}

}  // namespace

void Transform(const TensorView& x, const Hadamard& transform, int axis, bool inverse,
               const TensorView& out) {
  CheckArguments(x, transform, axis, out);
  if (Explains()) NotePath("hadamard", {"butterflies", ""});
  if (x.size() == 0 || Notes(x, "hadamard")) return;
  const HadamardPlan plan = Guarded([&] { return make_hadamard_plan(transform, inverse); });
  const auto firsts = [&](TensorView all) {
    all.shape[axis] /= plan.size;
    all.stride[axis] *= plan.size;
    return Merge(all);
  };
  std::int64_t inner = 1;
  for (int d = axis + 1; d < x.rank; ++d) inner *= x.shape[d];
  QueueOf(x).hadamard({.plan = &plan,
                       .groups = x.size() / plan.size,
                       .x_step = x.stride[axis],
                       .out_step = out.stride[axis],
                       .x = firsts(x),
                       .out = firsts(out),
                       .inner = inner});
}

}  // namespace cpd
