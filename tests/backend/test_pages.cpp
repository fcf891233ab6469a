// SPDX-License-Identifier: Apache-2.0
//
// Tests the loops that process several pages of a tensor at a time, against the oracle's value for
// each element. The lengths lie around pages of 4 KiB and groups of four pages. The alignment of
// memory varies, and random integers are given by the caller or made in the call. Tests also that
// the NaN with the lowest index is reported.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cpd/base/plans.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

constexpr std::array kLengths = {0,    1,     15,    16,    17,    255,  1023, 1024,
                                 1025, 4095,  4096,  4097,  4607,  4608, 8191, 8192,
                                 8193, 12288, 16383, 16384, 16385, 20777};
constexpr std::size_t kMost = 20777;
constexpr std::size_t kSlack = 64;

RoundingOptions options_of(Rounding mode, int random_bits = 8) {
  RoundingOptions o;
  o.mode = mode;
  o.random_bits = random_bits;
  return o;
}

const std::array kOptions = {options_of(Rounding::nearest_even), options_of(Rounding::down),
                             options_of(Rounding::stochastic, 8),
                             options_of(Rounding::stochastic, 16),
                             options_of(Rounding::stochastic, 24)};

/// n elements of memory that begin `offset` elements after a 64-byte boundary, with guard elements
/// before and after them.
template <class T>
class Placed {
 public:
  Placed(std::size_t n, std::size_t offset, T fill) : memory_(n + offset + 3 * kSlack, fill) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    begin_ = memory_.data() + (64 - address % 64) % 64 / sizeof(T) + kSlack + offset;
  }
  T* data() { return begin_; }
  /// Returns whether the guard elements before element 0 and from element n on still hold `fill`.
  bool ends(std::size_t n, T fill) const {
    const auto kept = [&](T v) { return v == fill; };
    return std::all_of(begin_ - kSlack, begin_, kept) &&
           std::all_of(begin_ + n, begin_ + n + 16, kept);
  }

 private:
  std::vector<T> memory_;
  T* begin_;
};

struct Case {
  Format format;
  RoundingOptions o;
  int shift = 0;
  std::int64_t first = 0;
  std::vector<float> x;
  std::vector<std::uint32_t> random;
  std::vector<float> values;
  std::vector<std::uint8_t> packed;
};

Case make_case(const char* name, const RoundingOptions& o, int shift, std::int64_t first) {
  Case c{ParseFormat(name), o, shift, first, {}, {}, {}, {}};
  const reference::Spec spec = reference::spec_of(c.format);
  c.x = testing::mixed_values(spec, kMost, static_cast<unsigned>(shift + 7));
  for (float& v : c.x) {
    if (!c.format.has_nan() && std::isnan(v)) v = 1.0F;
  }
  c.random.resize(kMost);
  if (o.mode == Rounding::stochastic) {
    c.random =
        testing::run_random_integers(o, kMost, static_cast<std::uint64_t>(first), testing::kKey);
  }
  const auto bits = static_cast<std::size_t>(c.format.bits());
  c.packed.resize(kMost * bits / 8 + 1);
  for (std::size_t i = 0; i < kMost; ++i) {
    const reference::Exact exact =
        multiply(reference::exact(c.x[i]), reference::exact_finite(false, 1, shift));
    const reference::Options options = testing::oracle_options(o, c.random[i]);
    c.values.push_back(reference::round(spec, exact, options));
    const std::uint64_t code = *reference::encode(spec, exact, options);
    for (std::size_t b = 0; b < bits; ++b) {
      const std::size_t at = i * bits + b;
      c.packed[at / 8] |= static_cast<std::uint8_t>((code >> b & 1) << at % 8);
    }
  }
  return c;
}

/// Returns whether the first n packed codes equal the oracle's codes, which `c` holds.
bool are_its_codes(const Case& c, const std::uint8_t* packed, std::size_t n) {
  const std::size_t bits = n * static_cast<std::size_t>(c.format.bits());
  const std::size_t whole = bits / 8;
  const unsigned last = (1U << bits % 8) - 1;
  return std::equal(packed, packed + whole, c.packed.begin()) &&
         (last == 0 || (packed[whole] & last) == (c.packed[whole] & last));
}

