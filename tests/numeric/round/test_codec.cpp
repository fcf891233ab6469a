// SPDX-License-Identifier: Apache-2.0
//
// Tests conversions between values, codes and packed bits: every code of every format of up to 16
// bits.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using reference::Spec;

// Packs codes densely, least significant bit first. This code follows the definition and shares no
// code with the library.
std::vector<std::uint8_t> pack(const std::vector<std::uint64_t>& codes, int bits) {
  std::vector<std::uint8_t> packed((codes.size() * static_cast<std::size_t>(bits) + 7) / 8);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    for (int b = 0; b < bits; ++b) {
      const std::size_t at = i * static_cast<std::size_t>(bits) + static_cast<std::size_t>(b);
      if ((codes[i] >> b) & 1) packed[at / 8] |= static_cast<std::uint8_t>(1u << (at % 8));
    }
  }
  return packed;
}

std::vector<Format> formats_up_to_16_bits() {
  std::vector<Format> formats;
  for (const auto& set :
       {testing::ieee_formats(), testing::encoding_formats(), testing::named_formats()}) {
    for (const Format& f : set) {
      if (f.bits() >= 2 && f.bits() <= 16) formats.push_back(f);
    }
  }
  // Formats of more than 12 bits are sampled here. The exhaustive tests cover all of them.
  std::size_t number = 0;
  std::erase_if(formats, [&number](const Format& f) {
    return f.bits() > 12 && !testing::is_chosen(number++, 3);
  });
  return formats;
}

TEST(Codec, EveryCodeOfEveryFormatUpTo16Bits) {
  std::int64_t codes_checked = 0;
  int failing = 0;  // formats since the first failure
  for (const Format& format : formats_up_to_16_bits()) {
    const Spec spec = reference::spec_of(format);
    const std::size_t count = std::size_t{1} << spec.bits();
    std::vector<std::uint64_t> codes(count);
    std::vector<float> values(count);
    std::vector<std::uint64_t> canonical;  // the codes of the decoded values
    std::vector<float> encodable;
    for (std::size_t c = 0; c < count; ++c) {
      codes[c] = c;
      values[c] = reference::decode(spec, c);
      const auto code = reference::encode(spec, reference::exact(values[c]));
      if (!code) continue;
      canonical.push_back(*code);
      encodable.push_back(values[c]);
    }
    const std::vector<std::uint8_t> packed = pack(codes, spec.bits());
    const std::vector<std::uint8_t> packed_again = pack(canonical, spec.bits());
    codes_checked += static_cast<std::int64_t>(count);
    for (const std::string& backend : testing::backends()) {
      const testing::WithBackend forced(backend);
      const auto describe = [](std::size_t i) { return ", code " + testing::hex(i); };
      const auto decoded = testing::run_decode(packed, format, count);
      EXPECT_TRUE(testing::bits_equal(std::span<const float>(values),
                                      std::span<const float>(decoded), describe))
          << backend << ", decode " << ToString(format);
      const auto encoded = testing::run_encode(encodable, format);
      EXPECT_TRUE(testing::bits_equal(std::span<const std::uint8_t>(packed_again),
                                      std::span<const std::uint8_t>(encoded)))
          << backend << ", encode " << ToString(format);
    }
    failing += HasFailure() ? 1 : 0;
    if (failing > 60) FAIL() << "too many failures; the rest is left out";
  }
  RecordProperty("codes", static_cast<int>(codes_checked));
}

