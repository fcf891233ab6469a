// SPDX-License-Identifier: Apache-2.0
//
// Tests arguments that a program can write by hand although no function of the library makes them.
// Every operation refuses them before it computes or writes anything. Tests also sizes whose bytes
// cannot be counted.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cpd/comm/virtual.h"
#include "cpd/ops/exact.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/reduce.h"
#include "cpd/scale/aps.h"
#include "cpd/spec/error.h"
#include "cpd/spec/presets.h"
#include "cpd/spec/wide_format.h"
#include "cpd/study/cost.h"
#include "cpd/study/roundoff.h"
#include "tests/testing/refusal.h"
#include "tests/testing/run.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::view_of;

const std::vector<std::pair<std::string, Format>>& BadFormats() {
  static const std::vector<std::pair<std::string, Format>> all{
      {"exp must be 1…8, got 9", {.exp = 9}},
      {"exp must be 1…8, got 0", {.exp = 0}},
      {"exp must be 1…8, got 255", {.exp = 255}},
      {"man must be 0…23, got 24", {.exp = 5, .man = 24, .bias = 15}},
      {"man must be 0…23, got 255", {.exp = 5, .man = 255, .bias = 15}},
      {"exp must be 1…8, got 12", {.exp = 12}},
      {"man must be 0…23, got 53", {.exp = 5, .man = 53, .bias = 15}},
      {"exp must be 1…8, got 9", {.exp = 9, .encoding = Encoding::fn}},
      {"man must be 0…23, got 24", {.man = 24, .encoding = Encoding::finite}},
      {"bias must be -255…255, got 32767", {.exp = 5, .man = 2, .bias = 32767}},
      {"bias must be -255…255, got -32768", {.exp = 5, .man = 2, .bias = -32768}},
      {"below binary32's 2^-149", {.exp = 5, .man = 10, .bias = 200}},
      {"beyond binary32's largest", {.exp = 5, .man = 2, .bias = -120}},
      {"encoding must be one of the 9",
       {.exp = 5, .man = 2, .bias = 15, .encoding = static_cast<Encoding>(77)}},
      {"e8m0 is exp = 8", {.exp = 5, .man = 2, .bias = 15, .encoding = Encoding::e8m0}},
      {"fnuz is signed",
       {.exp = 4, .man = 3, .bias = 8, .encoding = Encoding::fnuz, .is_signed = false}},
      {"unsigned p3109 needs",
       {.exp = 1, .man = 0, .bias = 1, .encoding = Encoding::p3109, .is_signed = false}}};
  return all;
}

std::vector<std::pair<std::string, RoundingOptions>> BadOptions() {
  std::vector<std::pair<std::string, RoundingOptions>> all(5);
  all[0].first = "rounding must be one of the 7";
  all[0].second.mode = static_cast<Rounding>(9);
  all[1].first = "overflow must be one of the 2";
  all[1].second.overflow = static_cast<Overflow>(2);
  all[2].first = "variant must be one of the 3";
  all[2].second.variant = static_cast<Variant>(200);
  all[3].first = "random_bits must be 1…24, got 0";
  all[3].second.random_bits = 0;
  all[4].first = "random_bits must be 1…24, got 25";
  all[4].second.random_bits = 25;
  for (auto& one : all) {
    if (one.second.mode == Rounding::nearest_even) one.second.mode = Rounding::stochastic;
  }
  return all;
}

/// Returns whether the format is one of the wide formats, which float64 tensors support.
bool IsOfElements(const Format& format) {
  return format.encoding == Encoding::ieee && is_wide(format) && format.exp <= kWidestExp &&
         format.man <= kWidestMan;
}

void ExpectError(const std::string& what, const std::string& verb,
                 const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << verb << ": nothing was thrown; expected: " << what;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(what), std::string::npos)
        << verb << ": " << error.what();
  }
}

class Checks : public ::testing::Test {
 protected:
  /// Expects that each operation that takes a format and rounding options refuses this format with
  /// these options, and writes nothing. `what` is part of the error's text.
  void Refused(const std::string& what, const Format& format, const RoundingOptions& o) {
    Each(what, VerbsOf(format, o));
    Each(what, VerbsOf(Accumulator{format, Scheme::sequential, o}));
    Reduce spec;
    spec.format = format;
    spec.rounding = o;
    Each(what, VerbsOf(spec));
  }

  using Verbs = std::vector<std::pair<std::string, std::function<void()>>>;

  void Each(const std::string& what, const Verbs& verbs) {
    for (const auto& [verb, call] : verbs) ExpectError(what, verb, call);
    EXPECT_EQ(y, std::vector<float>(4, 7.0F));
    EXPECT_EQ(codes, std::vector<std::uint8_t>(16, 7));
  }

