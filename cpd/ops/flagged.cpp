// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/flagged.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/base/product.h"
#include "cpd/numeric/units/flagged_sums.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/call.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/reduce.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

constexpr std::int64_t kOperations = 4096;  ///< fewer than these are computed by one thread

void CheckFlags(const TensorView& flags, const TensorView& out) {
  Check(flags, "flags");
  if (flags.dtype != DType::u8) throw Error("flags must be uint8, got " + ToString(flags.dtype));
  CheckSameShape(out, flags, "out and flags");
  CheckSameDevice(out, flags);
  Check(OnCpuAlone::flags, out);
}

/// Reads `count` elements as binary64 numbers. The first is at index `offset`, the others follow at
/// distance `stride`.
class Line {
 public:
  explicit Line(std::int64_t count) : values_(static_cast<std::size_t>(count)) {}

  std::span<const double> Read(const void* data, DType dtype, std::int64_t offset,
                               std::int64_t stride) {
    const auto n = static_cast<std::int64_t>(values_.size());
    TensorView x = View(data, dtype, n);
    x.data = static_cast<std::uint8_t*>(x.data) + offset * static_cast<std::int64_t>(SizeOf(dtype));
    x.stride[0] = stride;
    Reader<double> reader(x);
    raised_ = 0;
    for (std::int64_t i = 0; i < n; i += kStage) {
      const std::int64_t count = std::min(kStage, n - i);
      std::copy_n(reader.Read(i, count), count, values_.data() + i);
      const auto part = std::span(values_).subspan(static_cast<std::size_t>(i), count);
      if (std::ranges::none_of(part, [](double v) { return std::isnan(v); })) continue;
      std::vector<std::uint8_t> raised(part.size());
      RaiseSignalling(x, i, count, raised.data());
      if (std::ranges::find(raised, soft::kInvalid) != raised.end()) raised_ = soft::kInvalid;
    }
    return values_;
  }
  /// Returns the exceptions that signaling NaNs among the elements raise.
  [[nodiscard]] std::uint8_t raised() const { return raised_; }

 private:
  std::vector<double> values_;
  std::uint8_t raised_ = 0;
};

std::int64_t OffsetOf(const MatrixProduct& product, const ProductOperand& x, std::int64_t batch) {
  std::int64_t offset = 0;
  for (int d = product.batch_rank - 1; d >= 0; --d) {
    const auto at = static_cast<std::size_t>(d);
    offset += batch % product.batch_shape[at] * x.batch_stride[at];
    batch /= product.batch_shape[at];
  }
  return offset;
}

/// Splits n elements into ranges and calls run(begin, raised) for each range, on threads. run
/// writes the flags of a range's elements to `raised`, which are then copied to `flags`.
template <class Run>
void ForElements(std::int64_t n, std::int64_t operations, const TensorView& flags, Run run) {
  const std::int64_t grain =
      std::max<std::int64_t>(1, kOperations / std::max<std::int64_t>(1, operations));
  parallel_for(n, grain, grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint8_t> raised(static_cast<std::size_t>(end - begin));
    run(begin, raised);
    Scatter(raised.data(), begin, end - begin, flags);
  });
}

/// Computes the flags of elements of a product, one by one.
class Products {
 public:
  Products(const MatrixProduct& product, const Accumulator& accumulator, soft::Tininess tininess,
           const RandomKey& key, GivenDraws given)
      : product_(product),
        accumulator_(accumulator),
        tininess_(tininess),
        key_(key),
        given_(given),
        row_(product.depth),
        column_(product.depth),
        addend_(1) {}

  std::uint8_t Flags(std::int64_t index) {
    const std::int64_t row = index / product_.columns % product_.rows;
    const std::int64_t column = index % product_.columns;
    const std::int64_t batch = index / product_.columns / product_.rows;
    const auto at = [&](const ProductOperand& x) { return OffsetOf(product_, x, batch); };
    const ProductOperand& a = product_.a;
    const ProductOperand& b = product_.b;
    const ProductOperand& c = product_.c;
    if (column == 0 || first_) {
      of_a_ = row_.Read(a.data, a.dtype, at(a) + row * a.row_stride, a.column_stride);
    }
    first_ = false;
    const auto of_b = column_.Read(b.data, b.dtype, at(b) + column * b.column_stride, b.row_stride);
    double start = 0;
    if (c.data != nullptr) {
      const std::int64_t place = at(c) + row * c.row_stride + column * c.column_stride;
      start = addend_.Read(c.data, c.dtype, place, 1)[0];
    }
    const int signalled = row_.raised() | column_.raised() | addend_.raised();
    const soft::SumElement element{static_cast<std::uint64_t>(index), given_.from(index), key_};
    return static_cast<std::uint8_t>(Sum(element, of_b, start) | signalled);
  }

