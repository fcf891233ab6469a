// SPDX-License-Identifier: Apache-2.0
//
// Measures single operations on one thread against libc's memcpy, alternately in one run. Checks
// the bits first: blocks spread over the whole array against the oracle, on every backend. Prints
// one JSON object on each line. The exit status is 1 if bits are wrong.
//
//   bench_arithmetic [--floats N] [--repeats R] [--seed S] [--only PATTERN]... [--list]
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "benchmarks/bits.h"
#include "benchmarks/timing.h"
#include "cpd/backend/roster.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/exact.h"
#include "cpd/oracle/reference_quotients.h"

namespace {

using cpd::DType;
using cpd::Format;
using cpd::RoundingOptions;
using cpd::View;
using cpd::soft::Operation;
using timing::Memory;
using timing::Settings;

struct Row {
  std::string name;
  Operation operation = Operation::add;
  Format format;
  RoundingOptions options{};
  bool any = false;        ///< operands have 24 bits, else they are values of the format
  bool has_flags = false;  ///< the exceptions, too
};

struct Arrays {
  std::int64_t n;
  float *x, *y, *z, *out;
  std::uint8_t* flags;
};

void Run(const Row& row, const Arrays& a) {
  const auto view = [&](float* data) { return View(data, DType::f32, a.n); };
  const cpd::TensorView x = view(a.x);
  const cpd::TensorView y = view(a.y);
  const cpd::TensorView z = view(a.z);
  const cpd::TensorView out = view(a.out);
  if (row.has_flags) {
    const int count = cpd::soft::operands_of(row.operation);
    cpd::Flags(row.operation, {x, count > 1 ? &y : nullptr, count > 2 ? &z : nullptr}, row.format,
               row.options, cpd::soft::Tininess::after, View(a.flags, DType::u8, a.n));
  }
  switch (row.operation) {
    case Operation::add:
      return cpd::Add(x, y, row.format, row.options, out);
    case Operation::mul:
      return cpd::Mul(x, y, row.format, row.options, out);
    case Operation::div:
      return cpd::Div(x, y, row.format, row.options, out);
    case Operation::sqrt:
      return cpd::Sqrt(x, row.format, row.options, out);
    default:
      return cpd::Fma(x, y, z, row.format, row.options, out);
  }
}

timing::Element ElementOf(const Row& row) {
  const double bytes = 4 * (cpd::soft::operands_of(row.operation) + 1) + (row.has_flags ? 1 : 0);
  return {bytes, bytes};
}

/// Fills the operands with values of similar magnitude. The operands of quotients and square roots
/// are positive.
void Fill(const Row& row, std::uint64_t seed, const Arrays& a) {
  const bool positive = row.operation == Operation::div || row.operation == Operation::sqrt;
  for (float* operand : {a.x, a.y, a.z}) {
    timing::FillNormal(seed++, a.n, operand);
    if (positive) {
      for (std::int64_t i = 0; i < a.n; ++i) operand[i] = 0.25F + operand[i] * operand[i];
    }
    const auto view = View(operand, DType::f32, a.n);
    if (!row.any) cpd::Cast(view, row.format, {}, view);
  }
}

// --- bits ----------------------------------------------------------------------------------------

bool IsRight(const Row& row, const Arrays& a, std::int64_t i, std::uint32_t random) {
  namespace reference = cpd::reference;
  const RoundingOptions& o = row.options;
  const reference::Options options{o.mode, o.overflow, o.variant, o.random_bits, random};
  const reference::Exact exact = reference::result_of(
      row.operation, reference::exact(a.x[i]), reference::exact(a.y[i]), reference::exact(a.z[i]));
  const float wanted = reference::round(reference::spec_of(row.format), exact, options);
  return std::bit_cast<std::uint32_t>(a.out[i]) == std::bit_cast<std::uint32_t>(wanted);
}

/// Runs a benchmark row's operation on every backend. Checks each result against the oracle, and
/// that all results are equal.
std::string CheckBits(const Row& row, const Arrays& a) {
  const auto is_right = [&](std::int64_t i, std::uint32_t random) {
    return IsRight(row, a, i, random);
  };
  const auto check = [&] {
    Run(row, a);
    return timing::TheOracleAt(timing::FirstWrong(row.options, a.n, is_right));
  };
  const auto bytes = sizeof(float) * static_cast<std::size_t>(a.n);
  return timing::CheckBackends(
      check, [&] { return std::span(reinterpret_cast<const std::uint8_t*>(a.out), bytes); });
}

// --- the list ------------------------------------------------------------------------------------

std::vector<Row> Rows() {
  const Format e4m3 = cpd::ParseFormat("e4m3");
  std::vector<Row> rows;
  for (const Operation op :
       {Operation::add, Operation::mul, Operation::fma, Operation::div, Operation::sqrt}) {
    rows.push_back(
        {.name = "arithmetic/" + ToString(op) + "/e4m3", .operation = op, .format = e4m3});
  }
  rows.push_back({.name = "arithmetic/mul/bf16",
                  .operation = Operation::mul,
                  .format = cpd::ParseFormat("bf16")});
  rows.push_back({.name = "arithmetic/fma/e4m3/any",
                  .operation = Operation::fma,
                  .format = e4m3,
                  .any = true});
  RoundingOptions stochastic;
  stochastic.mode = cpd::Rounding::stochastic;
  stochastic.random_bits = 8;
  rows.push_back({.name = "arithmetic/mul/e4m3/stochastic8",
                  .operation = Operation::mul,
                  .format = e4m3,
                  .options = stochastic});
  rows.push_back({.name = "arithmetic/mul/e4m3/flags",
                  .operation = Operation::mul,
                  .format = e4m3,
                  .has_flags = true});
  return rows;
}

// --- the program ---------------------------------------------------------------------------------

bool RunRows(const Settings& settings) {
  const std::vector<Row> rows = timing::Chosen(Rows(), settings);
  if (rows.empty()) return true;
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(settings.floats);
  const Memory x(bytes);
  const Memory y(bytes);
  const Memory z(bytes);
  const Memory out(bytes);
  const Memory flags(bytes / sizeof(float));
  const Arrays a{settings.floats, x.floats(), y.floats(), z.floats(), out.floats(), flags.bytes()};
  bool right = true;
  for (const Row& row : rows) {
    Fill(row, settings.seed, a);
    const std::string wrong = CheckBits(row, a);
    if (!wrong.empty()) {
      timing::PrintWrong(row.name, wrong);
      right = false;
      continue;
    }
    const timing::Side work{[&] { Run(row, a); },
                            ElementOf(row).counted * static_cast<double>(a.n)};
    const timing::Side copy{[&] { std::memcpy(a.z, a.out, bytes); },
                            2 * static_cast<double>(bytes)};
    timing::Print(row.name, "memcpy", cpd::Kernels().name,
                  timing::Time(work, copy, settings.repeats), std::nullopt, ElementOf(row));
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  return timing::Guarded("bench_arithmetic", [&] { return RunRows(timing::Parse(argc, argv)); });
}