  Verbs VerbsOf(const Format& f, const RoundingOptions& o) {
    return {{"Cast", [=, this] { Cast(X(), f, o, Y()); }},
            {"Encode", [=, this] { Encode(X(), f, o, Codes()); }},
            {"Add", [=, this] { Add(X(), X(), f, o, Y()); }},
            {"Mul", [=, this] { Mul(X(), X(), f, o, Y()); }},
            {"Fma", [=, this] { Fma(X(), X(), X(), f, o, Y()); }},
            {"Div", [=, this] { Div(X(), X(), f, o, Y()); }},
            {"Sqrt", [=, this] { Sqrt(X(), f, o, Y()); }},
            {"CastScaled", [=, this] { CastScaled(f, o, 1, 0, 4, x.data(), y.data()); }},
            {"EncodeScaled", [=, this] { EncodeScaled(f, o, 1, 0, 4, x.data(), codes.data()); }}};
  }
  Verbs VerbsOf(const Format& f) {
    return {{"Check", [=] { Check(f); }},
            {"Preset", [=] { Preset("h100-fp16", f); }},
            {"Holds", [=] { Holds(kFp32, f); }},
            {"Holds", [=] { Holds(f, kFp32); }},
            {"CheckStorage", [=] { CheckStorage(DType::f32, f); }},
            {"PackedBytes", [=] { PackedBytes(f, 4); }},
            {"Decode", [=, this] { Decode(Codes(), f, Y()); }},
            {"DecodeScaled", [=, this] { DecodeScaled(f, 0, 1, 4, codes.data(), y.data()); }},
            {"FoldStep", [=, this] { FoldStep({}, f, 0, 0, 4, x.data(), {y.data(), 4}); }}};
  }
  /// Returns the operations that also support formats wider than binary32.
  Verbs WideVerbsOf(const Format& f) {
    return {{"ToString", [=] { ToString(f); }},
            {"CheckOfElements", [=] { CheckOfElements(f); }},
            {"Flags", [=, this] {
               Flags(soft::Operation::sqrt, {X()}, f, {}, soft::Tininess::after, Codes());
             }}};
  }
  Verbs VerbsOf(const Accumulator& a) {
    return {{"Check", [=] { Check(a); }},
            {"Sum", [=, this] { Sum(Square(x), 0, a, View(y.data(), DType::f32, 2)); }},
            {"Gemm", [=, this] { Gemm(Square(x), Square(x), a, Square(y)); }},
            {"GemmByBlas", [=, this] { GemmByBlas(Square(x), Square(x), a, Square(y)); }},
            {"CheckFold", [=] { CheckFold(a, 4); }},
            {"FoldStep", [=, this] { FoldStep(a, kFp32, 0, 0, 4, x.data(), {y.data(), 4}); }},
            {"FoldEnd", [=, this] { FoldEnd(a, kFp32, 1, 0, 4, {y.data(), 4}); }},
            {"Reduce", [=] { Check(WithAccumulator(a)); }}};
  }
  static Verbs VerbsOf(const Reduce& spec) {
    return {{"Check", [=] { Check(spec); }},
            {"MayStall", [=] { MayStall(spec, 2); }},
            {"VirtualReduce", [=] { VirtualReduce(spec, 2, {4}); }},
            {"CostOf", [=] { CostOf(spec, 2, 0, std::array<std::int64_t, 1>{4}, 1); }},
            {"TimeOf", [=] { TimeOf(spec, 2, std::array<std::int64_t, 1>{4}, 1, 1); }}};
  }
  static Reduce WithAccumulator(const Accumulator& a) {
    Reduce spec;
    spec.accumulator = a;
    return spec;
  }

  TensorView X() const { return view_of(x); }
  TensorView Y() { return view_of(y); }
  TensorView Codes() { return View(codes.data(), DType::u8, 4); }  // e4m3's
  static TensorView Square(const std::vector<float>& values) {
    return View(values.data(), DType::f32, std::array<std::int64_t, 2>{2, 2});
  }

  std::vector<float> x = std::vector<float>(4, 1.1F);
  std::vector<float> y = std::vector<float>(4, 7.0F);
  std::vector<std::uint8_t> codes = std::vector<std::uint8_t>(16, 7);
};

