// SPDX-License-Identifier: Apache-2.0
//
// Weights in uniform bins: bins and centers against exact arithmetic, packages against a reader
// that goes bit by bit, and what a layer's bits are chosen by.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/uniform.h"
#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/scaled/uniform_bins.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"

#ifdef CPD_TEST_MPFR
#include <mpfr.h>
#endif

namespace cpd {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::uint8_t>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

::testing::AssertionResult same(const Floats& expected, const Floats& got) {
  return testing::bits_equal(std::span<const float>(expected), std::span<const float>(got));
}

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

/// That the bin's borders hold x: bin * width <= 2^bits (x - least) < (bin + 1) * width.
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

/// The exact center rounded once, subnormals included.
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
    // Values beside a border, where a quotient in binary64 may be wrong.
    const double border = least + (double{greatest} - least) * std::ldexp(bin, -bits);
    const auto near = static_cast<float>(border);
    for (const float x : {near, std::nextafter(near, -kInfinity), std::nextafter(near, kInfinity),
                          middle, least, greatest, any(exponents)}) {
      if (!(x >= least && x <= greatest)) continue;
      ASSERT_TRUE(holds(least, greatest, bits, x, bins.BinOf(x)))
          << least << " " << greatest << " " << bits << " " << x << " " << bins.BinOf(x);
    }
  }
}

// Every value is on a border.
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
    x[700] = kNaN;
    x[999] = -kInfinity;
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

// Tests estimates in binary32 and binary64. Each is in doubt near a border.
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

std::unique_ptr<CodecState> begun(const Codec& codec, const Piece& piece, const Floats& x) {
  const auto size = static_cast<std::int64_t>(x.size());
  auto state = codec.MakeState(size);
  if (codec.needs_gradient()) state->SetGradient(0.25F);
  Piece layer = piece;
  layer.begin = 0;
  layer.n = size;
  state->Begin(layer, x.data());
  return state;
}

Bytes encoded(const Codec& codec, const Piece& piece, CodecState* state, const Floats& x) {
  Bytes bytes(static_cast<std::size_t>(codec.MostBytes(piece.n)));
  const auto used = codec.Encode(piece, state, x.data() + piece.begin, bytes.data());
  EXPECT_LE(used, codec.MostBytes(piece.n));
  bytes.resize(static_cast<std::size_t>(used));
  return bytes;
}

Bytes encoded(const Codec& codec, const Floats& x) {
  const Piece whole{.n = static_cast<std::int64_t>(x.size())};
  return encoded(codec, whole, begun(codec, whole, x).get(), x);
}

Floats decoded(const Codec& codec, Bytes bytes, std::size_t n, int shift = 0, float divisor = 1) {
  bytes.shrink_to_fit();
  Floats y(n);
  codec.Decode(bytes, static_cast<std::int64_t>(n), shift, divisor, y.data());
  return y;
}

int bits_of(const CodecState& state) { return dynamic_cast<const UniformState&>(state).bits(); }

int bits_of(const std::string& text, const Floats& x, std::uint64_t seed = 0) {
  const Piece whole{.n = static_cast<std::int64_t>(x.size()), .key = {.seed = seed}};
  return bits_of(*begun(*MakeCodec(text), whole, x));
}

Floats gaussian(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 0.1F);
  Floats x(n);
  for (float& value : x) value = normal(random);
  return x;
}

/// An independent reader of packages.
class Reader {
 public:
  explicit Reader(const Bytes& bytes) : bytes_(bytes) {}

