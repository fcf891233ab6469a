// SPDX-License-Identifier: Apache-2.0
//
// Checks that every transport must pass. All ranks of a group call the same check at the same time,
// each with its own TransportEnd. A message that does not arrive within a minute fails the check.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpd/comm/transport/transport.h"
#include "cpd/spec/error.h"
#include "tests/testing/refusal.h"

namespace cpd::testing {

/// The memory that holds messages: the host's, unless a test provides functions for a GPU's memory.
struct MessageMemory {
  std::function<std::shared_ptr<void>(std::int64_t)> allocate = [](std::int64_t bytes) {
    return std::shared_ptr<void>(new std::uint8_t[static_cast<std::size_t>(bytes) + 1],
                                 [](void* p) { delete[] static_cast<std::uint8_t*>(p); });
  };
  std::function<void(void*, const void*, std::size_t)> write = std::memcpy;  ///< from the host
  std::function<void(void*, const void*, std::size_t)> read = std::memcpy;   ///< to the host
};

/// The transport of one rank of a group, and the memory of that rank's messages.
struct TransportEnd {
  Transport& transport;
  MessageMemory memory{};
};

/// Returns the bytes of message `number` from rank `from` to rank `to`. The bytes differ for each
/// message.
inline std::vector<std::uint8_t> message_bytes(int from, int to, int number, std::int64_t bytes) {
  std::vector<std::uint8_t> data(static_cast<std::size_t>(bytes));
  std::uint64_t state = static_cast<std::uint64_t>(from) << 40 |
                        static_cast<std::uint64_t>(to) << 20 | static_cast<std::uint64_t>(number);
  for (std::size_t i = 0; i < data.size(); i += 8) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t mixed = state ^ state >> 29;
    std::memcpy(data.data() + i, &mixed, std::min<std::size_t>(8, data.size() - i));
  }
  return data;
}

inline std::string to_text(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += " " + std::to_string(rank);
  return text.empty() ? " none" : text;
}

/// Polls until done() is true. Throws if that takes longer than `patience`.
template <class Function>
void await(const std::string& what, Function done,
           std::chrono::seconds patience = std::chrono::seconds(60)) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("in vain: " + what);
    std::this_thread::yield();
  }
}

/// The messages of one Start, with their memory. Finish waits for them and checks the received
/// bytes.
class Messages {
 public:
  Messages(const TransportEnd& end, int number) : end_(end), number_(number) {}

  void Send(int peer, std::int64_t bytes) {
    const auto data = message_bytes(end_.transport.rank(), peer, number_, bytes);
    const auto memory = end_.memory.allocate(bytes);
    end_.memory.write(memory.get(), data.data(), data.size());
    kept_.push_back(memory);
    out_.push_back({peer, memory.get(), bytes});
  }
  void Receive(int peer, std::int64_t bytes) {
    kept_.push_back(end_.memory.allocate(bytes));
    in_.push_back({peer, kept_.back().get(), bytes});
  }
  void Start(int tag) { transfer_ = end_.transport.Start(out_, in_, tag); }
  [[nodiscard]] Transfer& transfer() const { return *transfer_; }
  void Finish(std::chrono::seconds patience = std::chrono::seconds(60)) {
    await(
        "message " + std::to_string(number_) + " on rank " + std::to_string(end_.transport.rank()),
        [&] { return transfer_->Poll(); }, patience);
    EXPECT_EQ(to_text(transfer_->Waiting()), to_text({}));
    EXPECT_TRUE(transfer_->Poll()) << "done stays done";
    for (const Incoming& message : in_) {
      std::vector<std::uint8_t> got(static_cast<std::size_t>(message.bytes));
      end_.memory.read(got.data(), message.data, got.size());
      EXPECT_TRUE(got == message_bytes(message.peer, end_.transport.rank(), number_, message.bytes))
          << "message " << number_ << " of " << message.bytes << " bytes from rank " << message.peer
          << " to rank " << end_.transport.rank();
    }
  }
  /// Ends the transfer before all messages have arrived. Never frees the messages' memory, to which
  /// the transport may still write.
  void Abandon() {
    static std::mutex mutex;
    static auto& for_ever = *new std::vector<std::shared_ptr<void>>();
    transfer_.reset();
    const std::lock_guard<std::mutex> lock(mutex);
    for_ever.insert(for_ever.end(), kept_.begin(), kept_.end());
  }

 private:
  TransportEnd end_;
  int number_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<Outgoing> out_;
  std::vector<Incoming> in_;
  std::unique_ptr<Transfer> transfer_;
};

/// Adds to `exchange` one message to and one message from every other rank. The length of a message
/// is `bytes`, plus the number of the sending rank if `varied` is true.
inline void exchange_with_all(Messages& exchange, const Transport& transport, std::int64_t bytes,
                              bool varied = true) {
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    exchange.Send(peer, bytes + (varied ? transport.rank() : 0));
    exchange.Receive(peer, bytes + (varied ? peer : 0));
  }
}

