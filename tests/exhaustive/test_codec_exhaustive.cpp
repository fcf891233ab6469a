// SPDX-License-Identifier: Apache-2.0
//
// Tests the code of every binary32 pattern on every backend. The oracle describes the codes as a
// step function.
#include <gtest/gtest.h>

#include "tests/testing/backends.h"
#include "tests/testing/run.h"
#include "tests/testing/sweep.h"

namespace cpd {
namespace {

const testing::OneLibraryThread kOneLibraryThread;

// T is an integer type that holds one code of the format.
template <class T>
void sweep_codes(const char* name, testing::SweepReport& report) {
  const Format format = ParseFormat(name);
  const reference::Spec spec = reference::spec_of(format);
  ASSERT_EQ(static_cast<std::size_t>(format.bits()), 8 * sizeof(T));
  std::vector<typename testing::Expectation<T>::Step> steps;
  for (const auto& [first, value] : reference::step_function(spec)) {
    const auto code = reference::encode(spec, reference::exact(value));
    steps.push_back({first, static_cast<T>(*code)});
  }
  const testing::Expectation<T> expectation(std::move(steps), static_cast<T>(*spec.nan_code()));
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    const auto result = testing::sweep<T>(
        [&](std::uint32_t first, T* out) { expectation.fill(first, out); },
        [&](const float* x, T* codes, std::int64_t n) {
          Encode(View(x, DType::f32, n), format, {},
                 View(codes, DType::u8, n * static_cast<std::int64_t>(sizeof(T))));
        });
    report.add(result);
    EXPECT_EQ(result.mismatches, 0u) << backend << ", " << name << ", " << result.first;
  }
}

TEST(CodecExhaustive, EncodeOfEveryInput) {
  testing::SweepReport report;
  for (const char* name : {"e4m3", "e5m2", "e4m3fn", "e4m3fnuz", "e8m0", "binary8p3se"}) {
    sweep_codes<std::uint8_t>(name, report);
  }
  for (const char* name : {"fp16", "bf16", "e6m9"}) sweep_codes<std::uint16_t>(name, report);
  report.print("encode, 9 formats x nearest_even x " + std::to_string(testing::backends().size()) +
               " backends x 2^32 inputs");
}

// The codes of fp32 are the bits of the values. Tests all of them for encoding and decoding.
TEST(CodecExhaustive, DecodeOfEveryBinary32Code) {
  testing::SweepReport report;
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    const auto result = testing::sweep<float>(
        testing::fill_patterns, [&](const float* codes, float* y, std::int64_t n) {
          Decode(View(codes, DType::u8, 4 * n), kFp32, View(y, DType::f32, n));
        });
    report.add(result);
    EXPECT_EQ(result.mismatches, 0u) << backend << ", " << result.first;
  }
  report.print("decode, fp32 x " + std::to_string(testing::backends().size()) +
               " backends x 2^32 codes");
}

}  // namespace
}  // namespace cpd
