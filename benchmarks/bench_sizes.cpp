// SPDX-License-Identifier: Apache-2.0
//
// Measures casts of 2^10 to 2^28 floats, of 3 * 2^k floats, of odd numbers of floats and from
// unaligned addresses, on one thread against libc's memcpy of the same arrays, alternately in one
// run. No size should be much slower than the others. Checks the bits first: samples against the
// slow oracle and, up to 2^22 floats, that all backends give the same arrays. Prints one JSON
// object on each line. The exit status is 1 if bits are wrong.
//
//   bench_sizes [--floats N] [--repeats R] [--seed S] [--only PATTERN]... [--list]
//
// The largest arrays have 4 N floats.
#include <bit>

#include "benchmarks/timing.h"
#include "cpd/backend/roster.h"
#include "cpd/ops/cast.h"
#include "cpd/oracle/reference.h"

namespace {

using cpd::DType;
using cpd::View;
using timing::Memory;
using timing::Settings;

constexpr std::int64_t kCompared = std::int64_t{1} << 22;
constexpr double kShortest = 0.002;  ///< seconds of one turn

struct Row {
  std::string name;
  std::int64_t n = 0;
  std::int64_t offset = 0;  ///< of both arrays, in floats
};

struct Arrays {
  const float* x;
  float* y;
};

std::vector<Row> Rows(std::int64_t most) {
  std::vector<Row> rows;
  const auto add = [&](std::int64_t n, std::int64_t offset = 0) {
    if (n > most) return;
    const std::string name = "cast/size/" + std::to_string(n);
    rows.push_back({name + (offset == 0 ? "" : "/unaligned"), n, offset});
  };
  for (int k = 10; k <= 28; ++k) add(std::int64_t{1} << k);
  for (int k = 10; k <= 25; k += 3) add(std::int64_t{3} << k);
  for (int k = 10; k <= 26; k += 4) add((std::int64_t{1} << k) + 17);
  for (int k = 10; k <= 26; k += 4) add(std::int64_t{1} << k, 3);
  return rows;
}

const cpd::Format& E4m3() {
  static const cpd::Format format = cpd::ParseFormat("e4m3");
  return format;
}

void Run(const Row& row, const Arrays& a) {
  cpd::Cast(View(a.x, DType::f32, row.n), E4m3(), {}, View(a.y, DType::f32, row.n));
}

/// Checks some elements against the oracle. Returns the first wrong index, or -1.
std::int64_t FirstWrong(const Row& row, const Arrays& a) {
  namespace reference = cpd::reference;
  const reference::Spec spec = reference::spec_of(E4m3());
  constexpr std::int64_t kSamples = 64;
  for (std::int64_t k = 0; k < kSamples; ++k) {
    const std::int64_t begin = (row.n - 16) * k / (kSamples - 1);
    for (std::int64_t i = begin; i < begin + 16; ++i) {
      const float right = reference::cast(spec, a.x[i], reference::Options{});
      if (std::bit_cast<std::uint32_t>(a.y[i]) != std::bit_cast<std::uint32_t>(right)) return i;
    }
  }
  return -1;
}

std::string CheckBits(const Row& row, const Arrays& a) {
  Run(row, a);
  const std::int64_t wrong = FirstWrong(row, a);
  if (wrong >= 0) return "differs from the oracle at " + std::to_string(wrong);
  if (row.n > kCompared) return "";
  const std::vector<float> first(a.y, a.y + row.n);
  for (const cpd::KernelTable* table : cpd::AvailableKernels()) {
    cpd::ForceKernels(table->name);
    Run(row, a);
    if (std::memcmp(first.data(), a.y, sizeof(float) * first.size()) != 0) {
      return std::string(table->name) + " differs from another backend";
    }
  }
  cpd::ForceKernels("");
  return "";
}

bool Measure(const Row& row, const Arrays& all, int repeats) {
  const Arrays a{all.x + row.offset, all.y + row.offset};
  const std::string wrong = CheckBits(row, a);
  if (!wrong.empty()) {
    timing::PrintWrong(row.name, wrong);
    return false;
  }
  const auto size = sizeof(float) * static_cast<std::size_t>(row.n);
  const double once = timing::Seconds([&] { Run(row, a); });
  const int calls = std::max(1, static_cast<int>(kShortest / std::max(once, 1e-8)));
  const double bytes = 2.0 * static_cast<double>(size) * calls;
  const auto repeated = [calls](auto work) {
    return [calls, work] {
      for (int i = 0; i < calls; ++i) work();
    };
  };
  const timing::Side work{repeated([&] { Run(row, a); }), bytes};
  const timing::Side memcpy{repeated([&] { std::memcpy(a.y, a.x, size); }), bytes};
  timing::Print(row.name, "memcpy", cpd::Kernels().name, timing::Time(work, memcpy, repeats),
                std::nullopt, {8, 8});
  return true;
}

bool RunRows(const Settings& settings) {
  const std::vector<Row> rows = timing::Chosen(Rows(4 * settings.floats), settings);
  std::int64_t most = 0;
  for (const Row& row : rows) most = std::max(most, row.n + row.offset);
  if (rows.empty()) return true;
  const Memory x(sizeof(float) * static_cast<std::size_t>(most));
  const Memory y(sizeof(float) * static_cast<std::size_t>(most));
  timing::FillNormal(settings.seed, most, x.floats());
  bool right = true;
  for (const Row& row : rows) {
    right = Measure(row, {x.floats(), y.floats()}, settings.repeats) && right;
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  return timing::Guarded("bench_sizes", [&] { return RunRows(timing::Parse(argc, argv)); });
}
