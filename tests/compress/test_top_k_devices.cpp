// SPDX-License-Identifier: Apache-2.0
//
// Tests top-k codecs on every device: sent values, residuals, losses, bytes and the largest value.
// The results must equal the results of a definition that sorts all values, and the results of the
// scalar kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpd/backend/queue.h"
#include "cpd/base/plans.h"
#include "cpd/compress/codecs.h"
#include "cpd/ops/reduce.h"
#include "kernels/cuda/code_tile.h"
#include "tests/testing/bits.h"
#include "tests/testing/devices.h"
#include "tests/testing/formats.h"
#include "tests/testing/largest.h"
#include "tests/testing/losses.h"

namespace cpd {
namespace {

using testing::kInf;
using testing::same;
using Floats = std::vector<float>;

enum class Distribution : std::uint8_t {
  normal,
  low_digits,  // patterns that differ in their last 12 bits
  few,         // of seven magnitudes, both signs
  equal,
  zeros,     // of both signs
  some_nan,  // and infinities and -0
  most_nan,  // and infinities: more than are asked for
  tiny,      // many subnormal
};
constexpr Distribution kAllValues[] = {
    Distribution::normal, Distribution::low_digits, Distribution::few,      Distribution::equal,
    Distribution::zeros,  Distribution::some_nan,   Distribution::most_nan, Distribution::tiny};

Floats values_of(std::int64_t n, Distribution kind, unsigned seed = 0) {
  std::mt19937 random(static_cast<unsigned>(n) + seed);
  std::normal_distribution<float> normal;
  Floats x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool negative = random() % 2 == 0;
    const auto part = static_cast<std::uint32_t>(random());
    x[i] = normal(random);
    if (kind == Distribution::low_digits) x[i] = std::bit_cast<float>(0x3F800000U + part % 4096);
    if (kind == Distribution::few) x[i] = static_cast<float>(part % 7) * (negative ? -0.5F : 0.5F);
    if (kind == Distribution::equal) x[i] = negative ? -0.1F : 0.1F;
    if (kind == Distribution::zeros) x[i] = negative ? -0.0F : 0.0F;
    if (kind == Distribution::tiny) x[i] = std::ldexp(x[i], -144);
    const bool special = kind == Distribution::some_nan
                             ? part % 97 == 0
                             : kind == Distribution::most_nan && part % 5 != 0;
    if (special) x[i] = part % 2 == 0 ? std::nanf("") : (negative ? -kInf : kInf);
    if (kind == Distribution::some_nan && part % 13 == 3) x[i] = -0.0F;
  }
  return x;
}

/// Returns the least k for which k / n is at least `billionths` / 10^9.
std::int64_t count_of(std::int64_t n, std::int64_t billionths) {
  return static_cast<std::int64_t>((static_cast<__int128>(n) * billionths + 999999999) /
                                   1000000000);
}

struct Case {
  std::string inner;
  std::int64_t billionths = 0;
  bool feeds_back = false;
  Rounding mode = Rounding::nearest_even;

  [[nodiscard]] SharedCodec codec(const std::string& text) const {
    return MakeCodec(text, {.mode = mode, .random_bits = 9});
  }

