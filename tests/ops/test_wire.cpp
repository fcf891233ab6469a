// SPDX-License-Identifier: Apache-2.0
//
// Tests casts and packed codes that are scaled by a power of two, and the checksum of packed codes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "cpd/ops/codec.h"
#include "cpd/ops/reduce.h"
#include "cpd/oracle/reference_gemm.h"
#include "cpd/spec/error.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using reference::Exact;
using reference::Spec;
using testing::kInf;

RoundingOptions options_of(Rounding mode, int random_bits = 8) {
  RoundingOptions o;
  o.mode = mode;
  o.random_bits = random_bits;
  return o;
}

Exact scaled(float x, int shift) {
  return multiply(reference::exact(x), reference::exact_finite(false, 1, shift));
}

/// Returns the random integer of element i. A block has four 32-bit words, and a word holds s
/// integers. Element i takes block 16 floor(i / (64 s)) + i mod 16, its word (i / 16) mod 4, and
/// part (i / 64) mod s of that word.
std::uint32_t integer_of(const RoundingOptions& o, std::uint64_t i) {
  const std::uint64_t s = o.random_bits > 16 ? 1 : o.random_bits > 8 ? 2 : 4;
  const auto low = [](std::uint64_t v) { return static_cast<std::uint32_t>(v); };
  const std::uint64_t index = 16 * (i / (64 * s)) + i % 16;
  const auto words = reference::philox_words(
      {low(index), low(index >> 32), low(testing::kKey.stream), low(testing::kKey.stream >> 32)},
      testing::kKey.seed);
  return (words[i / 16 % 4] >> (i / 64 % s * (32 / s))) & ((1u << o.random_bits) - 1);
}

reference::Options oracle_options(const RoundingOptions& o, std::uint64_t i) {
  return testing::oracle_options(o, o.mode == Rounding::stochastic ? integer_of(o, i) : 0);
}

std::uint32_t code_at(const std::vector<std::uint8_t>& packed, int bits, std::size_t i) {
  std::uint32_t code = 0;
  for (int b = 0; b < bits; ++b) {
    const std::size_t at = i * static_cast<std::size_t>(bits) + static_cast<std::size_t>(b);
    code |= static_cast<std::uint32_t>(packed[at / 8] >> (at % 8) & 1) << b;
  }
  return code;
}

constexpr std::array kWireFormats = {"e4m3",   "e5m2", "e3m0", "fp32", "bf16",    "e8m0",
                                     "e4m3fn", "e2m1", "e6m9", "e3m2", "e5m2fnuz"};

/// Returns shifts (exponents of powers of two by which values are multiplied) from -150 to 150, and
/// some far beyond.
std::vector<int> all_shifts() {
  std::vector<int> shifts(301);
  std::iota(shifts.begin(), shifts.end(), -150);
  for (const int shift : {200, 270, 300, 601, 5000, std::numeric_limits<int>::max()}) {
    shifts.push_back(shift);
    shifts.push_back(-shift);
  }
  return testing::thinned(std::move(shifts));
}

/// Returns values x for which x * 2^shift is at or next to a value or a tie of the format, and
/// other values.
std::vector<float> inputs(const Spec& spec, int shift, std::size_t n) {
  std::mt19937_64 bits(static_cast<std::uint64_t>(shift) + 1000);
  const std::vector<float> pool = testing::boundary_patterns(spec, 20, 40);
  std::vector<float> x = testing::special_values();
  while (x.size() < n) {
    const float v = pool[bits() % pool.size()];
    x.push_back(x.size() % 4 == 0 ? v : std::ldexp(v, std::clamp(-shift, -1000, 1000)));
  }
  return x;
}

/// The values and codes that CastScaled and EncodeScaled must give, and the index of the first NaN
/// without a code (-1 if there is none).
struct Expected {
  std::vector<float> values;
  std::vector<std::optional<std::uint64_t>> codes;
  std::int64_t nan = -1;
};
Expected expect(const Spec& spec, const RoundingOptions& o, int shift, std::uint64_t first,
                const std::vector<float>& x) {
  const int bounded = std::clamp(shift, -700, 700);  // no further out than the oracle counts
  Expected e;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Exact exact = scaled(x[i], bounded);
    const reference::Options options = oracle_options(o, first + i);
    e.values.push_back(reference::round(spec, exact, options));
    e.codes.push_back(reference::encode(spec, exact, options));
    if (!e.codes.back() && e.nan < 0) e.nan = static_cast<std::int64_t>(i);
  }
  return e;
}