  Floats package() {
    const std::size_t n = 1 + number(2);
    bits_ = static_cast<int>(number(1));
    const std::uint32_t kind = number(1);
    const auto least = std::bit_cast<float>(number(4));
    const auto greatest = std::bit_cast<float>(number(4));
    std::map<std::string, std::uint32_t> codes;
    std::size_t half = 0;  // where the second half's codes begin
    if (kind % 2 == 1) {
      half = number(4);
      half = at_ + 8 * half;
      codes = table();
    }
    Floats values;
    while (values.size() < n) {
      if (half > 0 && values.size() == (n + 1) / 2) {
        EXPECT_EQ((at_ + 7) / 8 * 8, half);
        at_ = half;
      }
      std::uint32_t bin = 0;
      if (kind % 2 == 1) {
        std::string code;
        while (!codes.contains(code)) code += bit();
        bin = codes[code];
      } else {
        for (int i = 0; i < bits_ + (kind > 1 ? 1 : 0); ++i) bin = 2 * bin + (bit() == '1' ? 1 : 0);
      }
      if (bin == 1U << bits_) {
        values.push_back(kNaN);
        continue;
      }
      // The least value and half bins above it; exact enough for the ranges of these tests.
      const long double share = (2.0L * bin + 1) / std::ldexp(2.0L, bits_);
      values.push_back(
          static_cast<float>(least + (static_cast<long double>(greatest) - least) * share));
    }
    at_ = (at_ + 7) / 8 * 8;
    return values;
  }
  [[nodiscard]] bool is_done() const { return at_ == 8 * bytes_.size(); }

 private:
  std::uint32_t number(std::size_t count) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < count; ++i) value |= std::uint32_t{bytes_.at(at_ / 8 + i)} << 8 * i;
    at_ += 8 * count;
    return value;
  }
  char bit() {
    const char one = (bytes_.at(at_ / 8) >> (7 - at_ % 8) & 1) != 0 ? '1' : '0';
    ++at_;
    return one;
  }
  std::uint32_t elias() {
    std::uint32_t k = 1;
    while (bit() == '1') {
      std::uint32_t next = 1;
      for (std::uint32_t i = 0; i < k; ++i) next = 2 * next + (bit() == '1' ? 1 : 0);
      k = next;
    }
    return k;
  }
  std::map<std::string, std::uint32_t> table() {
    std::vector<std::pair<int, std::uint32_t>> lengths(elias() - 1);
    std::uint32_t symbol = 0;
    int length = 0;
    for (auto& entry : lengths) {
      symbol += elias();
      const auto folded = static_cast<int>(elias() - 1);
      length += folded % 2 == 0 ? folded / 2 : -(folded + 1) / 2;
      entry = {length, symbol - 1};
    }
    std::ranges::sort(lengths);
    std::map<std::string, std::uint32_t> codes;
    std::uint64_t code = 0;
    int before = 0;
    for (const auto& [bits, each] : lengths) {
      code <<= bits - before;
      before = bits;
      std::string text;
      for (int i = bits - 1; i >= 0; --i) text += (code >> i & 1) != 0 ? '1' : '0';
      codes[text] = each;
      ++code;
    }
    return codes;
  }

  const Bytes& bytes_;
  std::size_t at_ = 0;
  int bits_ = 0;
};

const char* const kTexts[] = {"uniform",
                              "uniform bits=8",
                              "uniform bits=8 coding=fixed",
                              "uniform bits=1",
                              "uniform bits=5 coding=fixed",
                              "uniform bits=12",
                              "uniform bits=16",
                              "uniform bits=18",
                              "uniform bits=30",
                              "uniform bits=27 coding=fixed",
                              "uniform c=2 sample=3 fraction=0.5",
                              "uniform bits=gradient c1=7"};

TEST(Uniform, PackagesAreWhatTheHeaderSays) {
  for (const char* text : kTexts) {
    const SharedCodec codec = MakeCodec(text);
    for (const std::size_t n : {1, 2, 100, 3000, 70000}) {
      Floats x = gaussian(n, n);
      for (const bool with_nan : {false, true}) {
        if (with_nan) x[n / 2] = kInfinity;
        const Bytes bytes = encoded(*codec, x);
        Reader reader(bytes);
        Floats expected = reader.package();
        if (n > 65536) {
          const Floats more = reader.package();
          expected.insert(expected.end(), more.begin(), more.end());
        }
        EXPECT_TRUE(reader.is_done());
        ASSERT_TRUE(same(expected, decoded(*codec, bytes, n))) << text << " " << n;
      }
    }
  }
}

