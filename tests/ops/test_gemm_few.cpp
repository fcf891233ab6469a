// SPDX-License-Identifier: Apache-2.0
//
// Tests Gemm with no products, or with fewer products than a matrix unit's block. Without products,
// the result is the addend c, rounded like every other sum.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "tests/testing/few_products.h"

namespace cpd {
namespace {

using testing::gemm_matches;
using testing::Shape;
using testing::Tensor;

// fp32, the format of the unit's sum, holds 4124. The result's format e5m2 does not, so the result
// is 4096.
TEST(GemmFew, AUnitsSumOfNothingIsRoundedIntoItsResult) {
  Accumulator accumulator = ParseAccumulator("e5m2 block_fma a=e4m3 b=e4m3 sum=fp32");
  const Tensor a({1, 0}, {});
  const Tensor b({0, 2}, {});
  const Tensor c({1, 2}, {4124.0f, 1.0625f});
  const TensorView addend = c.view();
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    Tensor out({1, 2}, {7.0f, 7.0f});
    Gemm(a.view(), b.view(), accumulator, out.view(), &addend);
    EXPECT_EQ(out.read(), (std::vector<float>{4096.0f, 1.0f})) << backend;
  }
}

TEST(GemmFew, EverySchemeWithAndWithoutAnAddend) {
  const std::vector<float> addends = testing::few_product_addends();
  const Tensor c({2, 6}, addends);
  const Tensor row({6}, {addends.begin(), addends.begin() + 6});
  std::uint64_t seed = 0;
  int failures = 0;
  for (Accumulator accumulator : testing::few_product_sums()) {
    for (const Rounding mode : testing::kFewModes) {
      accumulator.rounding.mode = mode;
      accumulator.rounding.overflow = testing::kPolicies[++seed % 2];
      accumulator.rounding.random_bits = 1 + static_cast<int>(seed % 24);
      for (const std::int64_t k : {0, 1, 3, 5}) {
        const auto n = static_cast<std::size_t>(k);
        const Tensor a({2, k}, std::vector<float>(2 * n, 1.5f));
        const Tensor b({k, 6}, std::vector<float>(n * 6, testing::few_product_factor(accumulator)));
        for (const Tensor* addend : std::array<const Tensor*, 3>{nullptr, &c, &row}) {
          const auto equal = gemm_matches<reference::ExactArithmetic>({a, b, addend}, accumulator);
          EXPECT_TRUE(equal) << "k " << k;
          if (!equal && ++failures > 8) FAIL() << "more than 8 failures; the rest is left out";
        }
      }
    }
  }
}

TEST(GemmFew, NoRowsOrColumns) {
  for (const Accumulator& accumulator : testing::few_product_sums()) {
    for (const Shape& shape : {Shape{0, 3}, Shape{3, 0}, Shape{0, 0}}) {
      for (const std::int64_t k : {0, 2}) {
        const Tensor a({shape[0], k}, std::vector<float>(static_cast<std::size_t>(shape[0] * k)));
        const Tensor b({k, shape[1]}, std::vector<float>(static_cast<std::size_t>(shape[1] * k)));
        const Tensor c({1}, {4124.0f});
        ASSERT_TRUE(gemm_matches<reference::ExactArithmetic>({a, b, &c}, accumulator));
      }
    }
  }
}

TEST(GemmFew, OtherTypesLayoutsAndBatches) {
  Accumulator accumulator = ParseAccumulator("e4m3 block_fma a=e4m3 b=e4m3 sum=fp32");
  const Tensor a({2, 3, 0}, {});
  const Tensor b({0, 70}, {});
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const testing::Layout layout : testing::kLayouts) {
      const Tensor c({3, 1}, {4124.0f, 1.0625f, -3.5f}, layout, type);
      ASSERT_TRUE(gemm_matches({a, b, &c, layout, type}, accumulator));
    }
  }
}

}  // namespace
}  // namespace cpd
