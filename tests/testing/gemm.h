// SPDX-License-Identifier: Apache-2.0
//
// Matrix products in tests: operands in any memory layout, and the oracle's results for them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpd/base/tensor.h"
#include "cpd/ops/gemm.h"
#include "cpd/oracle/reference_gemm.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/formats.h"
#include "tests/testing/patterns.h"
#include "tests/testing/wide.h"

namespace cpd::testing {

/// Calls Gemm. Takes the same arguments as GemmByBlas, so a test's function can call either one.
inline constexpr auto kGemm = [](const TensorView& a, const TensorView& b,
                                 const Accumulator& accumulator, const TensorView& out,
                                 const TensorView* c) { Gemm(a, b, accumulator, out, c, kKey); };

using Shape = std::vector<std::int64_t>;

inline std::int64_t count_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

inline Format storage_of(DType dtype) {
  if (dtype == DType::bf16) return ParseFormat("bf16");
  if (dtype == DType::f16) return ParseFormat("fp16");
  return kFp32;
}

/// The position of a tensor's elements in memory.
enum class Layout : std::uint8_t {
  contiguous,
  transposed,  ///< the last two dimensions the other way round
  reversed,    ///< negative strides in the last two dimensions
  gaps,        ///< every second element, rows three elements apart
};
inline constexpr std::array kLayouts = {Layout::contiguous, Layout::transposed, Layout::reversed,
                                        Layout::gaps};

/// Values in row-major order, and a copy of the values in memory with the requested layout and
/// type.
class Tensor {
 public:
  /// Values are rounded to the type.
  Tensor(Shape shape, std::vector<float> values, Layout layout = Layout::contiguous,
         DType dtype = DType::f32)
      : shape_(std::move(shape)), values_(std::move(values)), dtype_(dtype) {
    place(layout);
    const reference::Spec storage = reference::spec_of(storage_of(dtype));
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (dtype != DType::f32) values_[i] = reference::cast(storage, values_[i]);
      store(offset_of(i), values_[i]);
    }
  }

  /// Returns a tensor whose elements all share one address (every stride is 0).
  static Tensor broadcast(Shape shape, float value) {
    Tensor t({1}, {value});
    t.values_.assign(static_cast<std::size_t>(count_of(shape)), value);
    t.shape_ = std::move(shape);
    t.strides_.assign(t.shape_.size(), 0);
    return t;
  }

  TensorView view() const {
    TensorView v;
    // A view has a pointer to writable memory, also for operands. Gemm writes only to `out`.
    v.data = const_cast<std::byte*>(memory_.data()) + SizeOf(dtype_) * origin_;
    v.dtype = dtype_;
    v.rank = static_cast<int>(shape_.size());
    std::copy(shape_.begin(), shape_.end(), v.shape.begin());
    std::copy(strides_.begin(), strides_.end(), v.stride.begin());
    return v;
  }

