// SPDX-License-Identifier: Apache-2.0
//
// Passes tensors of any type and strides to kernels over contiguous binary32 or binary64: ranges of
// row-major elements are used in place where possible, and copied through small buffers elsewhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpd/backend/calls.h"
#include "cpd/backend/roster.h"
#include "cpd/base/explaining.h"
#include "cpd/base/parallel.h"
#include "cpd/base/tensor.h"
#include "cpd/numeric/round/round_plan.h"

namespace cpd {

/// Elements staged at once; a multiple of kBlock.
constexpr std::int64_t kStage = 4096;
/// The number of sums of `terms` terms each below which one thread computes them (kSerialBelow).
[[nodiscard]] constexpr std::int64_t SerialBelow(std::int64_t terms) {
  return terms < 1 ? kSerialBelow : kSerialBelow / terms;
}
/// The buffer's memory, grown to at least n elements of unspecified values.
template <class T>
T* Sized(std::vector<T>& buffer, std::int64_t n) {
  if (buffer.size() < static_cast<std::size_t>(n)) buffer.resize(static_cast<std::size_t>(n));
  return buffer.data();
}

/// The number of elements from which results are written with non-temporal stores.
constexpr std::int64_t kStreamingFrom = std::int64_t{1} << 21;

/// The elements of an operation's tensor, or of a call's, to whose shape and strides they refer.
struct StridedRef {
  StridedRef(const TensorView& x)  // NOLINT(google-explicit-constructor)
      : data(x.data),
        dtype(x.dtype),
        rank(x.rank),
        shape(x.shape.data()),
        stride(x.stride.data()) {}
  StridedRef(const Strided& x)  // NOLINT(google-explicit-constructor)
      : data(x.data), dtype(x.dtype), rank(x.rank), shape(x.shape), stride(x.stride) {}

  void* data;
  DType dtype;
  int rank;
  const std::int64_t* shape;
  const std::int64_t* stride;
};

/// Copies elements begin … begin + n - 1 (row-major) of a strided tensor to contiguous memory.
void Gather(const StridedRef& x, std::int64_t begin, std::int64_t n, void* to);
/// Copies contiguous memory to elements begin … begin + n - 1 (row-major) of a strided tensor.
void Scatter(const void* from, std::int64_t begin, std::int64_t n, const StridedRef& y);

/// Element `begin` of a contiguous tensor and those after it; without data where x has none.
[[nodiscard]] inline Strided From(const Strided& x, std::int64_t begin) {
  const auto* const data = static_cast<const std::uint8_t*>(x.data);
  const std::int64_t bytes = begin * static_cast<std::int64_t>(SizeOf(x.dtype));
  return Contiguous(data == nullptr ? data : data + bytes, x.dtype);
}

/// Lowers *first to `index` if that is less, unless `first` is null. Threads may call it at once.
void Lower(unsigned long long* first, unsigned long long index);

/// Calls run(i, n) for ranges of at most `step` elements from i on, which are [begin, end).
template <class Run>
void ForRanges(std::int64_t begin, std::int64_t end, std::int64_t step, Run run) {
  for (std::int64_t i = begin; i < end; i += step) run(i, std::min(step, end - i));
}

/// Rounds n values by a plan that draws no random integers.
template <class T>
void RoundInPlace(const RoundPlan& plan, std::int64_t first, std::int64_t n, T* values) {
  Kernels().cast({.n = n,
                  .first = first,
                  .x = Contiguous(values),
                  .random = {},
                  .out = Contiguous(values),
                  .plan = &plan});
}

/// Writes the random integers that a stochastic plan draws for elements first … first + n - 1.
void DrawIntegers(const RoundPlan& plan, std::int64_t first, std::int64_t n, std::uint32_t* to);

/// Adds kInvalid to raised[i] where element begin + i is a signaling NaN.
void RaiseSignalling(const TensorView& x, std::int64_t begin, std::int64_t n, std::uint8_t* raised);

/// Reads ranges of one tensor as contiguous values of T (float, double or std::uint32_t), converted
/// exactly; bf16, fp16 and fp32 are read as float or double, fp64 only as double.
template <class T>
class Reader {
 public:
  /// x: a TensorView or a Strided, which must live as long.
  template <class Tensor>
  explicit Reader(const Tensor& x) : x_(x), contiguous_(x.data == nullptr || x.is_contiguous()) {}
  /// Elements begin … begin + n - 1, valid until the next call; n <= kStage unless is_direct().
  /// Null where the tensor has no data.
  const T* Read(std::int64_t begin, std::int64_t n);
  /// Returns whether Read returns the tensor's own memory.
  [[nodiscard]] bool is_direct() const;
  /// Continues with other memory of the same shape and strides.
  void Move(void* data) { x_.data = data; }

 private:
  StridedRef x_;
  bool contiguous_;
  std::vector<T> values_;
  std::vector<std::uint64_t> raw_;
};

/// Writes contiguous binary32 or binary64 values into ranges of one tensor, converted to its type,
/// which holds them (CheckStorage).
template <class T>
class Writer {
 public:
  template <class Tensor>
  explicit Writer(const Tensor& y) : y_(y), contiguous_(y.is_contiguous()) {}
  /// Memory for values begin … begin + n - 1: the tensor's, or a buffer that Flush converts.
  T* Target(std::int64_t begin, std::int64_t n);
  void Flush(std::int64_t begin, std::int64_t n);
  [[nodiscard]] bool is_direct() const;

 private:
  StridedRef y_;
  bool contiguous_;
  std::vector<T> values_;
  std::vector<std::uint64_t> raw_;
};

/// The position of a box of a tensor in memory: `rows` x `columns` elements. Its first element is
/// `offset` elements after the tensor's. Neighbors in a column and in a row are their strides
/// apart.
struct Box {
  std::int64_t offset = 0, rows = 0, columns = 0, row_stride = 0, column_stride = 1;
};

/// Elements between the rows of a buffer, so that rows of a power of two do not share the sets of
/// the caches.
constexpr std::int64_t kRowGap = 16;

/// Rows of values in memory, `stride` apart.
template <class T>
struct BoxRows {
  T* at;
  std::int64_t stride;
};

/// Reads boxes of one tensor as rows of values of T, as Reader does ranges.
template <class T>
class BoxReader {
 public:
  explicit BoxReader(const StridedRef& x) : x_(x) {}
  /// The box's values, valid until the next call; in a buffer its rows are `gap` elements apart.
  BoxRows<const T> Read(const Box& box, std::int64_t gap = kRowGap);

 private:
  StridedRef x_;
  std::vector<T> values_;
  std::vector<std::uint64_t> raw_;
};

/// Writes rows of values to boxes of one tensor, as Writer does to ranges.
template <class T>
class BoxWriter {
 public:
  explicit BoxWriter(const StridedRef& y) : y_(y) {}
  /// Memory for a box's values: the tensor's, or a buffer that Flush converts.
  BoxRows<T> Target(const Box& box);
  void Flush(const Box& box);
  [[nodiscard]] bool is_direct(const Box& box) const;

 private:
  StridedRef y_;
  std::vector<T> values_;
  std::vector<std::uint64_t> raw_;
};

}  // namespace cpd
