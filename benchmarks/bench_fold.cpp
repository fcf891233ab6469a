// SPDX-License-Identifier: Apache-2.0
//
// Measures the parts of an all-reduce on one thread: the ordered sum of 256 ranks' terms and the
// checksum against a plain fp32 sum over the same array, and packing and unpacking with a scale
// against memcpy. Checks the bits first: samples against the slow oracle, and that all backends
// give the same arrays. Prints one JSON object on each line. The exit status is 1 if bits are
// wrong.
//
//   bench_fold [--floats N] [--repeats R] [--seed S] [--only PATTERN]... [--list]
#include <array>
#include <bit>
#include <cmath>
#include <span>

#include "benchmarks/bits.h"
#include "benchmarks/timing.h"
#include "cpd/backend/roster.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/reduce.h"
#include "cpd/oracle/reference.h"
#include "cpd/oracle/reference_sum.h"

namespace {

using cpd::Format;
using cpd::Rounding;
using cpd::RoundingOptions;
using timing::Memory;
using timing::Settings;

constexpr std::int64_t kRanks = 256;
constexpr std::int64_t kPiece = 4096;  ///< elements that all ranks' terms are folded for at once
constexpr int kShift = 3;

/// The arrays of a benchmark row. x has the floats of 256 ranks, one rank after the other; `other`
/// has the same size as x; `small` has the size of one rank's floats.
struct Arrays {
  std::int64_t n;
  float* x;
  std::uint8_t* other;
  std::uint8_t* small;
  [[nodiscard]] std::int64_t each() const { return n / kRanks; }
  [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(other); }
  [[nodiscard]] float* sums() const { return reinterpret_cast<float*>(small); }
};

enum class Operation { fold, fold_packed, pack, unpack, checksum };

struct Row {
  std::string name;
  Operation operation = Operation::fold;
  Format format;  ///< of codes
  Format terms;   ///< whose values the terms of a sum are known to be
  RoundingOptions options;
  float divisor = 1;
  cpd::Accumulator accumulator;
  std::optional<double> bar;
};

std::uint32_t g_checksum;

// --- rows ----------------------------------------------------------------------------------------

constexpr std::int64_t kTogether = 16;  ///< the number of ranks that one call of FoldSteps adds

/// Sums elements begin … begin + count - 1. terms(k) must return the terms of rank k.
template <class Terms>
void FoldPiece(const Row& row, std::int64_t begin, std::int64_t count, float* state, float* sums,
               Terms terms) {
  const cpd::FoldState planes{state, kPiece};
  std::array<const float*, kTogether> rows{};
  for (std::int64_t k = 0; k < kRanks; k += kTogether) {
    for (std::int64_t j = 0; j < kTogether; ++j) rows[static_cast<std::size_t>(j)] = terms(k + j);
    cpd::FoldSteps(row.accumulator, row.terms, k, kTogether, begin, count, rows.data(), planes);
  }
  cpd::FoldEnd(row.accumulator, row.terms, kRanks, begin, count, planes);
  std::memcpy(sums, state, sizeof(float) * static_cast<std::size_t>(count));
}

void Fold(const Row& row, const Arrays& a) {
  const auto planes = static_cast<std::size_t>(cpd::FoldPlanes(row.accumulator, kRanks));
  const Memory state(sizeof(float) * planes * kPiece);
  const Memory values(sizeof(float) * kTogether * kPiece);
  for (std::int64_t i = 0; i < a.each(); i += kPiece) {
    const std::int64_t count = std::min(kPiece, a.each() - i);
    FoldPiece(row, i, count, state.floats(), a.sums() + i, [&](std::int64_t k) -> const float* {
      const std::int64_t at = k * a.each() + i;
      if (row.operation == Operation::fold) return a.x + at;
      float* decoded = values.floats() + k % kTogether * kPiece;
      cpd::DecodeScaled(row.format, 0, 1, count, a.other + at * row.format.bits() / 8, decoded);
      return decoded;
    });
  }
}

void Run(const Row& row, const Arrays& a) {
  switch (row.operation) {
    case Operation::fold:
    case Operation::fold_packed:
      return Fold(row, a);
    case Operation::pack:
      cpd::EncodeScaled(row.format, row.options, kShift, 0, a.n, a.x, a.other);
      return;
    case Operation::unpack:
      return cpd::DecodeScaled(row.format, -kShift, row.divisor, a.n,
                               reinterpret_cast<const std::uint8_t*>(a.x), a.floats());
    case Operation::checksum:
      g_checksum = cpd::Crc32c(0, 4 * a.n, a.x);
      return;
  }
}

/// Returns the bytes for each value. The rate of `fold_packed`, which reads packed codes, counts 4
/// bytes for each code. So it can be compared to the rate of `fold`, which reads fp32 values.
timing::Element ElementOf(const Row& row) {
  const double code = row.format.bits() / 8.0;
  if (row.operation == Operation::pack || row.operation == Operation::unpack)
    return {4 + code, 4 + code};
  return {4, row.operation == Operation::fold_packed ? code : 4};
}

// --- data ----------------------------------------------------------------------------------------

/// Fills x with values of magnitude about 2^exponent, of both signs.
void FillFloats(std::uint64_t seed, int exponent, std::int64_t n, float* x) {
  std::mt19937_64 bits(seed);
  const std::int64_t period = std::min<std::int64_t>(n, (std::int64_t{1} << 20) + 17);
  for (std::int64_t i = 0; i < period; ++i) {
    const std::uint64_t r = bits();
    const double sign = (r & 1) != 0 ? -1.0 : 1.0;
    const double fraction = 1.0 + std::ldexp(static_cast<double>(r >> 40), -24);
    const int places = static_cast<int>((r >> 1) % 5) - 2;
    x[i] = static_cast<float>(std::ldexp(sign * fraction, exponent + places));
  }
  for (std::int64_t i = period; i < n; i += period) {
    std::memcpy(x + i, x, sizeof(float) * static_cast<std::size_t>(std::min(period, n - i)));
  }
}

void Prepare(const Row& row, const Arrays& a, std::uint64_t seed) {
  const bool is_coarse = row.terms.man == 0;  // whose range is short: sums of 256 are to stay in it
  FillFloats(seed, row.operation == Operation::pack ? -kShift : is_coarse ? -3 : 0, a.n, a.x);
  if (row.operation == Operation::fold || row.operation == Operation::fold_packed) {
    cpd::CastScaled(row.terms, {}, 0, 0, a.n, a.x, a.x);
  }
  if (row.operation == Operation::fold_packed) {
    cpd::EncodeScaled(row.format, {}, 0, 0, a.n, a.x, a.other);
  }
  if (row.operation == Operation::unpack) {
    cpd::EncodeScaled(row.format, {}, 0, 0, a.n, a.x, a.other);
    std::memcpy(a.x, a.other, static_cast<std::size_t>(cpd::PackedBytes(row.format, a.n)));
  }
}

// --- bits ----------------------------------------------------------------------------------------

bool Same(float p, float q) {
  return std::bit_cast<std::uint32_t>(p) == std::bit_cast<std::uint32_t>(q);
}

/// Returns the oracle's sum of element i.
float SumOf(const Row& row, const Arrays& a, std::int64_t i) {
  namespace reference = cpd::reference;
  std::array<float, kRanks> terms{};
  for (std::size_t k = 0; k < terms.size(); ++k) {
    terms[k] = a.x[static_cast<std::int64_t>(k) * a.each() + i];
  }
  return reference::sum(reference::order_of(row.accumulator), terms);
}

/// Returns whether element i is what the oracle gives.
bool IsRight(const Row& row, const Arrays& a, std::int64_t i) {
  namespace reference = cpd::reference;
  const Format& f = row.format;
  const reference::Spec spec = reference::spec_of(f);
  const auto times = [](const reference::Exact& x, int shift) {
    return multiply(x, reference::exact_finite(false, 1, shift));
  };
  switch (row.operation) {
    case Operation::fold:
    case Operation::fold_packed:
      return Same(a.sums()[i], SumOf(row, a, i));
    case Operation::pack:
      return timing::CodeAt(a.other, f.bits(), i) ==
             reference::encode(spec, times(reference::exact(a.x[i]), kShift));
    case Operation::unpack: {
      const auto* codes = reinterpret_cast<const std::uint8_t*>(a.x);
      const reference::Exact value = reference::value_of(spec, timing::CodeAt(codes, f.bits(), i));
      const float scaled = reference::round({}, times(value, -kShift));
      // Rounding the quotient of two binary32 numbers to binary64 and then to binary32 gives the
      // correctly rounded quotient if it is a normal number.
      return Same(a.floats()[i], static_cast<float>(static_cast<double>(scaled) /
                                                    static_cast<double>(row.divisor)));
    }
    case Operation::checksum:
      return true;
  }
  return false;
}

/// Checks blocks that are spread over the whole result against the oracle. Returns the first wrong
/// index, or -1. The oracle does not know the random bits of these rows, so stochastic results are
/// only compared between backends.
std::int64_t FirstWrong(const Row& row, const Arrays& a) {
  const bool is_random = row.options.mode == Rounding::stochastic ||
                         row.accumulator.rounding.mode == Rounding::stochastic;
  if (is_random) return -1;
  const bool folds = row.operation == Operation::fold || row.operation == Operation::fold_packed;
  const std::int64_t n = folds ? a.each() : a.n;
  constexpr std::int64_t kSamples = 64;
  for (std::int64_t k = 0; k < kSamples; ++k) {
    const std::int64_t begin = (n - std::min<std::int64_t>(n, 16)) * k / (kSamples - 1);
    for (std::int64_t i = begin; i < std::min(n, begin + 16); ++i) {
      if (!IsRight(row, a, i)) return i;
    }
  }
  return -1;
}

/// Returns the bytes of a row's result.
std::span<const std::uint8_t> ResultOf(const Row& row, const Arrays& a) {
  const auto floats = sizeof(float) * static_cast<std::size_t>(a.n);
  switch (row.operation) {
    case Operation::fold:
    case Operation::fold_packed:
      return {a.small, sizeof(float) * static_cast<std::size_t>(a.each())};
    case Operation::pack:
      return {a.other, static_cast<std::size_t>(cpd::PackedBytes(row.format, a.n))};
    case Operation::unpack:
      return {a.other, floats};
    case Operation::checksum:
      return {reinterpret_cast<const std::uint8_t*>(&g_checksum), sizeof(g_checksum)};
  }
  return {};
}

/// Runs a benchmark row's operation on every backend. Checks each result against the oracle, and
/// that all results are equal.
std::string CheckBits(const Row& row, const Arrays& a) {
  const auto check = [&] {
    Run(row, a);
    return timing::TheOracleAt(FirstWrong(row, a));
  };
  return timing::CheckBackends(check, [&] { return ResultOf(row, a); });
}

// --- the program ---------------------------------------------------------------------------------

std::vector<Row> Rows() {
  std::vector<Row> rows;
  const Format e4m3 = cpd::ParseFormat("e4m3");
  const auto fold = [&](std::string name, Operation operation, const char* accumulator,
                        const char* terms, std::optional<double> bar) {
    rows.push_back({std::move(name),
                    operation,
                    e4m3,
                    cpd::ParseFormat(terms),
                    {},
                    1,
                    cpd::ParseAccumulator(accumulator),
                    bar});
  };
  fold("fold/256", Operation::fold, "e4m3 sequential", "fp32", 0.6);
  fold("fold/256/known", Operation::fold, "e4m3 sequential", "e4m3", std::nullopt);
  fold("fold/256/kahan", Operation::fold, "e4m3 kahan", "e4m3", std::nullopt);
  fold("fold/256/chunked64", Operation::fold, "e4m3 chunked", "e4m3", std::nullopt);
  fold("fold/256/pairwise", Operation::fold, "e4m3 pairwise", "e4m3", std::nullopt);
  fold("fold/256/e3m0", Operation::fold, "e3m0 sequential", "e3m0", std::nullopt);
  fold("fold/256/e3m0/kahan", Operation::fold, "e3m0 kahan", "e3m0", std::nullopt);
  fold("fold/256/fp32", Operation::fold, "fp32 sequential", "fp32", std::nullopt);
  fold("fold/256/stochastic8", Operation::fold, "e4m3 sequential rounding=stochastic random_bits=8",
       "e4m3", std::nullopt);
  fold("fold_packed/256", Operation::fold_packed, "e4m3 sequential", "e4m3", std::nullopt);
  const auto codes = [&](std::string name, Operation operation, const char* format,
                         std::optional<double> bar, float divisor = 1,
                         RoundingOptions options = {}) {
    const Format f = cpd::ParseFormat(format);
    rows.push_back({std::move(name), operation, f, f, options, divisor, {}, bar});
  };
  codes("pack/e4m3", Operation::pack, "e4m3", 0.7);
  codes("unpack/e4m3", Operation::unpack, "e4m3", 0.7);
  codes("unpack/e4m3/divided", Operation::unpack, "e4m3", std::nullopt, 3);
  for (const char* format : {"e2m1", "e3m0", "e5m2", "bf16"}) {
    codes(std::string("pack/") + format, Operation::pack, format, std::nullopt);
    codes(std::string("unpack/") + format, Operation::unpack, format, std::nullopt);
  }
  RoundingOptions stochastic;
  stochastic.mode = Rounding::stochastic;
  stochastic.random_bits = 8;
  codes("pack/stochastic8/e4m3", Operation::pack, "e4m3", std::nullopt, 1, stochastic);
  rows.push_back({"crc32c", Operation::checksum, e4m3, e4m3, {}, 1, {}, std::nullopt});
  return rows;
}

/// Checks and times one benchmark row and prints its JSON line. Returns false if bits are wrong.
bool Measure(const Row& row, const Arrays& a, const Memory& copy, const Settings& settings) {
  Prepare(row, a, settings.seed);
  const std::string wrong = CheckBits(row, a);
  if (!wrong.empty()) {
    timing::PrintWrong(row.name, wrong);
    return false;
  }
  const auto bytes = sizeof(float) * static_cast<std::size_t>(a.n);
  const bool copies = row.operation == Operation::pack || row.operation == Operation::unpack;
  timing::Side baseline{[&] { timing::PlainSum(a.x, a.n); }, static_cast<double>(bytes)};
  if (copies) {
    baseline = {[&] { std::memcpy(copy.bytes(), a.x, bytes); }, 2 * static_cast<double>(bytes)};
  }
  Run(row, a);
  const timing::Element element = ElementOf(row);
  const timing::Side work{[&] { Run(row, a); }, element.counted * static_cast<double>(a.n)};
  timing::Print(row.name, copies ? "memcpy" : "plain fp32 sum", cpd::Kernels().name,
                timing::Time(work, baseline, settings.repeats), row.bar, element);
  return true;
}

bool RunRows(const Settings& settings) {
  const std::vector<Row> rows = timing::Chosen(Rows(), settings);
  if (rows.empty()) return true;
  const std::int64_t floats = settings.floats / kRanks * kRanks;
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(floats);
  const Memory x(bytes);
  const Memory other(bytes);
  const Memory copy(bytes);
  const Memory small(bytes / kRanks);
  const Arrays arrays{floats, x.floats(), other.bytes(), small.bytes()};
  bool right = true;
  for (const Row& row : rows) right = Measure(row, arrays, copy, settings) && right;
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  return timing::Guarded("bench_fold", [&] { return RunRows(timing::Parse(argc, argv)); });
}
