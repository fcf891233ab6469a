// SPDX-License-Identifier: Apache-2.0
//
// Local ranks whose messages are in a device's memory.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpd/comm/transport/local.h"
#include "tests/testing/accelerator.h"
#include "tests/testing/ranks.h"

namespace cpd::testing {

/// Messages in the device's memory, copied from there and to there.
class CopyingTransfer final : public Transfer {
 public:
  CopyingTransfer(const Accelerator& driver, Transport& inner, std::span<const Outgoing> out,
                  std::span<const Incoming> in, int tag)
      : driver_(driver), in_(in.begin(), in.end()) {
    std::vector<Outgoing> from;
    std::vector<Incoming> to;
    for (const Outgoing& message : out) {
      memory_.emplace_back(static_cast<std::size_t>(message.bytes));
      driver.ToHost(memory_.back().data(), message.data, memory_.back().size());
      from.push_back({message.peer, memory_.back().data(), message.bytes});
    }
    for (const Incoming& message : in) {
      arriving_.emplace_back(static_cast<std::size_t>(message.bytes));
      to.push_back({message.peer, arriving_.back().data(), message.bytes});
    }
    inner_ = inner.Start(from, to, tag);
  }
  bool Poll() override {
    if (!inner_->Poll()) return false;
    for (std::size_t i = 0; i < in_.size(); ++i) {
      driver_.ToDevice(in_[i].data, arriving_[i].data(), arriving_[i].size());
    }
    in_.clear();
    return true;
  }
  [[nodiscard]] std::vector<int> Waiting() const override { return inner_->Waiting(); }

 private:
  const Accelerator& driver_;
  std::vector<std::vector<std::uint8_t>> memory_, arriving_;
  std::vector<Incoming> in_;
  std::unique_ptr<Transfer> inner_;
};

class BetweenDevices final : public Transport {
 public:
  BetweenDevices(const Accelerator& driver, std::unique_ptr<Transport> inner)
      : driver_(driver), inner_(std::move(inner)) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] int ranks_on_host() const override { return inner_->ranks_on_host(); }
  [[nodiscard]] Device memory() const override { return driver_.kind(); }
  std::unique_ptr<Transfer> Start(std::span<const Outgoing> out, std::span<const Incoming> in,
                                  int tag) override {
    return std::make_unique<CopyingTransfer>(driver_, *inner_, out, in, tag);
  }
  void RaiseAlarm() noexcept override { inner_->RaiseAlarm(); }
  [[nodiscard]] std::vector<bool> Alarms() override { return inner_->Alarms(); }
  std::unique_ptr<Transport> Subgroup(std::span<const int> ranks, double timeout) override {
    return std::make_unique<BetweenDevices>(driver_, inner_->Subgroup(ranks, timeout));
  }
  [[noreturn]] void Abort(const std::string& /*reason*/) noexcept override { std::abort(); }

 private:
  const Accelerator& driver_;
  std::unique_ptr<Transport> inner_;
};

inline Transports between_devices(const Accelerator& driver, int world) {
  Transports ends;
  for (auto& end : LocalTransports(world)) {
    ends.push_back(std::make_unique<BetweenDevices>(driver, std::move(end)));
  }
  return ends;
}

}  // namespace cpd::testing
