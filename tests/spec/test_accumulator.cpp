// SPDX-License-Identifier: Apache-2.0
//
// Tests accumulators as text, the checks of their fields, and the presets.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cpd/spec/accumulator.h"
#include "cpd/spec/error.h"
#include "cpd/spec/keys.h"
#include "cpd/spec/presets.h"
#include "tests/testing/refusal.h"

namespace cpd {
namespace {

// Expects that two accumulators agree in all fields that an accumulator's text contains.
void expect_same(const Accumulator& a, const Accumulator& b, const std::string& text) {
  EXPECT_EQ(a.format, b.format) << text;
  EXPECT_EQ(a.scheme, b.scheme) << text;
  EXPECT_EQ(a.rounding.mode, b.rounding.mode) << text;
  EXPECT_EQ(a.rounding.overflow, b.rounding.overflow) << text;
  EXPECT_EQ(a.rounding.variant, b.rounding.variant) << text;
  EXPECT_EQ(a.rounding.random_bits, b.rounding.random_bits) << text;
  EXPECT_EQ(a.product, b.product) << text;
  EXPECT_EQ(a.exact_products, b.exact_products) << text;
  EXPECT_EQ(a.inner, b.inner) << text;
  EXPECT_EQ(a.chunk, b.chunk) << text;
  EXPECT_EQ(a.unit, b.unit) << text;
}

void expect_round_trip(const Accumulator& accumulator) {
  const std::string text = ToString(accumulator);
  expect_same(ParseAccumulator(text), accumulator, text);
}

// Returns the text of the error that a call throws; empty if it throws none.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string parse_error(const std::string& text) {
  return error_of([&] { ParseAccumulator(text); });
}

TEST(Accumulator, Texts) {
  EXPECT_EQ(ToString(Accumulator{}), "fp32 sequential");
  for (const char* text : {
           "fp32 sequential",
           "e4m3 kahan",
           "e4m3 sequential product=exact",
           "e6m9 sequential product=e5m2fnuz overflow=saturate",
           "e6m9 chunked chunk=64 product=exact rounding=stochastic random_bits=8",
           "fp32 chunked chunk=1 inner=e6m9 rounding=stochastic variant=C",
           "bf16 pairwise rounding=to_odd",
           "e4m3fn:bias=11:nosub pairwise",
           "fp32 block_fma a=fp16 b=bf16 block=7 fraction_bits=30 min_exponent=-140 sum=e8m13",
           "fp16 block_fma a=e5m2 b=e2m1 block=4 fraction_bits=1 min_exponent=0 sum=fp16 "
           "sum_rounding=nearest_even addend=separate promote=12 rounding=up",
       }) {
    EXPECT_EQ(ToString(ParseAccumulator(text)), text);
  }
  expect_same(ParseAccumulator("  fp32   kahan "), ParseAccumulator("fp32 kahan"), "spaces");
}

TEST(Accumulator, OptionsMayStandBeforeTheScheme) {
  const std::pair<const char*, const char*> pairs[] = {
      {"e6m9 chunk=64 chunked", "e6m9 chunked"},
      {"e6m9 chunk=32 inner=e4m3 chunked product=exact",
       "e6m9 chunked chunk=32 inner=e4m3 product=exact"},
      {"e4m3 rounding=stochastic kahan", "e4m3 kahan rounding=stochastic"},
      {"fp32 a=fp16 b=fp16 block=4 block_fma", "fp32 block_fma a=fp16 b=fp16 block=4"},
      {"e4m3 product=exact fma", "e4m3 fma"},
      {"(4, 3) inner=( 5,2) chunked", "e4m3 chunked inner=e5m2"},
      {"E4M3FN kahan product=Float16", "e4m3fn kahan product=fp16"},
      {"H100-FP8 a=E5M2", "h100-fp8 a=e5m2"},
  };
  for (const auto& [given, usual] : pairs) {
    EXPECT_EQ(ToString(ParseAccumulator(given)), ToString(ParseAccumulator(usual))) << given;
  }
  EXPECT_EQ(parse_error("e4m3 chunk=8"), "chunk is for scheme chunked, got scheme sequential");
  EXPECT_NE(parse_error("e4m3 chunk=8 chunked chunk=8").find("given twice"), std::string::npos);
  EXPECT_NE(parse_error("e4m3 chunk=8 kahan").find("chunk is for scheme chunked"),
            std::string::npos);
}

TEST(Accumulator, KeysOfChunksAreRefusedElsewhereAtTheirDefaultsToo) {
  EXPECT_EQ(parse_error("e6m9 chunk=64"), "chunk is for scheme chunked, got scheme sequential");
  EXPECT_EQ(parse_error("e6m9 pairwise chunk=64"),
            "chunk is for scheme chunked, got scheme pairwise");
  EXPECT_EQ(parse_error("e6m9 kahan inner=e6m9"), "inner is for scheme chunked, got scheme kahan");
  EXPECT_EQ(ToString(ParseAccumulator("e6m9 chunked inner=e6m9")), "e6m9 chunked chunk=64");
}

TEST(Accumulator, ASchemeThatReplacesChunkedDropsTheKeysOfChunks) {
  const auto with = [](const char* text, const char* scheme) {
    return ToString(Make<Accumulator>(text, std::vector<Option>{{"scheme", scheme}}));
  };
  EXPECT_EQ(with("e6m9 chunked chunk=64", "kahan"), "e6m9 kahan");
  EXPECT_EQ(with("e6m9 chunked chunk=8 inner=e4m3", "pairwise"), "e6m9 pairwise");
  EXPECT_EQ(with("e6m9 chunked chunk=8", "chunked"), "e6m9 chunked chunk=8");
  EXPECT_EQ(with("e6m9 chunk=8", "chunked"), "e6m9 chunked chunk=8");
}

TEST(Accumulator, NearMissesAreSuggested) {
  EXPECT_NE(parse_error("fp32 khan").find("got 'khan'; did you mean 'kahan'?"), std::string::npos);
  EXPECT_NE(parse_error("fp32 Chunked").find("did you mean 'chunked'?"), std::string::npos);
  EXPECT_NE(parse_error("fp32 kahan roundin=up").find("did you mean 'rounding'?"),
            std::string::npos);
  EXPECT_NE(parse_error("fp32 kahan rounding=stochastik").find("did you mean 'stochastic'?"),
            std::string::npos);
  EXPECT_NE(parse_error("h200-fp8").find("unknown preset 'h200-fp8'; there are v100, a100"),
            std::string::npos);
  EXPECT_NE(parse_error("h200-fp8 a=e5m2").find("; did you mean 'h100-fp8'?"), std::string::npos);
  EXPECT_NE(parse_error("e4m3-fn kahan").find("did you mean 'e4m3fn'?"), std::string::npos);
  EXPECT_NE(parse_error("b200-fp4").find("unknown preset 'b200-fp4'"), std::string::npos);
  EXPECT_NE(parse_error("B200-FP6 a=e5m2").find("unknown preset 'B200-FP6'"), std::string::npos);
  EXPECT_NE(parse_error("fp32 block_fma adder=flush").find("aligned, exact, flushed_pairs"),
            std::string::npos);
}

TEST(Accumulator, FmaMeansSequentialWithExactProducts) {
  EXPECT_EQ(ToString(ParseAccumulator("e6m9 fma")), "e6m9 sequential product=exact");
  EXPECT_EQ(ToString(ParseAccumulator("fp32 fma product=exact rounding=up")),
            "fp32 sequential product=exact rounding=up");
  EXPECT_EQ(parse_error("fp32 fma product=bf16"),
            "scheme fma has exact products, got product=bf16");
  EXPECT_NE(parse_error("fp32 fma chunk=2").find("chunk is for scheme chunked"), std::string::npos);
}

TEST(Accumulator, UnitsNameTheirOperandsAndHowTheyRound) {
  const std::string unit = "bf16 block_fma a=e4m3fn b=e4m3fn block=4 fraction_bits=20 sum=bf16";
  for (const char* mode : {" rounding=nearest_even", " rounding=toward_zero"}) {
    EXPECT_EQ(parse_error(unit + mode),
              "block_fma: rounding= has no effect, as bf16 holds every sum of the unit: "
              "sum_rounding= is how the unit rounds its sums");
    EXPECT_EQ(parse_error("deepseek-promoted" + std::string(mode)), "");
  }
  EXPECT_NE(parse_error("h100-fp8 rounding=up").find("sum_rounding="), std::string::npos);
  EXPECT_EQ(parse_error("fp16 block_fma a=fp16 b=fp16 rounding=up"), "");  // of fp32 sums
  EXPECT_EQ(ParseAccumulator(unit + " sum_rounding=nearest_even").unit->rounding,
            Rounding::nearest_even);
  for (const char* operands : {"", " a=fp16", " b=fp16"}) {
    const std::string error = parse_error("fp32 block_fma block=4" + std::string(operands));
    EXPECT_NE(error.find("needs a= and b="), std::string::npos) << operands;
  }
  EXPECT_EQ(parse_error("h100-fp8 a=e5m2"), "");
}

TEST(Accumulator, RandomOnesRoundTrip) {
  std::mt19937_64 generator(5);
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(generator() % static_cast<std::uint64_t>(high - low + 1));
  };
  const auto format = [&] { return MakeFormat(between(2, 8), between(0, 23)); };
  for (int i = 0; i < 2000; ++i) {
    Accumulator a;
    a.format = format();
    a.scheme = static_cast<Scheme>(between(0, 4));
    a.rounding.mode = static_cast<Rounding>(between(0, 6));
    a.rounding.overflow = static_cast<Overflow>(between(0, 1));
    const auto variant = static_cast<Variant>(between(0, 2));
    const int random_bits = between(1, 24);
    if (a.scheme == Scheme::block_fma) {
      BlockFma unit;
      unit.a = format();
      unit.b = format();
      unit.block = between(1, 64);
      unit.fraction_bits = between(1, 30);
      unit.aligns_addend = between(0, 1) == 1;
      unit.min_exponent = between(-400, 127);
      unit.sum = format();
      unit.rounding = between(0, 1) == 0 ? Rounding::toward_zero : Rounding::nearest_even;
      unit.promote = std::int64_t{unit.block} * between(0, 3);
      // `Check` refuses settings that change no result: a separate addend that is always +0, and a
      // rounding mode if the format holds every sum. The code below replaces such settings.
      if (unit.promote == unit.block) unit.aligns_addend = true;
      a.unit = unit;
      if (unit.promote == 0 && Holds(a.format, unit.sum)) a.rounding.mode = Rounding::nearest_even;
    } else {
      const int product = between(0, 2);
      if (product == 1) a.product = format();
      a.exact_products = product == 2;
    }
    if (a.scheme == Scheme::chunked) {
      a.chunk = between(1, 1000);
      if (between(0, 1) == 1) a.inner = format();
    }
    // The text leaves out a product or inner format that equals the accumulator's format, so the
    // field of that format is empty in the parsed accumulator.
    if (a.product == a.format) a.product.reset();
    if (a.inner == a.format) a.inner.reset();
    if (a.rounding.mode == Rounding::stochastic) {
      a.rounding.variant = variant;
      a.rounding.random_bits = random_bits;
    }
    expect_round_trip(a);
  }
}

