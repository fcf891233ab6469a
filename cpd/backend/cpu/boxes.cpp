// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cpu/boxes.h"

#include <algorithm>

#include "cpd/backend/roster.h"

namespace cpd {
namespace {

/// The number of elements of a strip (a range of whole rows), chosen so that the strip stays in the
/// last-level cache. A tensor is not divided if a strip would have more than kLargestStrip
/// elements.
constexpr std::int64_t kStripElements = std::int64_t{1} << 21, kLargestStrip = kStripElements * 2;
/// The least number of rows of a strip (a range of whole rows): as many as a cache line holds
/// binary32 values.
constexpr std::int64_t kLeastRows = 16;
/// The number of rows of random integers that are generated before they are transposed.
constexpr std::int64_t kDrawn = 64;

}  // namespace

TensorView IndicesOf(const TensorView& x) {
  return View(nullptr, DType::u8, {x.shape.data(), static_cast<std::size_t>(x.rank)});
}

const std::uint32_t* BoxIntegers::Read(const Box& box) {
  std::uint32_t* all = Sized(all_, box.rows * box.columns);
  if (box.column_stride == 1) {
    DrawRows(box.offset, box.rows, box.columns, box.row_stride, all, box.columns);
    return all;
  }
  const std::int64_t stride = box.rows + (box.rows % kBlock == 0 ? kRowGap : 0);
  std::uint32_t* drawn = Sized(drawn_, std::min(kDrawn, box.columns) * stride);
  for (std::int64_t c = 0; c < box.columns; c += kDrawn) {
    const std::int64_t columns = std::min(kDrawn, box.columns - c);
    DrawRows(box.offset + c * box.column_stride, columns, box.rows, box.column_stride, drawn,
             stride);
    Kernels().transpose(columns, box.rows, drawn, stride, all + c, box.columns);
  }
  return all;
}

void BoxIntegers::DrawRows(std::int64_t first, std::int64_t rows, std::int64_t columns,
                           std::int64_t apart, std::uint32_t* to, std::int64_t to_stride) const {
  if (apart == columns && to_stride == columns) {
    return DrawIntegers(plan_, first, rows * columns, to);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    DrawIntegers(plan_, first + r * apart, columns, to + r * to_stride);
  }
}

Strips::Strips(const TensorView& x, std::int64_t wanted, std::int64_t multiple) : x_(x) {
  if (x.rank < 2) return;
  TensorView* const views[] = {&x_};
  MergeDimensions(views);
  if (x_.rank < 2 || x_.stride[x_.rank - 2] != 1 || x_.stride[x_.rank - 1] == 1) return;
  const std::int64_t width = x_.shape[x_.rank - 1];
  const std::int64_t rows = std::max(kLeastRows, std::min(wanted, kStripElements / width));
  const std::int64_t whole = std::max<std::int64_t>(1, rows / multiple) * multiple;
  if (std::min(whole, x_.shape[x_.rank - 2]) * width <= kLargestStrip) rows_ = whole;
}

Box Strips::box_at(std::int64_t element, std::int64_t rows, std::int64_t columns) const {
  Box box{0, rows, columns, 1, x_.stride[x_.rank - 1]};
  for (int d = x_.rank - 1; d >= 0; --d) {
    box.offset += element % x_.shape[d] * x_.stride[d];
    element /= x_.shape[d];
  }
  return box;
}

Strips::Strip Strips::of(std::int64_t element) const {
  const std::int64_t height = x_.shape[x_.rank - 2], width = x_.shape[x_.rank - 1];
  const std::int64_t row = element / width % height;
  const std::int64_t first = row - row % rows_;
  const std::int64_t rows = std::min(rows_, height - first);
  const std::int64_t begin = element - element % width - (row - first) * width;
  return {begin, rows * width, box_at(begin, rows, width)};
}

}  // namespace cpd