/// Compares the kernels' results with the oracle's, for one length and one placement in memory.
void check(const KernelTable& kernels, const Case& c, std::size_t n, std::size_t offset,
           bool given) {
  const RoundPlan plan = PlanOf(c.format, c.o, testing::kKey);
  const auto count = static_cast<std::int64_t>(n);
  Placed<float> x(kMost, offset * 3, 0.0F);
  std::copy_n(c.x.begin(), n, x.data());
  const std::uint32_t* random = given ? c.random.data() : nullptr;
  const auto says = [&](const char* what) {
    return std::string(kernels.name) + " " + what + " " + testing::describe(c.format, c.o) +
           ", n " + std::to_string(n) + ", offset " + std::to_string(offset) + ", shift " +
           std::to_string(c.shift);
  };
  const std::span<const float> expected(c.values.data(), n);
  Placed<float> y(kMost, offset, 7.0F);
  kernels.cast({.n = count,
                .first = c.first,
                .x = Contiguous(x.data()),
                .random = Contiguous(random),
                .out = Contiguous(y.data()),
                .plan = &plan,
                .shift = c.shift,
                .streaming = true});
  ASSERT_TRUE(testing::bits_equal(expected, std::span<const float>(y.data(), n))) << says("cast");
  ASSERT_TRUE(y.ends(n, 7.0F)) << says("cast");
  const auto bytes = static_cast<std::size_t>(PackedBytes(c.format, count));
  Placed<std::uint8_t> packed(4 * kMost, offset, 0xA5);
  unsigned long long nan = ~0ULL;
  kernels.encode({.n = count,
                  .first = c.first,
                  .x = Contiguous(x.data()),
                  .random = Contiguous(random),
                  .plan = &plan,
                  .shift = c.shift,
                  .streaming = true,
                  .packed = packed.data(),
                  .first_nan = &nan});
  ASSERT_EQ(nan, ~0ULL);
  ASSERT_TRUE(packed.ends(bytes, 0xA5)) << says("encode");
  ASSERT_TRUE(are_its_codes(c, packed.data(), n)) << says("encode");
  if (c.shift != 0) return;
  // The codes are in memory of exactly their size, so a sanitizer detects a read past the end.
  const std::vector<std::uint8_t> exact(packed.data(), packed.data() + bytes);
  Placed<float> back(kMost, offset, 7.0F);
  kernels.decode({.n = count,
                  .plan = &plan,
                  .packed = exact.data(),
                  .out = Contiguous(back.data()),
                  .streaming = true});
  ASSERT_TRUE(testing::bits_equal(expected, std::span<const float>(back.data(), n)))
      << says("decode");
  ASSERT_TRUE(back.ends(n, 7.0F)) << says("decode");
}

class Pages : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Formats, Pages,
                         ::testing::Values("e4m3", "e4m3fn", "e5m2", "bf16", "e3m0", "e2m1", "e3m2",
                                           "e8m3", "fp16", "e6m9"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Pages, EveryLengthAroundThem) {
  for (const RoundingOptions& o : kOptions) {
    const Case c = make_case(GetParam(), o, 0, 512);
    for (const KernelTable* kernels : testing::kernel_tables()) {
      for (const int n : kLengths) {
        const bool is_random = o.mode == Rounding::stochastic;
        check(*kernels, c, static_cast<std::size_t>(n), 0, false);
        if (is_random) check(*kernels, c, static_cast<std::size_t>(n), 0, true);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Pages, UnalignedMemory) {
  for (const RoundingOptions& o : kOptions) {
    const Case c = make_case(GetParam(), o, 0, 0);
    for (const KernelTable* kernels : testing::kernel_tables()) {
      for (const std::size_t offset : {1, 4, 8, 15, 16}) {
        check(*kernels, c, kMost, offset, false);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Pages, Scaled) {
  std::size_t number = 0;
  for (const RoundingOptions& o : kOptions) {
    for (const int shift : {3, -3, 100, -100, 126, -126, 127, -127}) {
      if (!testing::is_chosen(number++, testing::kSanitized ? 8 : 3)) continue;
      const Case c = make_case(GetParam(), o, shift, 256);
      for (const KernelTable* kernels : testing::kernel_tables()) {
        check(*kernels, c, kMost, 0, false);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(PagesOf, TheLeastNanIsFound) {
  const RoundPlan plan = PlanOf(ParseFormat("e2m1"));
  const auto n = static_cast<std::int64_t>(kMost);
  for (const std::vector<std::int64_t>& places :
       std::vector<std::vector<std::int64_t>>{{0},
                                              {3 * 1024 + 5, 700},
                                              {1024, 2047, 300},
                                              {4096, 4095},
                                              {kMost - 1},
                                              {20000, 16384}}) {
    Placed<float> x(kMost, 0, 1.0F);
    Placed<std::uint8_t> packed(kMost, 0, 0);
    for (const std::int64_t i : places) x.data()[i] = std::nanf("");
    for (const KernelTable* kernels : testing::kernel_tables()) {
      unsigned long long found = ~0ULL;
      kernels->encode({.n = n,
                       .first = kBlock,
                       .x = Contiguous(x.data()),
                       .random = {},
                       .plan = &plan,
                       .streaming = true,
                       .packed = packed.data(),
                       .first_nan = &found});
      const std::int64_t least = *std::min_element(places.begin(), places.end());
      EXPECT_EQ(static_cast<std::int64_t>(found), kBlock + least) << kernels->name;
    }
  }
}

}  // namespace
}  // namespace cpd