  const Shape& shape() const { return shape_; }
  /// Returns the values that were given to the constructor, rounded to the type.
  const std::vector<float>& values() const { return values_; }
  /// Returns the present contents of the memory.
  std::vector<float> read() const {
    std::vector<float> out(values_.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = load(offset_of(i));
    return out;
  }
  /// Returns whether the bytes that belong to no element of the tensor are unchanged.
  bool gaps_untouched() const {
    std::vector<bool> used(memory_.size(), false);
    for (std::size_t i = 0; i < values_.size(); ++i) {
      for (std::size_t b = 0; b < SizeOf(dtype_); ++b)
        used[SizeOf(dtype_) * offset_of(i) + b] = true;
    }
    for (std::size_t b = 0; b < used.size(); ++b) {
      if (!used[b] && memory_[b] != kFill) return false;
    }
    return true;
  }

 private:
  static constexpr std::byte kFill{0xA5};

  void place(Layout layout) {
    const std::size_t rank = shape_.size();
    std::vector<std::size_t> order(rank);  // from the innermost in memory
    for (std::size_t d = 0; d < rank; ++d) order[d] = rank - 1 - d;
    if (layout == Layout::transposed && rank > 1) std::swap(order[0], order[1]);
    strides_.assign(rank, 0);
    std::int64_t next = layout == Layout::gaps ? 2 : 1;
    for (std::size_t d = 0; d < rank; ++d) {
      strides_[order[d]] = next;
      next = next * std::max<std::int64_t>(1, shape_[order[d]]) + (layout == Layout::gaps ? 3 : 0);
    }
    if (layout == Layout::reversed) {
      for (std::size_t d = rank; d-- > 0 && d + 2 >= rank;) {
        origin_ += static_cast<std::size_t>(strides_[d] * std::max<std::int64_t>(0, shape_[d] - 1));
        strides_[d] = -strides_[d];
      }
    }
    memory_.assign(SizeOf(dtype_) * static_cast<std::size_t>(next), kFill);
  }

  // Returns the offset of element i, in elements from the start of memory.
  std::size_t offset_of(std::size_t i) const {
    auto offset = static_cast<std::int64_t>(origin_);
    for (std::size_t d = shape_.size(); d-- > 0;) {
      const auto extent = static_cast<std::size_t>(shape_[d]);
      offset += strides_[d] * static_cast<std::int64_t>(i % extent);
      i /= extent;
    }
    return static_cast<std::size_t>(offset);
  }

  void store(std::size_t at, float x) {
    if (dtype_ == DType::f32) {
      std::memcpy(memory_.data() + 4 * at, &x, 4);
      return;
    }
    const auto code = static_cast<std::uint16_t>(
        *reference::encode(reference::spec_of(storage_of(dtype_)), reference::exact(x)));
    std::memcpy(memory_.data() + 2 * at, &code, 2);
  }

  float load(std::size_t at) const {
    if (dtype_ == DType::f32) {
      float x = 0;
      std::memcpy(&x, memory_.data() + 4 * at, 4);
      return x;
    }
    std::uint16_t code = 0;
    std::memcpy(&code, memory_.data() + 2 * at, 2);
    return reference::decode(reference::spec_of(storage_of(dtype_)), code);
  }

  Shape shape_;
  std::vector<std::int64_t> strides_;
  std::size_t origin_ = 0;
  std::vector<float> values_;
  DType dtype_;
  std::vector<std::byte> memory_;
};

/// A tensor of shape `part` is broadcast to shape `whole`. Returns the index in the tensor of the
/// element that has index i after broadcasting.
inline std::size_t broadcast_index(std::size_t i, const Shape& whole, const Shape& part) {
  std::size_t at = 0;
  std::size_t scale = 1;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    const auto extent = static_cast<std::size_t>(whole[whole.size() - 1 - d]);
    const std::size_t place = i % extent;
    i /= extent;
    if (d >= part.size()) continue;
    const auto of_part = static_cast<std::size_t>(part[part.size() - 1 - d]);
    if (of_part != 1) at += scale * place;
    scale *= of_part;
  }
  return at;
}

/// Returns the oracle's result of the whole product, in row-major order.
template <class Arithmetic = WideArithmetic>
std::vector<float> oracle_gemm(const Tensor& a, const Tensor& b, const Accumulator& accumulator,
                               const Shape& out, const Tensor* c = nullptr,
                               const RandomKey& key = kKey) {
  const auto m = static_cast<std::size_t>(out[out.size() - 2]);
  const auto n = static_cast<std::size_t>(out.back());
  const auto depth = static_cast<std::size_t>(a.shape().back());
  const Shape batch(out.begin(), out.end() - 2);
  const Shape batch_a(a.shape().begin(), a.shape().end() - 2);
  const Shape batch_b(b.shape().begin(), b.shape().end() - 2);
  std::vector<float> result(static_cast<std::size_t>(count_of(out)));
  std::vector<float> column(depth);
  for (std::size_t i = 0; i < result.size(); ++i) {
    const std::size_t j = i % n;
    const std::size_t row = i / n % m;
    const std::size_t in_a = broadcast_index(i / n / m, batch, batch_a) * m + row;
    const std::size_t in_b = broadcast_index(i / n / m, batch, batch_b) * depth;
    for (std::size_t k = 0; k < depth; ++k) column[k] = b.values()[(in_b + k) * n + j];
    const float start = c == nullptr ? 0.0f : c->values()[broadcast_index(i, out, c->shape())];
    result[i] = reference::dot<Arithmetic>(
        accumulator, std::span(a.values()).subspan(in_a * depth, depth), column, start, i, key);
  }
  return result;
}

