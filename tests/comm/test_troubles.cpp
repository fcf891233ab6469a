// SPDX-License-Identifier: Apache-2.0
//
// Communicators in trouble, over local ranks: a rank that refuses its call, with texts of any
// length; memory that runs out while messages are being started; a broken communicator that is
// asked from another thread.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cpd/comm/all_reduce.h"
#include "cpd/comm/transport/local.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

CommOptions patient() {
  CommOptions options;
  options.timeout = 60;
  return options;
}

/// Runs work(rank's communicator) on one thread a rank; no exception may leave it.
void on_ranks(std::vector<std::unique_ptr<Transport>> transports, const CommOptions& options,
              const std::function<void(Communicator&)>& work) {
  std::vector<std::thread> threads;
  for (auto& transport : transports) {
    threads.emplace_back([&work, &options, &transport] {
      Communicator comm(std::move(transport), options);
      try {
        work(comm);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << comm.rank() << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// The text of the Mismatch that a call raises.
std::string mismatch_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Mismatch& error) {
    return error.what();
  }
  return "no Mismatch";
}

// ---- refusals -----------------------------------------------------------------------------------

bool ends_within_character(const std::string& text) {
  // A leading byte of UTF-8 at the end, or a run of others behind nothing.
  return !text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0U) == 0xC0U;
}

/// Rank 1 of three refuses for this reason; what the others then say. All go on.
std::string heard_of(const std::string& why) {
  std::array<std::string, 3> heard;
  on_ranks(LocalTransports(3), patient(), [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    const std::vector<float> x(5, 1.0F);
    std::vector<float> out(5);
    const std::array from{testing::view_of(x)};
    const std::array to{testing::view_of(out)};
    if (rank == 1) {
      comm.Refuse(why);
    } else {
      heard.at(rank) = mismatch_of([&] { comm.AllReduce(from, to, ReduceSpec{}); });
    }
    EXPECT_EQ(comm.broken(), "");
    comm.AllReduce(from, to, ReduceSpec{});
    EXPECT_EQ(out, std::vector<float>(5, 3.0F));
  });
  EXPECT_EQ(heard[0], heard[2]);
  return heard[0];
}

TEST(Refusals, ReachTheOthersWhole) {
  const std::string lines = "two\nlines,\ta tab, … and \"quotes\"\n\n";
  for (const std::string& why : {std::string("out[0] must have 5 values, got 6"), lines,
                                 std::string(600, 'a') + "…", std::string(5000, 'b') + lines}) {
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
    EXPECT_FALSE(ends_within_character(kept));
    EXPECT_GT(kept.size(), 8000U);
  }
}

TEST(Refusals, OfAllRanksLeaveThemAsTheyWere) {
  on_ranks(LocalTransports(3), patient(), [](Communicator& comm) {
    comm.Refuse(std::string(static_cast<std::size_t>(3000 * comm.rank()), 'r'));
    EXPECT_EQ(mismatch_of([&] { comm.rank() == 2 ? comm.Refuse("late") : comm.Barrier(); }),
              comm.rank() == 2 ? "no Mismatch" : "rank 2 refuses: late");
    comm.Barrier();
  });
}

// ---- memory -------------------------------------------------------------------------------------

/// Where messages were to lie that some transports have begun.
struct Begun {
  std::mutex mutex;
  std::vector<Incoming> messages;
};

/// Never moves anything, and says so; a Start after the first ones runs out of memory in the
/// middle.
class OutOfMemory final : public Transport {
 public:
  OutOfMemory(std::unique_ptr<Transport> inner, Begun& begun)
      : inner_(std::move(inner)), begun_(begun) {}
  [[nodiscard]] std::string name() const override { return "out of memory"; }
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] int ranks_on_host() const override { return inner_->ranks_on_host(); }
  std::unique_ptr<Transfer> Start(std::span<const Outgoing> /*out*/, std::span<const Incoming> in,
                                  int /*tag*/) override {
    const std::lock_guard lock(begun_.mutex);
    begun_.messages.insert(begun_.messages.end(), in.begin(), in.end());
    throw std::bad_alloc();
  }
  void RaiseAlarm() noexcept override { inner_->RaiseAlarm(); }
  [[nodiscard]] std::vector<bool> Alarms() override { return inner_->Alarms(); }
  std::unique_ptr<Transport> Subgroup(std::span<const int> ranks, double timeout) override {
    return inner_->Subgroup(ranks, timeout);
  }
  [[noreturn]] void Abort(const std::string& /*reason*/) noexcept override { std::abort(); }

 private:
  std::unique_ptr<Transport> inner_;
  Begun& begun_;
};

TEST(StartedMessages, KeepTheirMemoryWhereStartingFails) {
  Begun begun;
  {
    std::vector<std::unique_ptr<Transport>> ends = LocalTransports(2);
    Communicator comm(std::make_unique<OutOfMemory>(std::move(ends[0]), begun), patient());
    EXPECT_THROW(comm.Barrier(), std::bad_alloc);
    EXPECT_NE(comm.broken(), "");
    EXPECT_TRUE(ends[1]->Alarms()[0]) << "the other rank is told";
  }
  // The transport may still write there: nobody else has been given the memory since.
  ASSERT_FALSE(begun.messages.empty());
  std::vector<std::unique_ptr<std::uint8_t[]>> blocks;
  for (int i = 0; i < 2000; ++i) {
    for (const std::size_t bytes : {1152U, 1088U, 500U, 100U}) {
      blocks.emplace_back(new std::uint8_t[bytes]);
      const std::uint8_t* block = blocks.back().get();
      for (const Incoming& message : begun.messages) {
        const auto* room = static_cast<const std::uint8_t*>(message.data);
        const bool apart = block + bytes <= room || room + message.bytes <= block;
        ASSERT_TRUE(apart) << "memory of a started message was given away";
      }
    }
  }
  for (const Incoming& message : begun.messages) {  // and it is there, which a sanitizer checks
    std::fill_n(static_cast<std::uint8_t*>(message.data), message.bytes, std::uint8_t{7});
  }
}

// ---- asking meanwhile ---------------------------------------------------------------------------

TEST(BrokenCommunicators, MayBeAskedDuringACall) {  // a race that the thread sanitizer sees
  for (int round = 0; round < 20; ++round) {
    CommOptions options;
    options.timeout = 0.05;
    Communicator comm(std::move(LocalTransports(2)[0]), options);
    std::atomic<bool> over = false;
    std::thread asking([&] {
      while (!over) {
        const std::string why = comm.broken();
        EXPECT_TRUE(why.empty() || why.starts_with("rank 1 of 2 lost")) << why;
      }
    });
    EXPECT_THROW(comm.Barrier(), RankLost);
    over = true;
    asking.join();
    EXPECT_TRUE(comm.broken().starts_with("rank 1 of 2 lost"));
  }
}

}  // namespace
}  // namespace cpd
