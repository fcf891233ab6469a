// SPDX-License-Identifier: Apache-2.0
//
// Tests ranks that are threads of one process, with the checks that every transport must pass.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "cpd/comm/transport/local.h"
#include "tests/testing/transport_checks.h"

namespace cpd {
namespace {

using testing::TransportEnd;

/// Runs the check on every rank of a new group, each in its own thread. Records the text of each
/// failure.
void OnAllRanks(int size, const std::function<void(const TransportEnd&)>& check) {
  const auto ends = LocalTransports(size);
  std::vector<std::string> failures(ends.size());
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < ends.size(); ++r) {
    ranks.emplace_back([&, r] {
      try {
        check(TransportEnd{*ends[r]});
      } catch (const std::exception& error) {
        failures[r] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (std::size_t r = 0; r < failures.size(); ++r) {
    EXPECT_EQ(failures[r], "") << "rank " << r << " of " << size;
  }
}

class Local : public ::testing::TestWithParam<int> {};

TEST_P(Local, SaysWhoItIs) {
  OnAllRanks(GetParam(),
             [](const TransportEnd& end) { testing::check_ends(end, "local", GetParam()); });
}
TEST_P(Local, MovesMessagesOfAllSizes) { OnAllRanks(GetParam(), testing::check_sizes); }
TEST_P(Local, MovesMessagesToSomePeers) { OnAllRanks(GetParam(), testing::check_some_peers); }
TEST_P(Local, KeepsTagsApart) { OnAllRanks(GetParam(), testing::check_many_tags); }
TEST_P(Local, KeepsTheOrderOfEqualTags) { OnAllRanks(GetParam(), testing::check_equal_tags); }
TEST_P(Local, NamesTheSilentPeer) { OnAllRanks(GetParam(), testing::check_waiting); }
TEST_P(Local, RefusesBadMessages) { OnAllRanks(GetParam(), testing::check_refusals); }
TEST_P(Local, RefusesBadSubgroups) { OnAllRanks(GetParam(), testing::check_subgroup_refusals); }
TEST_P(Local, RefusesOtherLengths) { OnAllRanks(GetParam(), testing::check_other_length); }
TEST_P(Local, PassesAlarms) { OnAllRanks(GetParam(), testing::check_alarm); }

INSTANTIATE_TEST_SUITE_P(Sizes, Local, ::testing::Values(1, 2, 3, 4, 8));

TEST(LocalTransports, SubgroupsOfTheSameRanksAreApart) {
  const auto ends = LocalTransports(2);
  const std::vector<int> all{0, 1};
  std::vector<std::unique_ptr<Transport>> first, second;
  for (const auto& end : ends) first.push_back(end->Subgroup(all, 1));
  for (const auto& end : ends) second.push_back(end->Subgroup(all, 1));
  const std::uint8_t sent = 7;
  std::uint8_t got = 0;
  const std::vector<Outgoing> out{{1, &sent, 1}};
  const std::vector<Incoming> in{{0, &got, 1}};
  const auto sending = first[0]->Start(out, {}, 3);
  const auto other = second[1]->Start({}, in, 3);
  EXPECT_FALSE(other->Poll()) << "it was sent in the other subgroup";
  const auto receiving = first[1]->Start({}, in, 3);
  EXPECT_TRUE(receiving->Poll());
  EXPECT_TRUE(sending->Poll());
  EXPECT_EQ(got, sent);
}

TEST(LocalTransports, MemoryThatWasGivenUpIsNotWritten) {
  const auto ends = LocalTransports(2);
  const std::uint8_t sent = 7;
  std::uint8_t got = 0;
  const std::vector<Outgoing> out{{1, &sent, 1}};
  const std::vector<Incoming> in{{0, &got, 1}};
  ends[1]->Start({}, in, 3).reset();
  const auto sending = ends[0]->Start(out, {}, 3);
  EXPECT_EQ(got, 0);
}

}  // namespace
}  // namespace cpd
