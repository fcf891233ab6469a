// SPDX-License-Identifier: Apache-2.0
//
// Tests the oracle itself against MPFR (an independent library with correct rounding), against the
// hardware's binary32, and against values worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cpd/oracle/reference.h"
#include "cpd/oracle/reference_sum.h"
#include "tests/testing/bits.h"
#include "tests/testing/formats.h"
#include "tests/testing/patterns.h"

#ifdef CPD_TEST_MPFR
#include <mpfr.h>
#endif

namespace cpd {
namespace {

using reference::Exact;
using reference::Natural;
using reference::Options;
using reference::Spec;
using testing::from_bits;
using testing::hex;

Options with(Rounding rounding, Overflow overflow = Overflow::ieee) {
  Options o;
  o.rounding = rounding;
  o.overflow = overflow;
  return o;
}

TEST(Natural, AddsSubtractsMultipliesShifts) {
  std::mt19937_64 generator(3);
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t a = generator() >> (generator() % 64);
    const std::uint64_t b = generator() >> (generator() % 64);
    const Natural wide_a(a);
    const Natural wide_b(b);
    EXPECT_EQ(wide_a + wide_b - wide_b, wide_a);
    EXPECT_EQ(wide_a <=> wide_b, a <=> b);
    const int shift = static_cast<int>(generator() % 500);
    EXPECT_EQ((wide_a << shift) + (wide_b << shift), (wide_a + wide_b) << shift);
    EXPECT_EQ((wide_a << shift) * wide_b, (wide_a * wide_b) << shift);
    // (a + b)^2 = a^2 + 2ab + b^2
    const Natural sum = wide_a + wide_b;
    EXPECT_EQ(sum * sum, wide_a * wide_a + ((wide_a * wide_b) << 1) + wide_b * wide_b);
  }
  EXPECT_EQ(Natural(0).bit_length(), 0);
  EXPECT_EQ(Natural(1).bit_length(), 1);
  EXPECT_EQ((Natural(1) << 1000).bit_length(), 1001);
  EXPECT_THROW(Natural(1) << 1024, std::overflow_error);
  EXPECT_THROW(Natural(1) - Natural(2), std::overflow_error);
}

template <class Word>
void check_short_natural() {
  using Short = reference::ShortNatural<Word>;
  std::mt19937_64 generator(4);
  const auto draw = [&] {
    const auto high = static_cast<reference::Digits>(generator()) << 64;
    return static_cast<Word>((high | generator()) >> (generator() % 128));
  };
  // The type Short must give the result of Natural, whose length is unlimited, or throw
  // std::overflow_error if the result has too many bits.
  const auto check = [](const auto& function, const auto&... x) {
    const Natural expected = function(Natural(x)...);
    if (expected.bit_length() > Short::kBits) {
      EXPECT_THROW(function(Short(x)...), std::overflow_error);
      return;
    }
    const Short made = function(Short(x)...);
    EXPECT_EQ(made.bit_length(), expected.bit_length());
    EXPECT_EQ(made.is_zero(), expected.is_zero());
    for (const int at : {0, 1, 13, 31, 32, 63, 64, 65, 100, 127, 128, 500}) {
      EXPECT_EQ(made.bits_from(at), expected.bits_from(at)) << at;
    }
    if (!made.is_zero()) {
      EXPECT_EQ(made.trailing_zeros(), expected.trailing_zeros());
    }
  };
  for (int i = 0; i < 20000; ++i) {
    const Word a = draw();
    const Word b = generator() % 4 == 0 ? static_cast<Word>(a + generator() % 3 - 1) : draw();
    check([](const auto& x, const auto& y) { return x + y; }, a, b);
    check([](const auto& x, const auto& y) { return x - y; }, std::max(a, b), std::min(a, b));
    if (a == b) continue;
    EXPECT_THROW(Short(std::min(a, b)) - Short(std::max(a, b)), std::overflow_error);
    check([](const auto& x, const auto& y) { return x * y; }, a, b);
    const int count = static_cast<int>(generator() % 140);
    check([count](const auto& x) { return x << count; }, a);
    check([count](const auto& x) { return x << count; }, Word{0});
    EXPECT_EQ(Short(a) <=> Short(b), Natural(a) <=> Natural(b));
  }
  EXPECT_NO_THROW(Short(~Word{0}));
  if (sizeof(Word) < sizeof(reference::Digits)) {
    EXPECT_THROW(Short(reference::Digits{1} << Short::kBits), std::overflow_error);
  }
}

TEST(ShortNatural, IsNaturalOrThrows) {
  check_short_natural<std::uint64_t>();
  check_short_natural<reference::Digits>();
}

TEST(Natural, GivesItsBits) {
  const Natural wide = (Natural(0x123456789ABCDEF0) << 500) + Natural(5);
  EXPECT_EQ(wide.bits_from(0), 5u);
  EXPECT_EQ(wide.bits_from(500), 0x123456789ABCDEF0u);
  EXPECT_EQ(wide.bits_from(504), 0x0123456789ABCDEFu);
  EXPECT_EQ(wide.bits_from(444), 0xF000000000000000u);
  EXPECT_EQ(wide.bits_from(2000), 0u);
  EXPECT_EQ(wide.trailing_zeros(), 0);
  EXPECT_EQ((wide << 77).trailing_zeros(), 77);
}

/// Formats with each kind of spacing between their values.
const std::vector<const char*> kGrids{"e4m3fn", "bf16",           "fp32", "e5m2:nosub",
                                      "e3m0",   "e8m0",           "int8", "int5:full",
                                      "sm8",    "e4m3fn:unsigned"};

TEST(Reference, OneCodeAloneHasNeighbours) {
  std::mt19937_64 generator(5);
  for (const char* name : kGrids) {
    const Spec spec = reference::spec_of(ParseFormat(name));
    for (int i = 0; i < 3000; ++i) {
      const int bits = static_cast<int>(generator() % 60);
      const int exponent = static_cast<int>(generator() % 300) - 180;
      const Exact x = reference::exact_finite(false, generator() >> bits, exponent);
      const std::uint64_t right = reference::searched_code(spec, x);
      if (right == reference::end_of_grid(spec)) continue;
      const bool is_below = compare_magnitude(reference::grid_value(spec, right), x) > 0;
      EXPECT_EQ(reference::neighbours_at(spec, x, right).has_value(), !is_below);
      if (is_below) continue;  // e8m0's least value
      const std::uint64_t first_normal = std::uint64_t{1} << spec.man;
      const bool is_in_gap = !spec.subnormals && right < first_normal;
      for (const std::uint64_t wrong : {right - 2, right - 1, right + 1, right + 2}) {
        if (wrong > right + 2 || (is_in_gap && wrong < first_normal)) continue;
        EXPECT_FALSE(reference::neighbours_at(spec, x, wrong)) << name << " " << wrong;
      }
      const std::uint64_t likely = reference::likely_code(spec, x);
      EXPECT_TRUE(is_in_gap ? likely < first_normal : likely == right) << name << " " << likely;
    }
  }
}

TEST(Reference, Binary32IsItself) {
  const Spec binary32;
  std::mt19937 generator(1);
  std::vector<float> values = testing::special_values();
  for (int i = 0; i < 20000; ++i) values.push_back(from_bits(generator()));
  for (const float x : values) {
    for (const Rounding mode : testing::kDeterministicModes) {
      const float expected = std::isnan(x) ? from_bits(reference::kNanBits) : x;
      EXPECT_TRUE(testing::same_bits(expected, reference::cast(binary32, x, with(mode)))) << hex(x);
    }
  }
}

TEST(Reference, AgreesWithHardwareBinary32Arithmetic) {
  const Spec binary32;
  std::mt19937 generator(2);
  for (int i = 0; i < 20000; ++i) {
    const float x = from_bits(generator());
    const float y = i % 2 == 0 ? from_bits(generator())
                               : from_bits(testing::bits_of(x) ^ 0x80000000u ^ (generator() >> 8));
    const float z = i % 3 == 0 ? -x * y : from_bits(generator());
    const auto canonical = [](float v) {
      return std::isnan(v) ? from_bits(reference::kNanBits) : v;
    };
    const auto expect = [&](float expected, float got) {
      EXPECT_TRUE(testing::same_bits(canonical(expected), got))
          << hex(x) << ", " << hex(y) << ", " << hex(z) << ": " << hex(expected) << " against "
          << hex(got);
    };
    expect(x + y, reference::add(binary32, x, y));
    expect(x - y, reference::subtract(binary32, x, y));
    expect(x * y, reference::mul(binary32, x, y));
    expect(std::fma(x, y, z), reference::fma(binary32, x, y, z));
    const double wide = static_cast<double>(x) * (1 + 1e-9);
    expect(static_cast<float>(wide), reference::cast(binary32, wide));
  }
}

TEST(Reference, EncodesWhatItDecodes) {
  for (const Format& format : testing::encoding_formats()) {
    const Spec spec = reference::spec_of(format);
    if (spec.bits() > 8) continue;
    for (std::uint64_t code = 0; code < (std::uint64_t{1} << spec.bits()); ++code) {
      const Exact value = reference::value_of(spec, code);
      if (value.is_nan()) continue;
      if (!spec.subnormals && value.is_zero()) continue;                      // many codes of zero
      if (spec.encoding == Encoding::integer && code == spec.magnitudes()) {  // not in the format
        EXPECT_EQ(reference::encode(spec, value), code + 1) << ToString(format);
        continue;
      }
      EXPECT_EQ(reference::encode(spec, value), code) << ToString(format);
    }
  }
}

// For any bit pattern, reference::step_function must give the value of reference::cast.
TEST(Reference, StepFunctionHoldsEverywhere) {
  for (const char* name : {"e4m3", "e5m2fnuz", "e3m2", "e8m0", "e3m0:unsigned", "e2m3:nosub"}) {
    const Spec spec = reference::spec_of(ParseFormat(name));
    for (const Rounding mode : testing::kDeterministicModes) {
      const auto steps = reference::step_function(spec, with(mode));
      std::mt19937 generator(5);
      for (int i = 0; i < 2000; ++i) {
        const std::uint32_t bits = generator();
        if ((bits & 0x7FFFFFFFu) > 0x7F800000u) continue;
        std::size_t at = 0;
        while (at + 1 < steps.size() && steps[at + 1].first <= bits) ++at;
        EXPECT_TRUE(
            testing::same_bits(reference::cast(spec, from_bits(bits), with(mode)), steps[at].value))
            << name << " " << hex(bits);
      }
    }
  }
}

TEST(Reference, KnownSums) {
  const Spec e4m3 = reference::spec_of(ParseFormat("e4m3"));
  EXPECT_EQ(testing::bits_of(reference::sum_sequential(e4m3, {})), 0u);
  const std::vector<float> minus_zeros = {-0.0f, -0.0f};
  EXPECT_TRUE(testing::same_bits(reference::sum_sequential(e4m3, minus_zeros), -0.0f));
  EXPECT_TRUE(testing::same_bits(reference::sum_kahan(e4m3, minus_zeros), -0.0f));
  // 16 + 1 is a tie in e4m3 and goes to 16. The plain sum therefore stays at 16, but Kahan's sum
  // does not.
  std::vector<float> terms(17, 1.0f);
  terms[0] = 16.0f;
  EXPECT_EQ(reference::sum_sequential(e4m3, terms), 16.0f);
  EXPECT_EQ(reference::sum_kahan(e4m3, terms), 32.0f);
  // A Kahan sum that overflows is infinite. The overflow alone does not make it NaN.
  const std::vector<float> large = {240.0f, 240.0f, 240.0f, -240.0f};
  EXPECT_EQ(reference::sum_kahan(e4m3, large), HUGE_VALF);
}

#ifdef CPD_TEST_MPFR

constexpr mpfr_prec_t kWide = 1200;  // holds any exact binary32 fma

class Mpfr {
 public:
  explicit Mpfr(mpfr_prec_t precision = kWide) { mpfr_init2(value, precision); }
  ~Mpfr() { mpfr_clear(value); }
  Mpfr(const Mpfr&) = delete;
  Mpfr& operator=(const Mpfr&) = delete;
  mpfr_t value;
};

bool same_number(const Exact& x, const Mpfr& y) {
  if (x.is_nan() || mpfr_nan_p(y.value)) return x.is_nan() && mpfr_nan_p(y.value);
  if (x.negative != (mpfr_signbit(y.value) != 0)) return false;
  if (x.is_infinite() || mpfr_inf_p(y.value)) return x.is_infinite() && mpfr_inf_p(y.value);
  Mpfr rebuilt;
  mpfr_set_zero(rebuilt.value, 1);
  for (int at = 960; at >= 0; at -= 64) {
    mpfr_mul_2ui(rebuilt.value, rebuilt.value, 64, MPFR_RNDN);
    mpfr_add_ui(rebuilt.value, rebuilt.value, x.significand.bits_from(at), MPFR_RNDN);
  }
  mpfr_mul_2si(rebuilt.value, rebuilt.value, x.exponent, MPFR_RNDN);
  return mpfr_cmpabs(rebuilt.value, y.value) == 0;
}

TEST(ReferenceAgainstMpfr, ExactOperations) {
  std::mt19937 generator(7);
  const std::vector<float> specials = testing::special_values();
  const auto draw = [&] {
    return generator() % 8 == 0 ? specials[generator() % specials.size()] : from_bits(generator());
  };
  Mpfr a, b, c, d;
  for (int i = 0; i < 20000; ++i) {
    const float x = draw();
    const float y = draw();
    const float z = generator() % 4 == 0 ? -x * y : draw();
    mpfr_set_flt(a.value, x, MPFR_RNDN);
    mpfr_set_flt(b.value, y, MPFR_RNDN);
    mpfr_set_flt(c.value, z, MPFR_RNDN);
    mpfr_add(d.value, a.value, b.value, MPFR_RNDN);
    EXPECT_TRUE(same_number(add(reference::exact(x), reference::exact(y)), d))
        << hex(x) << " + " << hex(y);
    mpfr_mul(d.value, a.value, b.value, MPFR_RNDN);
    EXPECT_TRUE(same_number(multiply(reference::exact(x), reference::exact(y)), d))
        << hex(x) << " * " << hex(y);
    mpfr_fma(d.value, a.value, b.value, c.value, MPFR_RNDN);
    EXPECT_TRUE(same_number(
        add(multiply(reference::exact(x), reference::exact(y)), reference::exact(z)), d))
        << hex(x) << " * " << hex(y) << " + " << hex(z);
  }
}

// Rounds into an IEEE format with MPFR's emulation of exponent ranges and subnormals. First runs
// the operation with the format's precision and an unbounded range. Then applies the range, given
// the ternary value (the direction of the first rounding's error).
template <class Operation>
float round_by_mpfr(const Spec& spec, mpfr_rnd_t mode, const Operation& operation) {
  Mpfr result(spec.man + 1);
  int ternary = operation(result.value, mode);
  const mpfr_exp_t emin = mpfr_get_emin();
  const mpfr_exp_t emax = mpfr_get_emax();
  mpfr_set_emin(spec.emin() - spec.man + 1);
  mpfr_set_emax((1 << spec.exp) - 2 - spec.bias + 1);
  ternary = mpfr_check_range(result.value, ternary, mode);
  mpfr_subnormalize(result.value, ternary, mode);
  mpfr_set_emin(emin);
  mpfr_set_emax(emax);
  if (mpfr_nan_p(result.value)) return from_bits(reference::kNanBits);
  return mpfr_get_flt(result.value, MPFR_RNDN);
}

struct MpfrMode {
  Rounding ours;
  mpfr_rnd_t theirs;
};
constexpr std::array<MpfrMode, 4> kMpfrModes = {{{Rounding::nearest_even, MPFR_RNDN},
                                                 {Rounding::toward_zero, MPFR_RNDZ},
                                                 {Rounding::up, MPFR_RNDU},
                                                 {Rounding::down, MPFR_RNDD}}};

// man must be at least 1, because MPFR breaks ties of one-bit numbers differently. exp must be at
// least 2, so that the format has normal numbers.
void check_against_mpfr(const Spec& spec, const MpfrMode& mode, float x, float y, float z) {
  Mpfr a(53), b(53), c(53);
  mpfr_set_flt(a.value, x, MPFR_RNDN);
  mpfr_set_flt(b.value, y, MPFR_RNDN);
  mpfr_set_flt(c.value, z, MPFR_RNDN);
  const double wide = static_cast<double>(x) * (1 + 0x1p-40);
  const auto expect = [&](const char* what, float got, const auto& operation) {
    const float expected = round_by_mpfr(spec, mode.theirs, operation);
    EXPECT_TRUE(testing::same_bits(expected, got))
        << what << " " << ToString(mode.ours) << " e" << spec.exp << "m" << spec.man << " "
        << hex(x) << ", " << hex(y) << ", " << hex(z) << ": MPFR " << hex(expected) << ", oracle "
        << hex(got);
  };
  const Options o = with(mode.ours);
  expect("cast", reference::cast(spec, x, o),
         [&](mpfr_t r, mpfr_rnd_t m) { return mpfr_set_flt(r, x, m); });
  expect("cast64", reference::cast(spec, wide, o),
         [&](mpfr_t r, mpfr_rnd_t m) { return mpfr_set_d(r, wide, m); });
  expect("add", reference::add(spec, x, y, o),
         [&](mpfr_t r, mpfr_rnd_t m) { return mpfr_add(r, a.value, b.value, m); });
  expect("mul", reference::mul(spec, x, y, o),
         [&](mpfr_t r, mpfr_rnd_t m) { return mpfr_mul(r, a.value, b.value, m); });
  expect("fma", reference::fma(spec, x, y, z, o),
         [&](mpfr_t r, mpfr_rnd_t m) { return mpfr_fma(r, a.value, b.value, c.value, m); });
}

TEST(ReferenceAgainstMpfr, RoundingIntoIeeeFormats) {
  for (int exp = 2; exp <= 8; ++exp) {
    for (int man = 1; man <= 23; ++man) {
      const Spec spec{exp, man, (1 << (exp - 1)) - 1};
      const std::vector<float> values =
          testing::boundary_patterns(spec, 8, 40, static_cast<std::uint64_t>(100 * exp + man));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float y = values[(i * 7 + 3) % values.size()];
        const float z = values[(i * 13 + 5) % values.size()];
        check_against_mpfr(spec, kMpfrModes[i % kMpfrModes.size()], values[i], y, z);
      }
      if (HasFailure()) return;
    }
  }
}

#else

TEST(ReferenceAgainstMpfr, All) { GTEST_SKIP() << "built without MPFR (Debian: libmpfr-dev)"; }

#endif

}  // namespace
}  // namespace cpd