bool check(const Format& format, const RoundingOptions& o, int shift, std::uint64_t first,
           std::size_t n) {
  const Spec spec = reference::spec_of(format);
  const std::vector<float> x = inputs(spec, shift, n);
  const auto count = static_cast<std::int64_t>(x.size());
  const Expected expected = expect(spec, o, shift, first, x);
  bool good = true;
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    std::vector<float> y(x.size());
    CastScaled(format, o, shift, static_cast<std::int64_t>(first), count, x.data(), y.data(),
               testing::kKey);
    const auto equal = testing::bits_equal(std::span<const float>(expected.values), y, x);
    std::vector<float> in_place = x;
    CastScaled(format, o, shift, static_cast<std::int64_t>(first), count, in_place.data(),
               in_place.data(), testing::kKey);
    EXPECT_TRUE(testing::bits_equal(std::span<const float>(y), std::span<const float>(in_place)));

    const auto bytes = static_cast<std::size_t>(PackedBytes(format, count));
    std::vector<std::uint8_t> packed(bytes + 1, 0xA5);
    const std::int64_t nan = EncodeScaled(format, o, shift, static_cast<std::int64_t>(first), count,
                                          x.data(), packed.data(), testing::kKey);
    EXPECT_EQ(packed[bytes], 0xA5) << "a byte behind the last code is written";
    EXPECT_EQ(nan, expected.nan);
    std::size_t wrong = x.size();
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (expected.codes[i] && code_at(packed, format.bits(), i) != *expected.codes[i]) wrong = i;
    }
    const int spare = static_cast<int>(8 * bytes) - static_cast<int>(count) * format.bits();
    EXPECT_EQ(packed[bytes - 1] >> (8 - spare), 0) << "bits behind the last code";
    EXPECT_EQ(wrong, x.size()) << "the code of " << testing::hex(x[wrong % x.size()]);
    good = good && equal && wrong == x.size() && nan == expected.nan;
    EXPECT_TRUE(equal) << "values";
    EXPECT_TRUE(good) << backend << ", shift " << shift << ", first " << first << ", "
                      << testing::describe(format, o);
  }
  return good;
}

/// If several NaNs have no code, the index of the first one is returned. Kernels process an array
/// in ranges, and this NaN has different positions within a range. Long arrays are stored by
/// instructions that bypass the caches.
TEST(Wire, TheFirstNanIsFound) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
      RoundingOptions o;
      o.mode = mode;
      for (const std::size_t n :
           {std::size_t{700}, std::size_t{9000}, (std::size_t{1} << 21) + 4321}) {
        std::vector<std::uint8_t> packed(n);
        for (const std::size_t at : {std::size_t{0}, std::size_t{300}, n / 2 + 5, n - 3}) {
          std::vector<float> x(n, 1.0F);
          for (const std::size_t later : {at, at + 2, at + 200, at + 800, at + 5000, n - 1}) {
            if (later >= at && later < n) x[later] = nan;
          }
          for (const std::int64_t first : {0, 3}) {
            EXPECT_EQ(EncodeScaled(ParseFormat("e2m1"), o, 0, first, static_cast<std::int64_t>(n),
                                   x.data(), packed.data(), testing::kKey),
                      static_cast<std::int64_t>(at))
                << backend << ", n " << n << ", first " << first;
          }
        }
      }
    }
  }
}