/// Returns an accumulator as text for failure messages, such as `e4m3 sequential …`.
inline std::string describe(const Accumulator& accumulator) {
  return ToString(accumulator) + ", " + describe(accumulator.format, accumulator.rounding);
}

inline std::string text_of(const Shape& shape) {
  std::string text = "(";
  for (const std::int64_t n : shape) text += std::to_string(n) + " ";
  text.back() = ')';
  return text;
}

/// A matrix product to compare on every backend with the oracle.
struct GemmCase {
  const Tensor& a;
  const Tensor& b;
  const Tensor* c = nullptr;
  Layout out_layout = Layout::contiguous;
  DType out_type = DType::f32;
  RandomKey key = kKey;
};

inline Shape out_shape(const GemmCase& g) {
  const auto batch = [](const Shape& s) { return Shape(s.begin(), s.end() - 2); };
  Shape x = batch(g.a.shape());
  Shape y = batch(g.b.shape());
  while (x.size() < y.size()) x.insert(x.begin(), 1);
  while (y.size() < x.size()) y.insert(y.begin(), 1);
  for (std::size_t d = 0; d < x.size(); ++d) x[d] = x[d] == 1 ? y[d] : x[d];
  x.push_back(*(g.a.shape().end() - 2));
  x.push_back(g.b.shape().back());
  return x;
}

/// Returns the addend and the pairs of operands of element i, as text for failure messages. Returns
/// "" if the element is a sum of more than four products.
inline std::string inputs_of(const GemmCase& g, const Shape& out, std::size_t i) {
  const auto depth = static_cast<std::size_t>(g.a.shape().back());
  if (depth > 4) return "";
  const Shape batch(out.begin(), out.end() - 2);
  const auto n = static_cast<std::size_t>(out.back());
  const auto m = static_cast<std::size_t>(out[out.size() - 2]);
  const Shape batch_a(g.a.shape().begin(), g.a.shape().end() - 2);
  const Shape batch_b(g.b.shape().begin(), g.b.shape().end() - 2);
  const std::size_t row = broadcast_index(i / n / m, batch, batch_a) * m + i / n % m;
  const std::size_t matrix = broadcast_index(i / n / m, batch, batch_b);
  std::string text = ", c ";
  text += g.c == nullptr ? "+0" : hex(g.c->values()[broadcast_index(i, out, g.c->shape())]);
  for (std::size_t k = 0; k < depth; ++k) {
    text += ", " + hex(g.a.values()[row * depth + k]) + " * " +
            hex(g.b.values()[(matrix * depth + k) * n + i % n]);
  }
  return text;
}

template <class Arithmetic = WideArithmetic>
::testing::AssertionResult gemm_matches(const GemmCase& g, const Accumulator& accumulator) {
  const Shape shape = out_shape(g);
  const std::vector<float> expected =
      oracle_gemm<Arithmetic>(g.a, g.b, accumulator, shape, g.c, g.key);
  for (const std::string& backend : backends()) {
    const WithBackend forced(backend);
    Tensor out(shape, std::vector<float>(expected.size(), -7.0f), g.out_layout, g.out_type);
    TensorView addend;
    if (g.c != nullptr) addend = g.c->view();
    Gemm(g.a.view(), g.b.view(), accumulator, out.view(), g.c != nullptr ? &addend : nullptr,
         g.key);
    const auto about = [&](std::size_t i) {
      return ", " + backend + ", " + describe(accumulator) + ", a " + text_of(g.a.shape()) +
             ", b " + text_of(g.b.shape()) + ", row " +
             std::to_string(i / static_cast<std::size_t>(shape.back())) + ", column " +
             std::to_string(i % static_cast<std::size_t>(shape.back())) + inputs_of(g, shape, i);
    };
    const std::vector<float> got = out.read();
    const auto equal =
        bits_equal(std::span<const float>(expected), std::span<const float>(got), about);
    if (!equal) return equal;
    if (g.out_layout == Layout::gaps && !out.gaps_untouched()) {
      return ::testing::AssertionFailure() << "wrote between out's elements" << about(0);
    }
  }
  return ::testing::AssertionSuccess();
}

