// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cpu/cast_boxes.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"
#include "cpd/base/parallel.h"

namespace cpd {
namespace {

/// Elements of a box, whose values and integers stay in L2, and its columns: whole blocks of random
/// integers, or where rows do not begin with one, so many that few are drawn twice.
constexpr std::int64_t kBoxElements = 1 << 16, kBoxColumns = kBlock;

/// The dimension along which neighbours are neighbours in memory, or -1.
int UnitDimension(const TensorView& x) {
  for (int d = 0; d < x.rank; ++d) {
    if (x.stride[d] == 1) return d;
  }
  return -1;
}

template <class T>
Strided RowsOf(const Box& box, BoxRows<T> rows) {
  return Rows(rows.at, box.rows, box.columns, rows.stride);
}

template <class T>
void CastBoxesAs(const TensorView& x, const RoundPlan& plan, const TensorView& out,
                 const TensorView* random, const Boxes& boxes) {
  const bool streaming = x.size() >= kStreamingFrom && x.data != out.data;
  const std::int64_t serial = kSerialBelow / boxes.elements();
  if (Explains()) {
    NoteKernel("cast", {boxes.rows(), boxes.columns()});
  }
  parallel_for(boxes.size(), 1, serial, [&](std::int64_t begin, std::int64_t end) {
    BoxReader<T> reader(x);
    BoxWriter<T> writer(out);
    BoxIntegers drawn(plan);
    std::optional<BoxReader<std::uint32_t>> given;
    if (random != nullptr) given.emplace(*random);
    const auto integers = [&](const Boxes::Places& at) -> BoxRows<const std::uint32_t> {
      if (plan.mode != Rounding::stochastic) return {nullptr, 0};
      if (given) return given->Read(at.random);
      return {drawn.Read(at.index), at.index.columns};
    };
    for (std::int64_t n = begin; n < end; ++n) {
      const Boxes::Places at = boxes[n];
      Kernels().cast({.n = at.out.rows * at.out.columns,
                      .x = RowsOf(at.out, reader.Read(at.x)),
                      .random = RowsOf(at.out, integers(at)),
                      .out = RowsOf(at.out, writer.Target(at.out)),
                      .plan = &plan,
                      .streaming = streaming && writer.is_direct(at.out)});
      writer.Flush(at.out);
    }
  });
}

}  // namespace

std::optional<Boxes> Boxes::Of(const TensorView& x, const TensorView& out,
                               const TensorView* random) {
  Boxes boxes;
  boxes.x_ = x;
  boxes.out_ = out;
  boxes.random_ = random == nullptr ? x : *random;
  boxes.index_ = IndicesOf(x);
  const std::array views = {&boxes.x_, &boxes.out_, &boxes.random_, &boxes.index_};
  MergeDimensions(views);
  const int last = boxes.x_.rank - 1;
  boxes.across_ = UnitDimension(boxes.out_);
  boxes.turned_ = boxes.across_ >= 0 && boxes.across_ != last;
  if (!boxes.turned_) boxes.across_ = UnitDimension(boxes.x_);
  if (boxes.across_ < 0 || boxes.across_ == last) return std::nullopt;
  const std::int64_t height = boxes.x_.shape[boxes.across_];
  const std::int64_t width = boxes.x_.shape[last];
  const std::int64_t wanted = width % kBlock == 0 ? kBoxColumns : 2 * kBoxColumns;
  const std::int64_t least_rows = std::min(height, kBoxElements / wanted);
  boxes.columns_ = std::min(width, std::max(wanted, kBoxElements / least_rows));
  boxes.rows_ = std::min(height, kBoxElements / boxes.columns_);
  return boxes;
}

std::int64_t Boxes::size() const {
  const std::int64_t height = x_.shape[across_], width = x_.shape[x_.rank - 1];
  const std::int64_t down = (height + rows_ - 1) / rows_;
  const std::int64_t along = (width + columns_ - 1) / columns_;
  return x_.size() / (height * width) * down * along;
}

Boxes::Places Boxes::operator[](std::int64_t n) const {
  const int last = x_.rank - 1;
  const std::int64_t height = x_.shape[across_], width = x_.shape[last];
  const std::int64_t down = (height + rows_ - 1) / rows_;
  const std::int64_t along = (width + columns_ - 1) / columns_;
  std::array<std::int64_t, TensorView::kMaxRank> at{};
  at[across_] = n % down * rows_;
  n /= down;
  at[last] = n % along * columns_;
  n /= along;
  for (int d = last - 1; d >= 0; --d) {
    if (d == across_) continue;
    at[d] = n % x_.shape[d];
    n /= x_.shape[d];
  }
  const auto place = [&](const TensorView& v) {
    Box box{0, std::min(rows_, height - at[across_]), std::min(columns_, width - at[last]),
            v.stride[across_], v.stride[last]};
    for (int d = 0; d <= last; ++d) box.offset += at[d] * v.stride[d];
    if (turned_) {
      std::swap(box.rows, box.columns);
      std::swap(box.row_stride, box.column_stride);
    }
    return box;
  };
  return {place(x_), place(out_), place(random_), place(index_)};
}

void CastBoxes(const TensorView& x, const RoundPlan& plan, const TensorView& out,
               const TensorView* random, const Boxes& boxes) {
  if (x.dtype == DType::f64) return CastBoxesAs<double>(x, plan, out, random, boxes);
  CastBoxesAs<float>(x, plan, out, random, boxes);
}

}  // namespace cpd