  [[nodiscard]] std::string text() const {
    std::string digits = std::to_string(billionths);
    digits.insert(0, 10 - digits.size(), '0');
    digits.insert(1, ".");
    return "top_k " + digits + (feeds_back ? " " : " feedback=off ") + inner;
  }
};

/// The results that the definition of top-k gives for x and a residual: the sent values, the next
/// residual, and the largest finite magnitude.
struct Expected {
  Floats terms, next;
  float largest = 0;
};
Expected expected_of(const Case& call, const Floats& x, const Floats& kept, const Piece& whole) {
  Floats v = x;
  for (std::size_t i = 0; i < v.size() && call.feeds_back; ++i) v[i] += kept[i];
  const auto places = testing::places_of_largest(v, count_of(whole.n, call.billionths));
  Floats values;
  for (const std::int64_t place : places) values.push_back(v[static_cast<std::size_t>(place)]);
  const auto count = static_cast<std::int64_t>(values.size());
  Piece inner{.n = count, .shift = whole.shift, .key = whole.key, .size = count};
  const SharedCodec codec = call.codec(call.inner);
  const auto state = codec->MakeState(count);
  if (state != nullptr) state->Begin(inner, values.data());
  if (codec->measured() != Measured::nothing) {
    inner.scale = codec->Measure(inner, state.get(), values.data());
  }
  Floats rounded(values.size());
  codec->Round(inner, state.get(), values.data(), rounded.data());
  const float unit = codec->measured() == Measured::shared ? inner.scale : 1;
  Expected expected{Floats(x.size(), 0.0F), v};
  for (std::size_t p = 0; p < places.size(); ++p) {
    const auto i = static_cast<std::size_t>(places[p]);
    expected.terms[i] = rounded[p];
    const auto sent =
        static_cast<float>(std::ldexp(static_cast<double>(rounded[p] * unit), -whole.shift));
    const float left = std::isfinite(sent) ? v[i] - sent : v[i];
    expected.next[i] = std::isfinite(v[i]) ? left : 0;
    if (std::isfinite(v[i])) expected.largest = std::max(expected.largest, std::abs(v[i]));
  }
  return expected;
}

class TopKDevices : public testing::OnDevice {
 protected:
  /// Returns the rounded values that RoundOn gives for values on the device. If `in_place` is true,
  /// RoundOn writes the rounded values over the input values.
  static Floats Rounded(const SharedQueue& queue, const Codec& codec, const Piece& whole,
                        CodecState* state, const float* there, SegmentCounts* counts = nullptr,
                        bool in_place = false) {
    const auto y = QueuedValues(queue, in_place ? 0 : whole.n);
    float* const to = in_place ? const_cast<float*>(there) : y.get();
    codec.RoundOn(*queue, whole, state, there, to, counts);
    Floats got(static_cast<std::size_t>(whole.n));
    if (whole.n > 0) queue->Copy(got.data(), to, 4 * whole.n);
    return got;
  }

  /// Compares one call on the device with the same call on the scalar kernels, and with the
  /// definition of top-k (expected_of). Both calls begin with the given states.
  void Expect(const Case& one, const Codec& codec, const Floats& x, Piece whole, CodecState* scalar,
              CodecState* there) const {
    const Floats kept = scalar->Kept();
    std::int64_t bytes = 0;
    const Expected expected = OnScalar([&] {
      const Expected wanted = expected_of(one, x, kept, whole);
      Floats y(x.size());
      scalar->Begin(whole, x.data());
      if (codec.measured() != Measured::nothing) {
        whole.scale = codec.Measure(whole, scalar, x.data());
      }
      codec.Round(whole, scalar, x.data(), y.data());
      EXPECT_TRUE(same(wanted.terms, y));
      bytes = LayerBytes(codec, whole, scalar, x.data());
      return wanted;
    });

    const SharedQueue queue = NewQueue();
    testing::Copies copies = There();
    const float* const in = copies.Of(x);
    there->BeginOn(queue, whole, in);
    const testing::Losses losses(queue);
    SegmentCounts* const counts = on_host() ? nullptr : losses.get();  // the CPU counts apart
    EXPECT_TRUE(same(expected.terms, Rounded(queue, codec, whole, there, in, counts)));
    const auto counted_bytes = codec.BytesOn(queue, whole, there, in);
    const auto largest = codec.LargestOn(*queue, *there);
    ASSERT_TRUE(largest.has_value());
    EXPECT_EQ(*largest, expected.largest);

    if (counts != nullptr) losses.Expect(x, expected.terms);
    EXPECT_EQ(counted_bytes(), bytes);
    if (codec.measured() != Measured::nothing) {
      const float measured = codec.MeasureOn(*queue, whole, there, in);
      EXPECT_TRUE(same({&whole.scale, 1}, {&measured, 1}));
    }
    Commit(scalar, there);
    if (one.feeds_back) {
      EXPECT_TRUE(same(expected.next, there->Kept()));
    }
  }
  static void Commit(CodecState* scalar, CodecState* there) {
    scalar->Commit();
    there->Commit();
    EXPECT_TRUE(same(scalar->Kept(), there->Kept()));
  }

