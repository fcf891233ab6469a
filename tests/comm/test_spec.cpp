// SPDX-License-Identifier: Apache-2.0
//
// Tests the texts and checks of an all-reduce's description: printing, parsing, and options that
// exclude each other. Tests also which sums may stall (become too large for a further term to
// change them).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpd/comm/spec.h"
#include "cpd/compress/codecs.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// Returns the text of the error that Check throws for a spec; empty if it accepts the spec.
std::string objection(const std::function<void(Reduce&)>& change) {
  Reduce spec;
  change(spec);
  try {
    Check(spec);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Returns the text of the error for a text that is parsed as an all-reduce; empty if it is valid.
std::string refusal(std::string_view text, const std::vector<Option>& keys = {}) {
  try {
    (void)Make<Reduce>(text, keys);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string wire_of(const Reduce& spec) { return spec.wire == nullptr ? "" : spec.wire->text(); }

TEST(ReduceText, SaysWhatTheFieldsSay) {
  const Reduce spec = ParseReduce(
      "e4m3 aps=paper accumulator='e5m10 kahan' order=ring exchange=hierarchical group_size=16 "
      "average divide=before rounding=stochastic overflow=saturate random_bits=8 variant=B "
      "result=bf16");
  EXPECT_EQ(spec.format, ParseFormat("e4m3"));
  EXPECT_EQ(spec.wire, nullptr);
  EXPECT_EQ(spec.accumulator.format, ParseFormat("fp16"));
  EXPECT_EQ(spec.accumulator.scheme, Scheme::kahan);
  EXPECT_EQ(spec.order, Order::ring);
  EXPECT_EQ(spec.exchange, Exchange::hierarchical);
  EXPECT_EQ(spec.group_size, 16);
  EXPECT_EQ(spec.aps, Aps::paper);
  EXPECT_EQ(spec.loss_scale, 1);
  EXPECT_TRUE(spec.average);
  EXPECT_EQ(spec.divide, Divide::before);
  EXPECT_EQ(spec.rounding.mode, Rounding::stochastic);
  EXPECT_EQ(spec.rounding.overflow, Overflow::saturate);
  EXPECT_EQ(spec.rounding.random_bits, 8);
  EXPECT_EQ(spec.rounding.variant, Variant::B);
  EXPECT_EQ(spec.result, ParseFormat("bf16"));
  EXPECT_EQ(ToString(spec),
            "e4m3 accumulator='fp16 kahan' order=ring exchange=hierarchical group_size=16 "
            "aps=paper average divide=before rounding=stochastic overflow=saturate random_bits=8 "
            "variant=B result=bf16");
}

TEST(ReduceText, GoesThereAndBack) {
  for (const auto& [text, canonical] : std::vector<std::pair<const char*, const char*>>{
           {"e4m3", "e4m3"},
           {"(4, 3) aps=true", "e4m3 aps"},
           {"e4m3 aps accumulator='e5m10 kahan'", "e4m3 accumulator='fp16 kahan' aps"},
           {"aps e4m3 accumulator=\"e4m3\" average=false", "e4m3 aps"},
           {"e4m3 order=tree result=e4m3 loss_scale=1", "e4m3 order=tree"},
           {"fp32 loss_scale=1024", "fp32 loss_scale=1024"},
           {"e4m3\tloss_scale=0x1p-126", nullptr},
           {"e4m3\nloss_scale=1.1754943508222875e-38", "e4m3 loss_scale=1.1754943508222875e-38"},
           {"fp32 accumulator=e4m3 result=e4m3", "fp32 accumulator='e4m3 sequential' result=e4m3"},
           {"mxfp8", "mxfp8"},
           {"mxfp8 accumulator=fp32 overflow=saturate result=bf16", "mxfp8 result=bf16"},
           {"mxfp8 overflow=ieee rounding=stochastic", "mxfp8 rounding=stochastic overflow=ieee"},
           {"int8 block=64 order=ring", "int8 64 order=ring"},
           {"qsgd bits=4 bucket=512 random_bits=9", "qsgd bits=4 bucket=512 random_bits=9"},
           {"feedback 'qsgd bits=2' aps=false", "feedback qsgd bits=2 bucket=512"},
           {"top_k 0.01 e4m3 aps exchange=gather", "top_k 0.01 e4m3 exchange=gather aps"},
       }) {
    if (canonical == nullptr) {
      EXPECT_NE(refusal(text), "") << text;
      continue;
    }
    const Reduce spec = ParseReduce(text);
    EXPECT_EQ(ToString(spec), canonical);
    const Reduce again = ParseReduce(ToString(spec));
    EXPECT_EQ(ToString(again), canonical);
    EXPECT_EQ(FieldsOf(again), FieldsOf(spec)) << text;
    EXPECT_EQ(wire_of(again), wire_of(spec)) << text;
  }
  EXPECT_EQ(ToString(Reduce{}), "fp32");
}

TEST(ReduceText, TheWireRoundsAsTheKeysSay) {
  const RoundingOptions rounding{
      .mode = Rounding::stochastic, .overflow = Overflow::saturate, .random_bits = 8};
  EXPECT_EQ(wire_of(ParseReduce("mxfp8 rounding=stochastic random_bits=8")),
            MakeCodec("mxfp8", rounding)->text());
  const Reduce spec = ParseReduce("qsgd bits=4 random_bits=8");
  EXPECT_EQ(wire_of(spec), MakeCodec("qsgd bits=4", {.random_bits = 8})->text());
  EXPECT_EQ(spec.accumulator.format, kFp32);
  EXPECT_EQ(spec.result, kFp32);
}

TEST(ReduceText, KeysReplaceThoseOfTheText) {
  EXPECT_EQ(ToString(Make<Reduce>("e4m3 aps order=ring group_size=4",
                                  std::vector<Option>{{"order", "tree"}, {"aps", "false"}})),
            "e4m3 order=tree group_size=4");
  EXPECT_EQ(
      refusal("e4m3", {{"wire", "e5m2"}}).find("unknown option 'wire' of an all-reduce; there are"),
      0U);
}

TEST(ReduceText, ErrorsNameWhatIsAllowed) {
  const std::string keys =
      "accumulator, order, exchange, group_size, aps, loss_scale, average, divide, rounding, "
      "overflow, random_bits, variant, result";
  for (const auto& [text, told] : std::vector<std::pair<std::string, std::string>>{
           {"e4m3 xyz=1", "unknown option 'xyz' of an all-reduce; there are " + keys},
           {"mxfp8 groupsize=2", "unknown option 'groupsize' of an all-reduce; there are " + keys +
                                     "; did you mean 'group_size'?"},
           {"e4m3 seed=3",
            "an all-reduce has no seed: give it to the call, cpd.simulate_all_reduce(…, seed=…), "
            "in place of 'e4m3 seed=3'"},
           {"e4m3 aps aps", "aps is given twice in 'e4m3 aps aps'"},
           {"e4m3 group_size",
            "group_size needs a value, as in group_size=…, in 'e4m3 group_size'"},
           {"e4m3 group_size=two", "group_size must be an integer, got 'two'"},
           {"e4m3 group_size=0", "group_size must be at least 1, got 0"},
           {"e4m3 aps=maybe", "aps must be false, true or paper, got 'maybe'"},
           {"e4m3 average=1", "average must be false or true, got '1'"},
           {"e4m3 order=rign",
            "order must be sequential, ring or tree, got 'rign'; did you mean 'ring'?"},
           {"e4m3 loss_scale=3", "loss_scale must be a power of two from 2^-126 to 2^126, got 3"},
           {"e4m3 loss_scale=2^4",
            "loss_scale must be a power of two from 2^-126 to 2^126, got 2^4"},
           {"e4m3 accumulator='fp32", "a quote is not closed in 'e4m3 accumulator='fp32'"},
           {"e4m3 random_bits=8",
            "random_bits=8 has no effect with rounding=nearest_even: random_bits= and variant= are "
            "for rounding=stochastic"},
           {"e4m3 accumulator=h100-fp8",
            "the scheme of a sum must be sequential, kahan, chunked or pairwise, got 'block_fma', "
            "which is for cpd.gemm"},
           {"e4m3 accumulator=int32",
            "the scheme of a sum must be sequential, kahan, chunked or pairwise, got 'fixed', "
            "which is for cpd.gemm and cpd.sum"},
           {"qsgd bits=4 rounding=up",
            "rounding is an option of a cast, which codec 'qsgd bits=4 bucket=512' is not; got "
            "'up'"},
       }) {
    EXPECT_EQ(refusal(text), told) << text;
  }
  EXPECT_NE(refusal(""), "");
}

TEST(Reduce, NamesGoThereAndBack) {
  for (const Order order : {Order::sequential, Order::ring, Order::tree}) {
    EXPECT_EQ(ParseOrder(ToString(order)), order);
  }
  for (const Exchange exchange :
       {Exchange::owner, Exchange::gather, Exchange::ring, Exchange::hierarchical}) {
    EXPECT_EQ(ParseExchange(ToString(exchange)), exchange);
  }
  EXPECT_THROW(ParseOrder("owner"), Error);
  EXPECT_THROW(ParseExchange("tree"), Error);
}

TEST(Reduce, OptionsThatExcludeEachOther) {
  using S = Reduce;
  EXPECT_EQ(objection([](S&) {}), "");
  EXPECT_EQ(objection([](S& s) { s.order = Order::tree; }), "");
  for (const Scheme scheme : {Scheme::kahan, Scheme::chunked, Scheme::pairwise}) {
    const std::string told = objection([&](S& s) {
      s.order = Order::tree;
      s.accumulator.scheme = scheme;
    });
    EXPECT_NE(told.find("tree"), told.npos);
    EXPECT_NE(told.find(ToString(scheme)), told.npos) << told;
  }
  for (const Exchange exchange : {Exchange::ring, Exchange::hierarchical}) {
    const bool grouped = exchange == Exchange::hierarchical;
    const auto with = [&](Order order, int group, Scheme scheme) {
      return objection([&](S& s) {
        s.exchange = exchange;
        s.order = order;
        s.group_size = group;
        s.accumulator.scheme = scheme;
      });
    };
    for (const Scheme scheme : {Scheme::sequential, Scheme::kahan, Scheme::chunked}) {
      EXPECT_EQ(with(Order::ring, grouped ? 4 : 0, scheme), "");
    }
    EXPECT_NE(with(Order::ring, grouped ? 0 : 4, Scheme::sequential), "");
    EXPECT_NE(with(Order::sequential, grouped ? 4 : 0, Scheme::sequential), "");
    EXPECT_NE(with(Order::tree, grouped ? 4 : 0, Scheme::sequential), "");
    EXPECT_NE(with(Order::ring, grouped ? 4 : 0, Scheme::pairwise), "");
  }
  EXPECT_NE(objection([](S& s) { s.group_size = -1; }), "");
  EXPECT_NE(objection([](S& s) { s.loss_scale = 3; }), "");
  for (const int exponent : {-126, 126}) {
    EXPECT_EQ(objection([&](S& s) { s.loss_scale = std::ldexp(1.0, exponent); }), "") << exponent;
  }
  for (const int exponent : {-127, 127}) {
    EXPECT_NE(objection([&](S& s) { s.loss_scale = std::ldexp(1.0, exponent); }), "") << exponent;
  }
  EXPECT_NE(objection([](S& s) { s.loss_scale = 2, s.aps = Aps::on; }), "");
}

TEST(Reduce, GroupsAreAtMostTheRanks) {
  Reduce spec;
  spec.group_size = 16;
  EXPECT_NO_THROW(Check(spec));
  EXPECT_NO_THROW(Check(spec, 16));
  EXPECT_NO_THROW(Check(spec, 17));  // the last group is short
  EXPECT_THROW(Check(spec, 15), Error);
  EXPECT_THROW(Check(spec, 0), Error);
  try {
    Check(spec, 3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "group_size must be 1…3 (the ranks), got 16");
  }
}

TEST(Reduce, OfAFormatSumsInIt) {
  const Format e4m3 = ParseFormat("e4m3");
  const Reduce spec{e4m3};
  EXPECT_EQ(spec.format, e4m3);
  EXPECT_EQ(spec.accumulator.format, e4m3);
  EXPECT_EQ(spec.result, e4m3);
  EXPECT_EQ(ToString(spec.accumulator), "e4m3 sequential");
  EXPECT_TRUE(MayStall(spec, 17));
  EXPECT_EQ(Reduce{}.accumulator.format, kFp32);
}

TEST(Reduce, SumsThatStall) {
  Reduce spec;
  spec.accumulator.format = ParseFormat("e4m3");  // 16 ones stall
  EXPECT_FALSE(MayStall(spec, 16));
  EXPECT_TRUE(MayStall(spec, 17));
  spec.group_size = 8;
  EXPECT_FALSE(MayStall(spec, 128));
  EXPECT_TRUE(MayStall(spec, 129));  // 17 groups
  spec.group_size = 17;
  EXPECT_TRUE(MayStall(spec, 17));
  EXPECT_FALSE(MayStall(spec, 16));
  spec.group_size = 0;
  spec.order = Order::tree;
  EXPECT_FALSE(MayStall(spec, 1000));
  spec.order = Order::ring;
  EXPECT_TRUE(MayStall(spec, 1000));
  spec.accumulator.scheme = Scheme::kahan;
  EXPECT_FALSE(MayStall(spec, 1000));
  spec.accumulator.scheme = Scheme::sequential;
  spec.accumulator.rounding.mode = Rounding::stochastic;
  EXPECT_FALSE(MayStall(spec, 1000));
  spec = Reduce{};
  EXPECT_FALSE(MayStall(spec, 1 << 20));
}

}  // namespace
}  // namespace cpd
