// SPDX-License-Identifier: Apache-2.0
//
// Measures casts, encoding and decoding on one thread against libc's memcpy between arrays of the
// same kind (64-byte aligned, all pages touched), alternately in one run. Checks the bits first:
// samples against the slow oracle, and that all backends give the same arrays. Prints one JSON
// object on each line. The exit status is 1 if bits are wrong.
//
//   bench_cast [--floats N] [--repeats R] [--seed S] [--only PATTERN]... [--list]
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "benchmarks/bits.h"
#include "benchmarks/timing.h"
#include "cpd/backend/roster.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "cpd/oracle/reference.h"

namespace {

using cpd::DType;
using cpd::Format;
using cpd::Rounding;
using cpd::RoundingOptions;
using cpd::View;
using timing::Memory;
using timing::Settings;

// --- data ----------------------------------------------------------------------------------------

enum class Mix { normal, subnormal, special };

/// Returns a random value. `normal`: all values are normal in the format. `subnormal`: 10 % of the
/// values are subnormal in the format or overflow. `special`: 1 % of the values are NaN or Inf.
float Draw(const Format& format, Mix mix, std::mt19937_64& bits) {
  const std::uint64_t r = bits();
  const double fraction = 1.0 + std::ldexp(static_cast<double>(r >> 40), -24);
  const double sign = (r & 1) != 0 ? -1.0 : 1.0;
  const auto percent = static_cast<int>((r >> 1) % 100);
  const bool odd = (r >> 8) % 2 != 0;
  const int low = format.emin();
  const int high = std::max(low, format.emax() - 1);
  if (mix == Mix::special && percent == 0) {
    return odd ? std::numeric_limits<float>::quiet_NaN()
               : static_cast<float>(sign) * std::numeric_limits<float>::infinity();
  }
  if (mix == Mix::subnormal && percent < 10) {
    const int exponent = odd ? format.emax() + 1 : low - 1 - static_cast<int>((r >> 9) % 3);
    return static_cast<float>(std::ldexp(sign * fraction, exponent));
  }
  const int exponent = low + static_cast<int>((r >> 9) % static_cast<unsigned>(high - low + 1));
  return static_cast<float>(std::ldexp(sign * fraction, exponent));
}

void Fill(const Format& format, Mix mix, std::uint64_t seed, std::int64_t n, float* x) {
  std::mt19937_64 bits(seed);
  const std::int64_t period = std::min<std::int64_t>(n, (std::int64_t{1} << 20) + 17);
  for (std::int64_t i = 0; i < period; ++i) x[i] = Draw(format, mix, bits);
  for (std::int64_t i = period; i < n; i += period) {
    std::memcpy(x + i, x, sizeof(float) * static_cast<std::size_t>(std::min(period, n - i)));
  }
}

// --- rows ----------------------------------------------------------------------------------------

enum class Operation { cast, encode, decode };

struct Row {
  std::string name;
  Operation operation = Operation::cast;
  Format format;
  RoundingOptions options;
  Mix mix = Mix::normal;
  std::string backend;  ///< empty: the one in use
  std::optional<double> bar;
  /// True if x and y are the transposes of matrices with kTurned columns in memory.
  bool turned_x = false, turned_y = false;
};

constexpr std::int64_t kTurned = 4096;

/// Returns a view of n elements as a matrix: contiguous, or the transpose of a matrix with kTurned
/// columns.
cpd::TensorView Matrix(const float* memory, std::int64_t n, bool turned) {
  const std::vector<std::int64_t> shape{kTurned, n / kTurned};
  cpd::TensorView view = View(memory, DType::f32, shape);
  if (turned) {
    view.stride[0] = 1;
    view.stride[1] = kTurned;
  }
  return view;
}
/// Returns the index in memory of element i.
std::int64_t PlaceOf(std::int64_t i, std::int64_t n, bool turned) {
  const std::int64_t columns = n / kTurned;
  return turned ? i / columns + i % columns * kTurned : i;
}

/// The arrays of a benchmark row: a cast reads x and writes y, encoding reads x and writes codes,
/// decoding reads codes and writes y.
struct Arrays {
  std::int64_t n;
  const float* x;
  float* y;
  std::uint8_t* codes;
};

void Run(const Row& row, const Arrays& a) {
  const auto x = View(a.x, DType::f32, a.n);
  const auto y = View(a.y, DType::f32, a.n);
  const auto codes = View(a.codes, DType::u8, cpd::PackedBytes(row.format, a.n));
  if (row.turned_x || row.turned_y) {
    return cpd::Cast(Matrix(a.x, a.n, row.turned_x), row.format, row.options,
                     Matrix(a.y, a.n, row.turned_y));
  }
  switch (row.operation) {
    case Operation::cast:
      return cpd::Cast(x, row.format, row.options, y);
    case Operation::encode:
      return cpd::Encode(x, row.format, row.options, codes);
    case Operation::decode:
      return cpd::Decode(codes, row.format, y);
  }
}

timing::Element ElementOf(const Row& row) {
  const double bytes = row.operation == Operation::cast ? 8 : 4 + row.format.bits() / 8.0;
  return {bytes, bytes};
}

// --- bits ----------------------------------------------------------------------------------------

/// Returns whether element i is what the oracle gives; `random` is the element's random integer.
bool IsRight(const Row& row, const Arrays& a, std::int64_t i, std::uint32_t random) {
  namespace reference = cpd::reference;
  const Format& f = row.format;
  const reference::Spec spec{f.exp, f.man, f.bias, f.encoding, f.is_signed, f.subnormals};
  const RoundingOptions& o = row.options;
  const reference::Options options{o.mode, o.overflow, o.variant, o.random_bits, random};
  const auto same = [](float p, float q) {
    return std::bit_cast<std::uint32_t>(p) == std::bit_cast<std::uint32_t>(q);
  };
  switch (row.operation) {
    case Operation::cast:
      return same(a.y[PlaceOf(i, a.n, row.turned_y)],
                  reference::cast(spec, a.x[PlaceOf(i, a.n, row.turned_x)], options));
    case Operation::encode:
      return timing::CodeAt(a.codes, f.bits(), i) ==
             reference::encode(spec, reference::exact(a.x[i]), options);
    case Operation::decode:
      return same(a.y[i], reference::decode(spec, timing::CodeAt(a.codes, f.bits(), i)));
  }
  return false;
}

/// Runs a benchmark row's operation on every backend. Checks each result against the oracle, and
/// that all results are equal.
std::string CheckBits(const Row& row, const Arrays& a) {
  const bool to_codes = row.operation == Operation::encode;
  const auto bytes = to_codes ? static_cast<std::size_t>(cpd::PackedBytes(row.format, a.n))
                              : sizeof(float) * static_cast<std::size_t>(a.n);
  const std::uint8_t* result = to_codes ? a.codes : reinterpret_cast<const std::uint8_t*>(a.y);
  const auto is_right = [&](std::int64_t i, std::uint32_t random) {
    return IsRight(row, a, i, random);
  };
  const auto check = [&] {
    Run(row, a);
    return timing::TheOracleAt(timing::FirstWrong(row.options, a.n, is_right));
  };
  return timing::CheckBackends(check, [&] { return std::span(result, bytes); });
}

// --- time ----------------------------------------------------------------------------------------

/// Times the row and memcpy alternately. Returns rates in GB/s.
timing::Timing Time(const Row& row, const Arrays& a, float* copy, int repeats) {
  const auto size = sizeof(float) * static_cast<std::size_t>(a.n);
  const timing::Side work{[&] { Run(row, a); }, ElementOf(row).counted * static_cast<double>(a.n)};
  const timing::Side memcpy{[&] { std::memcpy(copy, a.x, size); }, 2 * static_cast<double>(size)};
  return timing::Time(work, memcpy, repeats);
}

// --- the list ------------------------------------------------------------------------------------

RoundingOptions Stochastic(int random_bits) {
  return {.mode = Rounding::stochastic, .random_bits = random_bits};
}

/// Returns a random format (e, m) that has normal numbers.
Format DrawFormat(std::mt19937_64& bits) {
  return cpd::MakeFormat(2 + static_cast<int>(bits() % 7), static_cast<int>(bits() % 24));
}

std::vector<Row> Rows(std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  std::vector<Row> rows;
  const auto add = [&](std::string name, Operation operation, const Format& format,
                       RoundingOptions options, Mix mix, std::optional<double> bar,
                       std::string backend = "") {
    rows.push_back(
        {std::move(name), operation, format, options, mix, std::move(backend), bar, false, false});
  };
  const auto turned = [&](const std::string& kind, const Format& format,
                          const RoundingOptions& options) {
    for (const auto& [order, x, y] : {std::tuple{"alike", true, true},
                                      {"to_contiguous", true, false},
                                      {"of_contiguous", false, true}}) {
      add("cast_turned/" + kind + "/" + order, Operation::cast, format, options, Mix::normal,
          std::nullopt);
      rows.back().turned_x = x;
      rows.back().turned_y = y;
    }
  };
  const auto mixes = [&](const std::string& name, Operation operation, const Format& format,
                         const RoundingOptions& options) {
    add(name + "/subnormal", operation, format, options, Mix::subnormal, 0.7);
    add(name + "/special", operation, format, options, Mix::special, 0.7);
  };
  const RoundingOptions nearest;
  std::vector<Format> formats;
  for (const char* name : {"e4m3", "e5m2", "fp16", "bf16", "e3m0"}) {
    formats.push_back(cpd::ParseFormat(name));
  }
  formats.push_back(DrawFormat(bits));
  formats.push_back(DrawFormat(bits));
  for (const Format& format : formats) {
    const std::string name = "cast/nearest_even/" + ToString(format);
    add(name, Operation::cast, format, nearest, Mix::normal, 0.9);
    mixes(name, Operation::cast, format, nearest);
  }
  const Format e4m3 = formats.front();
  const std::vector<std::pair<int, double>> stochastic = {{8, 0.85}, {16, 0.65}, {24, 0.45}};
  for (const auto& [n, bar] : stochastic) {
    const std::string name = "cast/stochastic" + std::to_string(n) + "/e4m3";
    add(name, Operation::cast, e4m3, Stochastic(n), Mix::normal, bar);
    add(name + "/subnormal", Operation::cast, e4m3, Stochastic(n), Mix::subnormal, std::nullopt);
    add(name + "/special", Operation::cast, e4m3, Stochastic(n), Mix::special, std::nullopt);
    turned("stochastic" + std::to_string(n), e4m3, Stochastic(n));
  }
  turned("nearest_even", e4m3, nearest);
  for (const char* name : {"e4m3", "fp16", "e2m1", "e4m3fn", "e3m2", "e8m3", "e6m9"}) {
    const Format format = cpd::ParseFormat(name);
    const bool barred = std::string_view(name) == "e4m3" || std::string_view(name) == "fp16" ||
                        std::string_view(name) == "e2m1";
    const std::optional<double> bar = barred ? std::optional(0.7) : std::nullopt;
    add("encode/" + std::string(name), Operation::encode, format, nearest, Mix::normal, bar);
    add("decode/" + std::string(name), Operation::decode, format, nearest, Mix::normal, bar);
  }
  for (const char* name : {"e4m3fn", "e4m3fnuz", "binary8p4se"}) {
    add("cast/nearest_even/" + std::string(name), Operation::cast, cpd::ParseFormat(name), nearest,
        Mix::normal, std::nullopt);
  }
  RoundingOptions down;
  down.mode = Rounding::down;
  add("cast/down/e4m3", Operation::cast, e4m3, down, Mix::normal, std::nullopt);
  for (const cpd::KernelTable* table : cpd::AvailableKernels()) {
    const std::string backend = table->name;
    for (const Row& row : std::vector<Row>(rows)) {
      const bool shown = row.name == "cast/nearest_even/e4m3" || row.name == "encode/e4m3" ||
                         row.name == "decode/e4m3" || row.name == "cast/stochastic8/e4m3";
      if (!shown || !row.backend.empty()) continue;
      add(backend + "/" + row.name, row.operation, row.format, row.options, row.mix, std::nullopt,
          backend);
    }
    if (table == &cpd::Kernels()) break;  // what memcpy is held to
  }
  return rows;
}

// --- the program ---------------------------------------------------------------------------------

/// Checks and times one benchmark row and prints its JSON line. Returns false if bits are wrong.
bool Measure(const Row& row, const Arrays& a, float* copy, const Settings& settings) {
  Fill(row.format, row.mix, settings.seed, a.n, const_cast<float*>(a.x));
  if (row.operation == Operation::decode)
    cpd::Encode(View(a.x, DType::f32, a.n), row.format, {},
                View(a.codes, DType::u8, cpd::PackedBytes(row.format, a.n)));
  const std::string wrong = CheckBits(row, a);
  if (!wrong.empty()) {
    timing::PrintWrong(row.name, wrong);
    return false;
  }
  cpd::ForceKernels(row.backend);
  Run(row, a);
  const std::string backend = cpd::Kernels().name;
  timing::Print(row.name, "memcpy", backend, Time(row, a, copy, settings.repeats), row.bar,
                ElementOf(row));
  cpd::ForceKernels("");
  return true;
}

bool RunRows(const Settings& settings) {
  const std::vector<Row> rows = timing::Chosen(Rows(settings.seed), settings);
  if (rows.empty()) return true;
  const std::int64_t n = std::max<std::int64_t>(1, settings.floats / kTurned) * kTurned;
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(n);
  const Memory x(bytes);
  const Memory y(bytes);
  const Memory copy(bytes);
  const Memory codes(bytes);
  const Arrays arrays{n, x.floats(), y.floats(), codes.bytes()};
  bool right = true;
  for (const Row& row : rows) right = Measure(row, arrays, copy.floats(), settings) && right;
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  return timing::Guarded("bench_cast", [&] { return RunRows(timing::Parse(argc, argv)); });
}
