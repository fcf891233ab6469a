// SPDX-License-Identifier: Apache-2.0
//
// Passes tensors of any type and strides to kernels over contiguous binary32 or binary64: ranges of
// row-major elements are used in place where possible, and copied through small buffers elsewhere.
#pragma once

#include <cstdint>
#include <vector>

#include "cpd/base/explaining.h"
#include "cpd/base/parallel.h"
#include "cpd/base/tensor.h"
#include "cpd/numeric/draws/given_draws.h"
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

/// Copies elements begin … begin + n - 1 (row-major) of a strided tensor to contiguous memory.
void Gather(const TensorView& x, std::int64_t begin, std::int64_t n, void* to);
/// Copies contiguous memory to elements begin … begin + n - 1 (row-major) of a strided tensor.
void Scatter(const void* from, std::int64_t begin, std::int64_t n, const TensorView& y);

/// Rounds n values by a plan that draws no random integers.
void RoundInPlace(const RoundPlan& plan, std::int64_t first, std::int64_t n, double* values);

/// Writes the random integers that a stochastic plan draws for elements first … first + n - 1.
void DrawIntegers(const RoundPlan& plan, std::int64_t first, std::int64_t n, std::uint32_t* to);

/// Adds soft_float.h's kInvalid to raised[i] where element begin + i is a signalling NaN.
void RaiseSignalling(const TensorView& x, std::int64_t begin, std::int64_t n, std::uint8_t* raised);

/// Whether x and y fill memory without gaps and with their dimensions in the same order, as
/// transposed and channels-last tensors may. An operation that does not depend on elements' indices
/// can then run in memory order.
[[nodiscard]] bool FillAlike(const TensorView& x, const TensorView& y);
/// The elements of a tensor that fills memory without gaps, as one dimension in memory order.
[[nodiscard]] TensorView AlongMemory(const TensorView& x);

/// Reads ranges of one tensor as contiguous values of T (float, double or std::uint32_t), converted
/// exactly; bf16, fp16 and fp32 are read as float or double, fp64 only as double.
template <class T>
class Reader {
 public:
  explicit Reader(const TensorView& x) : x_(x), contiguous_(x.is_contiguous()) {}
  /// Elements begin … begin + n - 1, valid until the next call; n <= kStage unless is_direct().
  const T* Read(std::int64_t begin, std::int64_t n);
  /// Whether Read returns the tensor's own memory.
  [[nodiscard]] bool is_direct() const;

 private:
  const TensorView& x_;
  bool contiguous_;
  std::vector<T> values_;
  std::vector<std::uint64_t> raw_;
};

/// A caller's random integers, `draws` for each element of a result, as the kernels of ordered sums
/// read them; none where the tensor is null.
class GivenIntegers {
 public:
  GivenIntegers(const TensorView* random, std::int64_t draws) {
    if (random == nullptr || random->size() == 0) return;
    draws_ = {static_cast<const std::uint32_t*>(random->data), draws};
    if (random->is_contiguous() || Explains()) return;
    copy_.resize(static_cast<std::size_t>(random->size()));
    Gather(*random, 0, random->size(), copy_.data());
    draws_.random = copy_.data();
  }
  GivenIntegers(const GivenIntegers&) = delete;
  GivenIntegers& operator=(const GivenIntegers&) = delete;
  [[nodiscard]] GivenDraws draws() const { return draws_; }

 private:
  GivenDraws draws_;
  std::vector<std::uint32_t> copy_;
};

/// Writes contiguous binary32 or binary64 values into ranges of one tensor, converted to its type,
/// which holds them (CheckStorage).
template <class T>
class Writer {
 public:
  explicit Writer(const TensorView& y) : y_(y), contiguous_(y.is_contiguous()) {}
  /// Memory for values begin … begin + n - 1: the tensor's, or a buffer that Flush converts.
  T* Target(std::int64_t begin, std::int64_t n);
  void Flush(std::int64_t begin, std::int64_t n);
  [[nodiscard]] bool is_direct() const;

 private:
  const TensorView& y_;
  bool contiguous_;
  std::vector<T> values_;
  std::vector<std::uint64_t> raw_;
};

/// Where a box of a tensor is in memory: `rows` x `columns` elements, of which the first is
/// `offset` elements from the tensor's; neighbours in a column and in a row are their strides
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
  explicit BoxReader(const TensorView& x) : x_(x) {}
  /// The box's values, valid until the next call; in a buffer its rows are `gap` elements apart.
  BoxRows<const T> Read(const Box& box, std::int64_t gap = kRowGap);

 private:
  const TensorView& x_;
  std::vector<T> values_;
  std::vector<std::uint64_t> raw_;
};

/// Writes rows of values to boxes of one tensor, as Writer does to ranges.
template <class T>
class BoxWriter {
 public:
  explicit BoxWriter(const TensorView& y) : y_(y) {}
  /// Memory for a box's values: the tensor's, or a buffer that Flush converts.
  BoxRows<T> Target(const Box& box);
  void Flush(const Box& box);
  [[nodiscard]] bool is_direct(const Box& box) const;

 private:
  const TensorView& y_;
  std::vector<T> values_;
  std::vector<std::uint64_t> raw_;
};

}  // namespace cpd