inline void check_ends(const TransportEnd& end, const std::string& name, int size) {
  EXPECT_EQ(end.transport.name(), name);
  EXPECT_EQ(end.transport.size(), size);
  EXPECT_GE(end.transport.rank(), 0);
  EXPECT_LT(end.transport.rank(), size);
  EXPECT_EQ(end.transport.ranks_on_host(), size);
}

/// Checks messages between all pairs at once, with lengths from empty to long.
inline void check_sizes(const TransportEnd& end) {
  int number = 0;
  for (const std::int64_t bytes : {0, 1, 3, 4093, 65536, 5000000}) {
    for (const bool varied : {false, true}) {
      Messages exchange(end, ++number);
      exchange_with_all(exchange, end.transport, bytes, varied);
      exchange.Start(number);
      exchange.Finish();
    }
  }
  Messages nothing(end, ++number);
  nothing.Start(0);
  nothing.Finish();
}

/// Checks messages to the next rank and from the previous one, then a message between two ranks in
/// one direction.
inline void check_some_peers(const TransportEnd& end) {
  const int size = end.transport.size();
  const int rank = end.transport.rank();
  if (size < 2) return;
  Messages ring(end, 1);
  ring.Send((rank + 1) % size, 1001);
  ring.Receive((rank + size - 1) % size, 1001);
  ring.Start(0);
  ring.Finish();
  Messages pair(end, 2);
  if (rank == 0) pair.Send(size - 1, 12345);
  if (rank == size - 1) pair.Receive(0, 12345);
  pair.Start(32767);
  pair.Finish();
}

/// Starts messages with many tags, and waits for the first one last.
inline void check_many_tags(const TransportEnd& end) {
  constexpr int count = 64;
  std::vector<std::unique_ptr<Messages>> exchanges;
  for (int i = 0; i < count; ++i) {
    exchanges.push_back(std::make_unique<Messages>(end, i));
    exchange_with_all(*exchanges.back(), end.transport, 1 + i * 997 % 30000);
    exchanges.back()->Start(i * 511);
  }
  for (int i = count - 1; i >= 0; --i) exchanges[static_cast<std::size_t>(i)]->Finish();
}

/// Checks that messages with equal tags arrive in the order in which they were started.
inline void check_equal_tags(const TransportEnd& end) {
  constexpr int count = 12;
  std::vector<std::unique_ptr<Messages>> exchanges;
  for (int i = 0; i < count; ++i) {
    exchanges.push_back(std::make_unique<Messages>(end, i));
    exchange_with_all(*exchanges.back(), end.transport, 200000 / (i * i + 1));
    exchanges.back()->Start(5);
  }
  for (auto& exchange : exchanges) exchange->Finish();
}

/// Checks that Waiting() names the last rank, which sends nothing until rank 0 tells it to.
/// Transports that know only whether a transfer as a whole is complete cannot pass this check.
inline void check_waiting(const TransportEnd& end) {
  const int last = end.transport.size() - 1;
  const int rank = end.transport.rank();
  if (last == 0) return;
  Messages gather(end, 1);
  Messages go(end, 2);
  if (rank == 0) {
    for (int peer = 1; peer <= last; ++peer) gather.Receive(peer, 70000);
    gather.Start(1);
    await("all but the last rank", [&] {
      EXPECT_FALSE(gather.transfer().Poll());
      return gather.transfer().Waiting() == std::vector<int>{last};
    });
    go.Send(last, 10);
    go.Start(2);
    go.Finish();
  } else {
    if (rank == last) {
      go.Receive(0, 10);
      go.Start(2);
      go.Finish();
    }
    gather.Send(0, 70000);
    gather.Start(1);
  }
  gather.Finish();
}

/// Checks that wrong arguments are refused, and that no transfer is in progress afterwards.
inline void check_refusals(const TransportEnd& end) {
  Transport& transport = end.transport;
  const int size = transport.size();
  std::uint8_t byte = 0;
  for (const int peer : {-1, size, transport.rank()}) {
    const std::vector<Outgoing> out{{peer, &byte, 1}};
    const std::vector<Incoming> in{{peer, &byte, 1}};
    const std::string refused = "peer must be another rank, 0…" + std::to_string(size - 1) +
                                ", got " + std::to_string(peer) + " on rank " +
                                std::to_string(transport.rank());
    EXPECT_REFUSAL(refused, transport.Start(out, {}, 0));
    EXPECT_REFUSAL(refused, transport.Start({}, in, 0));
  }
  for (const int tag : {-1, 32768}) {
    EXPECT_REFUSAL("tag must be 0…32767, got " + std::to_string(tag), transport.Start({}, {}, tag));
  }
}

