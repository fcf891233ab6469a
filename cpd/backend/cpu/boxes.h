// SPDX-License-Identifier: Apache-2.0
//
// Boxes of two of a tensor's dimensions, for tensors that are contiguous along another dimension
// than the one along which their elements are taken: neither memory nor random integers are then
// taken element by element.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/base/tensor.h"
#include "cpd/export.h"
#include "cpd/numeric/round/round_plan.h"

namespace cpd {

/// Returns a view without memory. Its strides are the strides of row-major indices.
TensorView IndicesOf(const TensorView& x);

/// The random integers of boxes that a stochastic plan draws, by their indices.
class CPD_API BoxIntegers {
 public:
  explicit BoxIntegers(const RoundPlan& plan) : plan_(plan) {}
  /// Returns the integers of a box, by its indices. Neighboring integers lie along its rows or, if
  /// it is transposed, along its columns. They have no gaps, and are valid until the next call.
  const std::uint32_t* Read(const Box& box);

 private:
  /// Draws rows x columns integers: a row's have neighboring indices, rows are `apart`.
  void DrawRows(std::int64_t first, std::int64_t rows, std::int64_t columns, std::int64_t apart,
                std::uint32_t* to, std::int64_t to_stride) const;

  RoundPlan plan_;
  std::vector<std::uint32_t> drawn_, all_;
};

/// The strips of a tensor that is contiguous along the dimension before its last (evenly strided
/// dimensions count as one): `rows` of that dimension, and all of the last. A strip is a range in
/// row-major order.
class CPD_API Strips {
 public:
  /// `wanted`: the rows of a strip. It has fewer if they exceed the last cache, but a multiple of
  /// `multiple`.
  Strips(const TensorView& x, std::int64_t wanted, std::int64_t multiple);
  /// Returns whether there are strips.
  [[nodiscard]] bool fit() const { return rows_ > 0; }
  /// Returns whether they have those rows and columns.
  [[nodiscard]] bool have(std::int64_t height, std::int64_t width) const {
    return fit() && x_.shape[x_.rank - 2] == height && x_.shape[x_.rank - 1] == width;
  }

  struct Strip {
    std::int64_t begin = 0, size = 0;
    Box box;
  };
  /// The strip of an element.
  [[nodiscard]] Strip of(std::int64_t element) const;
  /// The box of `rows` x `columns` elements, of which `element` is the first.
  [[nodiscard]] Box box_at(std::int64_t element, std::int64_t rows, std::int64_t columns) const;

 private:
  TensorView x_;
  std::int64_t rows_ = 0;
};

/// Stores the strip that was read last. Read(source, begin, n, buffer) returns elements begin …
/// begin + n - 1, in the strip if it has all of them, else in the buffer. read(box) returns a
/// strip's rows.
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