TEST(Accumulator, TextErrorsSayWhatIsAllowed) {
  EXPECT_NE(parse_error("").find("a format, a scheme and options"), std::string::npos);
  EXPECT_NE(parse_error("fp33 kahan").find("unknown format 'fp33'"), std::string::npos);
  EXPECT_EQ(
      parse_error("fp32 tree"),
      "scheme must be sequential, kahan, chunked, pairwise, block_fma, fixed or fma, got 'tree'");
  EXPECT_NE(parse_error("fp32 kahan wat=1").find("unknown option 'wat'"), std::string::npos);
  EXPECT_NE(
      parse_error("fp32 kahan block=1").find("block is for scheme block_fma, got scheme kahan"),
      std::string::npos);
  EXPECT_NE(parse_error("fp32 kahan exact").find("name=value, got 'exact'"), std::string::npos);
  EXPECT_NE(parse_error("fp32 chunked chunk=2 chunk=3").find("given twice"), std::string::npos);
  EXPECT_EQ(parse_error("fp32 chunked chunk=2x"), "chunk must be an integer, got '2x'");
  EXPECT_EQ(parse_error("fp32 chunked chunk=99999999999999999999"),
            "chunk must be an integer -9223372036854775808…9223372036854775807, got "
            "'99999999999999999999'");
  EXPECT_EQ(parse_error("fp32 block_fma addend=no"),
            "addend must be separate or aligned, got 'no'");
}

