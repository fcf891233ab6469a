// SPDX-License-Identifier: Apache-2.0
//
// Local ranks whose messages are in a device's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cpd/comm/transport/local.h"
#include "tests/testing/accelerator.h"
#include "tests/testing/devices.h"
#include "tests/testing/faulty_transports.h"
#include "tests/testing/ranks.h"

namespace cpd::testing {

/// A transfer whose messages are in the device's memory. Copies them to and from the host for the
/// inner transport.
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

class BetweenDevices final : public ForwardingTransport {
 public:
  BetweenDevices(const Accelerator& driver, std::unique_ptr<Transport> inner)
      : ForwardingTransport(std::move(inner)), driver_(driver) {}
  [[nodiscard]] Device memory() const override { return driver_.kind(); }
  std::unique_ptr<Transfer> Start(std::span<const Outgoing> out, std::span<const Incoming> in,
                                  int tag) override {
    return std::make_unique<CopyingTransfer>(driver_, *inner_, out, in, tag);
  }
  std::unique_ptr<Transport> Subgroup(std::span<const int> ranks, double timeout) override {
    return std::make_unique<BetweenDevices>(driver_, inner_->Subgroup(ranks, timeout));
  }

 private:
  const Accelerator& driver_;
};

/// A test with ranks whose layers are on a device.
class RanksOnDevice : public OnDevice {
 protected:
  /// Null: the CPU.
  [[nodiscard]] const Accelerator* device() const { return on_host() ? nullptr : &driver(); }
  /// Returns a transport for each of `world` ranks, which are threads of this process. Messages are
  /// in the device's memory if `on_device` is true, else in the host's memory.
  [[nodiscard]] Transports Ends(int world, bool on_device = false) const {
    Transports ends = LocalTransports(world);
    for (auto& end : ends) {
      if (!on_device || on_host()) break;
      end = std::make_unique<BetweenDevices>(driver(), std::move(end));
    }
    return ends;
  }
};

}  // namespace cpd::testing