TEST(Uniform, ValuesAreCentresNearBy) {
  const Floats x = gaussian(5000, 3);
  const auto [least, greatest] = std::ranges::minmax(x);
  for (const int bits : {1, 4, 8, 20}) {
    const auto codec = MakeCodec("uniform bits=" + std::to_string(bits));
    const Floats y = decoded(*codec, encoded(*codec, x), x.size());
    const double half = (double{greatest} - least) * std::ldexp(0.5, -bits);
    for (std::size_t i = 0; i < x.size(); ++i)
      ASSERT_LE(std::abs(x[i] - y[i]), half * 1.001 + 1e-8);
    // A center stays: its bin is known again, if the range is.
    Floats again = y;
    again[0] = least;
    again[1] = greatest;
    const Floats z = decoded(*codec, encoded(*codec, again), again.size());
    for (std::size_t i = 2; i < x.size() && bits < 20; ++i) ASSERT_EQ(y[i], z[i]);
  }
}

TEST(Uniform, ValuesDoNotDependOnThePieces) {
  const Floats x = gaussian(5000, 4);
  for (const char* text : kTexts) {
    const SharedCodec codec = MakeCodec(text);
    for (const int shift : {0, 5}) {
      const Piece whole{.n = 5000, .shift = shift, .key = {.stream = 3}};
      const auto state = begun(*codec, whole, x);
      const Floats expected = decoded(*codec, encoded(*codec, whole, state.get(), x), 5000);
      Floats rounded(5000);
      codec->Round(whole, state.get(), x.data(), rounded.data());
      EXPECT_TRUE(same(expected, rounded));
      for (std::int64_t begin = 0, n = 1; begin < 5000; begin += n, n = n * 3 + 1) {
        Piece piece = whole;
        piece.begin = begin;
        piece.n = std::min(n, 5000 - begin);
        const Floats part = decoded(*codec, encoded(*codec, piece, state.get(), x),
                                    static_cast<std::size_t>(piece.n));
        EXPECT_TRUE(same({expected.begin() + begin, expected.begin() + begin + piece.n}, part));
      }
      Floats unscaled = decoded(*codec, encoded(*codec, whole, state.get(), x), 5000, -shift, 3);
      for (std::size_t i = 0; i < 5000; ++i) {
        ASSERT_EQ(unscaled[i], std::ldexp(expected[i], -shift) / 3.0F);
      }
    }
  }
}

TEST(Uniform, EqualValuesAreOneBin) {
  for (const char* text : kTexts) {
    const SharedCodec codec = MakeCodec(text);
    for (const float value : {0.0F, -0.0F, 0.3F, -1e-42F, 3e38F}) {
      const Floats x(1000, value);
      const Bytes bytes = encoded(*codec, x);
      EXPECT_EQ(bytes.size(), 12U);
      EXPECT_TRUE(same(Floats(1000, value + 0.0F), decoded(*codec, bytes, 1000)));
    }
    EXPECT_EQ(encoded(*codec, Floats{}).size(), 0U);
    EXPECT_TRUE(decoded(*codec, {}, 0).empty());
    EXPECT_TRUE(same({5}, decoded(*codec, encoded(*codec, Floats{5}), 1)));
  }
}