TEST_F(Checks, FormatsMadeByHand) {
  for (const auto& [what, format] : BadFormats()) {
    Refused(what, format, {});
    Each(what, VerbsOf(format));
    if (!IsOfElements(format)) Each(what, WideVerbsOf(format));
    Reduce spec;
    spec.result = format;
    Each(what, VerbsOf(spec));
    for (const int field : {0, 1}) {
      Accumulator a;
      a.scheme = Scheme::chunked;
      (field == 0 ? a.product : a.inner) = format;
      Each(what, VerbsOf(a));
    }
    for (const int field : {0, 1, 2}) {
      BlockFma unit;
      (field == 0 ? unit.a : field == 1 ? unit.b : unit.sum) = format;
      Accumulator a;
      a.scheme = Scheme::block_fma;
      a.unit = unit;
      Each(what, VerbsOf(a));
    }
  }
}

TEST_F(Checks, FormatsThatFunctionsMakePass) {
  for (const Format& format : testing::named_formats()) EXPECT_NO_THROW(Check(format));
  for (const Format& format : testing::encoding_formats()) EXPECT_NO_THROW(Check(format));
}

TEST_F(Checks, OptionsMadeByHand) {
  for (const auto& [what, options] : BadOptions()) Refused(what, ParseFormat("e4m3"), options);
}

TEST_F(Checks, AccumulatorsMadeByHand) {
  Accumulator a;
  a.scheme = static_cast<Scheme>(11);
  Each("scheme must be one of the 6", VerbsOf(a));
  a.scheme = Scheme::chunked;
  a.chunk = 0;
  Each("chunk must be at least 1", VerbsOf(a));
  a = {};
  a.scheme = Scheme::block_fma;
  Each("needs its unit", VerbsOf(a));
  const auto with = [&](const std::string& what, const std::function<void(BlockFma&)>& set) {
    a.unit.emplace();
    set(*a.unit);
    Each(what, VerbsOf(a));
  };
  with("block must be 1…64, got 0", [](BlockFma& unit) { unit.block = 0; });
  with("block must be 1…64, got 65", [](BlockFma& unit) { unit.block = 65; });
  with("fraction_bits must be 1…30, got 31", [](BlockFma& unit) { unit.fraction_bits = 31; });
  with("min_exponent must be", [](BlockFma& unit) { unit.min_exponent = 4000; });
  with("promote must be 0 or a multiple", [](BlockFma& unit) { unit.promote = 7; });
  with("the unit rounds toward_zero or nearest_even",
       [](BlockFma& unit) { unit.rounding = Rounding::up; });
  with("rounding must be one of the 7",
       [](BlockFma& unit) { unit.rounding = static_cast<Rounding>(99); });
}

TEST_F(Checks, SpecsMadeByHand) {
  const auto with = [&](const std::string& what, const std::function<void(Reduce&)>& set) {
    Reduce spec;
    set(spec);
    Each(what, VerbsOf(spec));
  };
  with("order must be one of the 3", [](Reduce& s) { s.order = static_cast<Order>(3); });
  with("exchange must be one of the 4", [](Reduce& s) { s.exchange = static_cast<Exchange>(9); });
  with("aps must be off, on or paper", [](Reduce& s) { s.aps = static_cast<Aps>(3); });
  with("group_size must be at least 1", [](Reduce& s) { s.group_size = -1; });
  ExpectError("aps must be", "Check", [] { Check(static_cast<Aps>(3)); });
  ExpectError("ranks must be at least 1", "ApsExponent", [] { ApsExponent(1.0F, 0); });
}

// --- Sizes ---------------------------------------------------------------------------------------

/// Returns a view with this shape whose elements all have the address `element` (strides of 0).
TensorView Repeated(const float* element, const std::vector<std::int64_t>& shape) {
  TensorView view = View(element, DType::f32, shape);
  for (int d = 0; d < view.rank; ++d) view.stride[d] = 0;
  return view;
}

TEST_F(Checks, SizesWhoseBytesCannotBeCounted) {
  constexpr std::int64_t kBig = std::int64_t{1} << 40;
  const float one = 1;
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{kBig, kBig},
                                                 {std::int64_t{1} << 61},
                                                 {kBig, 1 << 21},
                                                 {std::numeric_limits<std::int64_t>::max(), 3}}) {
    const TensorView big = Repeated(&one, shape);
    const auto verbs = [&](const TensorView& in, const TensorView& out) -> Verbs {
      return {{"Cast", [=] { Cast(in, kFp32, {}, out); }},
              {"Encode", [=, this] { Encode(in, kFp32, {}, Codes()); }},
              {"Decode", [=, this] { Decode(Codes(), kFp32, in); }},
              {"Add", [=] { Add(in, in, kFp32, {}, out); }},
              {"Sum", [=, this] { Sum(in, 0, {}, Y()); }},
              {"Gemm", [=, this] { Gemm(in, in, {}, Square(y)); }},
              {"Gemm out", [=, this] { Gemm(Square(x), Square(x), {}, in); }},
              {"GemmByBlas", [=, this] { GemmByBlas(in, in, {}, Square(y)); }},
              {"MeasureRange", [=] { MeasureRange(in); }},
              {"MeasureRoundoff", [=] { MeasureRoundoff(in, in); }}};
    };
    Each("fewer than 2^63 bytes", verbs(big, big));
  }
  TensorView far = View(&one, DType::f32, 2);
  far.stride[0] = std::numeric_limits<std::int64_t>::min();
  Each("fewer than 2^63 bytes",
       {{"Cast", [&] { Cast(far, kFp32, {}, View(y.data(), DType::f32, 2)); }}});
}