TEST(Accumulator, FieldsMustFitTogether) {
  for (const char* text : {
           "fp32 chunked chunk=0",
           "fp32 chunked chunk=-1",
           "fp32 sequential chunk=3",
           "fp32 sequential inner=fp16",
           "fp32 sequential random_bits=25",
           "fp32 block_fma product=exact",
           "fp32 block_fma product=fp16",
           "fp32 block_fma block=0",
           "fp32 block_fma block=65",
           "fp32 block_fma fraction_bits=0",
           "fp32 block_fma fraction_bits=31",
           "fp32 block_fma min_exponent=128",
           "fp32 block_fma min_exponent=-401",
           "fp32 block_fma promote=8",
           "fp32 block_fma promote=-16",
           "fp32 block_fma sum_rounding=stochastic",
           "fp32 block_fma sum=e8m0",
           "fp32 block_fma a=e8m0",
           "fp32 block_fma b=e8m0",
       }) {
    EXPECT_NE(parse_error(text), "") << text;
  }
  EXPECT_EQ(parse_error("fp32 block_fma block=65"), "block_fma: block must be 1…64, got 65");

  Accumulator a;
  a.scheme = Scheme::block_fma;
  EXPECT_NE(error_of([&] { Check(a); }).find("needs its unit"), std::string::npos);
  a.scheme = Scheme::kahan;
  a.unit.emplace();
  EXPECT_NE(error_of([&] { Check(a); }).find("a unit is for scheme block_fma"), std::string::npos);
  a.unit.reset();
  a.product = kFp32;
  a.exact_products = true;
  EXPECT_NE(error_of([&] { Check(a); }).find("got both fp32 and exact"), std::string::npos);
}

