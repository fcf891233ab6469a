// SPDX-License-Identifier: Apache-2.0
//
// Transports with faults: a bit that changes, memory that runs out, or a link that drops.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cpd/comm/transport/fault.h"
#include "cpd/comm/transport/transport.h"

namespace cpd::testing {

/// A transport that forwards all calls to another one, for tests that change messages.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] int ranks_on_host() const override { return inner_->ranks_on_host(); }
  void RaiseAlarm() noexcept override { inner_->RaiseAlarm(); }
  [[nodiscard]] std::vector<bool> Alarms() override { return inner_->Alarms(); }
  std::unique_ptr<Transport> Subgroup(std::span<const int> ranks, double timeout) override {
    return inner_->Subgroup(ranks, timeout);
  }
  [[noreturn]] void Abort(const std::string& /*reason*/) noexcept override { std::abort(); }

 protected:
  std::unique_ptr<Transport> inner_;
};

/// The bit of a message that is to be changed.
struct Flip {
  std::int64_t message = 0;  ///< among the messages that arrive with bytes, by completion
  std::int64_t bit = 0;      ///< modulo the message's
  std::atomic<bool> done = false;
  std::atomic<std::int64_t> seen = 0;
};

class FlippingTransfer : public Transfer {
 public:
  FlippingTransfer(std::unique_ptr<Transfer> inner, std::vector<Incoming> in, Flip& flip)
      : inner_(std::move(inner)), in_(std::move(in)), flip_(flip) {}
  bool Poll() override {
    if (!inner_->Poll()) return false;
    for (const Incoming& message : in_) {
      if (message.bytes == 0 || flip_.seen++ != flip_.message) continue;
      const std::int64_t bit = flip_.bit % (8 * message.bytes);
      static_cast<std::uint8_t*>(message.data)[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
      flip_.done = true;
    }
    in_.clear();
    return true;
  }
  [[nodiscard]] std::vector<int> Waiting() const override { return inner_->Waiting(); }

 private:
  std::unique_ptr<Transfer> inner_;
  std::vector<Incoming> in_;
  Flip& flip_;
};

/// A transport that changes one bit in the messages that its rank receives.
class FlippingTransport : public ForwardingTransport {
 public:
  FlippingTransport(std::unique_ptr<Transport> inner, Flip& flip)
      : ForwardingTransport(std::move(inner)), flip_(flip) {}
  std::unique_ptr<Transfer> Start(std::span<const Outgoing> out, std::span<const Incoming> in,
                                  int tag) override {
    return std::make_unique<FlippingTransfer>(inner_->Start(out, in, tag),
                                              std::vector<Incoming>(in.begin(), in.end()), flip_);
  }

 private:
  Flip& flip_;
};

/// Sets a hook while the object lives. The hook is called when a rank enters a phase of a
/// reduction.
class Hooked {
 public:
  explicit Hooked(FaultHook hook) { SetFaultHook(std::move(hook)); }
  Hooked(const Hooked&) = delete;
  Hooked& operator=(const Hooked&) = delete;
  ~Hooked() { SetFaultHook({}); }
};

/// The memory of the messages that some transports have started.
struct Begun {
  std::mutex mutex;
  std::vector<Incoming> messages;
};

/// A transport whose Start records the messages it is given and then throws std::bad_alloc.
class OutOfMemory final : public ForwardingTransport {
 public:
  OutOfMemory(std::unique_ptr<Transport> inner, Begun& begun)
      : ForwardingTransport(std::move(inner)), begun_(begun) {}
  [[nodiscard]] std::string name() const override { return "out of memory"; }
  std::unique_ptr<Transfer> Start(std::span<const Outgoing> /*out*/, std::span<const Incoming> in,
                                  int /*tag*/) override {
    const std::lock_guard lock(begun_.mutex);
    begun_.messages.insert(begun_.messages.end(), in.begin(), in.end());
    throw std::bad_alloc();
  }

 private:
  Begun& begun_;
};

}  // namespace cpd::testing