TEST(Uniform, NoNumbersDoNotCount) {
  for (const char* text : kTexts) {
    const SharedCodec codec = MakeCodec(text);
    const Floats x{kNaN, 1, kInfinity, 2, -kInfinity, 1.5F, -kNaN};
    const Floats y = decoded(*codec, encoded(*codec, x), x.size());
    for (const std::size_t i : {0, 2, 4, 6})
      EXPECT_EQ(std::bit_cast<std::uint32_t>(y[i]), 0x7FC00000U);
    const Floats numbers{1, 2, 1.5F};
    if (std::string(text).find("bits=entropy") == std::string::npos && text != kTexts[0] &&
        text != kTexts[10]) {
      const Floats alone = decoded(*codec, encoded(*codec, numbers), 3);
      EXPECT_TRUE(same(alone, {y[1], y[3], y[5]})) << text;
    }
    const Floats none(20, kNaN);
    EXPECT_TRUE(same(none, decoded(*codec, encoded(*codec, none), 20)));
    const Floats two{kInfinity, 7, 7, kNaN};
    EXPECT_TRUE(same({kNaN, 7, 7, kNaN}, decoded(*codec, encoded(*codec, two), 4)));
  }
}

TEST(Uniform, WidestRange) {
  const float most = std::numeric_limits<float>::max();
  const Floats x{-most, most, 0, 1e-45F, -1};
  for (const char* text : {"uniform bits=1", "uniform bits=30", "uniform bits=30 coding=fixed"}) {
    const SharedCodec codec = MakeCodec(text);
    const Floats y = decoded(*codec, encoded(*codec, x), x.size());
    for (const float value : y) EXPECT_TRUE(std::isfinite(value));
  }
  EXPECT_TRUE(
      same({-most / 2, most / 2, most / 2, most / 2, -most / 2},
           decoded(*MakeCodec("uniform bits=1"), encoded(*MakeCodec("uniform bits=1"), x), 5)));
}

/// floor(H + c + 1/2) of these values' bins, H in long double.
int expected_bits(const Floats& sample, float least, float greatest, int bits, double c) {
  const UniformBins bins(least, greatest, bits);
  std::map<std::uint32_t, int> counts;
  for (const float x : sample) ++counts[bins.BinOf(x)];
  long double entropy = 0;
  for (const auto& [bin, count] : counts) {
    const long double p = static_cast<long double>(count) / static_cast<long double>(sample.size());
    entropy -= p * std::log2(p);
  }
  return std::clamp(static_cast<int>(std::floor(entropy + c + 0.5L)), 1, 30);
}

TEST(Uniform, BitsByTheEntropyOfASample) {
  const Floats x = gaussian(20000, 5);
  const auto [least, greatest] = std::ranges::minmax(x);
  for (const double fraction : {0.03, 0.5, 1.0, 1e-5}) {
    for (const int sample : {1, 4, 10}) {
      for (const double c : {0.0, 0.4, 5.0, 6.0, 25.0}) {
        for (const std::uint64_t seed : {0, 1, 2}) {
          const std::string text = "uniform c=" + std::to_string(c) +
                                   " sample=" + std::to_string(sample) +
                                   " fraction=" + std::to_string(fraction);
          const auto step = static_cast<std::uint64_t>(1 / fraction);
          const std::uint64_t span = std::min<std::uint64_t>(step, x.size());
          Floats taken;
          for (auto i = random_integer(24, seed, 0, 0) * span >> 24; i < x.size(); i += step) {
            taken.push_back(x[i]);
          }
          EXPECT_EQ(bits_of(text, x, seed), expected_bits(taken, least, greatest, sample, c))
              << text << " " << seed;
        }
      }
    }
  }
  // A half is rounded up: four equal bins have 2 bits.
  const Floats four{0, 1, 2, 3};
  EXPECT_EQ(bits_of("uniform c=3.5 sample=2 fraction=1", four), 6);
  EXPECT_EQ(bits_of("uniform c=3.4 sample=2 fraction=1", four), 5);
  EXPECT_EQ(bits_of("uniform c=30 sample=2 fraction=1", four), 30);
  // A given integer in place of the stream's: the offset is its share of the step.
  const Floats offsets{0, 9, 0, 9, 4, 9};
  for (const std::uint32_t given : {0U, 1U}) {
    const auto codec = MakeCodec("uniform c=3 sample=4 fraction=0.5", {.random_bits = 1});
    const Piece whole{.n = 6, .random = &given};
    EXPECT_EQ(bits_of(*begun(*codec, whole, offsets)), given == 0 ? 4 : 3);
  }
}

