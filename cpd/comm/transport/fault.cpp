// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/transport/fault.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>

#include "cpd/spec/error.h"

namespace cpd {
namespace {

std::mutex g_mutex;
FaultHook g_hook;
std::atomic<bool> g_hooked{false};

using Switch = std::shared_ptr<std::atomic<bool>>;

class BreakableTransfer final : public Transfer {
 public:
  BreakableTransfer(std::unique_ptr<Transfer> inner, std::set<int> peers, Switch broken)
      : inner_(std::move(inner)), peers_(std::move(peers)), broken_(std::move(broken)) {}

  bool Poll() override {
    if (*broken_) return false;
    return inner_ == nullptr || inner_->Poll();
  }
  [[nodiscard]] std::vector<int> Waiting() const override {
    if (!*broken_ && inner_ != nullptr) return inner_->Waiting();
    return {peers_.begin(), peers_.end()};
  }

 private:
  std::unique_ptr<Transfer> inner_;  // null: started when the link was down
  std::set<int> peers_;
  Switch broken_;
};

class BreakableTransport final : public Transport {
 public:
  explicit BreakableTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] int ranks_on_host() const override { return inner_->ranks_on_host(); }
  [[nodiscard]] Device memory() const override { return inner_->memory(); }
  [[nodiscard]] int device_index() const override { return inner_->device_index(); }

  std::unique_ptr<Transfer> Start(std::span<const Outgoing> out, std::span<const Incoming> in,
                                  int tag) override {
    std::set<int> peers;
    for (const Outgoing& message : out) peers.insert(message.peer);
    for (const Incoming& message : in) peers.insert(message.peer);
    auto transfer = *broken_ ? nullptr : inner_->Start(out, in, tag);
    return std::make_unique<BreakableTransfer>(std::move(transfer), std::move(peers), broken_);
  }
  void RaiseAlarm() noexcept override {
    if (!*broken_) inner_->RaiseAlarm();
  }
  [[nodiscard]] std::vector<bool> Alarms() override {
    if (!*broken_) return inner_->Alarms();
    std::vector<bool> own(static_cast<std::size_t>(size()));
    own[static_cast<std::size_t>(rank())] = true;
    return own;
  }
  [[nodiscard]] int alarm_keeper() const override { return inner_->alarm_keeper(); }
  std::unique_ptr<Transport> Subgroup(std::span<const int> ranks, double timeout) override {
    if (*broken_) throw Error("this rank's link is down");
    return Breakable(inner_->Subgroup(ranks, timeout));
  }
  [[noreturn]] void Abort(const std::string& reason) noexcept override {
    inner_->Abort(reason);
    std::abort();  // for compilers that do not see that it never returns
  }

  void Break() { *broken_ = true; }

 private:
  std::unique_ptr<Transport> inner_;
  Switch broken_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace

void SetFaultHook(FaultHook hook) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_hooked = hook != nullptr;
  g_hook = std::move(hook);
}

void Enter(Phase phase, std::int64_t chunk, Transport& transport) {
  if (!g_hooked) return;
  FaultHook hook;
  {
    const std::lock_guard<std::mutex> lock(g_mutex);
    hook = g_hook;
  }
  if (hook) hook(phase, chunk, transport);
}

std::unique_ptr<Transport> Breakable(std::unique_ptr<Transport> transport) {
  return std::make_unique<BreakableTransport>(std::move(transport));
}

void Break(Transport& transport) {
  auto* breakable = dynamic_cast<BreakableTransport*>(&transport);
  if (breakable == nullptr) throw Error("only the link of a Breakable transport can be dropped");
  breakable->Break();
}

}  // namespace cpd
