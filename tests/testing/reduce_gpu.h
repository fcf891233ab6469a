// SPDX-License-Identifier: Apache-2.0
//
// Reductions of layers in a GPU's memory, over local ranks that share the GPU: messages in the
// host's memory, or in the GPU's.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpd/comm/all_reduce.h"
#include "cpd/comm/transport/local.h"
#include "cpd/compress/codec.h"
#include "tests/testing/bits.h"
#include "tests/testing/cuda_memory.h"
#include "tests/testing/reduce.h"

namespace cpd::testing {

/// Layers in the GPU's memory.
class LayersOnGpu {
 public:
  LayersOnGpu(const Accelerator& driver, const Layers& layers) : layers_(layers) {
    for (const auto& layer : layers_) {
      memory_.push_back(std::make_unique<OnGpu>(driver, layer.data(), 4 * layer.size()));
      views_.push_back(memory_.back()->View(view_of(layer), layer.data()));
    }
  }
  [[nodiscard]] const std::vector<TensorView>& views() const { return views_; }
  [[nodiscard]] const Layers& Read() {
    for (std::size_t l = 0; l < layers_.size(); ++l) memory_[l]->Read(layers_[l].data());
    return layers_;
  }

 private:
  Layers layers_;
  std::vector<std::unique_ptr<OnGpu>> memory_;
  std::vector<TensorView> views_;
};

/// Messages in the GPU's memory, copied from there and to there.
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

/// Layers of these sizes, for results.
inline Layers blank(const std::vector<std::int64_t>& sizes) {
  Layers layers;
  for (const std::int64_t n : sizes) layers.emplace_back(static_cast<std::size_t>(n), -12345.0F);
  return layers;
}

class BetweenGpus final : public Transport {
 public:
  BetweenGpus(const Accelerator& driver, std::unique_ptr<Transport> inner)
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
    return std::make_unique<BetweenGpus>(driver_, inner_->Subgroup(ranks, timeout));
  }
  [[noreturn]] void Abort(const std::string& /*reason*/) noexcept override { std::abort(); }

 private:
  const Accelerator& driver_;
  std::unique_ptr<Transport> inner_;
};

inline std::vector<std::unique_ptr<Transport>> between_gpus(const Accelerator& driver, int world) {
  std::vector<std::unique_ptr<Transport>> ends;
  for (auto& end : LocalTransports(world)) {
    ends.push_back(std::make_unique<BetweenGpus>(driver, std::move(end)));
  }
  return ends;
}

class ReduceGpu : public GpuTest {
 protected:
  /// Runs work(communicator) on a thread for each end; what it threw, else nothing.
  static std::vector<std::string> OnRanks(std::vector<std::unique_ptr<Transport>> ends,
                                          const std::function<void(Communicator&)>& work) {
    std::vector<std::string> failures(ends.size());
    std::vector<std::thread> threads;
    threads.reserve(ends.size());
    for (std::size_t r = 0; r < ends.size(); ++r) {
      threads.emplace_back([&, r] {
        try {
          CommOptions options;
          options.timeout = 60;
          options.chunk = 50000;
          Communicator comm(std::move(ends[r]), options);
          work(comm);
        } catch (const std::exception& error) {
          failures[r] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return failures;
  }

  /// Ranks' layers and results in the GPU's memory, the same where `in_place`, each rank a thread.
  void ExpectVirtual(const Reduce& spec, const Ranks& ranks,
                     std::vector<std::unique_ptr<Transport>> ends, bool in_place = false) const {
    SCOPED_TRACE(ToString(spec.exchange) + ", order " + ToString(spec.order) + ", groups of " +
                 std::to_string(spec.group_size) + ", W = " + std::to_string(ranks.size()) + ", " +
                 ToString(spec.format) + " " + ToString(spec.rounding.mode) + " -> " +
                 ToString(spec.accumulator) + " -> " + ToString(spec.result) + " over " +
                 ends[0]->name());
    std::vector<TensorReport> reports;
    const Layers expected = virtual_reduce(spec, ranks, &reports, kCall);
    std::vector<Layers> results(ranks.size());
    std::vector<ReduceReport> theirs(ranks.size());
    const auto failures = OnRanks(std::move(ends), [&](Communicator& comm) {
      const auto r = static_cast<std::size_t>(comm.rank());
      LayersOnGpu x(driver(), ranks[r]);
      LayersOnGpu out(driver(), in_place ? Layers() : blank(sizes_of(ranks[r])));
      LayersOnGpu& to = in_place ? x : out;
      theirs[r] = comm.AllReduce(x.views(), to.views(), spec, true, kCall);
      results[r] = to.Read();
    });
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      ASSERT_EQ(failures[r], "");
      for (std::size_t l = 0; l < expected.size(); ++l) {
        const TensorReport& report = theirs[r].layers[l];
        EXPECT_TRUE(
            bits_equal(std::span<const float>(expected[l]), std::span<const float>(results[r][l])))
            << "layer " << l << " on rank " << r;
        EXPECT_EQ(report.shift, reports[l].shift);
        EXPECT_EQ(report.non_finite, reports[l].non_finite);
        EXPECT_EQ(report.underflowed, reports[l].underflowed);
        EXPECT_EQ(report.overflowed, reports[l].overflowed);
        EXPECT_EQ(report.values, reports[l].values);
        EXPECT_EQ(report.zeros, reports[l].zeros);
        EXPECT_EQ(report.bytes, reports[l].bytes);
        EXPECT_EQ(report.bits, reports[l].bits);
        const bool is_staged = spec.wire != nullptr && spec.wire->kernels() != KernelSupport::all;
        const auto bytes = static_cast<std::int64_t>(8 * expected[l].size());
        EXPECT_EQ(report.staged_bytes, is_staged ? bytes : 0);
      }
    }
  }
};

}  // namespace cpd::testing