/// Rank 0 gives up on a message that nobody sends and raises the alarm; all ranks must see it. Then
/// checks a new group of all ranks, and two groups within it, of the even and of the odd ranks.
inline void check_alarm(const TransportEnd& end) {
  Transport& transport = end.transport;
  const int size = transport.size();
  if (size < 2) return;
  EXPECT_EQ(transport.Alarms(), std::vector<bool>(static_cast<std::size_t>(size), false));
  check_equal_tags(end);  // until all have looked
  Messages in_vain(end, 1);
  if (transport.rank() == 0) {
    in_vain.Receive(1, 5000);
    in_vain.Start(1);
    EXPECT_FALSE(in_vain.transfer().Poll());
    EXPECT_EQ(to_text(in_vain.transfer().Waiting()), to_text({1}));
    in_vain.Abandon();
    transport.RaiseAlarm();
  }
  std::vector<bool> expected(static_cast<std::size_t>(size), false);
  expected[0] = true;
  await("rank 0's alarm", [&] { return transport.Alarms() == expected; });

  std::vector<int> everyone(static_cast<std::size_t>(size));
  std::iota(everyone.begin(), everyone.end(), 0);
  const std::unique_ptr<Transport> all = transport.Subgroup(everyone, 30);
  EXPECT_EQ(all->rank(), transport.rank());
  EXPECT_EQ(all->size(), size);
  EXPECT_EQ(all->Alarms(), std::vector<bool>(static_cast<std::size_t>(size), false));
  const TransportEnd all_end{*all, end.memory};
  check_equal_tags(all_end);
  std::vector<int> half;
  for (int rank = transport.rank() % 2; rank < size; rank += 2) half.push_back(rank);
  const std::unique_ptr<Transport> some = all->Subgroup(half, 30);
  EXPECT_EQ(some->rank(), transport.rank() / 2);
  EXPECT_EQ(some->size(), static_cast<int>(half.size()));
  check_equal_tags({*some, end.memory});
  check_waiting(all_end);  // the groups do not disturb each other
}

/// Checks that Subgroup refuses lists of ranks that are invalid or lack this rank, and that a group
/// of this rank alone can be made.
inline void check_subgroup_refusals(const TransportEnd& end) {
  Transport& transport = end.transport;
  const int size = transport.size();
  const int rank = transport.rank();
  using Ranks = std::vector<int>;
  for (const Ranks& ranks :
       {Ranks{}, Ranks{rank, rank}, Ranks{rank, size}, Ranks{-1, rank}, Ranks{(rank + 1) % size}}) {
    if (ranks == Ranks{rank}) continue;  // W = 1
    EXPECT_THROW((void)transport.Subgroup(ranks, 1), Error) << to_text(ranks);
  }
  const std::unique_ptr<Transport> alone = transport.Subgroup(Ranks{rank}, 1);
  EXPECT_EQ(alone->rank(), 0);
  EXPECT_EQ(alone->size(), 1);
  EXPECT_EQ(alone->ranks_on_host(), 1);
}

/// Checks that a message of unexpected length is an error that names both lengths and the sender
/// (here from rank 0 to rank 1). Later messages must arrive. Transports that do not transmit a
/// message's length cannot pass this check.
inline void check_other_length(const TransportEnd& end) {
  if (end.transport.size() < 2) return;
  for (const std::int64_t sent : {5, 900, 200000}) {
    for (const std::int64_t due : {sent - 1, sent + 1, 2 * sent}) {
      Messages odd(end, 1);
      if (end.transport.rank() == 0) odd.Send(1, sent);
      if (end.transport.rank() == 1) odd.Receive(0, due);
      odd.Start(9);
      std::string what = "no error";
      const auto is_over = [&] {
        try {
          return odd.transfer().Poll();
        } catch (const TransportError& error) {
          EXPECT_EQ(error.peer, 0);
          what = error.what();
          return true;
        }
      };
      await("a message of another length", is_over);
      if (end.transport.rank() == 1) {
        EXPECT_NE(what.find(std::to_string(sent) + " bytes came from rank 0"), std::string::npos)
            << what;
        EXPECT_NE(what.find("one of " + std::to_string(due) + " was due"), std::string::npos)
            << what;
      }
      check_equal_tags(end);
    }
  }
}

/// Checks a message from rank 0 to rank 1 with more bytes than an int can count.
inline void check_huge(const TransportEnd& end) {
  constexpr std::int64_t bytes = (std::int64_t{1} << 31) + 12345;
  if (end.transport.rank() > 1 || end.transport.size() < 2) return;
  Messages exchange(end, 1);
  if (end.transport.rank() == 0) exchange.Send(1, bytes);
  if (end.transport.rank() == 1) exchange.Receive(0, bytes);
  exchange.Start(3);
  exchange.Finish(std::chrono::minutes(10));
}

}  // namespace cpd::testing
