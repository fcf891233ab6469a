// SPDX-License-Identifier: Apache-2.0
//
// Measures scaled formats on one thread against libc's memcpy between arrays of the input's size,
// alternately in one run. Checks the bits first: sampled blocks of MX casts against the definition
// of the MX formats, and that all backends give the same arrays. Prints one JSON object on each
// line. The exit status is 1 if bits are wrong.
//
//   bench_scaled [--floats N] [--repeats R] [--seed S] [--only PATTERN]... [--list]
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/bits.h"
#include "benchmarks/timing.h"
#include "cpd/backend/roster.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/scaled.h"

namespace {

using cpd::DType;
using cpd::RoundingOptions;
using cpd::Scaled;
using cpd::TensorView;
using cpd::View;
using timing::Memory;
using timing::Settings;

constexpr std::int64_t kColumns = 4096;  // of the matrix; blocks run along its rows

enum class Operation { cast, encode, decode };

struct Row {
  std::string name;
  Operation operation = Operation::cast;
  Scaled scaled;
  int axis = 1;
  int random_bits = 0;  ///< 0: to nearest-even
  std::optional<double> bar;
  bool turned = false;  ///< the matrix is the transpose of one of kColumns columns in memory
};

std::vector<Row> Rows() {
  std::vector<Row> rows;
  const auto add = [&](const char* kind, const char* text, Operation operation, int axis,
                       int random_bits, std::optional<double> bar) {
    std::string name = std::string("scaled/") + kind + "/" + text;
    std::ranges::replace(name, ' ', '_');
    rows.push_back({name, operation, cpd::ParseScaled(text), axis, random_bits, bar});
  };
  const auto turned = [&](const char* kind, const char* text, int axis, int random_bits) {
    add(kind, text, Operation::cast, axis, random_bits, std::nullopt);
    rows.back().turned = true;
  };
  add("cast", "mxfp8", Operation::cast, 1, 0, 0.5);
  add("cast", "mxfp4", Operation::cast, 1, 0, 0.5);
  add("cast", "nvfp4", Operation::cast, 1, 0, 0.45);
  add("cast", "fp8-row", Operation::cast, 1, 0, 0.45);
  add("cast", "fp8-tensor", Operation::cast, 1, 0, 0.45);
  add("cast", "fp8-block", Operation::cast, 1, 0, std::nullopt);
  add("cast", "fp8-block 128x128", Operation::cast, 1, 0, std::nullopt);
  add("cast", "int8 row", Operation::cast, 1, 0, 0.45);
  add("cast_slow", "mxfp8", Operation::cast, 0, 0, 0.35);
  add("cast_slow", "nvfp4", Operation::cast, 0, 0, 0.35);
  add("cast_slow", "fp8-block", Operation::cast, 0, 0, 0.35);
  add("encode", "mxfp8", Operation::encode, 1, 0, 0.45);
  add("encode", "nvfp4", Operation::encode, 1, 0, std::nullopt);
  add("decode", "mxfp8", Operation::decode, 1, 0, std::nullopt);
  add("stochastic", "mxfp8", Operation::cast, 1, 8, std::nullopt);
  add("stochastic", "nvfp4", Operation::cast, 1, 8, std::nullopt);
  add("stochastic_slow", "mxfp8", Operation::cast, 0, 8, std::nullopt);
  add("cast_slow", "int8 row", Operation::cast, 0, 0, std::nullopt);
  for (const char* text : {"mxfp8", "nvfp4", "int8 row"}) turned("cast_turned", text, 1, 0);
  turned("cast_turned_slow", "mxfp8", 0, 0);
  for (const char* text : {"mxfp8", "nvfp4"}) turned("stochastic_turned", text, 1, 8);
  turned("stochastic_turned_slow", "mxfp8", 0, 8);
  return rows;
}

/// The arrays of a benchmark row. The arrays for codes and scales are large enough for every row.
struct Arrays {
  std::int64_t n;
  const float* x;
  float* y;
  std::uint8_t* codes;
  std::uint8_t* scales;
  std::uint8_t* tensor;
};

std::vector<std::int64_t> ShapeOf(const Row& row, std::int64_t n) {
  std::vector<std::int64_t> shape{n / kColumns, kColumns};
  if (row.turned) std::swap(shape[0], shape[1]);
  return shape;
}

void Run(const Row& row, const Arrays& a) {
  const std::vector<std::int64_t> shape = ShapeOf(row, a.n);
  RoundingOptions options{.overflow = cpd::Overflow::saturate};
  if (row.random_bits > 0) {
    options.mode = cpd::Rounding::stochastic;
    options.random_bits = row.random_bits;
  }
  TensorView x = View(a.x, DType::f32, shape), y = View(a.y, DType::f32, shape);
  if (row.turned) {
    for (TensorView* each : {&x, &y}) {
      each->stride[0] = 1;
      each->stride[1] = kColumns;
    }
  }
  if (row.operation == Operation::cast) return cpd::Cast(x, row.scaled, row.axis, options, y);
  const cpd::ScaleCounts counts = cpd::CountScales(row.scaled, shape, row.axis);
  const auto bytes = [](const std::uint8_t* at, const cpd::Format& format, std::int64_t n) {
    return View(at, DType::u8, cpd::PackedBytes(format, n));
  };
  const TensorView codes = bytes(a.codes, row.scaled.element, a.n);
  const TensorView scales = bytes(a.scales, row.scaled.scale, counts.blocks);
  std::optional<TensorView> tensor;
  if (row.scaled.tensor_scale) tensor = bytes(a.tensor, *row.scaled.tensor_scale, counts.tensor);
  const TensorView* outer = tensor ? &*tensor : nullptr;
  if (row.operation == Operation::encode) {
    return cpd::Encode(x, row.scaled, row.axis, options, codes, scales, outer);
  }
  cpd::Decode(codes, row.scaled, row.axis, scales, outer, y);
}

/// Returns the bytes for each element that a benchmark row's rate counts and that its loop moves. A
/// scale for the whole tensor requires reading the values twice.
timing::Element ElementOf(const Row& row, std::int64_t n) {
  using Kind = cpd::BlockShape::Kind;
  const bool of_tensor = row.scaled.block.kind == Kind::tensor ||
                         (row.scaled.tensor_scale && row.scaled.outer == Kind::tensor);
  const std::vector<std::int64_t> shape = ShapeOf(row, n);
  const double code = BitsPerValue(row.scaled, shape, row.axis) / 8;
  const double other = row.operation == Operation::cast ? 4 : code;
  return {8, 4 + other + (of_tensor && row.operation != Operation::decode ? 4 : 0)};
}

/// Returns whether block number g of a row's MX cast is right. Computes the block's scale by the
/// definition of the MX formats, and its elements by cpd::Cast.
bool IsRight(const Row& row, const Arrays& a, std::int64_t g) {
  const std::int64_t size = row.scaled.block.columns;
  std::vector<float> v(a.x + g * size, a.x + (g + 1) * size);
  float largest = 0;
  for (const float each : v) largest = std::max(largest, std::abs(each));
  const int power = std::ilogb(largest) - row.scaled.element.emax();
  for (float& each : v) each = std::ldexp(each, -power);
  cpd::Cast(View(v), row.scaled.element, {.overflow = cpd::Overflow::saturate}, View(v));
  for (std::int64_t i = 0; i < size; ++i) {
    const float wanted = std::ldexp(v[i], power);
    if (std::bit_cast<std::uint32_t>(wanted) != std::bit_cast<std::uint32_t>(a.y[g * size + i])) {
      return false;
    }
  }
  return true;
}

/// Runs a benchmark row's operation on every backend. Checks sampled blocks of MX casts by IsRight,
/// and that all results are equal.
std::string CheckBits(const Row& row, const Arrays& a) {
  // Blocks along memory.
  const bool is_mx = row.operation == Operation::cast && row.axis == (row.turned ? 0 : 1) &&
                     row.random_bits == 0 && row.scaled.scale == cpd::kE8m0;
  const bool codes = row.operation == Operation::encode;
  const auto* result = codes ? a.codes : reinterpret_cast<const std::uint8_t*>(a.y);
  const auto bytes =
      static_cast<std::size_t>(codes ? cpd::PackedBytes(row.scaled.element, a.n) : 4 * a.n);
  const auto check = [&]() -> std::string {
    if (row.operation == Operation::decode) {
      Row encode = row;
      encode.operation = Operation::encode;
      Run(encode, a);
    }
    Run(row, a);
    const std::int64_t blocks = a.n / row.scaled.block.columns;
    for (std::int64_t k = 0; is_mx && k < 1000; ++k) {
      if (!IsRight(row, a, (blocks - 1) * k / 999)) return "the steps";
    }
    return "";
  };
  return timing::CheckBackends(check, [&] { return std::span(result, bytes); });
}

bool Measure(const Row& row, const Arrays& a, float* copy, int repeats) {
  const std::string wrong = CheckBits(row, a);
  if (!wrong.empty()) {
    timing::PrintWrong(row.name, wrong);
    return false;
  }
  const std::size_t size = sizeof(float) * static_cast<std::size_t>(a.n);
  const timing::Side work{[&] { Run(row, a); }, 2 * static_cast<double>(size)};
  const timing::Side memcpy{[&] { std::memcpy(copy, a.x, size); }, 2 * static_cast<double>(size)};
  timing::Print(row.name, "memcpy", cpd::Kernels().name, timing::Time(work, memcpy, repeats),
                row.bar, ElementOf(row, a.n));
  return true;
}

bool RunRows(const Settings& settings) {
  const std::vector<Row> rows = timing::Chosen(Rows(), settings);
  if (rows.empty()) return true;
  const std::int64_t n =
      std::max<std::int64_t>(1, settings.floats / kColumns / 128) * 128 * kColumns;
  const auto bytes = sizeof(float) * static_cast<std::size_t>(n);
  const Memory x(bytes), y(bytes), copy(bytes), codes(bytes / 4), scales(bytes / 4), tensor(4096);
  timing::FillNormal(settings.seed, n, x.floats());
  const Arrays arrays{n, x.floats(), y.floats(), codes.bytes(), scales.bytes(), tensor.bytes()};
  bool right = true;
  for (const Row& row : rows)
    right = Measure(row, arrays, copy.floats(), settings.repeats) && right;
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  return timing::Guarded("bench_scaled", [&] { return RunRows(timing::Parse(argc, argv)); });
}
