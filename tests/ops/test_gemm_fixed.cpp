// SPDX-License-Identifier: Apache-2.0
//
// Tests products that are summed in integers. Terms are rounded to multiples of the sum's last
// place in every mode, as the C library rounds. Sums may need more bits than binary32 has.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "cpd/ops/gemm.h"
#include "cpd/spec/accumulator.h"
#include "tests/testing/backends.h"

namespace cpd {
namespace {

/// Multiplies the rows of a by 40 columns of ones. Expects that all columns of the result are
/// equal, and returns the first one.
std::vector<float> sums_of(const std::vector<float>& a, std::int64_t depth,
                           const std::string& accumulator) {
  constexpr std::int64_t kColumns = 40;
  const auto rows = static_cast<std::int64_t>(a.size()) / depth;
  const std::vector<float> ones(static_cast<std::size_t>(depth * kColumns), 1.0F);
  std::vector<float> out(static_cast<std::size_t>(rows * kColumns), -7.0F);
  Gemm(View(a.data(), DType::f32, std::array{rows, depth}),
       View(ones.data(), DType::f32, std::array{depth, kColumns}), ParseAccumulator(accumulator),
       View(out.data(), DType::f32, std::array{rows, kColumns}));
  std::vector<float> first;
  for (std::size_t i = 0; i < out.size(); i += kColumns) {
    for (std::size_t j = 1; j < kColumns; ++j) EXPECT_EQ(out[i + j], out[i]);
    first.push_back(out[i]);
  }
  return first;
}

float to_odd(float x) {
  const float whole = std::trunc(x);
  const bool away = whole != x && std::fmod(whole, 2.0F) == 0;
  return away ? whole + std::copysign(1.0F, x) : whole;
}

TEST(GemmFixed, TermsAreRoundedToUnits) {
  using Rounded = float (*)(float);
  const std::vector<std::pair<const char*, Rounded>> modes = {
      {"nearest_even", [](float x) { return std::nearbyint(x); }},
      {"nearest_away", [](float x) { return std::round(x); }},
      {"toward_zero", [](float x) { return std::trunc(x); }},
      {"up", [](float x) { return std::ceil(x); }},
      {"down", [](float x) { return std::floor(x); }},
      {"to_odd", to_odd}};
  std::vector<float> x;
  for (int eighths = -60; eighths <= 60; ++eighths) {
    x.push_back(static_cast<float>(eighths) / 8);
    x.push_back(1000);  // the second term of each sum, or the value of a sum of its own
  }
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const auto& [mode, rounded] : modes) {
      for (const char* width : {"24", "40", "100"}) {
        const std::string text =
            std::string("fp32 fixed width=") + width + " fraction=0 sum_rounding=" + mode;
        std::vector<float> one, two;
        for (std::size_t i = 0; i < x.size(); ++i) one.push_back(rounded(x[i]) + 0.0F);
        for (std::size_t i = 0; i < x.size(); i += 2) two.push_back(rounded(x[i]) + 1000);
        EXPECT_EQ(sums_of(x, 1, text), one) << backend << ", " << text;
        EXPECT_EQ(sums_of(x, 2, text), two) << backend << ", " << text;
      }
    }
  }
}

TEST(GemmFixed, SumsAreLongerThanBinary32) {
  const std::vector<float> terms = {16777215, 16777214, -16777216};
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    EXPECT_EQ(sums_of(terms, 3, "fp32 fixed width=40 fraction=0"), std::vector<float>{16777213});
  }
}

}  // namespace
}  // namespace cpd
