// SPDX-License-Identifier: Apache-2.0
#include "cpd/study/dry_run.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "cpd/comm/engine/exchanges.h"
#include "cpd/comm/engine/layout.h"
#include "cpd/comm/engine/link.h"
#include "cpd/comm/engine/message_ops.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// Returns operations that compute the sizes of messages but no values.
MessageOps SizesOf(const Reduction& reduction, int rank, bool in_fp32) {
  return {reduction, rank, {}, in_fp32, nullptr, {}};
}

/// A channel whose messages have a length but no memory. A transfer is done when it starts.
class CountingChannel final : public Channel {
 public:
  explicit CountingChannel(const std::function<void(const Moves&)>& moved) : moved_(moved) {}

  void Enter(Phase, std::int64_t) override {}
  [[nodiscard]] SharedMessage Take(std::int64_t bytes) override {
    auto message = std::make_shared<Message>();
    message->Resize(bytes);
    return message;
  }
  /// Sizes that depend on values are unknown without the values, so each message has its maximum
  /// size.
  Pending StartSizes(Phase, std::span<const Addressed>, std::span<const Addressed>) override {
    is_most_ = true;
    return {};
  }
  void TakeSizes(const Pending&, std::span<const Addressed>) override {}
  Pending Start(Phase, std::vector<Addressed> out, std::vector<Addressed> in) override {
    const auto moves = [](const std::vector<Addressed>& messages) {
      std::vector<Moves::Message> counted;
      counted.reserve(messages.size());
      for (const auto& [peer, message] : messages) counted.push_back({peer, message->bytes()});
      return counted;
    };
    moved_({moves(out), moves(in), is_most_});
    is_most_ = false;
    return {};
  }

 private:
  const std::function<void(const Moves&)>& moved_;
  bool is_most_ = false;  // of the next transfer
};

/// Throws Error if a size is negative, or unless 64 bits can count the bytes of all ranks' values.
void CheckSizes(int world, std::span<const std::int64_t> sizes) {
  std::int64_t values = 0;
  bool fits = true;
  for (const std::int64_t size : sizes) {
    if (size < 0) throw Error("a tensor's size must be at least 0, got " + std::to_string(size));
    fits = fits && !__builtin_add_overflow(values, size, &values);
  }
  constexpr std::int64_t kBytes = 64;  // more than a value and its share of headers ever are
  std::int64_t bytes = 0;
  if (!fits || __builtin_mul_overflow(values, kBytes * std::max(world, 1), &bytes)) {
    throw Error("tensors must have fewer than 2^57 values over all ranks together");
  }
}

Reduction Checked(const Reduce& spec, int world, std::span<const std::int64_t> sizes,
                  const TensorOptions& layers) {
  CheckSizes(world, sizes);
  return {spec, world, sizes, layers};
}

}  // namespace

DryRun::DryRun(const Reduce& spec, int world, std::span<const std::int64_t> sizes,
               const TensorOptions& layers, bool in_fp32)
    : sizes_(sizes.begin(), sizes.end()),
      reduction_(Checked(spec, world, sizes, layers)),
      in_fp32_(in_fp32) {}

int DryRun::slices() const {
  const std::function<void(const Moves&)> nobody;
  CountingChannel channel(nobody);
  const MessageOps ops = SizesOf(reduction_, 0, in_fp32_);
  return Exchanges(channel, ops, Delivery::to_all, 0).Slices();
}

std::int64_t DryRun::Run(int rank, std::int64_t chunk,
                         const std::function<void(const Moves&)>& moved) const {
  CountingChannel channel(moved);
  const MessageOps ops = SizesOf(reduction_, rank, in_fp32_);
  Exchanges exchanges(channel, ops, Delivery::to_all, 0);
  std::vector<std::int64_t> turns;
  for (std::size_t l = 0; l < sizes_.size(); ++l) {
    turns.push_back(reduction_.turn(static_cast<std::int64_t>(l)));
  }
  Layout layout(sizes_, exchanges.Slices(), chunk, reduction_.buckets(), turns);
  for (std::int64_t number = 0; !layout.done(); ++number) {
    Task task = exchanges.Run(number, layout.Next());
    while (!task.done()) task.Resume();
  }
  return exchanges.steps();
}

}  // namespace cpd
