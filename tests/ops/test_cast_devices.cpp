// SPDX-License-Identifier: Apache-2.0
//
// Tests that a GPU gives the CPU's bits in cast, encode and decode, in every rounding mode, for all
// types and strides.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "tests/testing/bits.h"
#include "tests/testing/devices.h"
#include "tests/testing/formats.h"

namespace cpd {
namespace {

using testing::bits_equal;
using testing::describe;

/// Returns random bit patterns, half of them near the format's range, and zeros, Inf and NaN.
std::vector<float> Inputs(const Format& format, std::size_t n, bool with_nan = true) {
  std::mt19937_64 bits(n + static_cast<std::size_t>(format.bits()));
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto r = static_cast<std::uint32_t>(bits());
    values[i] = testing::from_bits(r);
    if (i % 2 == 0) {
      const std::uint32_t code = r % (format.max_code() + 1);
      const double scale = 1.0 + static_cast<double>(bits() % 1024) / 1024 / (2U << format.man);
      values[i] = static_cast<float>(format.magnitude(code) * scale * (r >> 31 ? -1.0 : 1.0));
    }
    if (i % 97 == 5) values[i] = testing::from_bits((r & 0x80000000U) | (i % 2 ? 0x7F800000U : 0U));
    if (!with_nan && values[i] != values[i]) values[i] = 1.0F;
  }
  return values;
}

std::vector<RoundingOptions> AllOptions() {
  std::vector<RoundingOptions> all;
  for (const Overflow overflow : testing::kPolicies) {
    for (const Rounding mode : testing::kDeterministicModes) {
      RoundingOptions options;
      options.mode = mode;
      options.overflow = overflow;
      all.push_back(options);
    }
    for (const Variant variant : testing::kVariants) {
      for (const int random_bits : {1, 8, 16, 24}) {
        RoundingOptions options;
        options.mode = Rounding::stochastic;
        options.overflow = overflow;
        options.variant = variant;
        options.random_bits = random_bits;
        all.push_back(options);
      }
    }
  }
  return all;
}

/// Returns the named formats, and one in seven of the formats in testing::encoding_formats().
std::vector<Format> Formats() {
  std::vector<Format> formats = testing::named_formats();
  const std::vector<Format> others = testing::encoding_formats();
  for (std::size_t i = 0; i < others.size(); i += 7) formats.push_back(others[i]);
  return formats;
}

class CastDevices : public testing::SameOnDevices {
 protected:
  /// Compares a cast between views of vectors with the scalar kernels. The whole memory of the
  /// result is compared.
  template <class T>
  void ExpectSameCast(const TensorView& x, const std::vector<T>& y, TensorView y_view,
                      const Format& format, const RoundingOptions& options) const {
    const auto begin = static_cast<const T*>(y_view.data) - y.data();
    ExpectSame(
        [&](testing::Copies there) {
          std::vector<T> result = y;
          y_view.data = result.data() + begin;
          Cast(there(x), format, options, there(y_view), testing::kKey);
          there.Read(y_view);
          return result;
        },
        describe(format, options));
  }