// Encoding rounds like a cast, for any input, rounding mode and overflow policy.
TEST(Codec, EncodeRoundsLikeCast) {
  int failures = 0;
  for (const Format& format : testing::named_formats()) {
    const Spec spec = reference::spec_of(format);
    const std::vector<float> patterns = testing::boundary_patterns(spec, 20, 100);
    for (const Rounding mode : testing::kDeterministicModes) {
      for (const Overflow overflow : testing::kPolicies) {
        RoundingOptions o;
        o.mode = mode;
        o.overflow = overflow;
        std::vector<float> x;
        std::vector<std::uint64_t> codes;
        for (const float v : patterns) {
          const auto code =
              reference::encode(spec, reference::exact(v), testing::oracle_options(o));
          if (!code) continue;
          x.push_back(v);
          codes.push_back(*code);
        }
        const std::vector<std::uint8_t> expected = pack(codes, spec.bits());
        for (const std::string& backend : testing::backends()) {
          const testing::WithBackend forced(backend);
          const auto got = testing::run_encode(x, format, o, testing::kKey);
          const auto equal = testing::bits_equal(std::span<const std::uint8_t>(expected),
                                                 std::span<const std::uint8_t>(got));
          EXPECT_TRUE(equal) << backend << ", " << testing::describe(format, o);
          if (!equal && ++failures > 20) FAIL() << "more than 20 failures; the rest is left out";
        }
      }
    }
  }
}

TEST(Codec, StochasticEncodeUsesTheIntegersOfCast) {
  for (const char* name : {"e4m3", "e2m1", "fp16", "e3m2", "e6m9", "binary8p4se", "e8m0"}) {
    const Format format = ParseFormat(name);
    const Spec spec = reference::spec_of(format);
    for (const int random_bits : {4, 12, 24}) {
      RoundingOptions o;
      o.mode = Rounding::stochastic;
      o.random_bits = random_bits;
      std::vector<float> x(999);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.75f + 1e-3f * static_cast<float>(i);
      const auto random = testing::run_random_integers(o, x.size(), 0, testing::kKey);
      std::vector<std::uint64_t> codes;
      for (std::size_t i = 0; i < x.size(); ++i) {
        codes.push_back(*reference::encode(spec, reference::exact(x[i]),
                                           testing::oracle_options(o, random[i])));
      }
      const std::vector<std::uint8_t> expected = pack(codes, spec.bits());
      for (const std::string& backend : testing::backends()) {
        const testing::WithBackend forced(backend);
        EXPECT_TRUE(testing::bits_equal(
            std::span<const std::uint8_t>(expected),
            std::span<const std::uint8_t>(testing::run_encode(x, format, o, testing::kKey))))
            << backend << ", " << testing::describe(format, o);
      }
    }
  }
}

// Tests every width from 2 to 32 bits and every length around the kernels' blocks. Nothing may be
// written past the end.
TEST(Codec, WidthsAndLengths) {
  std::mt19937_64 generator(23);
  for (int width = 2; width <= 32; ++width) {
    const int exp = std::min(8, std::max(1, width / 3));
    const int man = width - 1 - exp;
    const Format format = MakeFormat(exp, man);
    const Spec spec = reference::spec_of(format);
    ASSERT_EQ(format.bits(), width);
    for (const std::size_t n :
         {0u, 1u, 2u, 3u, 7u, 8u, 9u, 31u, 63u, 64u, 65u, 255u, 256u, 257u, 511u, 1000u}) {
      std::vector<std::uint64_t> codes(n);
      std::vector<float> values(n);
      for (std::size_t i = 0; i < n; ++i) {
        codes[i] = (generator() % (spec.max_code() + 1)) |
                   ((generator() & 1) != 0 ? spec.magnitudes() : 0);
        values[i] = reference::decode(spec, codes[i]);
      }
      const std::vector<std::uint8_t> expected = pack(codes, width);
      ASSERT_EQ(PackedBytes(format, static_cast<std::int64_t>(n)),
                static_cast<std::int64_t>(expected.size()));
      for (const std::string& backend : testing::backends()) {
        const testing::WithBackend forced(backend);
        std::vector<std::uint8_t> packed(expected.size() + 64, 0xA5);
        Encode(testing::view_of(values), format, {},
               View(packed.data(), DType::u8, static_cast<std::int64_t>(expected.size())));
        EXPECT_TRUE(
            testing::bits_equal(std::span<const std::uint8_t>(expected),
                                std::span<const std::uint8_t>(packed.data(), expected.size())))
            << backend << ", " << width << " bits, n " << n;
        for (std::size_t i = expected.size(); i < packed.size(); ++i) ASSERT_EQ(packed[i], 0xA5);
        std::vector<float> decoded(n + 64, 7.0f);
        Decode(testing::view_of(expected), format,
               View(decoded.data(), DType::f32, static_cast<std::int64_t>(n)));
        EXPECT_TRUE(testing::bits_equal(std::span<const float>(values),
                                        std::span<const float>(decoded.data(), n)))
            << backend << ", " << width << " bits, n " << n;
        for (std::size_t i = n; i < decoded.size(); ++i) ASSERT_EQ(decoded[i], 7.0f);
      }
    }
  }
}

