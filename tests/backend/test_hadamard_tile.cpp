// SPDX-License-Identifier: Apache-2.0
//
// Transform of a GPU's tensors, on the CPU: its call of the library and the kernel's body, thread
// after thread, against the CPU's.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "cpd/backend/cuda.h"
#include "cpd/ops/hadamard.h"
#include "kernels/cuda/hadamard_tile.h"
#include "tests/testing/bits.h"
#include "tests/testing/hadamard.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

/// Threads of a launch; more of them than some sizes need, fewer than others.
constexpr std::int64_t kHostThreads = 48;

int hadamard_on_host(const cuda::Launch& /*launch*/, const cuda::HadamardCall& call) {
  with_size(call.plan, [&]<int kSize>() {
    for (std::int64_t thread = 0; thread < kHostThreads; ++thread) {
      call.plan.to_bf16 ? cuda::transform<kSize, double>(call, thread, kHostThreads)
                        : cuda::transform<kSize, float>(call, thread, kHostThreads);
    }
  });
  return 0;
}

const cuda::Api* host_library() {
  static const cuda::Api table = [] {
    cuda::Api api{};
    api.describe = [](int) { return "none"; };
    api.hadamard = hadamard_on_host;
    return api;
  }();
  return &table;
}

class HadamardTile : public ::testing::Test {
 protected:
  void SetUp() override { cuda::SetLibrary(host_library()); }
  void TearDown() override { cuda::SetLibrary(nullptr); }
};

/// The same memory as a GPU's.
TensorView on_gpu(TensorView view) {
  view.device = Device::cuda;
  return view;
}

template <class T>
void expect_same(TensorView x, const Hadamard& h, int axis, TensorView out, std::vector<T> to) {
  for (const bool inverse : {false, true}) {
    std::vector<T> expected = to;
    std::vector<T> got = to;
    out.data = expected.data();
    Transform(x, h, axis, inverse, out);
    out.data = got.data();
    Transform(on_gpu(x), h, axis, inverse, on_gpu(out));
    EXPECT_TRUE(testing::bits_equal(std::span<const T>(expected), std::span<const T>(got)))
        << ToString(h) << " along " << axis << (inverse ? " inverse" : "");
  }
}

TEST_F(HadamardTile, GivesTheCpusBits) {
  for (const Hadamard& h : testing::all_transforms()) {
    const auto size = static_cast<std::int64_t>(h.size);
    for (const std::array<std::int64_t, 3> shape :
         {std::array<std::int64_t, 3>{3, 2 * size, 5}, {70, 1, 2 * size}, {size, 1, 130}}) {
      const auto n = static_cast<std::size_t>(shape[0] * shape[1] * shape[2]);
      const std::vector<float> x = testing::hadamard_values(n, 17);
      const int axis = shape[0] == size ? 0 : shape[1] == 2 * size ? 1 : 2;
      expect_same(View(x.data(), DType::f32, shape), h, axis, View(x.data(), DType::f32, shape),
                  std::vector<float>(n));
    }
  }
}

TEST_F(HadamardTile, OfAnyTypeAndStride) {
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
      expect_same(x, h, 1, out, std::vector<std::uint16_t>(2 * n));
    }
  }
}

}  // namespace
}  // namespace cpd
