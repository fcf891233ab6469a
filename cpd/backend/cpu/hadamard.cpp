// SPDX-License-Identifier: Apache-2.0
//
// Hadamard transforms of row-major blocks. A block has plan.size rows of `inner` values, and each
// column of a block is a group.
#include <algorithm>
#include <vector>

#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"

namespace cpd::cpu {
namespace {

/// Returns a view of all elements of the call's input or output. `firsts` is a view of only the
/// first element of each group. The elements of a group are `step` apart in memory.
Strided WholeOf(const HadamardCall& call, const Strided& firsts, std::int64_t step) {
  Strided all;
  all.data = firsts.data;
  all.dtype = firsts.dtype;
  const std::int64_t size = call.plan->size;
  if (call.inner == 1 && firsts.rank == 1 &&
      (firsts.shape[0] == 1 || firsts.stride[0] == size * step)) {
    all.shape[0] = firsts.shape[0] * size;
    all.stride[0] = step;
    return all;
  }
  all.rank = 0;
  const auto put = [&](std::int64_t extent, std::int64_t stride) {  // from the last one on
    if (extent == 1) return;
    const int last = all.rank - 1;
    const bool even = last >= 0 && stride == all.stride[last] * all.shape[last];
    if (even) {
      all.shape[last] *= extent;
    } else {
      all.shape[all.rank] = extent;
      all.stride[all.rank++] = stride;
    }
  };
  std::int64_t left = call.inner;
  if (left == 1) put(size, step);
  for (int d = firsts.rank - 1; d >= 0; --d) {
    const std::int64_t within = std::min(firsts.shape[d], left);
    put(within, firsts.stride[d]);
    if (left > 1 && within == left) put(size, step);
    left /= within;
    put(firsts.shape[d] / within, firsts.stride[d] * within);
  }
  std::reverse(all.shape, all.shape + all.rank);
  std::reverse(all.stride, all.stride + all.rank);
  return all;
}

struct Blocks {
  explicit Blocks(const HadamardCall& call)
      : plan(*call.plan),
        x(WholeOf(call, call.x, call.x_step)),
        out(WholeOf(call, call.out, call.out_step)),
        inner(call.inner),
        elements(call.groups * call.plan->size) {}

  [[nodiscard]] std::int64_t size() const { return plan.size * inner; }
  [[nodiscard]] std::int64_t count() const { return elements / size(); }

  const HadamardPlan& plan;
  Strided x, out;
  std::int64_t inner, elements;
};

/// Returns the kernel's arguments for the Hadamard transforms of `groups` blocks. A block has
/// plan.size rows of `count` columns; its rows are `stride` apart. With stride 1 a block is one
/// contiguous group.
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

/// Computes the Hadamard transforms of blocks that fit into the staging buffer (kStage values).
void TransformWhole(const Blocks& blocks) {
  const std::int64_t size = blocks.size();
  const std::int64_t staged = kStage / size * size;
  const bool streaming = blocks.elements >= kStreamingFrom && blocks.x.data != blocks.out.data;
  if (Explains()) NoteKernel("hadamard", {blocks.plan.size, blocks.inner});
  parallel_for(blocks.elements, staged, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Reader<float> reader(blocks.x);
    Writer<float> writer(blocks.out);
    const bool direct = reader.is_direct() && writer.is_direct();
    ForRanges(begin, end, direct ? end - begin : staged, [&](std::int64_t i, std::int64_t n) {
      Kernels().hadamard(CallOf(blocks.plan, n / size, blocks.inner, blocks.inner,
                                reader.Read(i, n), writer.Target(i, n), streaming && direct));
      writer.Flush(i, n);
    });
  });
}

/// Computes the Hadamard transforms of n <= kStage / plan.size columns of a block, from row-major
/// element `first` on. Rows of n values are copied to `tile`, the staging buffer, one by one.
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

/// Computes the Hadamard transforms of blocks larger than the staging buffer (kStage values), a few
/// columns at a time.
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

}  // namespace

int hadamard(const Launch& /*launch*/, const HadamardCall& call) {
  const Blocks blocks(call);
  blocks.size() <= kStage ? TransformWhole(blocks) : TransformColumns(blocks);
  return 0;
}

}  // namespace cpd::cpu
