// SPDX-License-Identifier: Apache-2.0
//
// Tests the codec that stores weights in uniform bins: bins and centers compared with exact
// arithmetic, texts, and damaged bytes. tests/python/compress/test_uniform.py tests the bytes and
// the choice of bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/uniform.h"
#include "cpd/numeric/scaled/uniform_bins.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"

#ifdef CPD_TEST_MPFR
#include <mpfr.h>
#endif

namespace cpd {
namespace {

using testing::kInf;
using testing::kNan;
using Floats = std::vector<float>;
using Bytes = std::vector<std::uint8_t>;

// ---- bins and centers

#ifdef CPD_TEST_MPFR
constexpr mpfr_prec_t kWide = 700;  // holds all of it exactly

struct Wide {
  explicit Wide(double x = 0) {
    mpfr_init2(value, kWide);
    mpfr_set_d(value, x, MPFR_RNDN);
  }
  Wide(const Wide&) = delete;
  Wide& operator=(const Wide&) = delete;
  ~Wide() { mpfr_clear(value); }
  mpfr_t value;
};

/// Returns whether the bin's borders enclose x: bin * width <= 2^bits (x - least) < (bin + 1) *
/// width.
bool holds(float least, float greatest, int bits, float x, std::uint32_t bin) {
  const std::uint32_t last = (1U << bits) - 1;
  if (bin > last) return false;
  Wide above(x), width(greatest), border;
  mpfr_sub_d(above.value, above.value, least, MPFR_RNDN);
  mpfr_mul_2si(above.value, above.value, bits, MPFR_RNDN);
  mpfr_sub_d(width.value, width.value, least, MPFR_RNDN);
  mpfr_mul_ui(border.value, width.value, bin, MPFR_RNDN);
  if (mpfr_cmp(border.value, above.value) > 0) return false;
  mpfr_add(border.value, border.value, width.value, MPFR_RNDN);
  return bin == last || mpfr_cmp(above.value, border.value) < 0;
}

/// Returns the exact center of a bin, rounded once to binary32 (which may be subnormal).
float centre(float least, float greatest, int bits, std::uint32_t bin) {
  Wide sum(greatest);
  mpfr_sub_d(sum.value, sum.value, least, MPFR_RNDN);
  mpfr_mul_ui(sum.value, sum.value, 2UL * bin + 1, MPFR_RNDN);
  mpfr_mul_2si(sum.value, sum.value, -bits - 1, MPFR_RNDN);
  mpfr_add_d(sum.value, sum.value, least, MPFR_RNDN);
  return mpfr_get_flt(sum.value, MPFR_RNDN);
}

TEST(UniformBins, AreTheExactOnes) {
  std::mt19937_64 random(1);
  const auto any = [&](int exponents) {
    const auto exponent =
        127 - exponents / 2 + static_cast<int>(random() % static_cast<unsigned>(exponents));
    const auto bits = static_cast<std::uint32_t>(random() & 0x807FFFFF) |
                      static_cast<std::uint32_t>(std::clamp(exponent, 0, 254)) << 23;
    return std::bit_cast<float>(bits);
  };
  for (int i = 0; i < 60000; ++i) {
    const int exponents = i % 3 == 0 ? 260 : i % 3 == 1 ? 40 : 4;
    float least = any(exponents), greatest = any(exponents);
    if (least > greatest) std::swap(least, greatest);
    const int bits = least == greatest ? 0 : 1 + static_cast<int>(random() % 30);
    const UniformBins bins(least, greatest, bits);
    const auto bin = static_cast<std::uint32_t>(random() % (1ULL << bits));
    const float middle = bins.CentreOf(bin);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(middle),
              std::bit_cast<std::uint32_t>(centre(least, greatest, bits, bin)))
        << least << " " << greatest << " " << bits << " " << bin;
    // Tests values next to a border, for which a quotient in binary64 could give the wrong bin.
    const double border = least + (double{greatest} - least) * std::ldexp(bin, -bits);
    const auto near = static_cast<float>(border);
    for (const float x : {near, std::nextafter(near, -kInf), std::nextafter(near, kInf), middle,
                          least, greatest, any(exponents)}) {
      if (!(x >= least && x <= greatest)) continue;
      ASSERT_TRUE(holds(least, greatest, bits, x, bins.BinOf(x)))
          << least << " " << greatest << " " << bits << " " << x << " " << bins.BinOf(x);
    }
  }
}

// Tests values that all lie exactly on a border between bins.
TEST(UniformBins, OfValuesOnAGrid) {
  for (const int bits : {1, 3, 8, 12}) {
    const auto all = 1 << bits;
    for (const float least : {-3.0F, 0.1F, -1e-40F}) {
      const float unit = std::ldexp(1.0F, -140 + 130 * (least > -1));
      const float greatest = least + static_cast<float>(all) * unit;
      if (greatest == least) continue;
      const UniformBins bins(least, greatest, bits);
      for (int i = 0; i <= all; ++i) {
        const float x = std::min(greatest, least + static_cast<float>(i) * unit);
        ASSERT_TRUE(holds(least, greatest, bits, x, bins.BinOf(x)));
      }
    }
  }
}
#endif

TEST(UniformBins, OfARunAreThoseOfEach) {
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  for (const int bits : {1, 8, 17, 30}) {
    Floats x(1000);
    for (float& value : x) value = std::clamp(normal(random), -2.0F, 2.5F);
    x[17] = -2;
    x[300] = 2.5F;
    x[301] = 0.25F;  // borders
    x[700] = kNan;
    x[999] = -kInf;
    const UniformBins bins(-2, 2.5F, bits);
    std::vector<std::uint32_t> run(x.size());
    EXPECT_TRUE(bins.BinsOf(1000, x.data(), run.data()));
    EXPECT_FALSE(bins.BinsOf(700, x.data(), run.data()));
    bins.BinsOf(1000, x.data(), run.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(run[i], std::isfinite(x[i]) ? bins.BinOf(x[i]) : 1U << bits);
    }
  }
}

// Tests values near borders. The estimates in binary32 and in binary64 must detect that they cannot
// decide such values.
TEST(UniformBins, OfARunBesideBorders) {
  std::mt19937_64 random(3);
  for (const int exponent : {-100, -61, -60, -59, 0, 58, 59, 60, 100}) {
    for (int bits = 1; bits <= 14; ++bits) {
      const float least = std::ldexp(static_cast<float>(random() % 1000) / 1000 - 0.7F, exponent);
      const float greatest = least + std::ldexp(1 + static_cast<float>(random() % 7), exponent);
      const UniformBins bins(least, greatest, bits);
      Floats x(640);
      for (float& value : x) {
        const auto bin = static_cast<double>(random() % ((1ULL << bits) + 1));
        value = static_cast<float>(least + (double{greatest} - least) * std::ldexp(bin, -bits));
        if (random() % 2 == 0) value = std::nextafter(value, random() % 2 == 0 ? least : greatest);
        value = std::clamp(value, least, greatest);
      }
      std::vector<std::uint32_t> run(x.size());
      EXPECT_FALSE(bins.BinsOf(640, x.data(), run.data()));
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(run[i], bins.BinOf(x[i]));
    }
  }
}

// ---- the codec

TEST(Uniform, Texts) {
  const auto name = [](const char* text) { return MakeCodec(text)->name(); };
  EXPECT_EQ(name("uniform"), "uniform bits=entropy c=6 sample=4 fraction=0.03 coding=huffman");
  EXPECT_EQ(name("uniform coding=fixed bits=8"), "uniform bits=8 coding=fixed");
  EXPECT_EQ(name("uniform bits=gradient c1=7.5"),
            "uniform bits=gradient c0=1 c1=7.5 coding=huffman");
  EXPECT_EQ(MakeCodec("uniform")->text(), name("uniform") + " random_bits=24");
  EXPECT_EQ(MakeCodec("uniform bits=8")->text(), "uniform bits=8 coding=huffman");
  for (const char* wrong :
       {"uniform bits=0", "uniform bits=31", "uniform bits=many", "uniform bits=8 c=3",
        "uniform c=31", "uniform sample=17", "uniform fraction=0", "uniform bits=gradient c=1",
        "uniform coding=none", "uniform 8"}) {
    EXPECT_THROW(MakeCodec(wrong), Error) << wrong;
  }
  EXPECT_THROW(Uniform({.sample = 20}), Error);
  EXPECT_EQ(MakeCodec("uniform")->block(), 65536);
  EXPECT_TRUE(MakeCodec("uniform")->has_nan());
  EXPECT_EQ(MakeCodec("uniform")->ForResults(kFp32, 4), nullptr);
}

/// Decodes tables and codes that no encoder writes. They follow the valid header of a layer of 50
/// values, or a header of random bytes.
TEST(Uniform, AnyBytes) {
  std::mt19937_64 random(9);
  const SharedCodec codec = MakeCodec("uniform");
  std::normal_distribution<float> normal;
  Floats x(50);
  for (float& value : x) value = normal(random);
  const auto state = codec->MakeState(50);
  state->Begin({.n = 50}, x.data());
  Bytes valid(static_cast<std::size_t>(codec->MostBytes(50)));
  codec->Encode({.n = 50}, state.get(), x.data(), valid.data());
  Floats y(51);
  int damaged = 0;
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes(valid.begin(), valid.begin() + 12);
    bytes.resize(12 + random() % 40);
    for (std::size_t at = random() % 4 == 0 ? 0 : 12; at < bytes.size(); ++at) {
      bytes[at] = static_cast<std::uint8_t>(random() & random());
    }
    bytes[3] = static_cast<std::uint8_t>(random() % 4);
    bytes.shrink_to_fit();
    try {
      codec->Decode(bytes, i % 9 == 0 ? 51 : 50, 0, 1, y.data());
    } catch (const DamagedBytes& error) {
      EXPECT_STRNE(error.what(), "");
      ++damaged;
    }
  }
  EXPECT_GT(damaged, 10000);
}

}  // namespace
}  // namespace cpd