/// Encode names the first NaN in its error. In a long array, several ranges are encoded in
/// parallel, so a later NaN may be met before an earlier one.
TEST(Wire, EncodeNamesTheFirstNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr std::size_t n = (std::size_t{1} << 21) + 4321;
  std::vector<std::uint8_t> packed(n / 2 + 1);
  std::vector<float> x(n, 1.0F);
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const std::size_t at : {std::size_t{300}, n / 2 / 4096 * 4096 + 1800}) {
      for (const std::size_t apart : {200, 800, 1100, 2300}) {
        x[at] = x[at + apart] = nan;
        try {
          Encode(View(x), ParseFormat("e2m1"), {}, View(packed.data(), DType::u8, (n + 1) / 2));
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          const std::string text = "element " + std::to_string(at) + " is NaN";
          EXPECT_EQ(std::string(error.what()).substr(0, text.size()), text) << backend;
        }
        x[at] = x[at + apart] = 1.0F;
      }
    }
  }
}

// x * 2^shift is computed exactly and then rounded once, however far it exceeds binary32's range.
TEST(Wire, CastAndCodesAreTheExactProductRoundedOnce) {
  int failures = 0;
  std::size_t turn = 0;
  for (const char* name : kWireFormats) {
    for (const int shift : all_shifts()) {
      const auto mode = testing::kDeterministicModes[++turn % testing::kDeterministicModes.size()];
      const int random_bits = std::array{8, 3, 16, 24}[turn % 4];
      const std::uint64_t first = std::array{0ull, 256ull, 1ull, 0x5'0000'00FFull}[turn / 5 % 4];
      for (const RoundingOptions& o : {options_of(Rounding::nearest_even), options_of(mode),
                                       options_of(Rounding::stochastic, random_bits)}) {
        failures += check(ParseFormat(name), o, shift, first, 61 + turn % 9) ? 0 : 1;
        if (failures > 5) FAIL() << "more than 5 failures; the rest is left out";
      }
    }
  }
}

TEST(Wire, PolicyAndVariantReachTheCodes) {
  for (const char* name : kWireFormats) {
    for (const int shift : {-3, 0, 5, 140}) {
      RoundingOptions o = options_of(Rounding::nearest_even);
      o.overflow = Overflow::saturate;
      EXPECT_TRUE(check(ParseFormat(name), o, shift, 0, 80));
      for (const Variant variant : testing::kVariants) {
        o = options_of(Rounding::stochastic, 8);
        o.variant = variant;
        EXPECT_TRUE(check(ParseFormat(name), o, shift, 17, 80));
      }
    }
  }
}

// An array may be cast in several calls, each for one range. The random bits of an element must not
// depend on the ranges.
TEST(Wire, RangesDoNotMatter) {
  const Format format = ParseFormat("e4m3");
  const std::vector<float> x = testing::moderate_values(reference::spec_of(format), 9000, 3);
  const auto n = static_cast<std::int64_t>(x.size());
  for (const int random_bits : {8, 16, 24}) {
    const RoundingOptions o = options_of(Rounding::stochastic, random_bits);
    for (const std::string& backend : testing::backends()) {
      const testing::WithBackend forced(backend);
      std::vector<float> whole(x.size());
      std::vector<std::uint8_t> codes(x.size());
      CastScaled(format, o, 2, 0, n, x.data(), whole.data(), testing::kKey);
      EncodeScaled(format, o, 2, 0, n, x.data(), codes.data(), testing::kKey);
      for (const std::int64_t piece : {8, 104, 1000, 2056}) {
        std::vector<float> parts(x.size());
        std::vector<std::uint8_t> packed(x.size());
        for (std::int64_t i = 0; i < n; i += piece) {
          const std::int64_t count = std::min(piece, n - i);
          CastScaled(format, o, 2, i, count, x.data() + i, parts.data() + i, testing::kKey);
          EncodeScaled(format, o, 2, i, count, x.data() + i, packed.data() + i, testing::kKey);
        }
        EXPECT_TRUE(
            testing::bits_equal(std::span<const float>(whole), std::span<const float>(parts)));
        EXPECT_EQ(codes, packed) << backend << ", piece " << piece;
      }
    }
  }
}

// --- decode --------------------------------------------------------------------------------------

