// SPDX-License-Identifier: Apache-2.0
//
// Tests that add_scaled on every backend gives the oracle's result: three operations, each rounded
// to binary32, none of them fused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "cpd/oracle/reference_gemm.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"

namespace cpd {
namespace {

using testing::bits_equal;

TEST(ScaledSum, EveryBackend) {
  std::vector<float> values = testing::mixed_values(reference::Spec{}, 64 * 64, 1);
  const std::vector<float> special = testing::special_values();
  std::copy(special.begin(), special.end(), values.begin());
  for (const KernelTable* table : testing::kernel_tables()) {
    const auto columns = static_cast<std::size_t>(table->gemm_columns);
    const std::size_t stride = columns + 16;  // what lies between the rows stays
    const std::size_t rows = values.size() / columns;
    std::vector<float> sum(rows * stride, 7.0f);
    std::vector<float> total(rows * stride, 7.0f);
    std::vector<float> a_scale(rows);
    std::vector<float> b_scale(columns);
    std::vector<float> expected(total);
    std::vector<float> cleared(sum);
    for (std::size_t i = 0; i < rows; ++i) a_scale[i] = values[(i * 37 + 5) % values.size()];
    for (std::size_t j = 0; j < columns; ++j) b_scale[j] = values[(j * 91 + 11) % values.size()];
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        const std::size_t at = i * stride + j;
        sum[at] = values[i * columns + j];
        // In every third column, the total nearly cancels the product of the scales and the sum. A
        // fused multiply-add would then give another result.
        total[at] = j % 3 == 0 ? -a_scale[i] * b_scale[j] * sum[at]
                               : values[(i * columns + j * 7) % values.size()];
        expected[at] = reference::add_scaled(total[at], a_scale[i], b_scale[j], sum[at]);
        cleared[at] = 0.0f;
      }
    }
    table->add_scaled_sums(static_cast<std::int64_t>(rows), table->gemm_columns,
                           static_cast<std::int64_t>(stride), a_scale.data(), b_scale.data(),
                           sum.data(), total.data());
    EXPECT_TRUE(bits_equal(std::span<const float>(expected), std::span<const float>(total)))
        << table->name;
    EXPECT_TRUE(bits_equal(std::span<const float>(cleared), std::span<const float>(sum)))
        << table->name;
  }
}

TEST(ScaledSum, IsNotContracted) {
  // (1 + 2^-12)^2 rounds to 1 + 2^-11, so the sum is 0. A fused multiply-add would give 2^-24.
  constexpr float kOne = 1.0f + 0x1p-12f;
  EXPECT_EQ(reference::add_scaled(-(1.0f + 0x1p-11f), 1.0f, kOne, kOne), 0.0f);
  EXPECT_EQ(reference::add_scaled(0.0f, 0x1p100f, 0x1p100f, 0x1p-100f),
            std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace cpd