TEST(Presets, AreWhatTheTableSays) {
  const auto text = [](const char* name) { return ToString(Preset(name)); };
  EXPECT_EQ(text("v100"),
            "fp32 block_fma a=fp16 b=fp16 block=4 fraction_bits=23 min_exponent=-133 sum=fp32");
  EXPECT_EQ(text("a100"),
            "fp32 block_fma a=fp16 b=fp16 block=8 fraction_bits=24 min_exponent=-132 sum=fp32");
  EXPECT_EQ(text("ada-tf32"),
            "fp32 block_fma a=tf32 b=tf32 block=4 fraction_bits=24 min_exponent=-132 sum=fp32");
  EXPECT_EQ(text("ada-fp8"),
            "fp32 block_fma a=e4m3fn b=e4m3fn block=16 fraction_bits=13 min_exponent=-132 "
            "sum=e8m13");
  EXPECT_EQ(text("h100-bf16"),
            "fp32 block_fma a=bf16 b=bf16 block=16 fraction_bits=25 min_exponent=-133 sum=fp32");
  EXPECT_EQ(text("b200-tf32"),
            "fp32 block_fma a=tf32 b=tf32 block=8 fraction_bits=25 min_exponent=-133 sum=fp32");
  EXPECT_EQ(text("deepseek-promoted"),
            "fp32 block_fma a=e4m3fn b=e4m3fn block=32 fraction_bits=13 min_exponent=-139 "
            "sum=e8m13 promote=128");
  EXPECT_EQ(text("rtx-blackwell-mxfp8"),
            "fp32 block_fma a=e4m3fn b=e4m3fn block=32 fraction_bits=25 min_exponent=-133 "
            "sum=fp32 scale=e8m0 scale_block=32");
  EXPECT_EQ(text("rtx-blackwell-mxfp4"),
            "fp32 block_fma a=e2m1 b=e2m1 block=64 fraction_bits=35 min_exponent=-139 sum=fp32 "
            "scale=e8m0 scale_block=32 dot=16");
  EXPECT_EQ(text("rtx-blackwell-nvfp4"),
            "fp32 block_fma a=e2m1 b=e2m1 block=64 fraction_bits=35 min_exponent=-139 sum=fp32 "
            "scale=e4m3fn scale_block=16 dot=16");
  EXPECT_EQ(ToString(Preset("h100-fp16", ParseFormat("fp16"))),
            "fp16 block_fma a=fp16 b=fp16 block=16 fraction_bits=25 min_exponent=-21 sum=fp16 "
            "sum_rounding=nearest_even");
  EXPECT_EQ(text("cdna2-bf16-1k"),
            "fp32 block_fma a=bf16 b=bf16 block=4 sum=fp32 sum_rounding=nearest_even "
            "adder=flushed_pairs");
}

