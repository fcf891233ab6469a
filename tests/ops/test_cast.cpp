// SPDX-License-Identifier: Apache-2.0
//
// Tests Cast on tensors, on every device: types, strides, sizes, casts in place, threads and
// errors. test_environment.cpp tests the program's floating-point environment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cpd/ops/cast.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/devices.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

using reference::Spec;
using testing::view_of;

RoundingOptions stochastic(int random_bits) {
  RoundingOptions o;
  o.mode = Rounding::stochastic;
  o.random_bits = random_bits;
  return o;
}

class CastOn : public testing::OnDevice {
 protected:
  /// Calls cpd::Cast with tensors on the device.
  void Cast(const TensorView& x, const Format& format, const RoundingOptions& o,
            const TensorView& y, const RandomKey& key = {},
            const TensorView* random = nullptr) const {
    std::vector<TensorView> in = {x};
    if (random != nullptr) in.push_back(*random);
    Compute(in, y, [&](const std::vector<TensorView>& there, const TensorView& out) {
      cpd::Cast(there[0], format, o, out, key, random != nullptr ? &there[1] : nullptr);
    });
  }
  template <class T>
  std::vector<T> run_cast(const std::vector<T>& x, const Format& format, const RoundingOptions& o,
                          const std::vector<std::uint32_t>* random = nullptr,
                          const RandomKey& key = {}) const {
    std::vector<T> y(x.size());
    TensorView integers;
    if (random != nullptr) integers = view_of(*random);
    Cast(view_of(x), format, o, view_of(y), key, random != nullptr ? &integers : nullptr);
    return y;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, CastOn, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

TEST_P(CastOn, TheForcedBackendRuns) {
  if (!on_host()) GTEST_SKIP() << "backends of the CPU are forced";
  EXPECT_STREQ(Kernels().name, GetParam());
  const std::uint64_t before = Kernels().calls();
  std::vector<std::uint64_t> others;
  for (const KernelTable* table : AvailableKernels()) others.push_back(table->calls());
  std::vector<float> x(1000, 1.1f);
  run_cast(x, ParseFormat("e4m3"), {});
  EXPECT_GT(Kernels().calls(), before);
  std::size_t at = 0;
  for (const KernelTable* table : AvailableKernels()) {
    if (table->name != std::string(GetParam())) {
      EXPECT_EQ(table->calls(), others[at]);
    }
    ++at;
  }
}

TEST_P(CastOn, EveryLengthAroundTheBlocks) {
  const Format format = ParseFormat("e4m3");
  for (std::size_t n = 0; n <= 70; ++n) {
    const auto x = testing::mixed_values(reference::spec_of(format), n, n);
    std::vector<float> y(n + 16, 7.0f);
    Cast(view_of(x), format, {}, View(y.data(), DType::f32, static_cast<std::int64_t>(n)));
    const auto expected = testing::oracle_cast(x, format, {});
    EXPECT_TRUE(
        testing::bits_equal(std::span<const float>(expected), std::span<const float>(y.data(), n)));
    for (std::size_t i = n; i < y.size(); ++i) ASSERT_EQ(y[i], 7.0f) << "written past the end";
  }
  for (const std::size_t n : {255u, 256u, 257u, 4095u, 4097u}) {
    const auto x = testing::mixed_values(reference::spec_of(format), n, n);
    const auto expected = testing::oracle_cast(x, format, {});
    EXPECT_TRUE(testing::bits_equal(std::span<const float>(expected), run_cast(x, format, {}), x));
  }
}

TEST_P(CastOn, UnalignedMemory) {
  const Format format = ParseFormat("e5m2");
  const auto x = testing::mixed_values(reference::spec_of(format), 1000, 1);
  const auto expected = testing::oracle_cast(x, format, {});
  for (std::size_t offset = 0; offset < 17; ++offset) {
    std::vector<float> in(x.size() + 17), out(x.size() + 17);
    std::copy(x.begin(), x.end(), in.begin() + static_cast<std::ptrdiff_t>(offset));
    const auto n = static_cast<std::int64_t>(x.size());
    Cast(View(in.data() + offset, DType::f32, n), format, {},
         View(out.data() + (offset * 5) % 17, DType::f32, n));
    EXPECT_TRUE(
        testing::bits_equal(std::span<const float>(expected),
                            std::span<const float>(out.data() + (offset * 5) % 17, x.size()), x));
  }
}

// The arrays are large enough for several threads and for stores that bypass the caches.
TEST_P(CastOn, LargeArrays) {
  const std::size_t length = (testing::kCudaOnCpu ? 1u << 16 : 1u << 22) + 333;
  std::vector<float> x(length);
  std::uint32_t state = 1;
  for (float& v : x) v = testing::from_bits(state = state * 1664525u + 1013904223u);
  const Format format = ParseFormat("e4m3");
  const auto steps = reference::step_function(reference::spec_of(format));
  const auto y = run_cast(x, format, {});
  std::size_t mismatches = 0;
  for (std::size_t i = 0; i < length; ++i) {
    const std::uint32_t bits = testing::bits_of(x[i]);
    const auto after = std::upper_bound(
        steps.begin(), steps.end(), bits,
        [](std::uint32_t b, const reference::Step& step) { return b < step.first; });
    const float expected = (bits & 0x7FFFFFFF) > 0x7F800000
                               ? testing::from_bits(reference::kNanBits)
                               : std::prev(after)->value;
    mismatches += testing::same_bits(expected, y[i]) ? 0 : 1;
  }
  EXPECT_EQ(mismatches, 0u);

  const RoundingOptions o = stochastic(8);
  const auto random = testing::run_random_integers(o, length, 0, testing::kKey);
  const auto from_seed = run_cast(x, format, o, nullptr, testing::kKey);
  const auto from_integers = run_cast(x, format, o, &random, testing::kKey);
  EXPECT_TRUE(testing::bits_equal(std::span<const float>(from_integers), from_seed, x));
}

TEST_P(CastOn, InPlace) {
  for (const char* name : {"e4m3", "e8m0", "fp32"}) {
    const Format format = ParseFormat(name);
    auto x = testing::mixed_values(reference::spec_of(format), 3000, 3);
    const auto expected = testing::oracle_cast(x, format, {});
    Cast(view_of(x), format, {}, view_of(x));
    EXPECT_TRUE(testing::bits_equal(std::span<const float>(expected), std::span<const float>(x)));
  }
}

// Tests strided, transposed, reversed and broadcast inputs. An element's random integer depends on
// its row-major index.
TEST_P(CastOn, Strides) {
  const Format format = ParseFormat("e4m3");
  const Spec spec = reference::spec_of(format);
  const std::array<std::int64_t, 3> shape = {7, 11, 13};
  const std::size_t n = 7 * 11 * 13;
  const auto storage = testing::mixed_values(spec, 4 * n, 5);
  struct Layout {
    std::int64_t offset;
    std::array<std::int64_t, 3> stride;
  };
  const std::array<Layout, 6> layouts = {{{0, {143, 13, 1}},
                                          {0, {286, 26, 2}},
                                          {0, {1, 7, 77}},
                                          {static_cast<std::int64_t>(n) - 1, {-143, -13, -1}},
                                          {5, {0, 1, 11}},
                                          {12, {143, 13, -1}}}};
  std::vector<RoundingOptions> options = {stochastic(8), stochastic(24)};
  for (const Rounding mode : testing::kDeterministicModes) options.push_back({.mode = mode});
  for (const RoundingOptions& o : options) {
    std::vector<std::uint32_t> random(n);
    if (o.mode == Rounding::stochastic)
      random = testing::run_random_integers(o, n, 0, testing::kKey);
    for (const Layout& in : layouts) {
      for (const Layout& to : layouts) {
        if (to.stride[0] == 0) continue;  // a broadcast cannot be written
        TensorView x = View(storage.data() + in.offset, DType::f32, shape);
        std::vector<float> out(2 * n, 7.0f);
        TensorView y = View(out.data() + to.offset, DType::f32, shape);
        for (std::size_t d = 0; d < 3; ++d) {
          x.stride[d] = in.stride[d];
          y.stride[d] = to.stride[d];
        }
        Cast(x, format, o, y, testing::kKey);
        std::size_t mismatches = 0;
        std::size_t index = 0;
        for (std::int64_t i = 0; i < shape[0]; ++i) {
          for (std::int64_t j = 0; j < shape[1]; ++j) {
            for (std::int64_t k = 0; k < shape[2]; ++k) {
              const auto at = [&](const Layout& l) {
                return l.offset + i * l.stride[0] + j * l.stride[1] + k * l.stride[2];
              };
              const float expected =
                  reference::cast(spec, storage[static_cast<std::size_t>(at(in))],
                                  testing::oracle_options(o, random[index++]));
              mismatches +=
                  testing::same_bits(expected, out[static_cast<std::size_t>(at(to))]) ? 0 : 1;
            }
          }
        }
        EXPECT_EQ(mismatches, 0u) << testing::describe(format, o) << ", strides " << in.stride[0]
                                  << " " << in.stride[1] << " " << in.stride[2] << " to "
                                  << to.stride[0] << " " << to.stride[1] << " " << to.stride[2];
      }
    }
  }
}

TEST_P(CastOn, ScalarAndEmptyTensors) {
  float x = 1.1f;
  float y = 0;
  TensorView in = View(&x, DType::f32, 1);
  in.rank = 0;
  TensorView out = View(&y, DType::f32, 1);
  out.rank = 0;
  Cast(in, ParseFormat("e4m3"), {}, out);
  EXPECT_EQ(y, 1.125f);
  const std::array<std::int64_t, 3> shape = {4, 0, 3};
  Cast(View(nullptr, DType::f32, shape), ParseFormat("e4m3"), {}, View(nullptr, DType::f32, shape));
}

// --- Other element types -------------------------------------------------------------------------

// Tests all 65,536 inputs of a 16-bit type. The oracle decodes their patterns.
TEST_P(CastOn, EverySixteenBitInput) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Format storage = ParseFormat(dtype == DType::bf16 ? "bf16" : "fp16");
    const Spec storage_spec = reference::spec_of(storage);
    std::vector<std::uint16_t> x(65536);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::uint16_t>(i);
    std::vector<const char*> names{"e4m3", "e5m2", "e4m3fn", "e2m1", "e3m0", "e4m3fnuz"};
    if (dtype == DType::bf16) names.insert(names.end(), {"bf16", "e8m3", "e8m0"});
    for (const char* name : names) {
      const Format format = ParseFormat(name);
      const Spec spec = reference::spec_of(format);
      for (const Rounding mode : {Rounding::nearest_even, Rounding::toward_zero, Rounding::up,
                                  Rounding::down, Rounding::stochastic}) {
        RoundingOptions o;
        o.mode = mode;
        o.random_bits = 8;
        std::vector<std::uint32_t> random(x.size());
        if (mode == Rounding::stochastic)
          random = testing::run_random_integers(o, x.size(), 0, testing::kKey);
        std::vector<std::uint16_t> expected(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
          const auto rounded = reference::round_exact(spec, reference::value_of(storage_spec, i),
                                                      testing::oracle_options(o, random[i]));
          expected[i] = static_cast<std::uint16_t>(*reference::encode(storage_spec, rounded));
        }
        for (const std::size_t n : {x.size(), x.size() - 5}) {
          std::vector<std::uint16_t> got(n);
          Cast(View(x.data(), dtype, static_cast<std::int64_t>(n)), format, o, view_of(got, dtype),
               testing::kKey);
          EXPECT_TRUE(testing::bits_equal(std::span<const std::uint16_t>(expected).first(n),
                                          std::span<const std::uint16_t>(got)))
              << ToString(dtype) << ", " << testing::describe(format, o);
        }
      }
    }
  }
}