/// Returns whether q is p / d rounded to nearest-even. Compares the remainder p - q d with the
/// remainders of the two neighbors of q.
bool is_quotient(float q, float p, float d) {
  if (std::isnan(p)) return testing::bits_of(q) == 0x7FC00000u;
  if (std::signbit(q) != (std::signbit(p) != std::signbit(d))) return false;
  if (p == 0) return q == 0;
  if (std::isinf(p)) return std::isinf(q);
  const auto rest = [&](const Exact& quotient) {
    return add(reference::exact(p), negate(multiply(quotient, reference::exact(d))));
  };
  if (std::isinf(q)) {  // at or beyond the middle between the largest value and 2^128
    const Exact middle = reference::exact_finite(std::signbit(q), (1u << 25) - 1, 103);
    return compare_magnitude(reference::exact(p), multiply(middle, reference::exact(d))) >= 0;
  }
  const std::uint32_t bits = testing::bits_of(q);
  const auto here = rest(reference::exact(q));
  for (const bool outward : {true, false}) {
    if (!outward && q == 0) continue;
    const float near = testing::from_bits(outward ? bits + 1 : bits - 1);
    const Exact neighbour = std::isinf(near) ? reference::exact_finite(std::signbit(q), 1, 128)
                                             : reference::exact(near);
    const auto order = compare_magnitude(here, rest(neighbour));
    if (order > 0 || (order == 0 && bits % 2 != 0)) return false;
  }
  return true;
}

TEST(Wire, DecodeScalesThenDivides) {
  int failures = 0;
  std::size_t turn = 0;
  for (const char* name : kWireFormats) {
    const Format format = ParseFormat(name);
    const Spec spec = reference::spec_of(format);
    const std::size_t n = format.bits() <= 8 ? std::size_t{1} << format.bits() : 203;
    std::mt19937_64 bits(9);
    std::vector<std::uint32_t> codes(n);
    for (std::size_t i = 0; i < n; ++i) {
      const auto any = static_cast<std::uint32_t>(bits() & ((1ull << format.bits()) - 1));
      codes[i] = format.bits() <= 8 ? static_cast<std::uint32_t>(i) : any;
    }
    std::vector<std::uint8_t> packed(
        static_cast<std::size_t>(PackedBytes(format, static_cast<std::int64_t>(n))));
    for (std::size_t b = 0; b < n * static_cast<std::size_t>(format.bits()); ++b) {
      const auto width = static_cast<std::size_t>(format.bits());
      packed[b / 8] |= static_cast<std::uint8_t>((codes[b / width] >> (b % width) & 1) << (b % 8));
    }
    for (const int shift : all_shifts()) {
      const float divisor =
          std::array{1.0f, 2.0f, 3.0f, 7.0f, 100.0f, 0x1p-126f, -1.5f, 0x1p127f}[turn++ % 8];
      std::vector<float> scaled_values(n);
      for (std::size_t i = 0; i < n; ++i) {
        const Exact value = reference::value_of(spec, codes[i]);
        const int bounded = std::clamp(shift, -700, 700);
        scaled_values[i] =
            reference::round(Spec{}, multiply(value, reference::exact_finite(false, 1, bounded)));
      }
      for (const std::string& backend : testing::backends()) {
        const testing::WithBackend forced(backend);
        std::vector<float> y(n);
        DecodeScaled(format, shift, divisor, static_cast<std::int64_t>(n), packed.data(), y.data());
        for (std::size_t i = 0; i < n; ++i) {
          if (is_quotient(y[i], scaled_values[i], divisor)) continue;
          ADD_FAILURE() << name << ", " << backend << ", shift " << shift << ", code " << codes[i]
                        << ": " << testing::hex(scaled_values[i]) << " / " << divisor << " gives "
                        << testing::hex(y[i]);
          if (++failures > 5) FAIL() << "more than 5 failures; the rest is left out";
        }
      }
    }
  }
}