TEST(Codec, KnownCodes) {
  struct Row {
    const char* format;
    float x;
    std::uint8_t code;
  };
  const float nan = std::nanf("");
  const float inf = HUGE_VALF;
  const std::array<Row, 14> rows = {{{"e4m3fn", 448.0f, 0x7E},
                                     {"e4m3fn", nan, 0x7F},
                                     {"e4m3fn", -nan, 0x7F},
                                     {"e5m2", inf, 0x7C},
                                     {"e5m2", -inf, 0xFC},
                                     {"e5m2", nan, 0x7E},
                                     {"e4m3fnuz", nan, 0x80},
                                     {"e4m3fnuz", -0.0f, 0x00},
                                     {"e8m0", 0.0f, 0x00},
                                     {"e8m0", 1.0f, 0x7F},
                                     {"e8m0", nan, 0xFF},
                                     {"binary8p4se", inf, 0x7F},
                                     {"binary8p4se", -inf, 0xFF},
                                     {"binary8p4se", nan, 0x80}}};
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const Row& row : rows) {
      const auto packed = testing::run_encode({row.x}, ParseFormat(row.format));
      EXPECT_EQ(packed[0], row.code) << backend << ", " << row.format << ", " << row.x;
    }
    // Each byte holds two 4-bit codes, the first one in the low half.
    EXPECT_EQ(testing::run_encode({0.5f, -6.0f, 1.0f}, ParseFormat("e2m1")),
              (std::vector<std::uint8_t>{0xF1, 0x02}));
  }
}

TEST(Codec, NanWithoutACodeIsAnErrorThatNamesItsIndex) {
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const char* name : {"e2m1", "e3m2", "e3m0", "e2m1:unsigned"}) {
      for (const std::size_t at : {0u, 5u, 300u, 998u}) {
        std::vector<float> x(1000, 1.0f);
        x[at] = std::nanf("");
        x[999] = std::nanf("");
        try {
          testing::run_encode(x, ParseFormat(name));
          FAIL() << backend << ", " << name;
        } catch (const Error& error) {
          const std::string text = error.what();
          EXPECT_NE(text.find(std::to_string(at)), std::string::npos) << backend << ": " << text;
        }
      }
    }
  }
}

TEST(Codec, RefusesWrongSizesAndTypes) {
  const Format format = ParseFormat("e4m3");
  std::vector<float> x(10);
  std::vector<std::uint8_t> packed(10);
  std::vector<std::uint8_t> shorter(9);
  EXPECT_THROW(Encode(testing::view_of(x), format, {}, testing::view_of(shorter)), Error);
  EXPECT_THROW(Decode(testing::view_of(shorter), format, testing::view_of(x)), Error);
  EXPECT_THROW(Encode(testing::view_of(x), format, {}, testing::view_of(x)), Error);
  EXPECT_THROW(Decode(testing::view_of(x), format, testing::view_of(x)), Error);
  EXPECT_THROW(Encode(testing::view_of(packed), format, {}, testing::view_of(packed)), Error);
}

}  // namespace
}  // namespace cpd
