// SPDX-License-Identifier: Apache-2.0
//
// Products of scaled operands in tests: GemmScaled on every device is compared with the oracle.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cpd/ops/gemm.h"
#include "tests/testing/devices.h"
#include "tests/testing/gemm.h"

namespace cpd::testing {

/// One operand: its elements, the scales of its blocks, and the factors of its rows or columns.
struct ScaledTensor {
  Tensor elements;
  std::optional<Tensor> scales{};
  std::int64_t block = 0, lines = 1;
  std::optional<Tensor> factor{};
};

struct ScaledCase {
  ScaledTensor a, b;
  std::optional<Tensor> c{};
  ScalesAt at = ScalesAt::block;
};

inline Shape out_shape(const ScaledCase& s) {
  return out_shape({s.a.elements, s.b.elements, nullptr, Layout::contiguous, DType::f32});
}

/// Returns the element (row, column) of matrix `number` of a batch. The tensor is broadcast to the
/// batch; a dimension of size 1 is broadcast to all rows or columns.
inline float at_of(const Tensor& x, const Shape& batch, std::size_t number, std::size_t row,
                   std::size_t column) {
  const Shape own(x.shape().begin(), x.shape().end() - 2);
  const auto rows = static_cast<std::size_t>(*(x.shape().end() - 2));
  const auto columns = static_cast<std::size_t>(x.shape().back());
  const std::size_t matrix = broadcast_index(number, batch, own);
  return x
      .values()[(matrix * rows + (rows == 1 ? 0 : row)) * columns + (columns == 1 ? 0 : column)];
}

/// Returns the scales of one line (a row of a, a column of b), one for each k.
inline std::vector<float> scales_of(const ScaledTensor& x, bool is_a, const Shape& batch,
                                    std::size_t number, std::size_t line, std::size_t depth) {
  std::vector<float> scales;
  if (!x.scales) return scales;
  const std::size_t group = x.lines == 0 ? 0 : line / static_cast<std::size_t>(x.lines);
  for (std::size_t k = 0; k < depth; ++k) {
    const std::size_t block = x.block == 0 ? 0 : k / static_cast<std::size_t>(x.block);
    scales.push_back(is_a ? at_of(*x.scales, batch, number, group, block)
                          : at_of(*x.scales, batch, number, block, group));
  }
  return scales;
}

inline std::vector<float> oracle_gemm_scaled(const ScaledCase& s, const Accumulator& accumulator) {
  const Shape out = out_shape(s);
  const Shape batch(out.begin(), out.end() - 2);
  const auto m = static_cast<std::size_t>(out[out.size() - 2]);
  const auto n = static_cast<std::size_t>(out.back());
  const auto depth = static_cast<std::size_t>(s.a.elements.shape().back());
  std::vector<float> result(static_cast<std::size_t>(count_of(out)));
  for (std::size_t i = 0; i < result.size(); ++i) {
    const std::size_t row = i / n % m;
    const std::size_t column = i % n;
    const std::size_t number = i / n / m;
    std::vector<float> a(depth);
    std::vector<float> b(depth);
    for (std::size_t k = 0; k < depth; ++k) {
      a[k] = at_of(s.a.elements, batch, number, row, k);
      b[k] = at_of(s.b.elements, batch, number, k, column);
    }
    const std::vector<float> a_scales = scales_of(s.a, true, batch, number, row, depth);
    const std::vector<float> b_scales = scales_of(s.b, false, batch, number, column, depth);
    reference::ScaledDot dot;
    dot.operands = {a, b, a_scales, b_scales};
    const auto of_a = static_cast<std::size_t>(s.a.scales ? s.a.block : 0);
    const auto of_b = static_cast<std::size_t>(s.b.scales ? s.b.block : 0);
    dot.block = of_a == 0 || of_b == 0 ? std::max(of_a, of_b) : std::min(of_a, of_b);
    if (dot.block == 0) dot.block = std::max<std::size_t>(1, depth);
    dot.has_factors = s.a.factor || s.b.factor;
    if (s.a.factor) dot.a_factor = at_of(*s.a.factor, batch, number, row, 0);
    if (s.b.factor) dot.b_factor = at_of(*s.b.factor, batch, number, 0, column);
    if (s.c) dot.c = s.c->values()[broadcast_index(i, out, s.c->shape())];
    result[i] = reference::dot_scaled<WideArithmetic>(accumulator, dot, s.at == ScalesAt::epilogue,
                                                      i, kKey);
  }
  return result;
}

/// Views of an operand's scales and factors.
struct ScaleViews {
  explicit ScaleViews(const ScaledTensor& x) {
    if (x.scales) scales = x.scales->view();
    if (x.factor) factor = x.factor->view();
    given.scales = x.scales ? &scales : nullptr;
    given.factor = x.factor ? &factor : nullptr;
    given.block = x.block;
    given.lines = x.lines;
  }
  ScaleViews(const ScaleViews&) = delete;
  ScaleViews& operator=(const ScaleViews&) = delete;

