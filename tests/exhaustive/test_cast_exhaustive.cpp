// SPDX-License-Identifier: Apache-2.0
//
// Tests the cast of every binary32 pattern on every backend. The oracle describes each cast as a
// step function.
#include <gtest/gtest.h>

#include <future>

#include "tests/testing/backends.h"
#include "tests/testing/run.h"
#include "tests/testing/sweep.h"

namespace cpd {
namespace {

const testing::OneLibraryThread kOneLibraryThread;

constexpr std::array kNames = {"e4m3", "e5m2", "e4m3fn", "e5m2fnuz", "e6m9", "e3m0",
                               "e2m1", "e8m0", "fp16",   "bf16",     "tf32", "binary8p4se"};

// Casts all patterns on the given backends. `random` holds random integers for one block of
// patterns, and all blocks reuse them. `random` is null if the mode needs no random integers.
void sweep_backends(const std::vector<std::string>& backends, const Format& format,
                    const RoundingOptions& o, const testing::Expectation<float>& expectation,
                    testing::SweepReport& report,
                    const std::vector<std::uint32_t>* random = nullptr) {
  TensorView integers;
  if (random != nullptr) integers = testing::view_of(*random);
  for (const std::string& backend : backends) {
    const testing::WithBackend forced(backend);
    const auto result = testing::sweep<float>(
        [&](std::uint32_t first, float* out) { expectation.fill(first, out); },
        [&](const float* x, float* y, std::int64_t n) {
          Cast(View(x, DType::f32, n), format, o, View(y, DType::f32, n), {},
               random != nullptr ? &integers : nullptr);
        });
    report.add(result);
    EXPECT_EQ(result.mismatches, 0u)
        << backend << ", " << testing::describe(format, o) << ", " << result.first;
  }
}

TEST(CastExhaustive, NamedFormatsEveryModeAndPolicy) {
  testing::SweepReport report;
  for (const char* name : kNames) {
    const Format format = ParseFormat(name);
    for (const Rounding mode : testing::kDeterministicModes) {
      std::array<RoundingOptions, 2> options;
      std::array<std::future<testing::Expectation<float>>, 2> expectations;
      for (std::size_t i = 0; i < 2; ++i) {
        options[i].mode = mode;
        options[i].overflow = testing::kPolicies[i];
        expectations[i] =
            std::async(std::launch::async, testing::expect_cast, reference::spec_of(format),
                       testing::oracle_options(options[i]));
      }
      for (std::size_t i = 0; i < 2; ++i) {
        sweep_backends(testing::backends(), format, options[i], expectations[i].get(), report);
      }
    }
    report.print("cast, up to " + std::string(name) + ": formats x 6 modes x 2 policies x " +
                 std::to_string(testing::backends().size()) + " backends x 2^32 inputs");
  }
}

// In binary32 itself, every pattern except NaN is its own cast.
TEST(CastExhaustive, Binary32IsItself) {
  testing::SweepReport report;
  for (const Rounding mode : {Rounding::nearest_even, Rounding::down}) {
    RoundingOptions o;
    o.mode = mode;
    for (const std::string& backend : testing::backends()) {
      const testing::WithBackend forced(backend);
      const auto result = testing::sweep<float>(
          testing::fill_patterns, [&](const float* x, float* y, std::int64_t n) {
            Cast(View(x, DType::f32, n), kFp32, o, View(y, DType::f32, n));
          });
      report.add(result);
      EXPECT_EQ(result.mismatches, 0u) << backend << ", " << ToString(mode) << ", " << result.first;
    }
  }
  report.print("cast, fp32 x 2 modes x " + std::to_string(testing::backends().size()) +
               " backends x 2^32 inputs");
}

// Tests every IEEE-like format whose exponent and mantissa have at most 13 bits together, to
// nearest-even, on the widest backend.
TEST(CastExhaustive, EveryNarrowIeeeFormat) {
  testing::SweepReport report;
  const std::string widest = testing::backends().back();
  int formats = 0;
  for (int exp = 1; exp <= 8; ++exp) {
    for (int man = 0; exp + man <= 12; ++man, ++formats) {
      const Format format = MakeFormat(exp, man);
      const auto expectation = testing::expect_cast(reference::spec_of(format), {});
      sweep_backends({widest}, format, {}, expectation, report);
    }
  }
  report.print("cast, " + std::to_string(formats) + " formats x nearest_even x " + widest +
               " x 2^32 inputs");
}

// If all inputs use the same random integer, a stochastic cast is a step function, as a
// deterministic cast is.
TEST(CastExhaustive, StochasticWithGivenIntegers) {
  testing::SweepReport report;
  struct Row {
    const char* format;
    int random_bits;
    std::uint32_t random;
    Variant variant;
  };
  constexpr std::array<Row, 6> kRows = {{{"e4m3", 8, 1, Variant::A},
                                         {"e5m2", 24, 0xABCDEF, Variant::B},
                                         {"e4m3fn", 16, 0x8000, Variant::C},
                                         {"e3m0", 5, 17, Variant::A},
                                         {"bf16", 12, 0xFFF, Variant::C},
                                         {"e5m2:nosub", 3, 6, Variant::B}}};
  for (const Row& row : kRows) {
    const Format format = ParseFormat(row.format);
    const std::vector<std::uint32_t> random(testing::kSweepBlock, row.random);
    RoundingOptions o;
    o.mode = Rounding::stochastic;
    o.variant = row.variant;
    o.random_bits = row.random_bits;
    const auto expectation =
        testing::expect_cast(reference::spec_of(format), testing::oracle_options(o, row.random));
    sweep_backends(testing::backends(), format, o, expectation, report, &random);
  }
  report.print("stochastic cast, 6 formats x " + std::to_string(testing::backends().size()) +
               " backends x 2^32 inputs");
}

}  // namespace
}  // namespace cpd