TEST_F(Checks, EmptyTensorsOfAnyExtents) {
  const std::vector<std::int64_t> shape{std::int64_t{1} << 62, std::int64_t{1} << 62, 0};
  std::vector<std::int64_t> reversed(shape.rbegin(), shape.rend());
  for (const auto& each : {shape, reversed}) {
    const TensorView none = View(nullptr, DType::f32, each);
    EXPECT_NO_THROW(Cast(none, kFp32, {}, none));
    EXPECT_NO_THROW(Add(none, none, kFp32, {}, none));
  }
}

TEST_F(Checks, StridesReachAsFarInEitherDirection) {
  constexpr std::int64_t kFar = std::int64_t{1} << 60;  // 2^62 bytes
  for (const std::int64_t first : {kFar, -kFar}) {
    for (const std::int64_t second : {kFar, -kFar}) {
      TensorView far = X();
      far.rank = 2;
      far.shape[0] = far.shape[1] = 2;
      far.stride[0] = first;
      far.stride[1] = second;
      Each("fewer than 2^63 bytes", {{"Cast", [&] { Cast(far, kFp32, {}, Y()); }}});
    }
  }
}

TEST_F(Checks, ShapesOfOtherRanksDiffer) {
  const std::vector<float> x(6);
  const TensorView line = View(x.data(), DType::f32, 2);
  const std::vector<std::int64_t> shape{2, 3};
  const TensorView matrix = View(x.data(), DType::f32, shape);
  Each("must have the same shape", {{"Cast", [&] { Cast(line, kFp32, {}, matrix); }}});
}

TEST_F(Checks, RanksAndExtents) {
  const std::vector<std::int64_t> ones(17, 1);
  EXPECT_REFUSAL("a tensor has at most 16 dimensions, got 17", View(nullptr, DType::f32, ones));
  TensorView bad = X();
  bad.rank = 17;
  Each("must have 0…16 dimensions, got 17", {{"Cast", [&] { Cast(bad, kFp32, {}, Y()); }},
                                             {"Add", [&] { Add(bad, X(), kFp32, {}, Y()); }},
                                             {"Gemm", [&] { Gemm(bad, X(), {}, Y()); }}});
  bad.rank = 1;
  bad.shape[0] = -4;
  Each("extents of at least 0", {{"Cast", [&] { Cast(bad, kFp32, {}, Y()); }},
                                 {"Cast", [&] { Cast(X(), kFp32, {}, bad); }},
                                 {"Sum", [&] { Sum(bad, 0, {}, Y()); }}});
}

TEST_F(Checks, CodesLayersAndRanksTooManyToCount) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  Each("a number of codes must be at least 0", {{"PackedBytes", [] { PackedBytes(kFp32, kMost); }},
                                                {"PackedBytes", [] { PackedBytes(kFp32, -1); }}});
  const std::array<std::int64_t, 2> sizes{kMost, 2};
  Each("fewer than 2^57 values", {{"CostOf", [&] { CostOf({}, 2, 0, sizes, 1); }},
                                  {"TimeOf", [&] { TimeOf({}, 2, sizes, 1, 1); }}});
  Each("a tensor's size must be 0…2^56", {{"VirtualReduce", [] { VirtualReduce({}, 2, {kMost}); }},
                                          {"VirtualReduce", [] { VirtualReduce({}, 2, {-1}); }}});
  // A tensor whose size is valid, but cannot be allocated, throws std::bad_alloc and no Error.
  if (!testing::kSanitized) {  // AddressSanitizer ends the program instead
    constexpr std::int64_t kSize = std::int64_t{1} << 56;
    VirtualReduce reduce({}, 2, {kSize});
    const float x = 0;
    EXPECT_THROW(reduce.Contribute(0, View(&x, DType::f32, kSize)), std::bad_alloc);
  }
}

}  // namespace
}  // namespace cpd