TEST_P(CastOn, StorageMustHoldTheFormat) {
  std::vector<std::uint16_t> x(4), y(4);
  EXPECT_THROW(Cast(view_of(x, DType::f16), ParseFormat("bf16"), {}, view_of(y, DType::f16)),
               Error);
  EXPECT_THROW(Cast(view_of(x, DType::bf16), ParseFormat("fp16"), {}, view_of(y, DType::bf16)),
               Error);
  EXPECT_THROW(Cast(view_of(x, DType::f16), ParseFormat("e8m0"), {}, view_of(y, DType::f16)),
               Error);
  EXPECT_NO_THROW(Cast(view_of(x, DType::bf16), ParseFormat("bf16"), {}, view_of(y, DType::bf16)));
  EXPECT_NO_THROW(Cast(view_of(x, DType::f16), ParseFormat("fp16"), {}, view_of(y, DType::f16)));
}

// Tests binary64 input with binary32 output, and the reverse.
TEST_P(CastOn, MixedTypes) {
  const Format format = ParseFormat("e5m2");
  const Spec spec = reference::spec_of(format);
  // 1.125 + 2^-50 lies just above the tie between 1 and 1.25. Converted to binary32 first, it would
  // be the tie.
  const std::vector<double> x = {1.125 + 0x1p-50, 1.125, -1.125 - 0x1p-50, 1e300, -1e-300, NAN};
  std::vector<float> y(x.size());
  Cast(view_of(x), format, {}, view_of(y));
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_TRUE(testing::same_bits(reference::cast(spec, x[i]), y[i])) << testing::hex(x[i]);
  }
  std::vector<double> wide(x.size());
  Cast(view_of(y), format, {}, view_of(wide));
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_TRUE(testing::same_bits(static_cast<double>(y[i]), wide[i])) << testing::hex(x[i]);
  }
}