TEST(Uniform, Texts) {
  const auto name = [](const char* text) { return MakeCodec(text)->name(); };
  EXPECT_EQ(name("uniform"), "uniform bits=entropy c=6 sample=4 fraction=0.03 coding=huffman");
  EXPECT_EQ(name("uniform coding=fixed bits=8"), "uniform bits=8 coding=fixed");
  EXPECT_EQ(name("uniform bits=gradient c1=7.5"),
            "uniform bits=gradient c0=1 c1=7.5 coding=huffman");
  for (const char* text : kTexts) {
    const SharedCodec codec = MakeCodec(text);
    EXPECT_EQ(MakeCodec(codec->name())->text(), codec->text());
  }
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

void expect_sound(const Codec& codec, const Bytes& bytes, std::size_t n) {
  try {
    EXPECT_EQ(decoded(codec, bytes, n).size(), n);
  } catch (const DamagedBytes& error) {
    EXPECT_STRNE(error.what(), "");
  }
}

TEST(Uniform, EveryBitFlipAndTruncation) {
  for (std::uint64_t stream = 0; stream < 300; ++stream) {
    const SharedCodec codec = MakeCodec(kTexts[stream % std::size(kTexts)]);
    const std::size_t n = 1 + stream % 37;
    Floats x = gaussian(n, stream);
    if (stream % 4 == 0) x[0] = kNaN;
    const Bytes bytes = encoded(*codec, x);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      Bytes changed = bytes;
      changed[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
      expect_sound(*codec, changed, n);
    }
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      const Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
      EXPECT_THROW(decoded(*codec, cut, n), DamagedBytes);
    }
    Bytes longer = bytes;
    longer.push_back(0);
    EXPECT_THROW(decoded(*codec, longer, n), DamagedBytes);
    EXPECT_THROW(decoded(*codec, bytes, n + 1), DamagedBytes);
  }
}

TEST(Uniform, AnyBytes) {
  std::mt19937_64 random(9);
  const SharedCodec codec = MakeCodec("uniform");
  const Bytes valid = encoded(*codec, gaussian(50, 1));
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes(valid.begin(), valid.begin() + 12);
    bytes.resize(12 + random() % 40);
    for (std::size_t at = random() % 4 == 0 ? 0 : 12; at < bytes.size(); ++at) {
      bytes[at] = static_cast<std::uint8_t>(random() & random());
    }
    bytes[3] = static_cast<std::uint8_t>(random() % 4);
    expect_sound(*codec, bytes, 50);
  }
}

// The paper's figure: weights that lie narrow in their range take about half of their bins' bits.
TEST(Uniform, FewerBitsThanTheBinsHave) {
  std::mt19937_64 random(10);
  std::normal_distribution<float> normal(0, 0.02F);
  Floats x(307720);  // 784-392-50-10
  for (float& value : x) {
    value = normal(random);
    if (random() % 100 == 0) value *= 10;  // a few features
  }
  const double n = static_cast<double>(x.size());
  const auto bits_a_value = [&](const char* text) {
    return 8 * static_cast<double>(encoded(*MakeCodec(text), x).size()) / n;
  };
  const int bits = bits_of("uniform c=5", x);
  EXPECT_NEAR(bits_a_value("uniform c=5 coding=fixed"), bits, 0.01);
  EXPECT_LT(bits_a_value("uniform c=5"), 0.7 * bits);
  EXPECT_LT(bits_a_value("uniform c=5"), bits_a_value("uniform c=6"));
}

}  // namespace
}  // namespace cpd
