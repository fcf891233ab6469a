// SPDX-License-Identifier: Apache-2.0
//
// The cast of every binary32 pattern, in every backend, against the oracle's step functions.
#include <gtest/gtest.h>

#include "tests/testing/backends.h"
#include "tests/testing/run.h"
#include "tests/testing/sweep.h"

namespace cpd {
namespace {

const testing::OneLibraryThread kOneLibraryThread;

constexpr std::array kNames = {"e4m3",     "e5m2", "e4m3fn", "e5m2fnuz", "e6m9", "e3m0",       "e2m1",
                               "e8m0",     "fp16", "bf16",   "tf32",     "binary8p4se"};

// Sweeps all backends; `random`, if given, holds the integers of a block.
void sweep_backends(const Format& format, const RoundingOptions& o,
                    const testing::Expectation<float>& expectation, testing::SweepReport& report,
                    const std::vector<std::uint32_t>* random = nullptr) {
  TensorView integers;
  if (random != nullptr) integers = testing::view_of(*random);
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    const auto result = testing::sweep<float>(
        [&](std::uint32_t first, float* out) { expectation.fill(first, out); },
        [&](const float* x, float* y, std::int64_t n) {
          Cast(View(x, DType::f32, n), format, o, View(y, DType::f32, n),
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
      for (const Overflow overflow : testing::kPolicies) {
        RoundingOptions o;
        o.mode = mode;
        o.overflow = overflow;
        const auto expectation =
            testing::expect_cast(reference::spec_of(format), testing::oracle_options(o));
        sweep_backends(format, o, expectation, report);
      }
    }
    report.print("cast, up to " + std::string(name) + ": formats x 6 modes x 2 policies x " +
                 std::to_string(testing::backends().size()) + " backends x 2^32 inputs");
  }
}

// Binary32 itself: every pattern is its own cast, NaN aside.
TEST(CastExhaustive, Binary32IsItself) {
  testing::SweepReport report;
  for (const Rounding mode : testing::kDeterministicModes) {
    RoundingOptions o;
    o.mode = mode;
    for (const std::string& backend : testing::backends()) {
      const testing::WithBackend forced(backend);
      const auto result = testing::sweep<float>(
          [](std::uint32_t first, float* out) {
            for (std::uint32_t i = 0; i < testing::kSweepBlock; ++i) {
              const bool is_nan = ((first + i) & 0x7FFFFFFF) > 0x7F800000;
              out[i] = testing::from_bits(is_nan ? reference::kNanBits : first + i);
            }
          },
          [&](const float* x, float* y, std::int64_t n) {
            Cast(View(x, DType::f32, n), kFp32, o, View(y, DType::f32, n));
          });
      report.add(result);
      EXPECT_EQ(result.mismatches, 0u) << backend << ", " << ToString(mode) << ", " << result.first;
    }
  }
  report.print("cast, fp32 x 6 modes x " + std::to_string(testing::backends().size()) +
               " backends x 2^32 inputs");
}

// Every (exp, man) of at most 13 bits, nearest-even.
TEST(CastExhaustive, EveryNarrowIeeeFormat) {
  testing::SweepReport report;
  int formats = 0;
  for (int exp = 1; exp <= 8; ++exp) {
    for (int man = 0; exp + man <= 12; ++man, ++formats) {
      const Format format = MakeFormat(exp, man);
      const auto expectation = testing::expect_cast(reference::spec_of(format), {});
      sweep_backends(format, {}, expectation, report);
    }
  }
  report.print("cast, " + std::to_string(formats) + " formats x nearest_even x " +
               std::to_string(testing::backends().size()) + " backends x 2^32 inputs");
}

// A stochastic cast with one random integer for all inputs is a step function too.
TEST(CastExhaustive, StochasticWithGivenIntegers) {
  testing::SweepReport report;
  struct Row {
    const char* format;
    int random_bits;
    std::uint32_t random;
  };
  constexpr std::array<Row, 6> kRows = {{{"e4m3", 8, 1},
                                         {"e5m2", 24, 0xABCDEF},
                                         {"e4m3fn", 16, 0x8000},
                                         {"e3m0", 5, 17},
                                         {"bf16", 12, 0xFFF},
                                         {"e5m2:nosub", 3, 6}}};
  for (const Row& row : kRows) {
    const Format format = ParseFormat(row.format);
    const std::vector<std::uint32_t> random(testing::kSweepBlock, row.random);
    for (const Variant variant : testing::kVariants) {
      RoundingOptions o;
      o.mode = Rounding::stochastic;
      o.variant = variant;
      o.random_bits = row.random_bits;
      const auto expectation =
          testing::expect_cast(reference::spec_of(format), testing::oracle_options(o, row.random));
      sweep_backends(format, o, expectation, report, &random);
    }
  }
  report.print("stochastic cast, 6 formats x 3 variants x " +
               std::to_string(testing::backends().size()) + " backends x 2^32 inputs");
}

}  // namespace
}  // namespace cpd