TEST_P(CastOn, GivenIntegers) {
  const Format format = ParseFormat("e4m3");
  const auto x = testing::mixed_values(reference::spec_of(format), 1025, 2);
  const RoundingOptions o = stochastic(12);
  std::vector<std::uint32_t> random(x.size());
  for (std::size_t i = 0; i < random.size(); ++i) random[i] = i * 37 % 4096;
  const auto expected = testing::oracle_cast(x, format, o, &random);
  EXPECT_TRUE(testing::bits_equal(std::span<const float>(expected),
                                  run_cast(x, format, o, &random, testing::kKey), x));
  random.back() = 4096;
  EXPECT_THROW(run_cast(x, format, o, &random, testing::kKey), Error);
}

/// Any NaN becomes the one quiet NaN, in every type.
TEST_P(CastOn, NanInEveryType) {
  const std::vector<float> x(100, testing::from_bits(0xFFC12345U));
  const std::vector<double> wide(x.begin(), x.end());
  const double nan = testing::from_bits(reference::kNanBits);
  for (const char* name : {"e4m3", "e8m7:bias=140"}) {
    const Format format = ParseFormat(name);
    const std::vector<float> narrow(100, static_cast<float>(nan));
    std::vector<float> y(100);
    std::vector<double> z(100);
    for (const TensorView& from : {view_of(x), view_of(wide)}) {
      Cast(from, format, {}, view_of(y));
      EXPECT_TRUE(testing::bits_equal(std::span<const float>(narrow), std::span<const float>(y)));
      Cast(from, format, {}, view_of(z));
      for (const double value : z) EXPECT_TRUE(testing::same_bits(value, nan)) << name;
    }
  }
}

