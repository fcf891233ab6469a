// SPDX-License-Identifier: Apache-2.0
//
// Boxes (two-dimensional ranges) of tensors that are contiguous along one dimension while their
// elements are processed along another dimension. With boxes, neither memory nor random integers
// are accessed element by element.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/base/tensor.h"
#include "cpd/export.h"
#include "cpd/numeric/round/round_plan.h"

namespace cpd {

/// Returns a view without memory, with x's shape and row-major strides. In this view, the offset of
/// an element from the start is the element's row-major index.
TensorView IndicesOf(const TensorView& x);

/// The random integers that a stochastic plan uses for the elements of boxes. In these boxes, an
/// element's offset (Box) is its row-major index in the tensor.
class CPD_API BoxIntegers {
 public:
  explicit BoxIntegers(const RoundPlan& plan) : plan_(plan) {}
  /// Returns the random integers of a box's elements, row by row and without gaps. They are valid
  /// until the next call. Row-major indices must ascend by 1 within the box's rows, or within its
  /// columns.
  const std::uint32_t* Read(const Box& box);

 private:
  /// Generates the random integers of rows x columns elements and writes them to `to`. An element's
  /// row-major index is first + row * apart + column.
  void DrawRows(std::int64_t first, std::int64_t rows, std::int64_t columns, std::int64_t apart,
                std::uint32_t* to, std::int64_t to_stride) const;

  RoundPlan plan_;
  std::vector<std::uint32_t> drawn_, all_;
};

/// Divides a tensor that is contiguous along its second to last dimension into strips. (Evenly
/// strided dimensions count as one dimension.) A strip has up to `rows` indices of that dimension
/// and all indices of the last. The elements of a strip are consecutive in row-major order.
class CPD_API Strips {
 public:
  /// `wanted`: the number of rows of a strip (a range of whole rows). A strip has fewer rows if
  /// `wanted` rows would not fit the last-level cache. The number of rows is a multiple of
  /// `multiple`.
  Strips(const TensorView& x, std::int64_t wanted, std::int64_t multiple);
  /// Returns whether the tensor can be divided into strips (ranges of whole rows).
  [[nodiscard]] bool fit() const { return rows_ > 0; }
  /// Returns whether the tensor can be divided into strips (ranges of whole rows) and its last two
  /// dimensions are height x width.
  [[nodiscard]] bool have(std::int64_t height, std::int64_t width) const {
    return fit() && x_.shape[x_.rank - 2] == height && x_.shape[x_.rank - 1] == width;
  }

  struct Strip {
    std::int64_t begin = 0, size = 0;
    Box box;
  };
  /// Returns the strip (range of whole rows) that contains the element with this row-major index.
  [[nodiscard]] Strip of(std::int64_t element) const;
  /// Returns the box of `rows` x `columns` elements whose first element has row-major index
  /// `element`.
  [[nodiscard]] Box box_at(std::int64_t element, std::int64_t rows, std::int64_t columns) const;

 private:
  TensorView x_;
  std::int64_t rows_ = 0;
};

/// Reads ranges of elements strip by strip (a strip is a range of whole rows), and stores the strip
/// that was read last. Read(source, begin, n, buffer) returns elements begin … begin + n - 1: in
/// the stored strip if it has all of them, and otherwise copied to the buffer. source(box) must
/// return a strip's elements.
template <class T>
class StripReader {
 public:
  explicit StripReader(const Strips& strips) : strips_(strips) {}

  template <class Source>
  const T* Read(Source read, std::int64_t begin, std::int64_t n, std::vector<T>& buffer) {
    const std::int64_t end = begin + n;
    Enter(read, begin);
    if (end <= strip_.begin + strip_.size) return at_ + (begin - strip_.begin);
    T* const all = Sized(buffer, n);
    for (std::int64_t i = begin; i < end;) {
      Enter(read, i);
      const std::int64_t next = std::min(end, strip_.begin + strip_.size);
      std::copy(at_ + (i - strip_.begin), at_ + (next - strip_.begin), all + (i - begin));
      i = next;
    }
    return all;
  }

 private:
  template <class Source>
  void Enter(Source read, std::int64_t element) {
    if (at_ != nullptr && element >= strip_.begin && element < strip_.begin + strip_.size) return;
    strip_ = strips_.of(element);
    at_ = read(strip_.box);
  }

  Strips strips_;
  Strips::Strip strip_;
  const T* at_ = nullptr;
};

}  // namespace cpd
