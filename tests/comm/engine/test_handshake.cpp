// SPDX-License-Identifier: Apache-2.0
//
// Tests ranks that disagree about a call, and a rank that refuses a call. Every rank throws an
// error with the same text, and the next call works.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpd/comm/all_reduce.h"
#include "cpd/comm/transport/local.h"
#include "cpd/compress/codecs.h"
#include "tests/testing/ranks.h"

namespace cpd {
namespace {

using testing::blank;
using testing::expect_well;
using testing::Fate;
using testing::fate_of;
using testing::Layers;
using testing::on_ranks;
using testing::options_of;
using testing::sizes_of;
using testing::Transports;
using testing::views_of;

// ---- disagreements

/// The options of a call, apart from its spec and its layers.
struct Call {
  CommOptions options;
  TensorOptions numbers;
};

/// A change that makes the last rank's call differ from the other ranks' calls.
struct Otherwise {
  const char* name;
  std::function<void(Reduce&, Layers&, Call&)> change;
};

std::vector<Otherwise> disagreements() {
  using S = Reduce;
  using C = Call;
  return {
      {"a layer more", [](S&, Layers& x, C&) { x.emplace_back(4); }},
      {"a layer less", [](S&, Layers& x, C&) { x.pop_back(); }},
      {"a value more", [](S&, Layers& x, C&) { x[1].push_back(1); }},
      {"layers swapped", [](S&, Layers& x, C&) { std::swap(x[0], x[1]); }},
      {"format", [](S& s, Layers&, C&) { s.format = ParseFormat("e5m2"); }},
      {"rounding", [](S& s, Layers&, C&) { s.rounding.mode = Rounding::up; }},
      {"overflow", [](S& s, Layers&, C&) { s.rounding.overflow = Overflow::saturate; }},
      {"seed", [](S&, Layers&, C& c) { c.numbers.seed = 1; }},
      {"random bits", [](S& s, Layers&, C&) { s.rounding.random_bits = 8; }},
      {"accumulator's format", [](S& s, Layers&, C&) { s.accumulator.format = kFp32; }},
      {"scheme", [](S& s, Layers&, C&) { s.accumulator.scheme = Scheme::kahan; }},
      {"sum's rounding", [](S& s, Layers&, C&) { s.accumulator.rounding.mode = Rounding::down; }},
      {"result", [](S& s, Layers&, C&) { s.result = kFp32; }},
      {"order", [](S& s, Layers&, C&) { s.order = Order::tree; }},
      {"exchange", [](S& s, Layers&, C&) { s.exchange = Exchange::gather; }},
      {"groups", [](S& s, Layers&, C&) { s.group_size = 2; }},
      {"APS", [](S& s, Layers&, C&) { s.aps = Aps::on; }},
      {"loss scale", [](S& s, Layers&, C&) { s.loss_scale = 2; }},
      {"average", [](S& s, Layers&, C&) { s.average = true; }},
      {"divide", [](S& s, Layers&, C&) { s.divide = Divide::before; }},
      {"step", [](S&, Layers&, C& c) { c.numbers.step = 9; }},
      {"chunk", [](S&, Layers&, C& c) { c.options.chunk = 51; }},
  };
}

/// Expects that every rank throws a Mismatch with the same text, that no rank writes anything, and
/// that the next call works.
void expect_mismatch(int world, const char* name,
                     const std::function<void(Communicator&, Layers& out)>& disagree,
                     const std::function<CommOptions(int)>& options) {
  SCOPED_TRACE(name);
  Transports transports = LocalTransports(world);
  std::vector<Fate> fates(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      Communicator comm(std::move(transports[static_cast<std::size_t>(r)]), options(r));
      Layers out;
      fates[static_cast<std::size_t>(r)] = fate_of([&] { disagree(comm, out); });
      for (const auto& layer : out) {
        for (const float x : layer) EXPECT_EQ(x, -12345.0F);
      }
      EXPECT_EQ(comm.broken(), "");
      EXPECT_EQ(fate_of([&] { comm.Barrier(); }).what, "");
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Fate& fate : fates) {
    EXPECT_EQ(fate.kind, Fate::Kind::mismatch) << fate;
    EXPECT_EQ(fate.what, fates[0].what);
  }
}

TEST(AllReduce, DisagreementsAreTheSameErrorEverywhere) {
  for (const int world : {2, 5}) {
    for (const Otherwise& other : disagreements()) {
      const auto plain = [&](int) { return options_of(50, 20); };
      const auto changed = [&](int r) {
        Call call{plain(r), {}};
        Reduce spec;
        Layers x(4);
        x[1].resize(3);
        if (r == world - 1) other.change(spec, x, call);
        return call.options;
      };
      const auto disagree = [&](Communicator& comm, Layers& out) {
        Reduce spec;
        spec.format = spec.accumulator.format = spec.result = ParseFormat("e4m3");
        Layers x = testing::random_ranks(1, {10, 130, 7}, 1)[0];
        Call call;
        if (comm.rank() == world - 1) other.change(spec, x, call);
        out = blank(sizes_of(x));
        comm.AllReduce(views_of(x), views_of(out), spec, false, call.numbers);
      };
      expect_mismatch(world, other.name, disagree, changed);
    }
  }
}

TEST(AllReduce, NamesTheLayerWhoseSizeDiffers) {
  for (const std::int64_t differs : {-1, 1, 256}) {  // 256 leave a size's low byte as it is
    const auto fates = on_ranks(LocalTransports(2), options_of(50, 20), [&](Communicator& comm) {
      Layers x = blank({4, 300});
      if (comm.rank() == 1) x[1].resize(static_cast<std::size_t>(300 + differs));
      Layers out = x;
      TensorOptions layers;
      const std::vector<std::int64_t> numbers{7, 9};
      layers.numbers = numbers;
      comm.AllReduce(views_of(x), views_of(out), {}, false, layers);
    });
    for (const Fate& fate : fates) {
      EXPECT_EQ(fate.kind, Fate::Kind::mismatch) << fate;
      EXPECT_NE(fate.what.find("the size of tensor 9 is 300 on rank 0 and " +
                               std::to_string(300 + differs) + " on rank 1"),
                std::string::npos)
          << fate;
    }
  }
}

TEST(AllReduce, OtherCallsDisagree) {
  const Reduce spec;
  const Layers x = {{1, 2, 3, 4, 5, 6}};
  const auto plain = [](int) { return options_of(50, 20); };
  const auto reduce_to = [&](Communicator& comm, Layers& out, int root) {
    if (comm.rank() == root) out = blank({6});
    comm.Reduce(views_of(x), views_of(out), spec, root);
  };
  expect_mismatch(
      3, "root", [&](Communicator& c, Layers& out) { reduce_to(c, out, c.rank() == 2 ? 2 : 0); },
      plain);
  expect_mismatch(
      3, "AllReduce and Reduce",
      [&](Communicator& c, Layers& out) {
        if (c.rank() == 1) return reduce_to(c, out, 0);
        out = blank({6});
        c.AllReduce(views_of(x), views_of(out), spec);
      },
      plain);
  expect_mismatch(
      3, "AllReduce and ReduceScatter",
      [&](Communicator& c, Layers& out) {
        out = blank({c.rank() == 1 ? 2 : 6});
        if (c.rank() == 1) {
          c.ReduceScatter(views_of(x), views_of(out), spec);
        } else {
          c.AllReduce(views_of(x), views_of(out), spec);
        }
      },
      plain);
  expect_mismatch(
      3, "AllGather's format",
      [&](Communicator& c, Layers& out) {
        out = blank({18});
        c.AllGather(views_of(x), views_of(out), c.rank() == 2 ? ParseFormat("e4m3") : kFp32, {});
      },
      plain);
  expect_mismatch(
      3, "AllReduce and Barrier",
      [&](Communicator& c, Layers& out) {
        if (c.rank() == 0) return c.Barrier();
        out = blank({6});
        c.AllReduce(views_of(x), views_of(out), spec);
      },
      plain);
}

// ---- refusals

/// Returns the text of the Mismatch that a call throws.
std::string mismatch_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Mismatch& error) {
    return error.what();
  }
  return "no Mismatch";
}

