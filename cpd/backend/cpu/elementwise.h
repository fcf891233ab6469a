// SPDX-License-Identifier: Apache-2.0
//
// Passes tensors of any type and strides to kernels on contiguous binary32 or binary64 values.
// Ranges of row-major elements are used in place where possible, and otherwise copied through small
// buffers.
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

/// The number of elements that are copied to a buffer at once; a multiple of kBlock.
constexpr std::int64_t kStage = 4096;
/// Returns the number of sums, of `terms` terms each, below which one thread computes all of them
/// (kSerialBelow).
[[nodiscard]] constexpr std::int64_t SerialBelow(std::int64_t terms) {
  return terms < 1 ? kSerialBelow : kSerialBelow / terms;
}
/// Returns the buffer's memory. The buffer grows to at least n elements; new values are
/// unspecified.
template <class T>
T* Sized(std::vector<T>& buffer, std::int64_t n) {
  if (buffer.size() < static_cast<std::size_t>(n)) buffer.resize(static_cast<std::size_t>(n));
  return buffer.data();
}

/// The number of elements from which results are written with non-temporal stores, which bypass the
/// caches.
constexpr std::int64_t kStreamingFrom = std::int64_t{1} << 21;

/// Refers to the elements of a TensorView or a Strided. The shape and strides of that object must
/// live as long as this object.
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

/// Returns a contiguous tensor with the elements of x from element `begin` to the end. x must be
/// contiguous. If x.data is null, the data pointer of the result is null, too.
[[nodiscard]] inline Strided From(const Strided& x, std::int64_t begin) {
  const auto* const data = static_cast<const std::uint8_t*>(x.data);
  const std::int64_t bytes = begin * static_cast<std::int64_t>(SizeOf(x.dtype));
  return Contiguous(data == nullptr ? data : data + bytes, x.dtype);
}

/// Lowers *first to `index` if `index` is less; does nothing if `first` is null. Threads may call
/// this function at the same time.
void Lower(unsigned long long* first, unsigned long long index);

/// Calls run(i, n) for ranges i … i + n - 1 that cover [begin, end), each of at most `step`
/// elements.
template <class Run>
void ForRanges(std::int64_t begin, std::int64_t end, std::int64_t step, Run run) {
  for (std::int64_t i = begin; i < end; i += step) run(i, std::min(step, end - i));
}

/// Rounds n values in place. The plan must use no random integers.
template <class T>
void RoundInPlace(const RoundPlan& plan, std::int64_t first, std::int64_t n, T* values) {
  Kernels().cast({.n = n,
                  .first = first,
                  .x = Contiguous(values),
                  .random = {},
                  .out = Contiguous(values),
                  .plan = &plan});
}

/// Writes the random integers that a stochastic plan uses for elements first … first + n - 1.
void DrawIntegers(const RoundPlan& plan, std::int64_t first, std::int64_t n, std::uint32_t* to);

/// Adds kInvalid to raised[i] where element begin + i is a signaling NaN.
void RaiseSignalling(const TensorView& x, std::int64_t begin, std::int64_t n, std::uint8_t* raised);

/// Reads ranges of one tensor as contiguous values of T (float, double or std::uint32_t). bf16,
/// fp16 and fp32 are converted exactly to float or double; fp64 is only read as double.
template <class T>
class Reader {
 public:
  /// `x`: a TensorView or a Strided, which must outlive this object.
  template <class Tensor>
  explicit Reader(const Tensor& x) : x_(x), contiguous_(x.data == nullptr || x.is_contiguous()) {}
  /// Returns elements begin … begin + n - 1, valid until the next call. n is at most kStage unless
  /// is_direct(). Returns null if the tensor has no data.
  const T* Read(std::int64_t begin, std::int64_t n);
  /// Returns whether Read returns the tensor's own memory.
  [[nodiscard]] bool is_direct() const;
  /// Makes this object read the tensor at `data` from now on. That tensor must have the type, shape
  /// and strides of the tensor read before.
  void Move(void* data) { x_.data = data; }

 private:
  StridedRef x_;
  bool contiguous_;
  std::vector<T> values_;
  std::vector<std::uint64_t> raw_;
};

/// Writes contiguous binary32 or binary64 values to ranges of one tensor. Values are converted to
/// the tensor's type, which must hold them (CheckStorage).
template <class T>
class Writer {
 public:
  template <class Tensor>
  explicit Writer(const Tensor& y) : y_(y), contiguous_(y.is_contiguous()) {}
  /// Returns memory into which the caller writes values begin … begin + n - 1: the tensor's own
  /// memory, or a buffer. Flush then converts the buffer's values and copies them to the tensor.
  T* Target(std::int64_t begin, std::int64_t n);
  void Flush(std::int64_t begin, std::int64_t n);
  [[nodiscard]] bool is_direct() const;

 private:
  StridedRef y_;
  bool contiguous_;
  std::vector<T> values_;
  std::vector<std::uint64_t> raw_;
};

/// The position of a box of `rows` x `columns` elements in a tensor's memory. The box's first
/// element lies `offset` elements after the tensor's first element. Neighbors in a column are
/// row_stride elements apart, and neighbors in a row are column_stride elements apart.
struct Box {
  std::int64_t offset = 0, rows = 0, columns = 0, row_stride = 0, column_stride = 1;
};

/// The gap in elements between the rows of a buffer. Without a gap, rows whose length is a power of
/// two would share cache sets.
constexpr std::int64_t kRowGap = 16;

/// Rows of values in memory. Rows begin `stride` elements apart.
template <class T>
struct BoxRows {
  T* at;
  std::int64_t stride;
};

/// Reads boxes (two-dimensional ranges) of one tensor as rows of values of T. For ranges of
/// neighboring elements there is the class Reader.
template <class T>
class BoxReader {
 public:
  explicit BoxReader(const StridedRef& x) : x_(x) {}
  /// Returns the values of a box (a two-dimensional range), valid until the next call. If the
  /// values are in a buffer, `gap` unused elements follow each row.
  BoxRows<const T> Read(const Box& box, std::int64_t gap = kRowGap);

 private:
  StridedRef x_;
  std::vector<T> values_;
  std::vector<std::uint64_t> raw_;
};

/// Writes rows of values to boxes (two-dimensional ranges) of one tensor. For ranges of neighboring
/// elements there is the class Writer.
template <class T>
class BoxWriter {
 public:
  explicit BoxWriter(const StridedRef& y) : y_(y) {}
  /// Returns memory into which the caller writes the values of a box (a two-dimensional range): the
  /// tensor's own memory, or a buffer. Flush then converts the buffer's values and copies them to
  /// the tensor.
  BoxRows<T> Target(const Box& box);
  void Flush(const Box& box);
  [[nodiscard]] bool is_direct(const Box& box) const;

 private:
  StridedRef y_;
  std::vector<T> values_;
  std::vector<std::uint64_t> raw_;
};

}  // namespace cpd