// --- Bad arguments, one by one; nothing is written -----------------------------------------------

class CastErrors : public ::testing::Test {
 protected:
  std::vector<float> x = std::vector<float>(8, 1.1f);
  std::vector<float> y = std::vector<float>(8, 7.0f);
  const Format format = ParseFormat("e4m3");

  void expect_error(const TensorView& in, const RoundingOptions& o, const TensorView& out,
                    const TensorView* random = nullptr) {
    EXPECT_THROW(Cast(in, format, o, out, {}, random), Error);
    for (const float v : y) EXPECT_EQ(v, 7.0f) << "written on error";
  }
};

TEST_F(CastErrors, Shapes) {
  expect_error(View(x.data(), DType::f32, 7), {}, view_of(y));
  const std::array<std::int64_t, 2> shape = {2, 4};
  expect_error(View(x.data(), DType::f32, shape), {}, view_of(y));
}

TEST_F(CastErrors, Types) {
  const std::vector<std::uint32_t> integers(8);
  expect_error(view_of(integers), {}, view_of(y));
  expect_error(view_of(x), {}, View(y.data(), DType::u32, 8));
  expect_error(view_of(x), {}, View(y.data(), DType::u8, 8));
}

TEST_F(CastErrors, RandomBits) {
  for (const int random_bits : {-3, 0, 25, 64}) {
    expect_error(view_of(x), stochastic(random_bits), view_of(y));
  }
}