  TensorView scales, factor;
  OperandScales given;
};

/// Copies the scaled operands to the device where `there` makes its copies (by default the CPU),
/// and returns their product.
inline std::vector<float> run_scaled(const ScaledCase& s, const Accumulator& accumulator,
                                     Copies there = Copies(nullptr)) {
  const Shape shape = out_shape(s);
  const Tensor out(shape, std::vector<float>(static_cast<std::size_t>(count_of(shape)), -7.0f));
  const auto scales = [&](const ScaledTensor& x) {
    const ScaleViews host(x);
    return OperandScales{there(host.given.scales), x.block, x.lines, there(host.given.factor)};
  };
  TensorView c;
  if (s.c) c = s.c->view();
  GemmScaled(there(s.a.elements.view()), scales(s.a), there(s.b.elements.view()), scales(s.b),
             accumulator, s.at, there(out.view()), s.c ? there(&c) : nullptr, kKey);
  there.Read(out.view());
  return out.read();
}

inline ::testing::AssertionResult scaled_equal(const ScaledCase& s, const Accumulator& accumulator,
                                               const std::string& who,
                                               const std::vector<float>& expected,
                                               const std::vector<float>& got) {
  const auto about = [&](std::size_t i) {
    return ", " + who + ", " + describe(accumulator) + ", a " + text_of(s.a.elements.shape()) +
           ", b " + text_of(s.b.elements.shape()) + ", blocks " + std::to_string(s.a.block) + " " +
           std::to_string(s.b.block) + ", element " + std::to_string(i);
  };
  return bits_equal(std::span<const float>(expected), std::span<const float>(got), about);
}

/// Succeeds if all devices give the oracle's product. Devices other than the CPU run about one case
/// in `rare`.
inline ::testing::AssertionResult gemm_scaled_matches(const ScaledCase& s,
                                                      const Accumulator& accumulator,
                                                      unsigned rare = 3) {
  const std::vector<float> expected = oracle_gemm_scaled(s, accumulator);
  static std::size_t turn = 0;
  const bool is_rare = !is_chosen_on_cpu(++turn, rare);
  for (const std::string& name : devices()) {
    const OnBackendOrGpu device(name);
    if (!device.on_host() && is_rare) continue;
    const std::vector<float> got = run_scaled(s, accumulator, device.There());
    const auto equal = scaled_equal(s, accumulator, name, expected, got);
    if (!equal) return equal;
  }
  return ::testing::AssertionSuccess();
}

/// Returns n scales that are values of the format. The scales are near 1. If `all` is true, they
/// have every size, and some are NaN.
inline std::vector<float> scale_values(const Format& format, bool all, std::size_t n,
                                       std::uint64_t seed) {
  Generator generator(seed);
  const reference::Spec spec = reference::spec_of(format);
  const Format storage = format;
  std::vector<float> values(n);
  for (float& x : values) {
    if (all) {
      x = reference::decode(spec, generator() % spec.magnitudes());
    } else {
      const auto exponent = static_cast<int>(generator() % 7) - 3;
      x = reference::cast(reference::spec_of(storage),
                          binary32(false, 0x800000 | (generator() & 0x7FFFFF), exponent - 23));
    }
  }
  return values;
}

inline std::size_t size_of(const Shape& shape) { return static_cast<std::size_t>(count_of(shape)); }
inline std::int64_t parts(std::int64_t n, std::int64_t part) {
  return part == 0 ? 1 : (n + part - 1) / part;
}

/// The shape of the block that one scale covers: `block` values of k in each of `lines` rows of the
/// left operand or columns of the right operand.
struct ScaleTile {
  std::int64_t block = 32, lines = 1;
};

/// Rounds each value into a format.
inline void round_into(const Format& format, Tensor& x) {
  std::vector<float> values = x.values();
  for (float& value : values) value = reference::cast(reference::spec_of(format), value);
  x = Tensor(x.shape(), values);
}

/// Makes scaled products to test. Each has new random values.
class ScaledCases {
 public:
  explicit ScaledCases(const Format& elements, Values kind = Values::on_grid)
      : elements_(elements), kind_(kind) {}

  Tensor Elements(const Shape& shape) {
    return {shape, operands(kind_, elements_, size_of(shape), ++seed_)};
  }
  Tensor Scales(const Shape& shape, bool all = false) {
    return {shape, scale_values(scale, all, size_of(shape), ++seed_)};
  }
  ScaledCase Make(std::int64_t m, std::int64_t k, std::int64_t n, const ScaleTile& a,
                  const ScaleTile& b, bool all = false) {
    ScaledCase made{{Elements({m, k})}, {Elements({k, n})}};
    made.a.block = a.block;
    made.a.lines = a.lines;
    made.a.scales = Scales({parts(m, a.lines), parts(k, a.block)}, all);
    made.b.block = b.block;
    made.b.lines = b.lines;
    made.b.scales = Scales({parts(k, b.block), parts(n, b.lines)}, all);
    return made;
  }
  void AddFactors(ScaledCase& made, std::int64_t m, std::int64_t n) {
    made.a.factor = Scales({m, 1});
    made.b.factor = Scales({1, n});
  }
  Tensor Addend(const Shape& shape) {
    return {shape, operands(Values::arbitrary, ParseFormat("e5m10"), size_of(shape), ++seed_)};
  }

  Format scale = kFp32;

 private:
  Format elements_;
  Values kind_;
  std::uint64_t seed_ = 0;
};

}  // namespace cpd::testing