/// The error names the seed or the step if the ranks differ in it. The error is the same if the
/// ranks use a codec.
TEST(AllReduce, NamesTheNumberThatDiffers) {
  for (const char* codec : {"", "qsgd bits=4 bucket=64"}) {
    for (const char* name : {"seed", "step"}) {
      Reduce spec;
      if (*codec != 0) spec.wire = MakeCodec(codec);
      std::vector<std::string> said(2);
      const auto fates = on_ranks(LocalTransports(2), options_of(50, 20), [&](Communicator& comm) {
        TensorOptions call{.seed = 3, .step = 4};
        if (comm.rank() == 1) (name[1] == 'e' ? call.seed : call.step) = 8;
        const Layers x = blank({4});
        Layers out = x;
        said[static_cast<std::size_t>(comm.rank())] =
            mismatch_of([&] { comm.AllReduce(views_of(x), views_of(out), spec, false, call); });
      });
      expect_well(fates);
      const char* const first = name[1] == 'e' ? "3" : "4";
      for (const std::string& text : said) {
        EXPECT_EQ(text, std::string("the ranks do not agree: ") + name + " is " + first +
                            " on rank 0 and 8 on rank 1");
      }
    }
  }
}

/// Lets rank 1 of three refuse a call for the reason `why`. Returns the error of the other two
/// ranks. All ranks must be able to continue.
std::string heard_of(const std::string& why) {
  std::array<std::string, 3> heard;
  expect_well(on_ranks(3, options_of(1 << 20), [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    const std::vector<float> x(5, 1.0F);
    std::vector<float> out(5);
    const std::array from{testing::view_of(x)};
    const std::array to{testing::view_of(out)};
    if (rank == 1) {
      comm.Refuse(why);
    } else {
      heard.at(rank) = mismatch_of([&] { comm.AllReduce(from, to, Reduce{}); });
    }
    EXPECT_EQ(comm.broken(), "");
    comm.AllReduce(from, to, Reduce{});
    EXPECT_EQ(out, std::vector<float>(5, 3.0F));
  }));
  EXPECT_EQ(heard[0], heard[2]);
  return heard[0];
}