TEST_F(CastErrors, RandomIntegers) {
  const std::vector<std::uint32_t> integers(8);
  const TensorView good = view_of(integers);
  TensorView wrong = View(integers.data(), DType::u32, 7);
  expect_error(view_of(x), stochastic(8), view_of(y), &wrong);
  wrong = View(integers.data(), DType::f32, 8);
  expect_error(view_of(x), stochastic(8), view_of(y), &wrong);
  expect_error(view_of(x), {}, view_of(y), &good);  // only a stochastic mode takes integers
  const std::vector<std::uint32_t> large(8, 256);
  const TensorView beyond = view_of(large);
  expect_error(view_of(x), stochastic(8), view_of(y), &beyond);  // R must be below 2^8
  const std::vector<std::uint32_t> drawn(8, 7);
  EXPECT_THROW(RandomIntegers(stochastic(8), 1, view_of(drawn), testing::kKey),
               Error);  // blocks are drawn
  EXPECT_EQ(drawn, std::vector<std::uint32_t>(8, 7));
}

/// Several threads cast ranges of a long tensor. Each element uses its own random integer.
TEST(CastOfBf16, TakesEachItsInteger) {
  constexpr std::size_t kMany = 1000003;
  const Format e4m3 = ParseFormat("e4m3");
  RoundingOptions o;
  o.mode = Rounding::stochastic;
  o.random_bits = 8;
  std::vector<float> x(kMany), wide(kMany);
  std::vector<std::uint16_t> narrow(kMany), rounded(kMany);
  std::vector<std::uint32_t> random(kMany);
  std::mt19937 bits(3);
  for (std::size_t i = 0; i < kMany; ++i) {
    narrow[i] = static_cast<std::uint16_t>(0x3F00 + bits() % 0x300);
    x[i] = testing::from_bits(std::uint32_t{narrow[i]} << 16);
    random[i] = bits() % 256;
  }
  const TensorView given = view_of(random);
  const auto n = static_cast<std::int64_t>(kMany);
  Cast(view_of(x), e4m3, o, view_of(wide), {}, &given);
  Cast(View(narrow.data(), DType::bf16, n), e4m3, o, View(rounded.data(), DType::bf16, n), {},
       &given);
  for (std::size_t i = 0; i < kMany; ++i) {
    ASSERT_EQ(testing::from_bits(std::uint32_t{rounded[i]} << 16), wide[i]) << i;
  }
}

TEST(Roster, RefusesUnknownBackends) {
  EXPECT_THROW(ForceKernels("sse9"), Error);
  ForceKernels("");
  EXPECT_STREQ(AvailableKernels().front()->name, "scalar");
}

}  // namespace
}  // namespace cpd
