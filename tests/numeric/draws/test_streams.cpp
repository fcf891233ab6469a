// SPDX-License-Identifier: Apache-2.0
//
// Tests that each purpose of random numbers has the stream number that cpd/numeric/draws/streams.h
// documents.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "cpd/numeric/draws/streams.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

TEST(Streams, PurposesHaveTheContractsNumbers) {
  const std::map<std::string_view, int> expected{{"given", 0},
                                                 {"wire", 1},
                                                 {"sum", 2},
                                                 {"result", 3},
                                                 {"grad_input", 4},
                                                 {"grad_weight", 5},
                                                 {"grad_bias", 6},
                                                 {"cast_activation", 8},
                                                 {"cast_weight", 9},
                                                 {"cast_gradient", 10},
                                                 {"cast_output", 11},
                                                 {"tangent_input", 12},
                                                 {"tangent_weight", 13},
                                                 {"recast_weight", 7},
                                                 {"recast_activation", 14},
                                                 {"recast_gradient", 15}};
  std::map<std::string_view, int> got;
  for (const auto& [name, purpose] : kPurposes) got[name] = static_cast<int>(purpose);
  EXPECT_EQ(got, expected);
  for (const auto& [name, number] : got) EXPECT_LT(number, 16) << name << " has four bits";
}

TEST(Streams, OfACollectiveArePurposeStepLayerPosition) {
  EXPECT_EQ(StreamOf(Purpose::wire, 0, 0, 0), std::uint64_t{1} << 60);
  EXPECT_EQ(StreamOf(Purpose::sum, 5, 7, 9),
            std::uint64_t{2} << 60 | std::uint64_t{5} << 36 | 7U << 20 | 9U);
  EXPECT_EQ(StreamOf(Purpose::result, (1U << 24) - 1, kMostLayers - 1, kAcross),
            0x3FFFFFFFFFFFFFFFU);
  EXPECT_EQ(StreamFrom(StreamOf(Purpose::sum, 5, 0, 0), 7, 9), StreamOf(Purpose::sum, 5, 7, 9));
}

TEST(Streams, OfALayerAreTheGivenOneTagged) {
  EXPECT_EQ(StreamTag(Purpose::given, 0), 0U);
  EXPECT_EQ(StreamTag(Purpose::cast_output, 4), std::uint64_t{11} << 60 | 4U << 20);
  EXPECT_EQ(StreamTag(Purpose::tangent_weight, kMostLayers - 1),
            std::uint64_t{13} << 60 | std::uint64_t{0xFFFF} << 20);
}

TEST(Streams, NeverMeet) {
  std::set<std::uint64_t> seen;
  std::size_t made = 0;
  for (const auto& [name, purpose] : kPurposes) {
    const bool collective = purpose >= Purpose::wire && purpose <= Purpose::result;
    for (const std::int64_t layer : {0, 1, 65535}) {
      if (!collective) {
        for (const std::uint64_t step : {0U, 1U, 77U}) {
          seen.insert((step << 36) ^ StreamTag(purpose, layer));
          ++made;
        }
        continue;
      }
      for (const std::uint64_t step : {0U, 1U, 77U}) {
        for (const std::int64_t position : {std::int64_t{0}, std::int64_t{1}, kAcross}) {
          seen.insert(StreamOf(purpose, step, layer, position));
          ++made;
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), made);
}

TEST(Streams, RefuseWhatHasNoPlace) {
  const auto what = [](auto call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(what([] { StreamOf(Purpose::wire, 1U << 24, 0, 0); }),
            "step must be below 2^24, got 16777216");
  EXPECT_EQ(what([] { StreamOf(Purpose::wire, 0, 1 << 16, 0); }),
            "a reduction takes at most 2^16 tensors, got 65537");
  EXPECT_EQ(what([] { StreamOf(Purpose::wire, 0, 0, 1 << 20); }),
            "a reduction takes at most 2^20 ranks, got 1048577");
  for (const std::int64_t layer : {std::int64_t{-1}, kMostLayers}) {
    EXPECT_EQ(what([&] { StreamTag(Purpose::grad_input, layer); }),
              "layer must be 0…2^16 - 1, got " + std::to_string(layer));
  }
}

}  // namespace
}  // namespace cpd
