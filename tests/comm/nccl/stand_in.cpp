// SPDX-License-Identifier: Apache-2.0
//
// Tests the NCCL transport with an emulation of libnccl that uses host memory. spawn.py starts
// several processes, and each runs the same tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <vector>

#include "cpd/comm/all_reduce.h"
#include "tests/testing/bits.h"
#include "tests/testing/codec_ranks.h"
#include "tests/testing/nccl_world.h"
#include "tests/testing/reduce.h"
#include "tests/testing/refusal.h"
#include "tests/testing/transport_checks.h"

namespace cpd::testing {
namespace {

TEST(NcclTransport, Ends) {
  const auto transport = open_nccl("ends");
  EXPECT_EQ(transport->name(), "nccl");
  EXPECT_EQ(transport->rank(), nccl_rank());
  EXPECT_EQ(transport->size(), nccl_size());
  EXPECT_EQ(transport->memory(), Device::cpu);
  EXPECT_TRUE(transport->Alarms().empty());
}

TEST(NcclTransport, Messages) {
  const auto transport = open_nccl("messages");
  const TransportEnd end{*transport};
  check_sizes(end);
  check_some_peers(end);
  check_many_tags(end);
  check_equal_tags(end);
}

TEST(NcclTransport, Refusals) {
  const auto transport = open_nccl("refusals");
  check_refusals({*transport});
  EXPECT_REFUSAL(
      "NCCL makes no group of the ranks that are left: give them a new MakeNcclId by other means "
      "and open a transport with it",
      transport->Subgroup(std::array{nccl_rank()}, 1));
  const NcclId id{};
  EXPECT_REFUSAL("rank must be 0 … size - 1, got rank 2 of 2",
                 NcclTransport(id, 2, 2, -1, nullptr, 1));
  EXPECT_REFUSAL("rank must be 0 … size - 1, got rank 0 of 0",
                 NcclTransport(id, 0, 0, -1, nullptr, 1));
  const std::string refused = refusal_of([&] { (void)NcclTransport(id, 0, 1, -2, nullptr, 1); });
  EXPECT_TRUE(refused.starts_with("device_index must be -1 (host memory) or below ")) << refused;
  EXPECT_TRUE(refused.ends_with(", the number of GPUs, got -2")) << refused;
  EXPECT_THROW((void)NcclTransport(id, 0, 1, 1000, nullptr, 1), Error);  // no host has 1001 GPUs
  check_equal_tags({*transport});
}

TEST(NcclTransport, GroupThatDoesNotComeAbout) {
  const auto together = open_nccl("together");
  const NcclId id = MakeNcclId();  // nobody else knows it
  EXPECT_REFUSAL("NCCL: not all of 2 ranks joined the group in time",
                 NcclTransport(id, 0, 2, -1, nullptr, 0.2));
  check_equal_tags({*together});
}

TEST(NcclTransport, AllReduceIsThatOfTheVirtualRanks) {
  const auto world = static_cast<std::size_t>(nccl_size());
  const auto rank = static_cast<std::size_t>(nccl_rank());
  Communicator comm(open_nccl("all-reduce"), {.timeout = 60, .chunk = 1000});
  const Ranks ranks = random_ranks(world, {1, 0, 257, 5000}, 17);
  for (const Exchange exchange :
       {Exchange::owner, Exchange::gather, Exchange::ring, Exchange::hierarchical}) {
    Reduce spec;
    spec.format = spec.result = spec.accumulator.format = ParseFormat("e4m3");
    spec.accumulator.scheme = Scheme::kahan;
    spec.aps = Aps::on;
    spec.order = Order::ring;
    spec.exchange = exchange;
    spec.group_size = exchange == Exchange::hierarchical ? std::min(2, nccl_size()) : 0;
    Layers out = ranks[rank];
    std::vector<TensorView> x;
    std::vector<TensorView> sums;
    for (std::size_t l = 0; l < out.size(); ++l) {
      x.push_back(view_of(ranks[rank][l]));
      sums.push_back(view_of(out[l]));
    }
    comm.AllReduce(x, sums, spec);
    const Layers expected = virtual_reduce(spec, ranks);
    for (std::size_t l = 0; l < out.size(); ++l) {
      EXPECT_TRUE(bits_equal(std::span<const float>(expected[l]), std::span<const float>(out[l])))
          << ToString(exchange) << ", layer " << l;
    }
  }
}

TEST(NcclTransport, MessagesOfAnySize) {
  Communicator comm(open_nccl("any-size"), {.timeout = 60, .chunk = 1000});
  check_codec(comm);
}

TEST(NcclTransport, SilentPeerThenNewGroup) {
  if (nccl_size() < 2) GTEST_SKIP() << "one process waits for nobody";
  auto transport = open_nccl("silent");
  {
    const TransportEnd end{*transport};
    Messages in_vain(end, 1);
    if (nccl_rank() == 0) {
      in_vain.Receive(1, 5000);
      in_vain.Start(1);
      EXPECT_FALSE(in_vain.transfer().Poll());
      EXPECT_EQ(to_text(in_vain.transfer().Waiting()), to_text({1}));
      in_vain.Abandon();
      Messages after(end, 2);
      after.Send(1, 10);
      EXPECT_THROW(after.Start(2), TransportError) << "the group was given up";
    } else {  // rank 0 ends the group before it takes anything
      Messages to_nobody(end, 1);
      to_nobody.Receive(0, 100);
      EXPECT_THROW(
          {
            to_nobody.Start(1);
            to_nobody.Finish();
          },
          TransportError);
      to_nobody.Abandon();
    }
  }
  transport.reset();
  const auto fresh = open_nccl("fresh");
  check_equal_tags({*fresh});
}

}  // namespace
}  // namespace cpd::testing