TEST(Presets, AllAreSoundAndNameTheirEvidence) {
  const std::vector<NamedSpec> all = Presets();
  EXPECT_EQ(all.size(), 42U);
  for (const NamedSpec& info : all) {
    const Accumulator accumulator = Preset(info.name);
    Check(accumulator);
    expect_round_trip(accumulator);
    expect_same(ParseAccumulator(info.name), accumulator, info.name);
    EXPECT_FALSE(info.source.empty()) << info.name;
    EXPECT_FALSE(info.summary.empty()) << info.name;
    const bool measured = info.name == "v100" || info.name.starts_with("h100-") ||
                          info.name == "hopper-mma-fp8" || info.name == "ada-fp8" ||
                          info.name == "b200-fp8";
    EXPECT_EQ(info.evidence, measured ? "replayed" : "literature") << info.name;
  }
}

TEST(Accumulator, UnitsWithScales) {
  const auto error = [](const std::string& options) {
    return error_of([&] { ParseAccumulator("rtx-blackwell-" + options); });
  };
  EXPECT_NE(error("mxfp4 scale_block=24").find("a multiple of scale_block"), std::string::npos);
  EXPECT_NE(error("mxfp4 dot=5").find("a multiple of scale_block, and that of dot"),
            std::string::npos);
  EXPECT_NE(error("mxfp4 fraction_bits=38").find("must be 1…37, got 38"), std::string::npos);
  EXPECT_NE(error("mxfp8 fraction_bits=43").find("must be 1…42, got 43"), std::string::npos);
  EXPECT_NE(error("mxfp4 a=fp16 b=fp16").find("must have at most 53 bits"), std::string::npos);
  EXPECT_NE(error("mxfp8 scale=fp32").find("must have at most 53 bits"), std::string::npos);
  // The products range from 2^-16 * 2^-9 to 2^15 * 2^8 and need 50 bits. A dot product of two terms
  // needs one bit more, of four terms two bits more.
  EXPECT_NO_THROW(ParseAccumulator("rtx-blackwell-mxfp8 a=e5m2 fraction_bits=19 dot=2"));
  EXPECT_NE(error("mxfp8 a=e5m2 fraction_bits=19 dot=4").find("must have at most 53 bits"),
            std::string::npos);
  const auto unscaled = error_of([] { ParseAccumulator("h100-fp8 dot=2"); });
  EXPECT_NE(unscaled.find("for units with a scale"), std::string::npos);
}

TEST(Presets, MayBeChangedInText) {
  Accumulator expected = Preset("h100-fp8");
  BlockFma unit = expected.unit.value_or(BlockFma{});
  unit.a = ParseFormat("e5m2");
  expected.unit = unit;
  expect_same(ParseAccumulator("h100-fp8 a=e5m2"), expected, "a=e5m2");
}

