// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/hadamard.h"

#include <algorithm>
#include <vector>

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/cuda.h"
#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"
#include "cpd/base/guarded.h"
#include "cpd/base/parallel.h"
#include "cpd/ops/checks.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// The tensors of a transform as row-major blocks of plan.size rows of `inner` values; each column
/// of a block is a group.
struct Blocks {
  const HadamardPlan& plan;
  const TensorView& x;
  const TensorView& out;
  std::int64_t inner;

  [[nodiscard]] std::int64_t size() const { return plan.size * inner; }
  [[nodiscard]] std::int64_t count() const { return x.size() / size(); }
};

/// Transforms of `groups` rows of `count` columns, `stride` apart; contiguous groups if that is 1.
HadamardCall CallOf(const HadamardPlan& plan, std::int64_t groups, std::int64_t count,
                    std::int64_t stride, const float* x, float* y, bool streaming = false) {
  const auto firsts = [&](const float* data) {
    return stride == 1 ? Contiguous(data) : Rows(data, groups, count, plan.size * stride);
  };
  return {.plan = &plan,
          .groups = stride == 1 ? groups : groups * count,
          .x_step = stride,
          .out_step = stride,
          .x = firsts(x),
          .out = firsts(y),
          .streaming = streaming};
}

/// Transforms blocks that fit the staging buffer.
void TransformWhole(const Blocks& blocks) {
  const std::int64_t size = blocks.size();
  const std::int64_t staged = kStage / size * size;
  const bool streaming = blocks.x.size() >= kStreamingFrom && blocks.x.data != blocks.out.data;
  if (Explains()) NoteKernel("hadamard", {blocks.plan.size, blocks.inner});
  parallel_for(blocks.x.size(), staged, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Reader<float> reader(blocks.x);
    Writer<float> writer(blocks.out);
    const bool direct = reader.is_direct() && writer.is_direct();
    const std::int64_t step = direct ? end - begin : staged;
    for (std::int64_t i = begin; i < end; i += step) {
      const std::int64_t n = std::min(step, end - i);
      Kernels().hadamard(CallOf(blocks.plan, n / size, blocks.inner, blocks.inner,
                                reader.Read(i, n), writer.Target(i, n), streaming && direct));
      writer.Flush(i, n);
    }
  });
}

/// Transforms n <= kStage / plan.size columns from row-major element `first` on, whose rows are
/// staged one by one.
void TransformStaged(const Blocks& blocks, std::int64_t first, std::int64_t n,
                     Reader<float>& reader, Writer<float>& writer, float* tile) {
  for (std::int64_t k = 0; k < blocks.plan.size; ++k) {
    std::copy_n(reader.Read(first + k * blocks.inner, n), n, tile + k * n);
  }
  Kernels().hadamard(CallOf(blocks.plan, 1, n, n, tile, tile));
  for (std::int64_t k = 0; k < blocks.plan.size; ++k) {
    std::copy_n(tile + k * n, n, writer.Target(first + k * blocks.inner, n));
    writer.Flush(first + k * blocks.inner, n);
  }
}

/// Transforms blocks larger than the staging buffer, some columns at a time.
void TransformColumns(const Blocks& blocks) {
  const std::int64_t most = kStage / blocks.plan.size;
  const std::int64_t tiles = (blocks.inner + most - 1) / most;
  if (Explains()) NoteKernel("hadamard", {blocks.plan.size, most});
  const auto transform = [&](std::int64_t begin, std::int64_t end) {
    Reader<float> reader(blocks.x);
    Writer<float> writer(blocks.out);
    const bool direct = reader.is_direct() && writer.is_direct();
    std::vector<float> tile(direct ? 0 : kStage);
    for (std::int64_t i = begin / kStage; i < end / kStage; ++i) {
      const std::int64_t column = i % tiles * most;
      const std::int64_t first = i / tiles * blocks.size() + column;
      const std::int64_t n = std::min(most, blocks.inner - column);
      if (direct) {
        Kernels().hadamard(CallOf(blocks.plan, 1, n, blocks.inner, reader.Read(first, n),
                                  writer.Target(first, n)));
      } else {
        TransformStaged(blocks, first, n, reader, writer, tile.data());
      }
    }
  };
  parallel_for(blocks.count() * tiles * kStage, kStage, kSerialBelow, transform);
}

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
  if (x.size() == 0) return;
  const HadamardPlan plan = Guarded([&] { return make_hadamard_plan(transform, inverse); });
  if (!x.on_host()) return cuda::Transform(x, plan, axis, out);
  Blocks blocks{plan, x, out, 1};
  for (int d = axis + 1; d < x.rank; ++d) blocks.inner *= x.shape[d];
  blocks.size() <= kStage ? TransformWhole(blocks) : TransformColumns(blocks);
}

}  // namespace cpd
