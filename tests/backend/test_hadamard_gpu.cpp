// SPDX-License-Identifier: Apache-2.0
//
// The GPU's Hadamard transforms are the CPU's, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cpd/ops/hadamard.h"
#include "tests/testing/bits.h"
#include "tests/testing/cuda_memory.h"
#include "tests/testing/hadamard.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

class HadamardGpu : public testing::GpuTest {
 protected:
  /// x, and `to` before the transform; `out` is a view like x of memory of to's size.
  template <class T>
  void ExpectSame(const TensorView& x, const Hadamard& h, int axis, TensorView out,
                  const std::vector<T>& to) const {
    for (const bool inverse : {false, true}) {
      std::vector<T> expected = to;
      std::vector<T> got = to;
      out.data = expected.data();
      Transform(x, h, axis, inverse, out);
      out.data = got.data();
      const testing::OnGpuView from(driver(), x);
      const testing::OnGpuView result(driver(), out);
      Transform(from.view(), h, axis, inverse, result.view());
      result.Read();
      EXPECT_TRUE(testing::bits_equal(std::span<const T>(expected), std::span<const T>(got)))
          << ToString(h) << " along " << axis << (inverse ? " inverse" : "");
    }
  }
};

TEST_F(HadamardGpu, GivesTheCpusBits) {
  for (const Hadamard& h : testing::all_transforms()) {
    const auto size = static_cast<std::int64_t>(h.size);
    for (const std::array<std::int64_t, 3> shape :
         {std::array<std::int64_t, 3>{3, 2 * size, 5}, {70, 1, 2 * size}, {size, 1, 130}}) {
      const auto n = static_cast<std::size_t>(shape[0] * shape[1] * shape[2]);
      const std::vector<float> x = testing::hadamard_values(n, 17);
      const int axis = shape[0] == size ? 0 : shape[1] == 2 * size ? 1 : 2;
      ExpectSame(View(x.data(), DType::f32, shape), h, axis, View(x.data(), DType::f32, shape),
                 std::vector<float>(n));
    }
  }
}

TEST_F(HadamardGpu, OfAnyTypeAndStride) {
  const std::array<std::int64_t, 3> shape{3, 32, 4};
  const std::size_t n = 3 * 32 * 4;
  for (const DType type : {DType::bf16, DType::f16}) {
    const Format format = type == DType::bf16 ? MakeFormat(8, 7) : MakeFormat(5, 10);
    const auto codes = testing::run_encode(testing::hadamard_values(2 * n, 19), format);
    TensorView x = View(codes.data(), type, shape);
    x.stride = {2, 24, 6};
    TensorView out = View(codes.data(), type, shape);
    out.stride = {256, 2, 64};
    for (const Hadamard& h : testing::all_transforms()) {
      if (h.size > 32 || (h.to_bf16 && type == DType::f16)) continue;
      ExpectSame(x, h, 1, out, std::vector<std::uint16_t>(2 * n));
    }
  }
}

}  // namespace
}  // namespace cpd