TEST(Presets, ExponentsAndOrderFollowTheOutput) {
  const auto half = [](const char* name) { return Preset(name, ParseFormat("fp16")); };
  const std::pair<const char*, int> least[] = {
      {"v100", -19},           {"turing-fp16", -20},       {"a100", -20},
      {"ada-fp16", -20},       {"ada-fp8", -20},           {"h100-fp16", -21},
      {"b200-fp16", -21},      {"rtx-blackwell-fp8", -21}, {"b200-tcgen05-fp16", -21},
      {"hopper-mma-fp8", -21}, {"b200-fp8", -21}};
  for (const auto& [name, exponent] : least) {
    const BlockFma unit = half(name).unit.value_or(BlockFma{});
    EXPECT_EQ(unit.min_exponent, exponent) << name;
    EXPECT_EQ(ToString(unit.sum), "fp16") << name;
    EXPECT_EQ(unit.rounding, Rounding::nearest_even) << name;
    expect_round_trip(half(name));
  }
  EXPECT_EQ(ToString(half("b200-fp8")),
            "fp16 block_fma a=e4m3fn b=e4m3fn block=16 fraction_bits=25 min_exponent=-21 sum=fp16 "
            "sum_rounding=nearest_even promote=32 group=32 stride=4 take=2");
  EXPECT_EQ(half("b200-fp8").unit, half("hopper-mma-fp8").unit);
}

TEST(Accumulator, UnitsAreOfKnownKinds) {
  const std::string flushed = "a=bf16 b=bf16 sum_rounding=nearest_even adder=flushed_pairs block=";
  for (const int block : {2, 4}) EXPECT_NO_THROW(ParseAccumulator(flushed + std::to_string(block)));
  for (const int block : {1, 3, 8}) {
    EXPECT_THROW(ParseAccumulator(flushed + std::to_string(block)), Error) << block;
  }
  for (const char* rounding : {"up", "down", "nearest_away", "to_odd", "stochastic"}) {
    EXPECT_THROW(ParseAccumulator("a=fp16 b=fp16 sum_rounding=" + std::string(rounding)), Error)
        << rounding;
  }
}

TEST(Accumulator, FormatsSaidTwiceAreOne) {
  EXPECT_FALSE(ParseAccumulator("e5m2 chunked inner=e5m2").inner);
  EXPECT_FALSE(ParseAccumulator("e5m2 product=e5m2").product);
}

TEST(Accumulator, TheSchemeMayBeLeftOut) {
  const auto text = [](const char* given) { return ToString(ParseAccumulator(given)); };
  EXPECT_EQ(text("e4m3"), "e4m3 sequential");
  EXPECT_EQ(text("e4m3 rounding=stochastic"), "e4m3 sequential rounding=stochastic");
  EXPECT_EQ(text("format=e4m3 scheme=kahan"), "e4m3 kahan");
  EXPECT_EQ(text("e4m3:bias=9 kahan"), "e4m3:bias=9 kahan");
  EXPECT_EQ(text("format=e4m3:bias=9 product=e5m2:nosub"),
            "e4m3:bias=9 sequential product=e5m2:nosub");
  EXPECT_EQ(text("e4m3 kahan format=bf16 scheme=pairwise"), "bf16 pairwise");
  EXPECT_EQ(text("width=40 fraction=12"), "fp32 fixed width=40 fraction=12");
  EXPECT_EQ(text("bf16 int40"), "bf16 fixed width=40 fraction=0");
  EXPECT_EQ(text("a=fp16 b=fp16 block=4 fraction_bits=23"), text("v100"));
  EXPECT_EQ(text("a=fp16 b=fp16 sum=bf16"),
            "bf16 block_fma a=fp16 b=fp16 block=16 fraction_bits=25 min_exponent=-133 sum=bf16");
  EXPECT_EQ(text("fp16 h100-fp16"), ToString(Preset("h100-fp16", ParseFormat("fp16"))));
  EXPECT_EQ(text("fp16 scheme=h100-fp16 a=e5m2"), text("h100-fp16 format=fp16 a=e5m2"));
}