// --- Values --------------------------------------------------------------------------------------

using Generator = std::mt19937_64;

/// The kinds of values that a matrix may hold.
enum class Values : std::uint8_t {
  on_grid,    ///< the format's own, of like size around 1 (or its middle), few bits: ties and
              ///< cancellations
  arbitrary,  ///< 24-bit numbers of that size
  wild,       ///< any bit patterns, specials among them
  mixed,      ///< the format's boundaries and specials
  small,      ///< at the subnormals' end
  large,      ///< so large that sums of a few pass the largest value
};
inline constexpr std::array kValues = {Values::on_grid, Values::arbitrary, Values::wild,
                                       Values::mixed,   Values::small,     Values::large};

/// Returns the exponent of the value in the middle of a format's codes.
inline int middle_exponent(const reference::Spec& spec) {
  const reference::Exact middle =
      reference::grid_value(spec, std::max<std::uint64_t>(1, spec.max_code() / 2));
  if (middle.is_zero()) return spec.emin();
  return middle.significand.bit_length() + middle.exponent - 1;
}

inline float binary32(bool negative, std::uint64_t significand, int exponent) {
  reference::Options truncate;
  truncate.rounding = Rounding::toward_zero;
  return reference::round(reference::Spec{},
                          reference::exact_finite(negative, significand, exponent), truncate);
}

/// Returns n numbers with `bits` significant bits and exponents around `centre`.
inline std::vector<float> numbers_around(int centre, int spread, int bits, std::size_t n,
                                         Generator& generator) {
  std::vector<float> values(n);
  for (float& x : values) {
    const int exponent =
        centre + static_cast<int>(generator() % (2 * static_cast<unsigned>(spread) + 1)) - spread;
    const std::uint64_t significand =
        (generator() & ((std::uint64_t{1} << (bits - 1)) - 1)) | (std::uint64_t{1} << (bits - 1));
    x = binary32((generator() & 1) != 0, significand, exponent - (bits - 1));
    if (generator() % 16 == 0) x = std::copysign(0.0f, x);
  }
  return values;
}

/// Returns n operands for products that are summed in a format. The operands' exponents are about
/// half the exponent in the middle of the format's range, so the products lie in that middle.
inline std::vector<float> operands(Values kind, const Format& format, std::size_t n,
                                   std::uint64_t seed) {
  const reference::Spec spec = reference::spec_of(format);
  Generator generator(seed);
  const int bits = std::min(spec.man + 1, 12);
  const int top = middle_exponent(reference::spec_of(format));
  const reference::Exact max = reference::grid_value(spec, spec.max_code());
  const int emax = max.is_zero() ? spec.emin() : max.significand.bit_length() + max.exponent - 1;
  switch (kind) {
    case Values::on_grid:
      return numbers_around(top / 2, 1, bits, n, generator);
    case Values::arbitrary:
      return numbers_around(top / 2, 2, 24, n, generator);
    case Values::small:
      return numbers_around((spec.emin() - spec.man) / 2, 1 + spec.man / 2, bits, n, generator);
    case Values::large:
      return numbers_around(emax / 2, 1, bits, n, generator);
    case Values::mixed:
      return mixed_values(spec, n, seed);
    case Values::wild:
      break;
  }
  std::vector<float> values(n);
  for (float& x : values) x = from_bits(static_cast<std::uint32_t>(generator()));
  return values;
}

}  // namespace cpd::testing