// Tests arrays that are stored by instructions that bypass the caches, including the ends of such
// arrays.
TEST(Wire, LargeArrays) {
  if (testing::kSanitized) GTEST_SKIP() << "its size is the point, and slow under a sanitizer";
  const std::size_t n = (std::size_t{1} << 21) + 4099;
  const auto count = static_cast<std::int64_t>(n);
  for (const char* name : {"e4m3", "e2m1"}) {
    const Format format = ParseFormat(name);
    std::vector<float> x = testing::moderate_values(reference::spec_of(format), 5003, 1);
    x.resize(n);
    for (std::size_t i = 5003; i < n; ++i) x[i] = x[i - 5003];
    std::vector<float> small = x;
    for (float& v : small) v = std::ldexp(v, -4);
    const std::vector<std::uint8_t> expected = testing::run_encode(x, format);
    std::vector<float> values = testing::run_decode(expected, format, n);
    for (float& v : values) v *= 0.25f;
    for (const std::string& backend : testing::backends()) {
      const testing::WithBackend forced(backend);
      std::vector<std::uint8_t> packed(expected.size());
      EXPECT_EQ(EncodeScaled(format, {}, 4, 0, count, small.data(), packed.data()), -1);
      EXPECT_EQ(packed, expected) << backend;
      std::vector<float> y(n);
      DecodeScaled(format, 2, 16, count, packed.data(), y.data());
      EXPECT_TRUE(testing::bits_equal(std::span<const float>(values), std::span<const float>(y)))
          << backend;
    }
  }
}

// --- checksum ------------------------------------------------------------------------------------

/// Computes the checksum bit by bit from the polynomial.
std::uint32_t slow_crc(std::span<const std::uint8_t> data) {
  std::uint32_t rest = 0xFFFFFFFFu;
  for (const std::uint8_t byte : data) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool out = ((rest ^ static_cast<std::uint32_t>(byte >> bit)) & 1) != 0;
      rest = (rest >> 1) ^ (out ? 0x82F63B78u : 0);
    }
  }
  return ~rest;
}

std::uint32_t crc(std::span<const std::uint8_t> data, std::uint32_t before = 0) {
  return Crc32c(before, static_cast<std::int64_t>(data.size()), data.data());
}

// Compares with the values in RFC 3720, appendix B.4, and with the check value of CRC catalogs.
TEST(Crc32c, PublishedValues) {
  std::vector<std::uint8_t> rising(32);
  std::iota(rising.begin(), rising.end(), std::uint8_t{0});
  const std::vector<std::uint8_t> falling(rising.rbegin(), rising.rend());
  const std::vector<std::uint8_t> read_command = {
      0x01, 0xc0, 0, 0, 0,    0, 0, 0, 0,    0,    0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
      0,    0,    0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0,    0};
  const std::string digits = "123456789";
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    EXPECT_EQ(crc(std::vector<std::uint8_t>(32, 0)), 0x8A9136AAu) << backend;
    EXPECT_EQ(crc(std::vector<std::uint8_t>(32, 0xFF)), 0x62A8AB43u) << backend;
    EXPECT_EQ(crc(rising), 0x46DD794Eu) << backend;
    EXPECT_EQ(crc(falling), 0x113FDB5Cu) << backend;
    EXPECT_EQ(crc(std::vector<std::uint8_t>(digits.begin(), digits.end())), 0xE3069283u) << backend;
    EXPECT_EQ(crc({}), 0u) << backend;
  }
}

TEST(Crc32c, EverySplitGivesTheSame) {
  std::mt19937_64 bits(1);
  std::vector<std::uint8_t> data(testing::kSanitized ? 13'000 : 40'000);
  for (auto& byte : data) byte = static_cast<std::uint8_t>(bits());
  const std::span<const std::uint8_t> all = data;
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (std::size_t n = 0; n < 60; ++n) {  // lengths and alignments
      EXPECT_EQ(crc(all.subspan(n, 3 * n)), slow_crc(all.subspan(n, 3 * n))) << backend << ' ' << n;
    }
    const auto part = all.first(300);
    for (std::size_t at = 0; at <= part.size(); ++at) {
      EXPECT_EQ(crc(part.subspan(at), crc(part.first(at))), slow_crc(part)) << backend << ' ' << at;
    }
    const std::uint32_t expected = slow_crc(all);
    for (std::size_t at = 0; at <= all.size(); at += 577) {
      EXPECT_EQ(crc(all.subspan(at), crc(all.first(at))), expected) << backend << ' ' << at;
    }
  }
}

}  // namespace
}  // namespace cpd
