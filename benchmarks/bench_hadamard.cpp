// SPDX-License-Identifier: Apache-2.0
//
// Measures Hadamard transforms on one thread against libc's memcpy between arrays of the same kind,
// alternately in one run. Checks the bits first: samples against the additions, subtractions and
// final scaling that define the transform, and that all backends give the same arrays. Prints one
// JSON object on each line. The exit status is 1 if bits are wrong.
//
//   bench_hadamard [--floats N] [--repeats R] [--seed S] [--only PATTERN]... [--list]
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "benchmarks/bits.h"
#include "benchmarks/timing.h"
#include "cpd/backend/roster.h"
#include "cpd/numeric/scaled/hadamard_plan.h"
#include "cpd/ops/hadamard.h"

namespace {

using cpd::DType;
using cpd::Hadamard;
using cpd::TensorView;
using timing::Memory;
using timing::Settings;

struct Row {
  std::string name;
  Hadamard transform;
  bool slow = false;  ///< along the slow axis of a matrix of transform.size rows
  DType dtype = DType::f32;
  std::optional<double> bar;
};

struct Arrays {
  std::int64_t n;
  const float* x;
  float* y;
};

std::vector<Row> Rows() {
  return {
      {"hadamard/16", {16}, false, DType::f32, 0.5},
      {"hadamard/32", {32}, false, DType::f32, 0.5},
      {"hadamard/128", {128}, false, DType::f32, std::nullopt},
      {"hadamard/te:bf16", {16, Hadamard::kTe, true}, false, DType::f32, std::nullopt},
      {"hadamard/te:bf16/bf16", {16, Hadamard::kTe, true}, false, DType::bf16, std::nullopt},
      {"hadamard_slow/16", {16}, true, DType::f32, std::nullopt},
      {"hadamard_slow/128", {128}, true, DType::f32, std::nullopt},
      {"hadamard_slow/te:bf16/bf16", {16, Hadamard::kTe, true}, true, DType::bf16, std::nullopt},
  };
}

void Run(const Row& row, const Arrays& a) {
  const std::int64_t size = row.transform.size;
  const std::vector<std::int64_t> shape =
      row.slow ? std::vector{size, a.n / size} : std::vector{a.n / size, size};
  const TensorView x = cpd::View(a.x, row.dtype, shape);
  const TensorView y = cpd::View(a.y, row.dtype, shape);
  cpd::Transform(x, row.transform, row.slow ? 0 : 1, false, y);
}

/// Returns whether group g of the result is right. Transforms the group's inputs in binary32 by the
/// definition. Supports only transforms without signs and without rounding to bf16.
bool IsRight(const Row& row, const Arrays& a, std::int64_t g) {
  const std::int64_t size = row.transform.size;
  const std::int64_t step = row.slow ? a.n / size : 1;
  const std::int64_t first = row.slow ? g : g * size;
  std::vector<float> v(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < v.size(); ++i) {
    v[i] = a.x[first + static_cast<std::int64_t>(i) * step];
  }
  for (std::size_t distance = 1; distance < v.size(); distance *= 2) {
    const std::vector<float> before = v;
    for (std::size_t i = 0; i < v.size(); ++i) {
      const bool second = (i & distance) != 0;
      v[i] = second ? before[i - distance] - before[i] : before[i] + before[i + distance];
    }
  }
  const auto scale = static_cast<float>(cpd::make_hadamard_plan(row.transform, false).scale);
  for (std::size_t i = 0; i < v.size(); ++i) {
    const float got = a.y[first + static_cast<std::int64_t>(i) * step];
    if (std::bit_cast<std::uint32_t>(v[i] * scale) != std::bit_cast<std::uint32_t>(got)) {
      return false;
    }
  }
  return true;
}

/// Runs a benchmark row's transform on every backend. Checks samples of plain binary32 results by
/// IsRight, and that all results are equal.
std::string CheckBits(const Row& row, const Arrays& a) {
  const auto bytes = cpd::SizeOf(row.dtype) * static_cast<std::size_t>(a.n);
  const bool plain = row.dtype == DType::f32 && row.transform == Hadamard{row.transform.size};
  const std::int64_t groups = a.n / row.transform.size;
  const auto check = [&]() -> std::string {
    Run(row, a);
    for (std::int64_t k = 0; plain && k < 1000; ++k) {
      if (!IsRight(row, a, (groups - 1) * k / 999)) return "the steps";
    }
    return "";
  };
  return timing::CheckBackends(
      check, [&] { return std::span(reinterpret_cast<const std::uint8_t*>(a.y), bytes); });
}

bool Measure(const Row& row, const Arrays& a, float* copy, int repeats) {
  const std::string wrong = CheckBits(row, a);
  if (!wrong.empty()) {
    timing::PrintWrong(row.name, wrong);
    return false;
  }
  const auto size = cpd::SizeOf(row.dtype) * static_cast<std::size_t>(a.n);
  const auto bytes = 2 * static_cast<double>(size);
  const double each = 2 * static_cast<double>(cpd::SizeOf(row.dtype));
  const timing::Side work{[&] { Run(row, a); }, bytes};
  const timing::Side memcpy{[&] { std::memcpy(copy, a.x, size); }, bytes};
  timing::Print(row.name, "memcpy", cpd::Kernels().name, timing::Time(work, memcpy, repeats),
                row.bar, {each, each});
  return true;
}

bool RunRows(const Settings& settings) {
  const std::vector<Row> rows = timing::Chosen(Rows(), settings);
  if (rows.empty()) return true;
  const std::int64_t n = settings.floats / Hadamard::kMostSize * Hadamard::kMostSize;
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(n);
  const Memory x(bytes);
  const Memory y(bytes);
  const Memory copy(bytes);
  std::mt19937 bits(static_cast<std::uint32_t>(settings.seed));
  for (std::int64_t i = 0; i < n; ++i) {
    const auto word = static_cast<std::uint32_t>(bits());
    x.floats()[i] = std::bit_cast<float>((word & 0x83FFFFFFU) + 0x3C000000U);
  }
  bool right = true;
  for (const Row& row : rows) {
    right = Measure(row, {n, x.floats(), y.floats()}, copy.floats(), settings.repeats) && right;
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  return timing::Guarded("bench_hadamard", [&] { return RunRows(timing::Parse(argc, argv)); });
}
