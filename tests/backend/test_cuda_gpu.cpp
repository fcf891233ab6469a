// SPDX-License-Identifier: Apache-2.0
//
// The GPU gives the CPU's bits: cast, encode and decode, every mode, types and strides.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "tests/testing/bits.h"
#include "tests/testing/cuda_memory.h"
#include "tests/testing/formats.h"

namespace cpd {
namespace {

using testing::Accelerator;
using testing::bits_equal;
using testing::describe;
using testing::OnGpu;

class Gpu : public testing::GpuTest {};

/// Random bits, half of them near the format's own range; zeros, Inf and NaN among them.
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

/// The named formats, and some of every encoding.
std::vector<Format> Formats() {
  std::vector<Format> formats = testing::named_formats();
  const std::vector<Format> others = testing::encoding_formats();
  for (std::size_t i = 0; i < others.size(); i += 7) formats.push_back(others[i]);
  return formats;
}

TensorView Floats(const std::vector<float>& values) {
  return View(values.data(), DType::f32, static_cast<std::int64_t>(values.size()));
}

template <class T>
std::size_t BytesOf(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

/// Casts `x` on both sides through the same views of vectors; the outputs' whole memory is
/// compared.
template <class In, class Out>
void ExpectSameCast(const Accelerator& driver, const std::vector<In>& x, const TensorView& x_view,
                    std::vector<Out> y, TensorView y_view, const Format& format,
                    const RoundingOptions& options) {
  const OnGpu x_gpu(driver, x.data(), BytesOf(x));
  const OnGpu y_gpu(driver, y.data(), BytesOf(y));
  Cast(x_gpu.View(x_view, x.data()), format, options, y_gpu.View(y_view, y_view.data),
       testing::kKey);
  y_view.data = y.data();
  Cast(x_view, format, options, y_view, testing::kKey);
  std::vector<Out> got(y.size());
  y_gpu.Read(got.data());
  EXPECT_TRUE(bits_equal<Out>(y, got)) << describe(format, options);
}

TEST_F(Gpu, CastGivesTheCpusBits) {
  constexpr std::int64_t n = 5003;
  for (const Format& format : Formats()) {
    const std::vector<float> x = Inputs(format, n);
    const std::vector<float> y(n);
    for (const RoundingOptions& options : testing::few_on_cpu(AllOptions(), 3)) {
      ExpectSameCast(driver(), x, Floats(x), y, Floats(y), format, options);
    }
  }
}

TEST_F(Gpu, CastReadsAndWritesAnyFloatType) {
  constexpr std::int64_t n = 3001;
  const Format format = ParseFormat("e4m3");
  const std::vector<float> values = Inputs(format, n);
  std::vector<double> x(values.begin(), values.end());
  for (std::size_t i = 0; i < x.size(); i += 3) x[i] *= 1.0 + 0x1p-40;
  for (const RoundingOptions& options : AllOptions()) {
    ExpectSameCast(driver(), x, View(x.data(), DType::f64, n), std::vector<double>(n),
                   View(x.data(), DType::f64, n), format, options);
  }
  std::vector<std::uint16_t> halves(1 << 16);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  for (const DType type : {DType::bf16, DType::f16}) {
    const auto view = View(halves.data(), type, static_cast<std::int64_t>(halves.size()));
    for (const RoundingOptions& options : AllOptions()) {
      ExpectSameCast(driver(), halves, view, halves, view, format, options);
    }
  }
}

TEST_F(Gpu, CodesAreTheCpus) {
  for (const Format& format : Formats()) {
    for (const std::int64_t n : {1, 7, 2048, 4099}) {
      const std::vector<float> x = Inputs(format, static_cast<std::size_t>(n), format.has_nan());
      const std::int64_t bytes = PackedBytes(format, n);
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(bytes));
      std::vector<std::uint8_t> got(packed.size());
      for (const RoundingOptions& options : testing::few_on_cpu(AllOptions(), 8)) {
        const OnGpu x_gpu(driver(), x.data(), BytesOf(x));
        const OnGpu codes_gpu(driver(), packed.data(), packed.size());
        const TensorView codes = View(packed.data(), DType::u8, bytes);
        Encode(x_gpu.View(Floats(x), x.data()), format, options,
               codes_gpu.View(codes, packed.data()), testing::kKey);
        codes_gpu.Read(got.data());
        Encode(Floats(x), format, options, codes, testing::kKey);
        ASSERT_TRUE(bits_equal<std::uint8_t>(packed, got)) << describe(format, options);
      }
      std::vector<float> y(static_cast<std::size_t>(n));
      std::vector<float> y_got(y.size());
      const OnGpu codes_gpu(driver(), packed.data(), packed.size());
      const OnGpu y_gpu(driver(), y.data(), BytesOf(y));
      const TensorView codes = View(packed.data(), DType::u8, bytes);
      Decode(codes_gpu.View(codes, packed.data()), format, y_gpu.View(Floats(y), y.data()));
      y_gpu.Read(y_got.data());
      Decode(codes, format, Floats(y));
      ASSERT_TRUE(bits_equal<float>(y, y_got)) << ToString(format);
    }
  }
}

/// Values of 16 bits, each code among them, from any place in memory and to any number of them.
TEST_F(Gpu, HalvesGiveTheCpusBits) {
  std::vector<std::uint16_t> x(1 << 16);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::uint16_t>(i * 40503);
  for (const DType type : {DType::bf16, DType::f16}) {
    const Format outer = type == DType::bf16 ? Format{8, 7, 127} : Format{5, 10, 15};
    for (const Format& format : testing::named_formats()) {
      if (!Holds(outer, format)) continue;
      for (const RoundingOptions& options : testing::few_on_cpu(AllOptions(), 24)) {
        for (const int begin : {0, 1, 8}) {
          const std::int64_t n = (1 << 16) - begin - 3;
          const auto view = View(x.data() + begin, type, n);
          ExpectSameCast(driver(), x, view, x, view, format, options);
          if (!format.has_nan()) continue;
          std::vector<std::uint8_t> packed(static_cast<std::size_t>(PackedBytes(format, n)));
          std::vector<std::uint8_t> got(packed.size());
          const OnGpu x_gpu(driver(), x.data(), BytesOf(x));
          const OnGpu codes_gpu(driver(), packed.data(), packed.size());
          const auto codes = View(packed.data(), DType::u8, static_cast<std::int64_t>(got.size()));
          const TensorView on_gpu = codes_gpu.View(codes, packed.data());
          Encode(x_gpu.View(view, x.data()), format, options, on_gpu);
          codes_gpu.Read(got.data());
          Encode(view, format, options, codes);
          ASSERT_TRUE(bits_equal<std::uint8_t>(packed, got)) << describe(format, options);
          std::vector<std::uint16_t> y(x.size());
          std::vector<std::uint16_t> y_got(x.size());
          const OnGpu y_gpu(driver(), y.data(), BytesOf(y));
          const auto out = View(y.data() + begin, type, n);
          Decode(on_gpu, format, y_gpu.View(out, y.data()));
          y_gpu.Read(y_got.data());
          Decode(codes, format, out);
          ASSERT_TRUE(bits_equal<std::uint16_t>(y, y_got)) << describe(format, options);
        }
      }
    }
  }
}

TEST_F(Gpu, SeedAndStreamMayLieOnTheGpu) {
  constexpr std::int64_t n = 4099;
  const Format format = ParseFormat("e4m3");
  const std::vector<float> x = Inputs(format, n);
  const std::int64_t bytes = PackedBytes(format, n);
  const std::uint64_t numbers[] = {0x0123456789ABCDEFULL, 0xFEDCBA9876543210ULL};
  const OnGpu numbers_gpu(driver(), numbers, sizeof(numbers));
  const OnGpu x_gpu(driver(), x.data(), BytesOf(x));
  for (const int random_bits : {1, 8, 16, 24}) {
    const RoundingOptions options{.mode = Rounding::stochastic, .random_bits = random_bits};
    const RandomKey host{numbers[0], numbers[1]};
    RandomKey device{7, 7};  // not used
    device.device_seed = static_cast<const std::uint64_t*>(
        numbers_gpu.View(View(numbers, DType::i64, 2), numbers).data);
    device.device_stream = device.device_seed + 1;

    std::vector<float> y(n);
    std::vector<float> y_got(n);
    const OnGpu y_gpu(driver(), y.data(), BytesOf(y));
    Cast(x_gpu.View(Floats(x), x.data()), format, options, y_gpu.View(Floats(y), y.data()), device);
    y_gpu.Read(y_got.data());
    Cast(Floats(x), format, options, Floats(y), host);
    EXPECT_TRUE(bits_equal<float>(y, y_got)) << random_bits;

    std::vector<std::uint8_t> packed(static_cast<std::size_t>(bytes));
    std::vector<std::uint8_t> packed_got(packed.size());
    const OnGpu packed_gpu(driver(), packed.data(), packed.size());
    const TensorView codes = View(packed.data(), DType::u8, bytes);
    Encode(x_gpu.View(Floats(x), x.data()), format, options, packed_gpu.View(codes, packed.data()),
           device);
    packed_gpu.Read(packed_got.data());
    Encode(Floats(x), format, options, codes, host);
    EXPECT_TRUE(bits_equal<std::uint8_t>(packed, packed_got)) << random_bits;
  }
}

TEST_F(Gpu, CodesMayBeginAtAnyByte) {
  constexpr std::int64_t n = 3 * 2048 + 77;
  for (const char* name : {"e2m1", "e4m3", "e6m9", "fp32"}) {
    const Format format = ParseFormat(name);
    const std::vector<float> x = Inputs(format, n, format.has_nan());
    const std::int64_t bytes = PackedBytes(format, n);
    for (const int offset : {1, 2, 3}) {
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(bytes + 8), 0xA5);
      std::vector<std::uint8_t> got(packed.size());
      const OnGpu x_gpu(driver(), x.data(), BytesOf(x));
      const OnGpu packed_gpu(driver(), packed.data(), packed.size());
      const TensorView codes = View(packed.data() + offset, DType::u8, bytes);
      const TensorView codes_gpu = packed_gpu.View(codes, packed.data());
      Encode(x_gpu.View(Floats(x), x.data()), format, {}, codes_gpu);
      packed_gpu.Read(got.data());
      Encode(Floats(x), format, {}, codes);
      EXPECT_TRUE(bits_equal<std::uint8_t>(packed, got)) << name << " at byte " << offset;

      std::vector<float> y(n);
      std::vector<float> y_got(n);
      const OnGpu y_gpu(driver(), y.data(), BytesOf(y));
      Decode(codes_gpu, format, y_gpu.View(Floats(y), y.data()));
      y_gpu.Read(y_got.data());
      Decode(codes, format, Floats(y));
      EXPECT_TRUE(bits_equal<float>(y, y_got)) << name << " at byte " << offset;
    }
  }
}

/// A grid has 32 blocks a processor at most, which then take several tiles each.
TEST_F(Gpu, CodesOfMoreTilesThanBlocks) {
  const std::int64_t n = (testing::kCudaOnCpu ? 75 : 9000) * std::int64_t{2048} + 77;
  const Format format = ParseFormat("e6m9");
  const std::vector<float> x = Inputs(format, static_cast<std::size_t>(n));
  const std::int64_t bytes = PackedBytes(format, n);
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(bytes));
  std::vector<std::uint8_t> packed_got(packed.size());
  std::vector<float> y(x.size());
  std::vector<float> y_got(x.size());
  const TensorView codes = View(packed.data(), DType::u8, bytes);
  for (const int random_bits : {0, 8, 24}) {
    RoundingOptions options;
    if (random_bits > 0) {
      options = {.mode = Rounding::stochastic, .random_bits = random_bits};
    }
    const OnGpu x_gpu(driver(), x.data(), BytesOf(x));
    const OnGpu y_gpu(driver(), y.data(), BytesOf(y));
    const OnGpu packed_gpu(driver(), packed.data(), packed.size());
    const TensorView codes_gpu = packed_gpu.View(codes, packed.data());
    Encode(x_gpu.View(Floats(x), x.data()), format, options, codes_gpu, testing::kKey);
    Decode(codes_gpu, format, y_gpu.View(Floats(y), y.data()));
    packed_gpu.Read(packed_got.data());
    y_gpu.Read(y_got.data());
    Encode(Floats(x), format, options, codes, testing::kKey);
    Decode(codes, format, Floats(y));
    EXPECT_TRUE(bits_equal<std::uint8_t>(packed, packed_got)) << random_bits;
    EXPECT_TRUE(bits_equal<float>(y, y_got)) << random_bits;
    ExpectSameCast(driver(), x, Floats(x), y, Floats(y), format, options);
  }
}

TEST_F(Gpu, EncodeNamesTheFirstNanWithoutACode) {
  const Format format = ParseFormat("e2m1");
  std::vector<float> x(10000, 1.0F);
  x[4711] = x[9000] = testing::from_bits(0x7FC00000U);
  const auto bytes = PackedBytes(format, 10000);
  const std::vector<std::uint8_t> packed(static_cast<std::size_t>(bytes));
  const OnGpu x_gpu(driver(), x.data(), BytesOf(x));
  const OnGpu codes_gpu(driver(), packed.data(), packed.size());
  try {
    Encode(x_gpu.View(Floats(x), x.data()), format, {},
           codes_gpu.View(View(packed.data(), DType::u8, bytes), packed.data()));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("element 4711 is NaN"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace cpd
