// SPDX-License-Identifier: Apache-2.0
//
// Tests `cpd::Transform`, the Hadamard transform of tensors, on every device. For every size and
// direction, `Transform` must give the bits of an oracle that computes one value at a time. The
// tests also cover types, strides, axes, threads, transforms in place, and errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cpd/ops/hadamard.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/devices.h"
#include "tests/testing/hadamard.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

using testing::all_transforms;
using testing::hadamard_values;
using testing::oracle_transform;

void expect_bits(const std::vector<float>& expected, const std::vector<float>& got,
                 const std::string& about) {
  EXPECT_TRUE(testing::bits_equal(std::span<const float>(expected), std::span<const float>(got)))
      << about;
}

class TransformOn : public testing::OnDevice {
 protected:
  /// Calls cpd::Transform with tensors on the device.
  void Transform(const TensorView& x, const Hadamard& h, int axis, bool inverse,
                 const TensorView& y) const {
    Compute({x}, y, [&](const std::vector<TensorView>& there, const TensorView& out) {
      cpd::Transform(there[0], h, axis, inverse, out);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, TransformOn, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

TEST_P(TransformOn, EveryTransform) {
  for (const Hadamard& h : all_transforms()) {
    const auto size = static_cast<std::int64_t>(h.size);
    using Shape = std::array<std::int64_t, 3>;
    std::vector<std::pair<Shape, int>> cases{
        {{3, 2 * size, 5}, 1}, {{70, 1, 2 * size}, 2}, {{size, 1, 130}, 0}};
    // The number of columns is one, less than the lanes of a vector, not a multiple of the lanes,
    // or enough for several tiles.
    const std::array<Shape, 4> more{{{67, size, 1}, {3, size, 3}, {3, size, 37}, {1, size, 270}}};
    for (std::size_t i = 0; i < more.size() && on_host(); ++i) cases.emplace_back(more[i], 1);
    for (const auto& [shape, axis] : cases) {
      std::size_t n = 1;
      std::size_t inner = 1;
      for (int d = 0; d < 3; ++d) {
        n *= static_cast<std::size_t>(shape[d]);
        if (d > axis) inner *= static_cast<std::size_t>(shape[d]);
      }
      const std::vector<float> x = hadamard_values(n, 3);
      for (const bool inverse : {false, true}) {
        const std::vector<float> got(n);
        Transform(View(x.data(), DType::f32, shape), h, axis, inverse,
                  View(got.data(), DType::f32, shape));
        expect_bits(oracle_transform(x, h, inverse, inner), got,
                    ToString(h) + (inverse ? " inverse" : "") + " inner " + std::to_string(inner));
      }
    }
  }
}

TEST_P(TransformOn, GroupsAlongTheLastAxisOfAnyStride) {
  const std::array<std::int64_t, 2> shape{9, 64};
  const std::vector<float> x = hadamard_values(9 * 64, 7);
  TensorView turned = View(x.data(), DType::f32, std::array<std::int64_t, 2>{64, 9});
  std::swap(turned.shape[0], turned.shape[1]);
  std::swap(turned.stride[0], turned.stride[1]);
  std::vector<float> straight(x.size());
  for (std::size_t i = 0; i < 9; ++i) {
    for (std::size_t j = 0; j < 64; ++j) straight[i * 64 + j] = x[j * 9 + i];
  }
  for (const Hadamard& h : all_transforms()) {
    if (h.size > 64) continue;
    const std::vector<float> got(x.size());
    Transform(turned, h, 1, false, View(got.data(), DType::f32, shape));
    expect_bits(oracle_transform(straight, h, false, 1), got, ToString(h));
    std::vector<float> spread(3 * x.size(), -1);
    TensorView out = View(spread.data(), DType::f32, shape);
    out.stride = {-3 * 64, 3};
    out.data = spread.data() + 8 * 3 * 64;
    Transform(turned, h, 1, false, out);
    for (std::size_t i = 0; i < 9; ++i) {
      for (std::size_t j = 0; j < 64; ++j) {
        ASSERT_EQ(testing::bits_of(spread[((8 - i) * 64 + j) * 3]),
                  testing::bits_of(got[i * 64 + j]));
        ASSERT_EQ(spread[((8 - i) * 64 + j) * 3 + 1], -1);
      }
    }
  }
}

TEST_P(TransformOn, GroupsWhoseDimensionIsTheOutermostInMemory) {
  const std::array<std::int64_t, 3> stored{64, 3, 5};  // shape 3 x 64 x 5
  const std::vector<float> x = hadamard_values(3 * 64 * 5, 13);
  TensorView permuted = View(x.data(), DType::f32, stored);
  std::swap(permuted.shape[0], permuted.shape[1]);
  std::swap(permuted.stride[0], permuted.stride[1]);
  std::vector<float> straight(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    straight[i] = x[i / 5 % 64 * 15 + i / 320 * 5 + i % 5];
  }
  for (const Hadamard& h : all_transforms()) {
    if (h.size > 64) continue;
    const std::vector<float> got(x.size());
    Transform(permuted, h, 1, false,
              View(got.data(), DType::f32, std::array<std::int64_t, 3>{3, 64, 5}));
    expect_bits(oracle_transform(straight, h, false, 5), got, ToString(h));
  }
}

TEST_P(TransformOn, NarrowTypesAlongEveryAxis) {
  for (const DType type : {DType::bf16, DType::f16}) {
    const Format format = type == DType::bf16 ? MakeFormat(8, 7) : MakeFormat(5, 10);
    for (const std::size_t inner : {1U, 5U, 70U}) {
      const std::size_t n = 128 * inner;
      const std::array<std::int64_t, 2> shape{128, static_cast<std::int64_t>(inner)};
      const std::vector<float> x = testing::run_cast(hadamard_values(n, 11), format, {});
      const auto codes = testing::run_encode(x, format);
      for (const Hadamard& h : all_transforms()) {
        if (!on_host() && h.size > 32) continue;
        const std::vector<std::uint8_t> got(codes.size());
        const TensorView out = View(got.data(), type, shape);
        if (h.to_bf16 && type == DType::f16) {
          EXPECT_THROW(Transform(View(codes.data(), type, shape), h, 0, true, out), Error);
          continue;
        }
        Transform(View(codes.data(), type, shape), h, 0, true, out);
        const auto expected = testing::run_encode(oracle_transform(x, h, true, inner), format);
        ASSERT_EQ(expected, got) << ToString(h) << " inner " << inner;
        const std::vector<std::uint8_t> y = codes;
        Transform(View(y.data(), type, shape), h, 0, true, View(y.data(), type, shape));
        ASSERT_EQ(expected, y) << ToString(h) << " in place";
      }
    }
  }
}

/// Tests tensors of 16-bit types with strided rows and columns. Rows come before columns in memory,
/// or after them.
TEST_P(TransformOn, NarrowTypesOfAnyStride) {
  const std::array<std::int64_t, 3> shape{3, 32, 4};
  const std::size_t n = 3 * 32 * 4;
  const auto at = [](const TensorView& view, std::size_t i, std::size_t j, std::size_t k) {
    return static_cast<std::size_t>(static_cast<std::int64_t>(i) * view.stride[0] +
                                    static_cast<std::int64_t>(j) * view.stride[1] +
                                    static_cast<std::int64_t>(k) * view.stride[2]);
  };
  for (const DType type : {DType::bf16, DType::f16}) {
    const Format format = type == DType::bf16 ? MakeFormat(8, 7) : MakeFormat(5, 10);
    const auto storage = testing::run_cast(hadamard_values(2 * n, 19), format, {});
    const auto codes = testing::run_encode(storage, format);
    TensorView x = View(codes.data(), type, shape);
    x.stride = {2, 24, 6};
    std::vector<float> dense;
    for (std::size_t i = 0; i < n; ++i) {
      dense.push_back(storage[at(x, i / 128, i / 4 % 32, i % 4)]);
    }
    std::vector<std::uint16_t> got(2 * n);
    TensorView out = View(got.data(), type, shape);
    out.stride = {256, 2, 64};
    for (const Hadamard& h : all_transforms()) {
      if (h.size > 32 || (h.to_bf16 && type == DType::f16)) continue;
      for (const bool inverse : {false, true}) {
        std::ranges::fill(got, 7);
        Transform(x, h, 1, inverse, out);
        const auto expected = testing::run_encode(oracle_transform(dense, h, inverse, 4), format);
        std::vector<std::uint16_t> wanted(2 * n, 7);
        for (std::size_t i = 0; i < n; ++i) {
          std::memcpy(&wanted[at(out, i / 128, i / 4 % 32, i % 4)], &expected[2 * i], 2);
        }
        ASSERT_EQ(wanted, got) << ToString(h) << (inverse ? " inverse" : "");
      }
    }
  }
}

TEST(Transform, ManyThreadsAndResultsPastTheCaches) {
  constexpr std::int64_t kPiece = 4096;
  const std::int64_t n = (std::int64_t{1} << 21) + 3 * kPiece;
  const std::array<std::int64_t, 2> shape{16, n / 16};
  const std::vector<float> x = hadamard_values(static_cast<std::size_t>(n), 13);
  const std::vector<float> along(x.size());
  const std::vector<float> down(x.size());
  const std::vector<float> got(x.size());
  for (const bool to_bf16 : {false, true}) {
    const Hadamard h{16, Hadamard::kTe, to_bf16};
    for (std::int64_t i = 0; i < n; i += kPiece) {  // as the other tests have seen it
      Transform(View(x.data() + i, DType::f32, kPiece), h, 0, false,
                View(along.data() + i, DType::f32, kPiece));
      TensorView from = View(x.data() + i / 16, DType::f32, std::array{shape[0], kPiece / 16});
      from.stride[0] = shape[1];
      TensorView to = from;
      to.data = const_cast<float*>(down.data()) + i / 16;
      Transform(from, h, 0, false, to);
    }
    for (const std::string& backend : testing::backends()) {
      const testing::WithBackend with(backend);
      Transform(testing::view_of(x), h, 0, false, testing::view_of(got));
      expect_bits(along, got, backend);
      Transform(View(x.data(), DType::f32, shape), h, 0, false,
                View(got.data(), DType::f32, shape));
      expect_bits(down, got, backend);
    }
  }
}

TEST_P(TransformOn, InPlaceAndBack) {
  // Sums of small integers are exact. The inverse transform therefore returns the original values.
  for (const int size : {4, 16, 64}) {
    Hadamard h{size, {0x5A5A5A5AU}};
    h.signs[0] &= size < 32 ? (1U << size) - 1 : ~0U;
    std::vector<float> x(1024);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 101) - 50;
    const std::vector<float> before = x;
    Transform(testing::view_of(x), h, 0, false, testing::view_of(x));
    EXPECT_NE(x, before);
    Transform(testing::view_of(x), h, 0, true, testing::view_of(x));
    EXPECT_EQ(x, before);
  }
}

TEST(Transform, OfNothing) {
  const std::array<std::int64_t, 3> shape{4, 0, 16};
  const TensorView none = View(nullptr, DType::f32, shape);
  EXPECT_NO_THROW(Transform(none, {}, 2, false, none));
  EXPECT_NO_THROW(Transform(none, {}, 1, false, none));
  EXPECT_THROW(Transform(none, {}, 0, false, none), Error);
}

TEST(Transform, Refused) {
  const std::vector<float> x(40);
  const std::vector<double> wide(32);
  const std::array<std::int64_t, 2> shape{2, 16};
  const TensorView good = View(x.data(), DType::f32, shape);
  const auto refused = [](const TensorView& from, const Hadamard& h, int axis, const TensorView& to,
                          const std::string& message) {
    try {
      Transform(from, h, axis, false, to);
      ADD_FAILURE() << "taken: " << message;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  refused(testing::view_of(x), {}, 0, testing::view_of(x),
          "the extent along axis 0 must be a multiple of the transform's size, 16, got 40");
  refused(good, {}, 2, good, "axis must be 0…1, got 2");
  refused(good, {}, -1, good, "axis must be 0…1, got -1");
  refused(good, {12}, 1, good, "power of two");
  refused(testing::view_of(wide), {}, 0, testing::view_of(wide),
          "x must be fp32, bf16 or fp16, got fp64");
  refused(good, {}, 1, View(x.data(), DType::bf16, shape),
          "out must have x's type, fp32, got bf16");
  refused(good, {}, 1, testing::view_of(x), "x and out must have the same shape");
  const TensorView half = View(x.data(), DType::f16, shape);
  refused(half, {16, {}, true}, 1, half, "fp16 cannot represent every value of bf16");
}

}  // namespace
}  // namespace cpd