  /// Compares several successive calls for a layer of n values with the scalar kernels and with the
  /// definition. Each call continues with the states of the previous one.
  void ExpectCalls(const Case& one, std::int64_t n, Distribution kind, int shift, int calls) const {
    SCOPED_TRACE(one.text() + ", " + std::to_string(n) + " values of kind " +
                 std::to_string(static_cast<int>(kind)) + ", shift " + std::to_string(shift));
    const SharedCodec codec = one.codec(one.text());
    ASSERT_EQ(codec->kernels(), KernelSupport::round);
    const auto scalar = codec->MakeState(n);
    const auto there = codec->MakeState(n);
    for (int call = 0; call < calls; ++call) {
      Piece whole{.n = n, .shift = shift, .key = {.seed = 3, .stream = 11}, .size = n};
      whole.key.stream += static_cast<std::uint64_t>(call);
      Expect(one, *codec, values_of(n, kind, static_cast<unsigned>(call)), whole, scalar.get(),
             there.get());
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, TopKDevices, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

constexpr std::int64_t kFractions[] = {1, 10000000, 300000000, 500000001, 1000000000};

TEST_P(TopKDevices, SizesAndValues) {
  std::size_t number = 0;
  for (const std::int64_t n : {0, 1, 2, 7, 8, 9, 255, 2047, 2048, 2049, 6145}) {
    for (const Distribution kind : kAllValues) {
      for (const std::int64_t billionths : kFractions) {
        const bool feeds_back = number % 2 == 1;
        if (!testing::is_chosen_on_cpu(number++, 3)) continue;
        ExpectCalls({"fp32", billionths, feeds_back}, n, kind, 0, feeds_back ? 2 : 1);
      }
    }
  }
}

/// A message covers 65,536 consecutive values of a layer. The last message of a layer may cover
/// fewer values.
TEST_P(TopKDevices, Messages) {
  std::size_t number = 0;
  for (const std::int64_t n : {65535, 65536, 65537, 150000}) {
    for (const Distribution kind : kAllValues) {
      const std::int64_t billionths = kFractions[number % std::size(kFractions)];
      if (!testing::is_chosen_on_cpu(number++, 2)) continue;
      ExpectCalls({"fp32", billionths, number % 3 == 0}, n, kind, 0, 1);
    }
  }
}

/// The inner codec rounds the selected values as if they were a separate layer. Before that, the
/// selected values are multiplied by a power of two.
TEST_P(TopKDevices, FormatsAndShifts) {
  std::size_t number = 0;
  for (const char* inner : {"e4m3", "e5m2", "bf16", "e5m10", "e8m22"}) {
    for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
      for (const int shift : {0, 7, -3, -130}) {
        for (const Distribution kind : {Distribution::normal, Distribution::few,
                                        Distribution::some_nan, Distribution::tiny}) {
          if (!testing::is_chosen_on_cpu(number++, 3)) continue;
          ExpectCalls({inner, 40000000, number % 2 == 0, mode}, 5000, kind, shift, 2);
        }
      }
    }
  }
}

/// The selected values are encoded by other codecs. A bucket of such a codec may extend from one
/// message to the next.
TEST_P(TopKDevices, OtherCodecs) {
  for (const char* inner :
       {"qsgd bits=4 bucket=512", "qsgd bits=2 bucket=tensor norm=2", "int4", "int4 bucket=7",
        "terngrad", "terngrad clip=none", "terngrad share=off", "quantized mxfp8"}) {
    for (const bool feeds_back : {false, true}) {
      const Case one{inner, 50000000, feeds_back};
      for (const std::int64_t n : {0, 1, 3000}) ExpectCalls(one, n, Distribution::normal, 3, 2);
      ExpectCalls(one, 3000, Distribution::some_nan, 0, 2);
      ExpectCalls(one, 3000, Distribution::most_nan, 0, 1);
    }
    ExpectCalls({inner, 50000000}, 140000, Distribution::normal, 0, 1);
  }
}

/// The kernels search a layer's values in spans (ranges of tiles), here of two tiles each. All
/// tiles contain values of the smallest selected magnitude, and only some of these values are
/// selected.
TEST_P(TopKDevices, SpansOfTiles) {
  ExpectCalls({"e4m3", 100000000, false, Rounding::stochastic}, 1024 * 2048 + 3000,
              Distribution::few, 0, 1);
}

/// A top-k codec may round in place: the rounded values replace the input values.
TEST_P(TopKDevices, InPlace) {
  constexpr std::int64_t kSize = 9000;
  const Case one{"e4m3", 50000000, false};
  const SharedCodec codec = one.codec(one.text());
  const Floats x = values_of(kSize, Distribution::few);
  const Floats expected = expected_of(one, x, {}, {.n = kSize, .size = kSize}).terms;
  const Piece whole{.n = kSize, .size = kSize};
  const SharedQueue queue = NewQueue();
  testing::Copies copies = There();
  const float* const there = copies.Of(x);
  const auto state = codec->MakeState(kSize);
  state->BeginOn(queue, whole, there);
  EXPECT_TRUE(same(expected, Rounded(queue, *codec, whole, state.get(), there, nullptr, true)));
}

/// A call that fails does not change the residuals. A call on the CPU continues with the residuals
/// of the calls on the device.
TEST_P(TopKDevices, ResidualsFromCallToCall) {
  constexpr std::int64_t kSize = 3000;
  for (const char* const format : {"e4m3", "int4"}) {
    SCOPED_TRACE(format);
    const Case one{format, 50000000, true};
    const SharedCodec codec = one.codec(one.text());
    const auto scalar = codec->MakeState(kSize);
    const auto there = codec->MakeState(kSize);
    const Piece whole{.n = kSize, .size = kSize};
    for (unsigned step = 0; step < 6; ++step) {
      const bool on_cpu = step % 3 == 2;  // sends all NaN: more values than the next call
      const Distribution other = on_cpu ? Distribution::most_nan : Distribution::some_nan;
      const Floats x = values_of(kSize, step < 2 ? Distribution::normal : other, step);
      if (on_cpu) {
        for (CodecState* state : {scalar.get(), there.get()}) {
          Floats y(x.size());
          state->Begin(whole, x.data());
          codec->Round(whole, state, x.data(), y.data());
        }
        Commit(scalar.get(), there.get());
        continue;
      }
      const SharedQueue queue = NewQueue();
      testing::Copies copies = There();
      there->BeginOn(queue, whole, copies.Of(x));
      Rounded(queue, *codec, whole, there.get(), copies.Of(x));
      Expect(one, *codec, x, whole, scalar.get(), there.get());
    }
  }
}

/// Tests top-k within a `feedback` codec, which adds its own residual first, and `sparse` codecs,
/// which have no state.
TEST_P(TopKDevices, WithinFeedbackAndSums) {
  for (const char* text :
       {"feedback top_k 0.1 feedback=off e5m2", "sparse", "sparse e4m3", "sparse e5m10"}) {
    SCOPED_TRACE(text);
    const SharedCodec codec = MakeCodec(text);
    EXPECT_EQ(codec->kernels(), KernelSupport::round);
    for (const std::int64_t n : {0, 1, 5000}) {
      const auto scalar = codec->MakeState(n);
      const auto there = codec->MakeState(n);
      const Piece whole{.n = n, .shift = scalar == nullptr ? 0 : 2, .size = n};
      for (unsigned step = 0; step < 3; ++step) {
        const Floats x =
            values_of(n, scalar == nullptr ? Distribution::some_nan : Distribution::normal, step);
        const Floats expected = OnScalar([&] {
          Floats y(x.size());
          if (scalar != nullptr) scalar->Begin(whole, x.data());
          codec->Round(whole, scalar.get(), x.data(), y.data());
          return y;
        });
        const SharedQueue queue = NewQueue();
        testing::Copies copies = There();
        if (there != nullptr) there->BeginOn(queue, whole, copies.Of(x));
        EXPECT_TRUE(same(expected, Rounded(queue, *codec, whole, there.get(), copies.Of(x), nullptr,
                                           there == nullptr)));
        if (scalar != nullptr) Commit(scalar.get(), there.get());
      }
    }
  }
}

/// Directly tests the kernels that search for the values of largest magnitude. The kernels count
/// values by the digits of their bit patterns. The CPU does not, so these tests skip the CPU.
class TopKKernels : public TopKDevices {
 protected:
  void SetUp() override {
    TopKDevices::SetUp();
    if (!IsSkipped() && on_host()) GTEST_SKIP() << "the CPU searches without counts";
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, TopKKernels, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

/// The state of a search for the k largest magnitudes, before or after it. counts[d][v] counts the
/// values whose digit d is v, and which agree with the k-th largest magnitude in all higher digits.
struct Found : TopKSearch {
  unsigned long long counts[kPatternDigits][kMostDigit + 1];
};

/// A search for the k largest magnitudes of a layer. A test may set the counts as if the layer had
/// further values, which are not in memory.
class Search {
 public:
  Search(SharedQueue queue, const Floats& x, std::int64_t k, std::int32_t span)
      : queue_(std::move(queue)),
        memory_(Bytes(x.size())),
        spans(((x.size() + kCodeTile - 1) / kCodeTile + static_cast<std::size_t>(span) - 1) /
                  static_cast<std::size_t>(span) +
              1) {
    call.n = static_cast<std::int64_t>(x.size());
    call.k = k;
    call.span = span;
    call.block = 65536;
    call.goes_on = true;
    call.cast = PlanOf(kFp32);
    auto* const values = static_cast<float*>(queue_->Allocate(MemoryKind::device, memory_));
    queue_->Copy(values, x.data(), memory_);
    call.x = values;
    call.search =
        static_cast<TopKSearch*>(queue_->Allocate(MemoryKind::device, sizeof(TopKSearch)));
    call.counts_of =
        static_cast<DigitCounts*>(queue_->Allocate(MemoryKind::device, sizeof(found.counts)));
    call.spans = static_cast<TopKSpan*>(queue_->Allocate(MemoryKind::device, BytesOfSpans()));
  }
  ~Search() {
    for (const void* memory :
         {static_cast<const void*>(call.x), static_cast<const void*>(call.search),
          static_cast<const void*>(call.counts_of), static_cast<const void*>(call.spans)}) {
      queue_->Release(MemoryKind::device, const_cast<void*>(memory));
    }
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  /// Copies `found` (the search's results) and `spans` (the counts of each range of tiles) to the
  /// device, runs the kernels, and copies both back.
  void Select() {
    queue_->Copy(call.search, &found, sizeof(TopKSearch));
    queue_->Copy(call.counts_of, &found.counts, sizeof(found.counts));
    queue_->Copy(call.spans, spans.data(), BytesOfSpans());
    queue_->select_top_k(call);
    queue_->Copy(&found, call.search, sizeof(TopKSearch));
    queue_->Copy(spans.data(), call.spans, BytesOfSpans());
  }
  [[nodiscard]] Floats Rounded() const {
    TopKCall in_place = call;
    in_place.y = const_cast<float*>(call.x);
    in_place.counts = nullptr;
    queue_->round_top_k(in_place);
    Floats y(static_cast<std::size_t>(call.n));
    queue_->Copy(y.data(), call.x, memory_);
    return y;
  }

 private:
  static std::int64_t Bytes(std::size_t n) { return static_cast<std::int64_t>(4 * n); }
  [[nodiscard]] std::int64_t BytesOfSpans() const {
    return static_cast<std::int64_t>(spans.size() * sizeof(TopKSpan));
  }

  SharedQueue queue_;
  std::int64_t memory_;

 public:
  TopKCall call;
  Found found{};
  std::vector<TopKSpan> spans;
};

/// Tests spans (groups of tiles) of one tile, of several tiles, and of more tiles than the layer
/// has.
TEST_P(TopKKernels, SpansOfAnyLength) {
  constexpr std::int64_t kTile = kCodeTile;
  std::mt19937 random(1);
  for (const std::int64_t n : {std::int64_t{1}, kTile, 8 * kTile - 1, 70 * kTile + 5}) {
    Floats x(static_cast<std::size_t>(n));
    for (float& value : x) {
      value = static_cast<float>(static_cast<int>(random() % 9) - 4);
      if (random() % 501 == 0) value = kInf;
    }
    for (const std::int64_t k : {std::int64_t{1}, (n + 2) / 3, n}) {
      Floats expected(x.size());
      for (const std::int64_t place : testing::places_of_largest(x, k)) {
        expected[static_cast<std::size_t>(place)] = x[static_cast<std::size_t>(place)];
      }
      for (const std::int32_t span : {1, 2, 32}) {
        Search search(NewQueue(), x, k, span);
        search.Select();
        EXPECT_TRUE(same(expected, search.Rounded()))
            << n << " values, " << k << ", spans of " << span;
      }
    }
  }
}

/// Tests how the search finds the least selected magnitude from the counts of digits. Some counts
/// are zero, and others need more than 32 bits.
TEST_P(TopKKernels, DigitsOfManyValues) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < (testing::kCudaOnCpu ? 60 : 200); ++trial) {
    Search search(NewQueue(), {0.0F}, 1, 1);
    std::int64_t all = 1;
    for (int digit = 0; digit < kPatternDigits; ++digit) {
      for (std::uint32_t bin = 0; bin <= last_digit(digit); ++bin) {
        search.found.counts[digit][bin] = random() % 3 == 0 ? 0 : random() >> 24;
        if (digit == 0) all += static_cast<std::int64_t>(search.found.counts[digit][bin]);
      }
    }
    std::int64_t wanted = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(all));
    if (trial == 0) wanted = 1;
    if (trial == 1) wanted = all;
    if (trial > 1 && trial % 4 == 0) wanted = trial;  // beyond infinity's pattern
    search.call.k = wanted;
    LargestLimit expected{0, wanted};
    Found with_value = search.found;
    auto& counts = with_value.counts;
    for (int digit = 0; digit < kPatternDigits; ++digit) {
      if (expected.pattern == 0) ++counts[digit][0];  // the value in memory
      std::uint32_t bin = last_digit(digit);
      for (; static_cast<std::int64_t>(counts[digit][bin]) < expected.equals; --bin) {
        expected.equals -= static_cast<std::int64_t>(counts[digit][bin]);
      }
      expected.pattern |= bin << digit_shift(digit);
    }
    if (expected.pattern >= 0x7F800000U) expected = {0x7F800000U, INT64_MAX};
    search.Select();
    EXPECT_EQ(search.found.limit.pattern, expected.pattern) << trial;
    EXPECT_EQ(search.found.limit.equals, expected.equals) << trial;
  }
}

/// Tests more spans (groups of tiles) than a thread block handles in one pass. The sums of their
/// counts exceed 2^40.
TEST_P(TopKKernels, SumsOfManySpans) {
  for (const std::int64_t tiles : {1, 7, 2049}) {
    const Floats x(static_cast<std::size_t>(tiles * kCodeTile), 1.0F);
    Search search(NewQueue(), x, 5, 1);
    std::mt19937_64 random(3);
    for (TopKSpan& span : search.spans) span = {random() >> 32, random() >> 33};
    search.spans.back() = {};
    std::vector<TopKSpan> expected;
    TopKSpan sum{};
    for (const TopKSpan& span : search.spans) {
      expected.push_back(sum);
      sum.above += span.above;
      sum.equal += span.equal + static_cast<std::uint64_t>(kCodeTile);  // all are ties
    }
    search.Select();
    EXPECT_EQ(search.found.kept, static_cast<std::int64_t>(expected.back().above) + 5);
    for (std::size_t s = 0; s < expected.size(); ++s) {
      ASSERT_EQ(search.spans[s].above, expected[s].above) << s << " of " << tiles;
      ASSERT_EQ(search.spans[s].equal, expected[s].equal) << s << " of " << tiles;
    }
  }
}

/// The test reports 2^33 ties for the first tile. The search selects all of them, and 0, 1 or 30
/// ties of the second tile. The random integers of the second tile have indices above 2^35 - 1.
TEST_P(TopKKernels, RanksBeyond32Bits) {
  constexpr unsigned long long kMany = 1ULL << 33;
  const Format format = ParseFormat("e4m3");
  RoundingOptions options;
  options.mode = Rounding::stochastic;
  constexpr float kTie = 1.3F;
  constexpr float kAbove = 2.7F;
  Floats x(kCodeTile + 100, kTie);
  std::fill_n(x.begin(), kCodeTile, 0.0F);
  x[kCodeTile + 50] = kAbove;
  const auto pattern = [](float v) { return std::bit_cast<std::uint32_t>(v); };
  for (const int more : {0, 1, 30}) {
    Search search(NewQueue(), x, static_cast<std::int64_t>(4 * kMany) + 1 + more, 1);
    // Sets the counts as if the layer had 3 * 2^33 values equal to 3, and as if the first tile had
    // 2^33 ties (values of the least selected magnitude).
    const auto bin = [&](float v, int digit) {
      return pattern(v) >> digit_shift(digit) & last_digit(digit);
    };
    search.found.counts[0][bin(3.0F, 0)] = 3 * kMany;
    for (int digit = 0; digit < kPatternDigits; ++digit) {
      search.found.counts[digit][bin(kTie, digit)] = kMany;
    }
    search.spans[0] = {3 * kMany, kMany};
    search.call.cast = PlanOf(format, options, testing::kKey);
    search.call.stream = testing::kKey.stream;
    search.Select();
    EXPECT_EQ(search.found.limit.pattern, pattern(kTie));
    EXPECT_EQ(search.found.limit.equals, static_cast<std::int64_t>(kMany) + more);
    EXPECT_EQ(search.found.kept, search.call.k);
    Floats expected(x.size());
    auto rank = static_cast<std::int64_t>(4 * kMany);
    for (std::size_t j = kCodeTile; j < x.size(); ++j) {
      if (x[j] != kAbove && j >= kCodeTile + static_cast<std::size_t>(more)) continue;
      CastScaled(format, options, 0, rank++, 1, &x[j], &expected[j], testing::kKey);
    }
    EXPECT_TRUE(same(expected, search.Rounded())) << more;
  }
}

TEST(TopK, WhatHasKernels) {
  for (const char* text :
       {"top_k 0.1", "top_k 1 e4m3", "top_k 0.5 feedback=off fp16", "top_k 0.1 qsgd bits=4",
        "top_k 0.1 int4", "top_k 0.1 terngrad", "feedback top_k 0.1 feedback=off"}) {
    EXPECT_EQ(MakeCodec(text)->kernels(), KernelSupport::round) << text;
  }
  for (const char* text : {"top_k 0.1 e3m0", "top_k 0.1 mxfp8", "top_k 0.1 sparse",
                           "top_k 0.1 qsgd bits=4 coding=elias-dense"}) {
    EXPECT_EQ(MakeCodec(text)->kernels(), KernelSupport::none) << text;
  }
}

}  // namespace
}  // namespace cpd