TEST(Accumulator, ItsKeysAreThoseOfItsForm) {
  const auto set = [](const char* text) {
    std::string names;
    for (const auto& [name, value] : FieldsOf(ParseAccumulator(text))) {
      if (!std::holds_alternative<std::monostate>(value)) names += name + " ";
    }
    return names;
  };
  const std::string all = "rounding overflow variant random_bits ";
  EXPECT_EQ(set("e4m3 kahan"), "form format scheme chunk inner product " + all);
  EXPECT_EQ(set("int8"), "form format width fraction sum_rounding " + all);
  EXPECT_EQ(set("v100"),
            "form format a b block fraction_bits min_exponent sum sum_rounding "
            "addend promote scale_block dot adder group stride take " +
                all);
  EXPECT_EQ(NamesOf(KeysOf<Accumulator>()).size(), FieldsOf(Accumulator{}).size() - 1);
}

TEST(Accumulator, KeysOfOtherFormsAndUnknownOnesAreRefused) {
  EXPECT_EQ(parse_error("e4m3 kahan width=8"), "width is for scheme fixed, got scheme kahan");
  EXPECT_EQ(parse_error("width=8 block=4"), "width is for scheme fixed, got scheme block_fma");
  EXPECT_EQ(parse_error("e4m3 sum_rounding=down"),
            "sum_rounding is for schemes block_fma and fixed, got scheme sequential");
  EXPECT_EQ(parse_error("int8 chunk=4"), "chunk is for scheme chunked, got scheme fixed");
  EXPECT_NE(parse_error("e4m3 chunks=4").find("did you mean 'chunk'?"), std::string::npos);
  EXPECT_NE(parse_error("rounding=up").find("an accumulator is a format, a scheme and options"),
            std::string::npos);
}

TEST(Accumulator, FieldsOfOtherSchemesAreRefused) {
  const Format e4m3 = ParseFormat("e4m3");
  EXPECT_REFUSAL("inner is for scheme chunked, got scheme pairwise",
                 Check(Accumulator{.scheme = Scheme::pairwise, .inner = e4m3}));
  EXPECT_REFUSAL("a unit is for scheme block_fma, got scheme kahan",
                 Check(Accumulator{.scheme = Scheme::kahan, .unit = BlockFma{}}));
  EXPECT_REFUSAL("an integer is for scheme fixed, got scheme kahan",
                 Check(Accumulator{.scheme = Scheme::kahan, .fixed = FixedPoint{}}));
  EXPECT_REFUSAL("scheme fixed needs its integer: a width and a fraction",
                 Check(Accumulator{.scheme = Scheme::fixed}));
  EXPECT_REFUSAL("product must be a format or exact, got both e4m3 and exact",
                 Check(Accumulator{.product = e4m3, .exact_products = true}));
}

TEST(Accumulator, SwappedExchangesTheOperands) {
  const Accumulator made = ParseAccumulator("fp32 block_fma a=e4m3fn b=e5m2 block=4");
  const Accumulator swapped = Swapped(made);
  EXPECT_EQ(swapped.unit->a, made.unit->b);
  EXPECT_EQ(swapped.unit->b, made.unit->a);
  EXPECT_EQ(ToString(Swapped(swapped)), ToString(made));
}

TEST(Accumulator, TermsAreNotRounded) {
  const Accumulator terms = OfTerms(ParseAccumulator("e5m2 kahan product=bf16"));
  EXPECT_EQ(ToString(terms), "e5m2 kahan product=exact");
  EXPECT_FALSE(terms.product);
  const Accumulator unit = ParseAccumulator("fp32 block_fma a=fp16 b=fp16 block=4");
  EXPECT_EQ(ToString(OfTerms(unit)), ToString(unit));
}