  /// Encodes x into a buffer, from byte `offset` on. Then decodes the codes into a copy of y, from
  /// element `begin` on, with the type and strides of x. Compares both with the scalar kernels.
  template <class T>
  void ExpectSameCodes(const TensorView& x, const std::vector<T>& y, std::ptrdiff_t begin,
                       const Format& format, const RoundingOptions& options,
                       std::size_t offset = 0) const {
    const auto bytes = static_cast<std::size_t>(PackedBytes(format, x.size()));
    std::vector<std::uint8_t> packed(bytes + 2 * offset, 0xA5);
    const TensorView codes =
        View(packed.data() + offset, DType::u8, static_cast<std::int64_t>(bytes));
    ExpectSame(
        [&](testing::Copies there) {
          std::ranges::fill(packed, std::uint8_t{0xA5});
          Encode(there(x), format, options, there(codes), testing::kKey);
          there.Read(codes);
          return packed;
        },
        describe(format, options));
    ExpectSame(
        [&](testing::Copies there) {
          std::vector<T> result = y;
          TensorView out = x;
          out.data = result.data() + begin;
          Decode(there(codes), format, there(out));
          there.Read(out);
          return result;
        },
        describe(format, options));
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, CastDevices, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

TEST_P(CastDevices, Casts) {
  constexpr std::int64_t n = 5003;
  for (const Format& format : Formats()) {
    const std::vector<float> x = Inputs(format, n);
    for (const RoundingOptions& options : testing::few_on_cpu(AllOptions(), 3)) {
      ExpectSameCast(View(x), x, View(x), format, options);
    }
  }
}

TEST_P(CastDevices, Binary64) {
  constexpr std::int64_t n = 3001;
  const Format format = ParseFormat("e4m3");
  const std::vector<float> values = Inputs(format, n);
  std::vector<double> x(values.begin(), values.end());
  for (std::size_t i = 0; i < x.size(); i += 3) x[i] *= 1.0 + 0x1p-40;
  const TensorView wide = View(x.data(), DType::f64, n);
  for (const RoundingOptions& options : AllOptions()) {
    ExpectSameCast(wide, x, wide, format, options);
  }
}

TEST_P(CastDevices, Codes) {
  for (const Format& format : Formats()) {
    for (const std::size_t n : {1U, 7U, 2048U, 4099U}) {
      const std::vector<float> x = Inputs(format, n, format.has_nan());
      for (const RoundingOptions& options : testing::few_on_cpu(AllOptions(), 8)) {
        ExpectSameCodes(View(x), x, 0, format, options);
      }
    }
  }
}

/// Tests all values of 16-bit types. The views begin at different positions in memory and have
/// lengths that are not a multiple of a vector.
TEST_P(CastDevices, Halves) {
  std::vector<std::uint16_t> x(1 << 16);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::uint16_t>(i * 40503);
  for (const DType type : {DType::bf16, DType::f16}) {
    const Format outer = type == DType::bf16 ? Format{8, 7, 127} : Format{5, 10, 15};
    for (const Format& format : testing::named_formats()) {
      if (!Holds(outer, format)) continue;
      const unsigned rare = ToString(format) == "e4m3" ? 3 : 24;
      for (const RoundingOptions& options : testing::few_on_cpu(AllOptions(), rare)) {
        for (const int begin : {0, 1, 8}) {
          const auto view = View(x.data() + begin, type, (1 << 16) - begin - 3);
          ExpectSameCast(view, x, view, format, options);
          if (format.has_nan()) ExpectSameCodes(view, x, begin, format, options);
        }
      }
    }
  }
}

TEST_P(CastDevices, SeedAndStreamMayLieThere) {
  if (on_host()) GTEST_SKIP() << "the CPU takes numbers";
  constexpr std::int64_t n = 4099;
  const Format format = ParseFormat("e4m3");
  const std::vector<float> x = Inputs(format, n);
  const std::uint64_t numbers[] = {0x0123456789ABCDEFULL, 0xFEDCBA9876543210ULL};
  const testing::OnGpu numbers_gpu(driver(), numbers, sizeof(numbers));
  const auto key_on = [&](const TensorView& out) {
    if (out.on_host()) return RandomKey{numbers[0], numbers[1]};
    RandomKey key{7, 7};  // not used
    key.device_seed = static_cast<const std::uint64_t*>(
        numbers_gpu.View(View(numbers, DType::i64, 2), numbers).data);
    key.device_stream = key.device_seed + 1;
    return key;
  };
  for (const int random_bits : {1, 8, 16, 24}) {
    const RoundingOptions options{.mode = Rounding::stochastic, .random_bits = random_bits};
    ExpectSame(
        [&](testing::Copies there) {
          const std::vector<float> y(n);
          const TensorView out = there(View(y));
          Cast(there(View(x)), format, options, out, key_on(out));
          there.Read(View(y));
          return y;
        },
        "cast by " + std::to_string(random_bits));
    ExpectSame(
        [&](testing::Copies there) {
          const std::vector<std::uint8_t> packed(n);
          const TensorView codes = View(packed.data(), DType::u8, n);
          const TensorView out = there(codes);
          Encode(there(View(x)), format, options, out, key_on(out));
          there.Read(codes);
          return packed;
        },
        "codes by " + std::to_string(random_bits));
  }
}

TEST_P(CastDevices, CodesMayBeginAtAnyByte) {
  constexpr std::int64_t n = 3 * 2048 + 77;
  for (const char* name : {"e2m1", "e4m3", "e6m9", "fp32"}) {
    const Format format = ParseFormat(name);
    const std::vector<float> x = Inputs(format, n, format.has_nan());
    for (const std::size_t offset : {1U, 2U, 3U})
      ExpectSameCodes(View(x), x, 0, format, {}, offset);
  }
}

/// A grid has at most 32 thread blocks for each processor. Here there are more tiles, so a block
/// takes several.
TEST_P(CastDevices, CodesOfMoreTilesThanBlocks) {
  const std::int64_t n = (testing::kOnGpuItself ? 9000 : 75) * std::int64_t{2048} + 77;
  const Format format = ParseFormat("e6m9");
  const std::vector<float> x = Inputs(format, static_cast<std::size_t>(n));
  for (const int random_bits : {0, 8, 24}) {
    RoundingOptions options;
    if (random_bits > 0) {
      options = {.mode = Rounding::stochastic, .random_bits = random_bits};
    }
    ExpectSameCodes(View(x), x, 0, format, options);
    ExpectSameCast(View(x), x, View(x), format, options);
  }
}

TEST_P(CastDevices, EncodeNamesTheFirstNanWithoutACode) {
  const Format format = ParseFormat("e2m1");
  std::vector<float> x(10000, 1.0F);
  x[4711] = x[9000] = testing::from_bits(0x7FC00000U);
  const auto bytes = PackedBytes(format, 10000);
  const std::vector<std::uint8_t> packed(static_cast<std::size_t>(bytes));
  testing::Copies there = There();
  try {
    Encode(there(View(x)), format, {}, there(View(packed.data(), DType::u8, bytes)));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("element 4711 is NaN"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace cpd
