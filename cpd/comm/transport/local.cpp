// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/transport/local.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// One rank's request to send or to receive a message. The rank and the Hub share ownership of the
/// End, because the rank may give up before the Hub finds the other rank's matching End.
struct End {
  const void* from = nullptr;  // a sender's
  void* to = nullptr;          // a receiver's
  std::int64_t bytes = 0;
  std::int64_t came = -1;  // a receiver's: the bytes of the message that was matched
  bool done = false;
  bool abandoned = false;
};

/// The state that all ranks of a group share. Sends and receives with equal (from, to, tag) are
/// matched in order. The rank that completes a match copies the bytes.
class Hub {
 public:
  explicit Hub(int size) : size_(size), alarms_(static_cast<std::size_t>(size)) {}

  [[nodiscard]] int size() const { return size_; }

  void Post(int from, int to, int tag, const std::shared_ptr<End>& end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Queue& queue = queues_[{from, to, tag}];
    (end->to == nullptr ? queue.senders : queue.receivers).push_back(end);
    while (!queue.senders.empty() && !queue.receivers.empty()) {
      Meet(*queue.senders.front(), *queue.receivers.front());
      queue.senders.pop_front();
      queue.receivers.pop_front();
    }
    if (queue.senders.empty() && queue.receivers.empty()) queues_.erase({from, to, tag});
  }
  /// Returns whether the message that `end` sends or receives was copied. Throws TransportError if
  /// the message that came from `peer` has another length than expected.
  bool IsDone(const End& end, int peer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (end.done && end.came >= 0 && end.came != end.bytes) {
      throw TransportError("a message of " + std::to_string(end.came) + " bytes came from rank " +
                               std::to_string(peer) + " where one of " + std::to_string(end.bytes) +
                               " was due",
                           peer);
    }
    return end.done;
  }
  void Abandon(End& end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    end.abandoned = true;
  }

  void RaiseAlarm(int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    alarms_[static_cast<std::size_t>(rank)] = true;
  }
  std::vector<bool> Alarms() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return alarms_;
  }

  /// Returns the hub (shared state) of a subgroup. The first rank of the subgroup that calls this
  /// function makes the hub. All ranks of the subgroup get the same hub.
  std::shared_ptr<Hub> Subgroup(const std::vector<int>& ranks, int asking) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [members, hub, taken] : subgroups_) {
      if (members == ranks && taken.insert(asking).second) return hub;
    }
    subgroups_.push_back({ranks, std::make_shared<Hub>(static_cast<int>(ranks.size())), {asking}});
    return subgroups_.back().hub;
  }

 private:
  struct Queue {
    std::deque<std::shared_ptr<End>> senders, receivers;
  };
  struct Sub {
    std::vector<int> ranks;
    std::shared_ptr<Hub> hub;
    std::set<int> taken;
  };

  static void Meet(End& sender, End& receiver) {
    if (sender.abandoned || receiver.abandoned) return;
    receiver.came = sender.bytes;
    if (sender.bytes == receiver.bytes) {
      std::memcpy(receiver.to, sender.from, static_cast<std::size_t>(sender.bytes));
    }
    sender.done = true;
    receiver.done = true;
  }

  int size_;
  std::mutex mutex_;
  std::map<std::tuple<int, int, int>, Queue> queues_;
  std::vector<bool> alarms_;
  std::vector<Sub> subgroups_;
};

class LocalTransfer final : public Transfer {
 public:
  explicit LocalTransfer(std::shared_ptr<Hub> hub) : hub_(std::move(hub)) {}
  LocalTransfer(const LocalTransfer&) = delete;
  LocalTransfer& operator=(const LocalTransfer&) = delete;
  ~LocalTransfer() override {
    for (const auto& [peer, end] : ends_) hub_->Abandon(*end);
  }

  void Add(int peer, std::shared_ptr<End> end) { ends_.emplace_back(peer, std::move(end)); }

  bool Poll() override {
    while (!ends_.empty()) {
      const auto done = std::ranges::find_if(
          ends_, [&](const auto& end) { return hub_->IsDone(*end.second, end.first); });
      if (done == ends_.end()) break;
      ends_.erase(done);
    }
    return ends_.empty();
  }
  [[nodiscard]] std::vector<int> Waiting() const override {
    std::set<int> peers;
    for (const auto& [peer, end] : ends_) peers.insert(peer);
    return {peers.begin(), peers.end()};
  }

 private:
  std::shared_ptr<Hub> hub_;
  std::vector<std::pair<int, std::shared_ptr<End>>> ends_;
};

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  [[nodiscard]] std::string name() const override { return "local"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return hub_->size(); }
  [[nodiscard]] int ranks_on_host() const override { return hub_->size(); }

  std::unique_ptr<Transfer> Start(std::span<const Outgoing> out, std::span<const Incoming> in,
                                  int tag) override {
    CheckStart(*this, out, in, tag);
    auto transfer = std::make_unique<LocalTransfer>(hub_);
    for (const Incoming& message : in) {
      if (message.bytes == 0) continue;
      auto end = std::make_shared<End>(End{nullptr, message.data, message.bytes});
      transfer->Add(message.peer, end);
      hub_->Post(message.peer, rank_, tag, end);
    }
    for (const Outgoing& message : out) {
      if (message.bytes == 0) continue;
      auto end = std::make_shared<End>(End{message.data, nullptr, message.bytes});
      transfer->Add(message.peer, end);
      hub_->Post(rank_, message.peer, tag, end);
    }
    return transfer;
  }

  void RaiseAlarm() noexcept override { hub_->RaiseAlarm(rank_); }
  [[nodiscard]] std::vector<bool> Alarms() override { return hub_->Alarms(); }

  std::unique_ptr<Transport> Subgroup(std::span<const int> ranks, double /*timeout*/) override {
    const int place = CheckSubgroup(*this, ranks);
    const std::vector<int> members(ranks.begin(), ranks.end());
    return std::make_unique<LocalTransport>(hub_->Subgroup(members, rank_), place);
  }

  [[noreturn]] void Abort(const std::string& reason) noexcept override {
    std::fprintf(stderr, "cpd: rank %d aborts: %s\n", rank_, reason.c_str());
    _exit(1);
  }

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> LocalTransports(int size) {
  if (size < 1) throw Error("a group has at least 1 rank, got " + std::to_string(size));
  const auto hub = std::make_shared<Hub>(size);
  std::vector<std::unique_ptr<Transport>> ends;
  ends.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    ends.push_back(std::make_unique<LocalTransport>(hub, rank));
  }
  return ends;
}

}  // namespace cpd