TEST(Accumulator, OrdersOfKAndAdders) {
  const auto error = [](const std::string& options) {
    return error_of([&] { ParseAccumulator("fp32 block_fma a=fp16 b=fp16 block=4 " + options); });
  };
  const auto round_trip = [](const std::string& options) {
    const std::string text =
        "fp32 block_fma a=fp16 b=fp16 block=4 " +
        std::string(options == "adder=exact" ? "" : "fraction_bits=25 min_exponent=-133 ") +
        "sum=fp32 " + options;
    EXPECT_EQ(ToString(ParseAccumulator(text)), text);
  };
  round_trip("group=8 stride=4 take=2");
  round_trip("promote=24 group=12 stride=6 take=1");
  round_trip("adder=exact");
  round_trip("sum_rounding=nearest_even adder=two_steps group=16 stride=2 take=1");
  EXPECT_NE(error("group=6").find("a multiple of block"), std::string::npos);
  EXPECT_NE(error("group=128").find("must be 0…64, got 128"), std::string::npos);
  EXPECT_NE(error("group=-4").find("must be 0…64, got -4"), std::string::npos);
  EXPECT_NE(error("group=8 stride=3").find("of stride"), std::string::npos);
  EXPECT_NE(error("group=8 stride=4 take=3").find("that of take"), std::string::npos);
  EXPECT_NE(error("group=8 take=0").find("take must be 1…4, got 0"), std::string::npos);
  EXPECT_NE(error("take=1").find("for units with a group"), std::string::npos);
  EXPECT_NE(error("group=4 take=1").find("group=4 has no effect"), std::string::npos);
  EXPECT_NE(error("group=8 promote=12").find("a multiple of group = 8"), std::string::npos);
  EXPECT_NE(error("group=8 scale=e8m0 scale_block=4").find("group must be 0, got 8"),
            std::string::npos);
  EXPECT_NE(error("adder=exact scale=e8m0 scale_block=4").find("without a scale"),
            std::string::npos);
  EXPECT_NE(error("addend=separate promote=4").find("addend=separate has no effect"),
            std::string::npos);
  EXPECT_NE(error("adder=exact addend=separate").find("needs addend=aligned, got separate"),
            std::string::npos);
  EXPECT_NE(error("adder=two_steps").find("nearest_even, got fp32 and toward_zero"),
            std::string::npos);
  const auto pairs = [](const std::string& options) {
    return error_of([&] {
      ParseAccumulator("fp32 block_fma adder=flushed_pairs sum_rounding=nearest_even " + options);
    });
  };
  EXPECT_NE(pairs("a=fp16 b=fp32 block=4").find("24 bits"), std::string::npos);
  EXPECT_NE(pairs("a=fp16 b=fp16 block=8").find("of 2 or 4, got 8"), std::string::npos);
  EXPECT_NE(pairs("a=fp16 b=fp16 block=4 fraction_bits=24")
                .find("fraction_bits=24 has no effect, as adder flushed_pairs cuts no term"),
            std::string::npos);
  EXPECT_NE(error("adder=exact min_exponent=-20").find("min_exponent=-20 has no effect"),
            std::string::npos);
}

TEST(Presets, RefuseWhatNoKnownRuleReproduces) {
  const auto error = [](const char* name, const char* output) {
    return error_of([&] { Preset(name, ParseFormat(output)); });
  };
  EXPECT_NE(error("h100-fp8", "fp16").find("no known rule"), std::string::npos);
  EXPECT_NE(error("deepseek-promoted", "fp16").find("no known rule"), std::string::npos);
  EXPECT_NE(error("cdna1-fp16", "fp16").find("which AMD's units do not give"), std::string::npos);
  EXPECT_NE(error("h100-bf16", "fp16").find("must be fp32"), std::string::npos);
  EXPECT_NE(error("rtx-blackwell-mxfp8", "fp16").find("must be fp32"), std::string::npos);
  EXPECT_NE(error("h100-fp16", "bf16").find("fp32 or fp16, got bf16"), std::string::npos);
  EXPECT_NE(error("k80", "fp32").find("unknown preset 'k80'; there are v100, a100"),
            std::string::npos);
}

}  // namespace
}  // namespace cpd