TEST(Refusals, ReachTheOthersWhole) {
  const std::string lines = "two\nlines,\ta tab, … and \"quotes\"\n\n";
  for (const std::string& why : {std::string("out[0] must have 5 values, got 6"), lines,
                                 std::string(600, 'a') + "…", std::string(5000, 'b') + lines}) {
    EXPECT_EQ(heard_of(why), "rank 1 refuses: " + why);
  }
  for (const std::size_t length : {900, 1000, 1024, 1100, 1500}) {  // around what travels at once
    const std::string why = std::string(length, 'c') + "…";
    EXPECT_EQ(heard_of(why), "rank 1 refuses: " + why);
  }
  EXPECT_EQ(heard_of(std::string("a\0b", 3)), "rank 1 refuses: a b");
  EXPECT_EQ(heard_of(""), "rank 1 refuses: no reason was given");
}

TEST(Refusals, AreShortenedBetweenCharacters) {
  for (std::size_t shift = 0; shift < 4; ++shift) {
    std::string why(shift, 'x');
    for (int i = 0; i < 4000; ++i) why += "…";
    const std::string heard = heard_of(why);
    const std::string said = " … (shortened from " + std::to_string(why.size()) + " bytes)";
    ASSERT_TRUE(heard.ends_with(said)) << heard.substr(heard.size() - 60);
    const std::string kept = heard.substr(0, heard.size() - said.size());
    EXPECT_TRUE(("rank 1 refuses: " + why).starts_with(kept));
    EXPECT_EQ((kept.size() - std::string("rank 1 refuses: ").size() - shift) % 3, 0U);
    EXPECT_GT(kept.size(), 8000U);
  }
}

TEST(Refusals, OfAllRanksLeaveThemAsTheyWere) {
  expect_well(on_ranks(3, options_of(1 << 20), [](Communicator& comm) {
    comm.Refuse(std::string(static_cast<std::size_t>(3000 * comm.rank()), 'r'));
    EXPECT_EQ(mismatch_of([&] { comm.rank() == 2 ? comm.Refuse("late") : comm.Barrier(); }),
              comm.rank() == 2 ? "no Mismatch" : "rank 2 refuses: late");
    comm.Barrier();
  }));
}

}  // namespace
}  // namespace cpd