 private:
  std::uint8_t Sum(const soft::SumElement& element, std::span<const double> b, double start) {
    const bool is_given = given_.random != nullptr;
    if (accumulator_.fixed) {
      soft::FlaggedInteger sum(accumulator_, tininess_);
      sum.add(start);
      for (std::size_t k = 0; k < b.size(); ++k) sum.add(of_a_[k], b[k]);
      return sum.done().flags;
    }
    if (accumulator_.unit) {
      return soft::FlaggedUnit(accumulator_, tininess_, element)
          .product(of_a_, b, start, is_given)
          .flags;
    }
    return soft::FlaggedSum(accumulator_, tininess_, element)
        .product(of_a_, b, start, is_given)
        .flags;
  }

  const MatrixProduct& product_;
  const Accumulator& accumulator_;
  soft::Tininess tininess_;
  const RandomKey& key_;
  GivenDraws given_;
  Line row_, column_, addend_;
  std::span<const double> of_a_;
  bool first_ = true;
};

void CheckUnit(const Accumulator& accumulator) {
  if (!accumulator.unit) return;
  const BlockFma& unit = *accumulator.unit;
  if (unit.adder == Adder::aligned && unit.group == 0 && !unit.scale) return;
  throw Error(
      "flags are for matrix units that align their terms in ascending order of k and take no "
      "scales, got " +
      ToString(accumulator));
}

}  // namespace

void SumFlagged(const TensorView& x, int dim, const Accumulator& accumulator,
                soft::Tininess tininess, const TensorView& out, const TensorView& flags,
                const RandomKey& key, const TensorView* random) {
  CheckFlags(flags, out);
  cpd::Sum(x, dim, accumulator, out, key, random);
  const std::int64_t terms = x.shape[dim];
  const GivenIntegers integers(random, DrawsOfSum(accumulator, terms));
  TensorView others = x;  // without dim
  std::copy(x.shape.begin() + dim + 1, x.shape.end(), others.shape.begin() + dim);
  std::copy(x.stride.begin() + dim + 1, x.stride.end(), others.stride.begin() + dim);
  others.rank = x.rank - 1;
  ForElements(out.size(), terms, flags, [&](std::int64_t begin, std::vector<std::uint8_t>& raised) {
    Line line(terms);
    for (std::size_t i = 0; i < raised.size(); ++i) {
      if (i % 64 == 63) CheckInterrupt();
      auto index = begin + static_cast<std::int64_t>(i);
      const soft::SumElement element{static_cast<std::uint64_t>(index),
                                     integers.draws().from(index), key};
      std::int64_t offset = 0;
      for (int d = others.rank - 1; d >= 0; --d) {
        offset += index % others.shape[d] * others.stride[d];
        index /= others.shape[d];
      }
      const auto values = line.Read(x.data, x.dtype, offset, x.stride[dim]);
      if (accumulator.fixed) {
        soft::FlaggedInteger sum(accumulator, tininess);
        for (const double value : values) sum.add(value);
        raised[i] = sum.done().flags;
      } else {
        raised[i] = soft::FlaggedSum(accumulator, tininess, element).sum(values).flags;
      }
      raised[i] |= line.raised();
    }
  });
}

void GemmFlagged(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
                 soft::Tininess tininess, const TensorView& out, const TensorView& flags,
                 const TensorView* c, const RandomKey& key, const TensorView* random) {
  CheckFlags(flags, out);
  Check(accumulator);
  CheckUnit(accumulator);
  Gemm(a, b, accumulator, out, c, key, random);
  if (out.size() == 0) return;
  const MatrixProduct product = MakeProduct(a, b, out, c, Batch::as_given);
  const GivenIntegers integers(random, DrawsOfGemm(accumulator, product.depth));
  ForElements(out.size(), 2 * product.depth, flags,
              [&](std::int64_t begin, std::vector<std::uint8_t>& raised) {
                Products products(product, accumulator, tininess, key, integers.draws());
                for (std::size_t i = 0; i < raised.size(); ++i) {
                  if (i % 64 == 63) CheckInterrupt();
                  raised[i] = products.Flags(begin + static_cast<std::int64_t>(i));
                }
              });
}

}  // namespace cpd
