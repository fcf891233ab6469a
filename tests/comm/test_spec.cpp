// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "cpd/comm/spec.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// What Check says of a spec; empty where it has no objection.
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
