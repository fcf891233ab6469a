// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cpu/elementwise.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <type_traits>

#include "cpd/backend/roster.h"
#include "cpd/base/plans.h"
#include "cpd/spec/operation.h"

namespace cpd {
namespace {

/// Calls visit(offset, i, count, stride) for each range along the last dimension, until all
/// elements begin … begin + n - 1 are covered. `offset` is in elements, and `i` is the number of
/// elements before the range.
template <class Visit>
void ForRuns(const StridedRef& x, std::int64_t begin, std::int64_t n, Visit visit) {
  if (n == 0) return;
  if (x.rank == 0) return visit(std::int64_t{0}, std::int64_t{0}, std::int64_t{1}, std::int64_t{1});
  const int last = x.rank - 1;
  std::array<std::int64_t, TensorView::kMaxRank> index{};
  std::int64_t rest = begin;
  std::int64_t offset = 0;
  for (int d = last; d >= 0; --d) {
    index[d] = rest % x.shape[d];
    rest /= x.shape[d];
    offset += index[d] * x.stride[d];
  }
  for (std::int64_t i = 0; i < n;) {
    const std::int64_t count = std::min(n - i, x.shape[last] - index[last]);
    visit(offset, i, count, x.stride[last]);
    i += count;
    index[last] += count;
    offset += count * x.stride[last];
    for (int d = last; d > 0 && index[d] == x.shape[d]; --d) {
      offset += x.stride[d - 1] - x.shape[d] * x.stride[d];
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

template <class T>
void GatherAs(const StridedRef& x, std::int64_t begin, std::int64_t n, T* to) {
  const T* from = static_cast<const T*>(x.data);
  ForRuns(x, begin, n,
          [&](std::int64_t offset, std::int64_t i, std::int64_t count, std::int64_t stride) {
            for (std::int64_t j = 0; j < count; ++j) to[i + j] = from[offset + j * stride];
          });
}
template <class T>
void ScatterAs(const T* from, std::int64_t begin, std::int64_t n, const StridedRef& y) {
  T* to = static_cast<T*>(y.data);
  ForRuns(y, begin, n,
          [&](std::int64_t offset, std::int64_t i, std::int64_t count, std::int64_t stride) {
            for (std::int64_t j = 0; j < count; ++j) to[offset + j * stride] = from[i + j];
          });
}

/// Calls run(p). p is a null pointer to the unsigned integer type of the element's size, and only
/// its type matters.
template <class Run>
void WithElement(DType type, Run run) {
  switch (SizeOf(type)) {
    case 8:
      return run(static_cast<std::uint64_t*>(nullptr));
    case 4:
      return run(static_cast<std::uint32_t*>(nullptr));
    case 2:
      return run(static_cast<std::uint16_t*>(nullptr));
    default:
      return run(static_cast<std::uint8_t*>(nullptr));
  }
}

/// Returns the plan of the format that has the same values as `type`, which is bf16 or fp16. A
/// tensor of this type consists of packed 16-bit codes of the format.
const RoundPlan& HalfPlan(DType type) {
  static const RoundPlan bf16 = PlanOf(MakeFormat(8, 7));
  static const RoundPlan f16 = PlanOf(MakeFormat(5, 10));
  return type == DType::bf16 ? bf16 : f16;
}
bool IsHalf(DType type) { return type == DType::bf16 || type == DType::f16; }

/// Converts contiguous elements of `type` to values of T.
template <class T>
void Widen(DType type, const void* from, std::int64_t n, T* to) {
  if constexpr (std::is_same_v<T, double>) {
    if (IsHalf(type)) {
      std::vector<float> halves(static_cast<std::size_t>(n));
      Widen(type, from, n, halves.data());
      std::copy(halves.begin(), halves.end(), to);
    } else {
      std::copy_n(static_cast<const float*>(from), n, to);
    }
  } else if constexpr (std::is_same_v<T, float>) {
    Kernels().decode({.n = n,
                      .plan = &HalfPlan(type),
                      .packed = static_cast<const std::uint8_t*>(from),
                      .out = Contiguous(to)});
  }
}

/// Converts values of T to contiguous elements of `type`, which must hold the values exactly.
template <class T>
void Convert(const T* from, std::int64_t n, DType type, void* to) {
  if (IsHalf(type)) {
    Kernels().encode({.n = n,
                      .x = Contiguous(from),
                      .random = {},
                      .plan = &HalfPlan(type),
                      .packed = static_cast<std::uint8_t*>(to)});
  } else if (type == DType::f64) {
    std::copy_n(from, n, static_cast<double*>(to));
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      static_cast<float*>(to)[i] = static_cast<float>(from[i]);
    }
  }
}

/// Sets to[c * to_stride + r] = from[r * from_stride + c].
template <class T>
void TransposeAs(std::int64_t rows, std::int64_t columns, const T* from, std::int64_t from_stride,
                 T* to, std::int64_t to_stride) {
  if constexpr (sizeof(T) == sizeof(std::uint32_t)) {
    Kernels().transpose(rows, columns, from, from_stride, to, to_stride);
  } else {
    constexpr std::int64_t kSide = 16;  // rows of a square whose cache lines stay in L1
    for (std::int64_t first = 0; first < rows; first += kSide) {
      const std::int64_t end = std::min(first + kSide, rows);
      for (std::int64_t c = 0; c < columns; ++c) {
        for (std::int64_t r = first; r < end; ++r)
          to[c * to_stride + r] = from[r * from_stride + c];
      }
    }
  }
}

/// Copies a box of a tensor to rows in memory that begin `to_stride` elements apart.
void GatherBox(const StridedRef& x, const Box& box, void* into, std::int64_t to_stride) {
  WithElement(x.dtype, [&](auto* tag) {
    using U = std::remove_pointer_t<decltype(tag)>;
    const U* from = static_cast<const U*>(x.data) + box.offset;
    U* to = static_cast<U*>(into);
    if (box.row_stride == 1 && box.column_stride != 1) {
      return TransposeAs(box.columns, box.rows, from, box.column_stride, to, to_stride);
    }
    for (std::int64_t r = 0; r < box.rows; ++r, from += box.row_stride, to += to_stride) {
      for (std::int64_t c = 0; c < box.columns; ++c) to[c] = from[c * box.column_stride];
    }
  });
}

/// Copies contiguous memory to a box of a tensor.
void ScatterBox(const void* source, const StridedRef& y, const Box& box) {
  WithElement(y.dtype, [&](auto* tag) {
    using U = std::remove_pointer_t<decltype(tag)>;
    const U* from = static_cast<const U*>(source);
    U* to = static_cast<U*>(y.data) + box.offset;
    if (box.row_stride == 1 && box.column_stride != 1) {
      return TransposeAs(box.rows, box.columns, from, box.columns, to, box.column_stride);
    }
    for (std::int64_t r = 0; r < box.rows; ++r, from += box.columns, to += box.row_stride) {
      for (std::int64_t c = 0; c < box.columns; ++c) to[c * box.column_stride] = from[c];
    }
  });
}

/// Returns the number of 8-byte words that hold n elements of `type`.
std::int64_t ElementWords(DType type, std::int64_t n) {
  return (n * static_cast<std::int64_t>(SizeOf(type)) + 7) / 8;
}

/// Adds kInvalid to raised[i] if patterns[i] is a signaling NaN. `infinity` is the type's pattern
/// of infinity. The bit below the lowest set bit of `infinity` marks a quiet NaN.
template <class U>
void RaiseSignalling(const U* patterns, U infinity, std::int64_t n, std::uint8_t* raised) {
  const U magnitude = static_cast<U>(~U{0}) >> 1;
  const U quiet = (infinity & -infinity) >> 1;
  for (std::int64_t i = 0; i < n; ++i) {
    const bool signals = (patterns[i] & magnitude) > infinity && (patterns[i] & quiet) == 0;
    if (signals) raised[i] |= soft::kInvalid;
  }
}

}  // namespace

void RaiseSignalling(const TensorView& x, std::int64_t begin, std::int64_t n,
                     std::uint8_t* raised) {
  WithElement(x.dtype, [&](auto* tag) {
    using U = std::remove_pointer_t<decltype(tag)>;
    std::vector<U> patterns(static_cast<std::size_t>(n));
    GatherAs(x, begin, n, patterns.data());
    if constexpr (sizeof(U) == 8)
      RaiseSignalling<U>(patterns.data(), 0x7FF0000000000000, n, raised);
    if constexpr (sizeof(U) == 4) RaiseSignalling<U>(patterns.data(), 0x7F800000, n, raised);
    if constexpr (sizeof(U) == 2) {
      const U infinity = x.dtype == DType::bf16 ? 0x7F80 : 0x7C00;
      RaiseSignalling<U>(patterns.data(), infinity, n, raised);
    }
  });
}

void Gather(const StridedRef& x, std::int64_t begin, std::int64_t n, void* to) {
  WithElement(x.dtype, [&](auto* tag) { GatherAs(x, begin, n, static_cast<decltype(tag)>(to)); });
}
void Scatter(const void* from, std::int64_t begin, std::int64_t n, const StridedRef& y) {
  WithElement(y.dtype, [&](auto* tag) {
    ScatterAs(static_cast<const std::remove_pointer_t<decltype(tag)>*>(from), begin, n, y);
  });
}

void Lower(unsigned long long* first, unsigned long long index) {
  if (first == nullptr) return;
  const std::atomic_ref place(*first);
  unsigned long long least = place;
  while (index < least && !place.compare_exchange_weak(least, index)) {
  }
}

void DrawIntegers(const RoundPlan& plan, std::int64_t first, std::int64_t n, std::uint32_t* to) {
  const auto draw = [&](std::int64_t begin, std::int64_t count, std::uint32_t* into) {
    Kernels().random_integers(plan.random_bits, plan.seed, plan.stream, begin, count, into);
  };
  const std::int64_t before = first % kBlock;
  const std::int64_t head = before == 0 ? 0 : std::min(n, kBlock - before);
  if (head > 0) {
    std::array<std::uint32_t, kBlock> block;
    draw(first - before, before + head, block.data());
    std::copy_n(block.data() + before, head, to);
  }
  if (head < n) draw(first + head, n - head, to + head);
}

template <class T>
bool Reader<T>::is_direct() const {
  return x_.data == nullptr || (contiguous_ && x_.dtype == kTypeOf<T>);
}

template <class T>
const T* Reader<T>::Read(std::int64_t begin, std::int64_t n) {
  if (x_.data == nullptr) return nullptr;
  if (is_direct()) return static_cast<const T*>(x_.data) + begin;
  if (x_.dtype == kTypeOf<T>) {
    T* values = Sized(values_, kStage);
    Gather(x_, begin, n, values);
    return values;
  }
  const auto size = static_cast<std::int64_t>(SizeOf(x_.dtype));
  const void* raw = static_cast<const std::uint8_t*>(x_.data) + begin * size;
  if (!contiguous_) {
    Gather(x_, begin, n, Sized(raw_, kStage));
    raw = raw_.data();
  }
  T* values = Sized(values_, kStage);
  Widen(x_.dtype, raw, n, values);
  return values;
}

template <class T>
bool Writer<T>::is_direct() const {
  return contiguous_ && y_.dtype == kTypeOf<T>;
}

template <class T>
T* Writer<T>::Target(std::int64_t begin, std::int64_t) {
  if (is_direct()) return static_cast<T*>(y_.data) + begin;
  return Sized(values_, kStage);
}

template <class T>
void Writer<T>::Flush(std::int64_t begin, std::int64_t n) {
  if (is_direct()) return;
  if (y_.dtype == kTypeOf<T>) return Scatter(values_.data(), begin, n, y_);
  const auto size = static_cast<std::int64_t>(SizeOf(y_.dtype));
  if (contiguous_) {
    return Convert(values_.data(), n, y_.dtype, static_cast<std::uint8_t*>(y_.data) + begin * size);
  }
  Convert(values_.data(), n, y_.dtype, Sized(raw_, kStage));
  Scatter(raw_.data(), begin, n, y_);
}

template <class T>
BoxRows<const T> BoxReader<T>::Read(const Box& box, std::int64_t gap) {
  if (x_.dtype == kTypeOf<T> && box.column_stride == 1) {
    return {static_cast<const T*>(x_.data) + box.offset, box.row_stride};
  }
  if (x_.dtype == kTypeOf<T>) {
    const std::int64_t stride = box.columns + gap;
    T* values = Sized(values_, box.rows * stride);
    GatherBox(x_, box, values, stride);
    return {values, stride};
  }
  const std::int64_t n = box.rows * box.columns;
  T* values = Sized(values_, n);
  GatherBox(x_, box, Sized(raw_, ElementWords(x_.dtype, n)), box.columns);
  Widen(x_.dtype, raw_.data(), n, values);
  return {values, box.columns};
}

template <class T>
bool BoxWriter<T>::is_direct(const Box& box) const {
  return y_.dtype == kTypeOf<T> && box.column_stride == 1;
}

template <class T>
BoxRows<T> BoxWriter<T>::Target(const Box& box) {
  if (is_direct(box)) return {static_cast<T*>(y_.data) + box.offset, box.row_stride};
  return {Sized(values_, box.rows * box.columns), box.columns};
}

template <class T>
void BoxWriter<T>::Flush(const Box& box) {
  if (is_direct(box)) return;
  if (y_.dtype == kTypeOf<T>) return ScatterBox(values_.data(), y_, box);
  const std::int64_t n = box.rows * box.columns;
  Convert(values_.data(), n, y_.dtype, Sized(raw_, ElementWords(y_.dtype, n)));
  ScatterBox(raw_.data(), y_, box);
}

template class BoxReader<float>;
template class BoxReader<double>;
template class BoxReader<std::uint32_t>;
template class BoxWriter<float>;
template class BoxWriter<double>;
template class Reader<float>;
template class Reader<double>;
template class Reader<std::uint32_t>;
template class Writer<float>;
template class Writer<double>;

}  // namespace cpd
