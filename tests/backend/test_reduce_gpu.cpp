// SPDX-License-Identifier: Apache-2.0
//
// Reductions of layers in a GPU's memory give the virtual ranks' bits: over local ranks, which
// share the GPU, and over NCCL.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cpd/backend/cuda.h"
#include "cpd/comm/all_reduce.h"
#include "cpd/comm/engine/layout.h"
#include "cpd/comm/transport/libraries.h"
#include "cpd/comm/transport/local.h"
#include "cpd/compress/on_gpu.h"
#include "cpd/ops/reduce.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/codec_texts.h"
#include "tests/testing/cuda_memory.h"
#include "tests/testing/formats.h"
#include "tests/testing/reduce.h"

namespace cpd {
namespace {

using testing::CudaDriver;
using testing::Layers;
using testing::OnGpu;
using testing::Ranks;

/// Layers in the GPU's memory.
class LayersOnGpu {
 public:
  LayersOnGpu(const CudaDriver& driver, const Layers& layers) : layers_(layers) {
    for (const auto& layer : layers_) {
      memory_.push_back(std::make_unique<OnGpu>(driver, layer.data(), 4 * layer.size()));
      views_.push_back(memory_.back()->View(testing::view_of(layer), layer.data()));
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
  CopyingTransfer(const CudaDriver& driver, Transport& inner, std::span<const Outgoing> out,
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
  const CudaDriver& driver_;
  std::vector<std::vector<std::uint8_t>> memory_, arriving_;
  std::vector<Incoming> in_;
  std::unique_ptr<Transfer> inner_;
};

class BetweenGpus final : public Transport {
 public:
  BetweenGpus(const CudaDriver& driver, std::unique_ptr<Transport> inner)
      : driver_(driver), inner_(std::move(inner)) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] int ranks_on_host() const override { return inner_->ranks_on_host(); }
  [[nodiscard]] Device memory() const override { return Device::cuda; }
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
  const CudaDriver& driver_;
  std::unique_ptr<Transport> inner_;
};

std::vector<std::unique_ptr<Transport>> between_gpus(const CudaDriver& driver, int world) {
  std::vector<std::unique_ptr<Transport>> ends;
  for (auto& end : LocalTransports(world)) {
    ends.push_back(std::make_unique<BetweenGpus>(driver, std::move(end)));
  }
  return ends;
}

class ReduceGpu : public testing::GpuTest {
 protected:
  /// Ranks' layers and results in the GPU's memory, each rank a thread.
  void ExpectVirtual(const Reduce& spec, const Ranks& ranks,
                     std::vector<std::unique_ptr<Transport>> ends) const {
    SCOPED_TRACE(ToString(spec.exchange) + ", order " + ToString(spec.order) + ", groups of " +
                 std::to_string(spec.group_size) + ", W = " + std::to_string(ranks.size()) + ", " +
                 ToString(spec.format) + " " + ToString(spec.rounding.mode) + " -> " +
                 ToString(spec.accumulator) + " -> " + ToString(spec.result));
    std::vector<TensorReport> reports;
    const Layers expected = testing::virtual_reduce(spec, ranks, &reports, testing::kCall);
    std::vector<std::unique_ptr<LayersOnGpu>> x;
    std::vector<std::unique_ptr<LayersOnGpu>> out;
    for (const Layers& layers : ranks) {
      x.push_back(std::make_unique<LayersOnGpu>(driver(), layers));
      Layers blank = layers;
      for (auto& layer : blank) std::ranges::fill(layer, -12345.0F);
      out.push_back(std::make_unique<LayersOnGpu>(driver(), blank));
    }
    std::vector<std::string> failures(ranks.size());
    std::vector<ReduceReport> theirs(ranks.size());
    std::vector<std::thread> threads;
    threads.reserve(ranks.size());
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      threads.emplace_back([&, r] {
        try {
          CommOptions options;
          options.timeout = 60;
          options.chunk = 50000;
          Communicator comm(std::move(ends[r]), options);
          theirs[r] = comm.AllReduce(x[r]->views(), out[r]->views(), spec, true, testing::kCall);
        } catch (const std::exception& error) {
          failures[r] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      ASSERT_EQ(failures[r], "");
      const Layers& got = out[r]->Read();
      for (std::size_t l = 0; l < expected.size(); ++l) {
        const TensorReport& report = theirs[r].layers[l];
        EXPECT_TRUE(testing::bits_equal(std::span<const float>(expected[l]),
                                        std::span<const float>(got[l])))
            << "layer " << l << " on rank " << r;
        EXPECT_EQ(report.shift, reports[l].shift);
        EXPECT_EQ(report.non_finite, reports[l].non_finite);
        EXPECT_EQ(report.underflowed, reports[l].underflowed);
        EXPECT_EQ(report.overflowed, reports[l].overflowed);
        EXPECT_EQ(report.values, reports[l].values);
        EXPECT_EQ(report.zeros, reports[l].zeros);
        EXPECT_EQ(report.bytes, reports[l].bytes);
        EXPECT_EQ(report.bits, reports[l].bits);
        const CodecOnGpu* const codec = spec.wire == nullptr ? nullptr : spec.wire->on_gpu();
        const bool is_staged = spec.wire != nullptr && (codec == nullptr || !codec->encodes());
        const auto bytes = static_cast<std::int64_t>(8 * expected[l].size());
        EXPECT_EQ(report.staged_bytes, is_staged ? bytes : 0);
      }
    }
  }
};

/// Number `pick` of many specs, for so many ranks.
Reduce spec_of(std::size_t pick, int world) {
  constexpr std::array kFormats = {"e4m3", "e5m2", "e3m0",   "e2m1",
                                   "bf16", "fp16", "e4m3fn", "fp32"};
  constexpr std::array kSchemes = {Scheme::sequential, Scheme::kahan, Scheme::chunked,
                                   Scheme::pairwise};
  Reduce spec;
  spec.format = spec.accumulator.format = spec.result = ParseFormat(kFormats[pick % 8]);
  if (pick % 3 == 1) spec.accumulator.format = ParseFormat("e6m9");
  spec.accumulator.scheme = kSchemes[pick / 2 % 4];
  spec.order = std::array{Order::sequential, Order::ring, Order::tree}[pick % 3];
  if (spec.order == Order::tree) spec.accumulator.scheme = Scheme::sequential;
  if (spec.accumulator.scheme == Scheme::chunked) spec.accumulator.chunk = 2;
  const bool hops = spec.order == Order::ring && spec.accumulator.scheme != Scheme::pairwise;
  spec.group_size = world > 1 && pick % 4 == 3 ? 2 : 0;
  if (hops) spec.exchange = spec.group_size > 0 ? Exchange::hierarchical : Exchange::ring;
  if (!hops && pick % 5 == 0) spec.exchange = Exchange::gather;
  constexpr std::size_t kModes = testing::kDeterministicModes.size() + 1;
  const auto mode = [&](std::size_t which) {
    return which % kModes == 0 ? Rounding::stochastic
                               : testing::kDeterministicModes[which % kModes - 1];
  };
  spec.rounding.mode = mode(pick / 3);
  spec.accumulator.rounding.mode = mode(pick);
  spec.accumulator.rounding.random_bits = pick % 2 == 0 ? 8 : 24;
  if (pick % 2 == 1) spec.aps = Aps::on;
  spec.average = pick % 7 == 6;
  return spec;
}

TEST_F(ReduceGpu, LocalRanks) {
  for (const int world : {1, 2, 3, 5}) {
    const auto w = static_cast<std::size_t>(world);
    const std::size_t large = testing::kCudaOnCpu ? 5001 : 300000;
    const Ranks ranks = testing::random_ranks(w, {1, 0, 257, large / 4, 2047, large}, w);
    for (std::size_t pick = 0; pick < 84; ++pick) {
      if (!testing::is_chosen_on_cpu(84 * w + pick, 8)) continue;
      ExpectVirtual(spec_of(pick, world), ranks, LocalTransports(world));
    }
  }
}

/// Codes of 8 bits, summed to nearest-even one rank after the other: within the format and beyond
/// it, zeros of both signs, NaN and infinities, and segments that begin at any byte.
/// Ranks of which no sum exceeds a format of 4 bits: such formats have no NaN, and messages that
/// may meet one are fp32's.
Ranks small_ranks(int world, const std::vector<std::size_t>& sizes) {
  Ranks ranks = testing::random_ranks(static_cast<std::size_t>(world), sizes, 9);
  for (auto& layers : ranks) {
    for (auto& layer : layers) {
      for (float& x : layer) x = std::isfinite(x) ? std::fmod(x, 0.25F) : -0.0F;
    }
  }
  return ranks;
}

TEST_F(ReduceGpu, ShortFolds) {
  std::size_t pick = 0;
  for (const int world : {1, 2, 6, 9}) {
    Ranks ranks = testing::random_ranks(static_cast<std::size_t>(world), {1, 3, 0, 258, 1099}, 7);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      for (std::size_t i = 0; i < ranks[r][4].size(); ++i) {
        float& x = ranks[r][4][i];
        x = std::ldexp(x, static_cast<int>(i % 16) - 6);
        if (i % 5 == 0) x = i % 10 == 0 || r == 0 ? -0.0F : 0.0F;
        if (i % 7 == 0) x = i % 2 == 0 ? 1e-30F : -1e-30F;
        if (i % 61 == 3 && r == i % 2) x = i % 4 == 0 ? INFINITY : std::nanf("");
      }
    }
    for (const char* format : {"e4m3", "e5m2", "e4m3fn", "e5m2fnuz", "e2m5", "e6m1", "e3m0", "e2m1",
                               "bf16", "e5m10", "e6m9", "fp32", "e5m10:nosub", "e6m9fnuz"}) {
      for (const char* sums : {"", "e6m9", "fp32", "e5m10", "bf16", "e4m3", "e5m0"}) {
        const bool is_first = pick++ % 30 == 0;
        if (!is_first && !testing::is_chosen_on_cpu(pick, 16)) continue;
        Reduce spec;
        spec.format = ParseFormat(format);
        spec.accumulator.format = *sums == '\0' ? spec.format : ParseFormat(sums);
        if (pick % 2 == 0) spec.accumulator.scheme = Scheme::kahan;
        if (pick % 9 == 0) {
          spec.accumulator.scheme = Scheme::chunked;
          spec.accumulator.chunk = 2;
        }
        if (pick % 3 == 0 && world > 4) spec.group_size = 4;
        const bool hierarchical = spec.group_size > 0 && pick % 2 == 0;
        if (hierarchical || pick % 7 == 0) spec.order = Order::ring;
        spec.result =
            world == 6 ? ParseFormat(pick % 4 == 1 ? "e5m10" : "e3m2") : spec.accumulator.format;
        if (world == 9) spec.aps = Aps::on;
        spec.exchange = hierarchical ? Exchange::hierarchical
                        : world == 2 ? Exchange::gather
                                     : Exchange::owner;
        const Ranks small = small_ranks(world, {3, 258, 1099});
        ExpectVirtual(spec, spec.format.bits() == 4 ? small : ranks, LocalTransports(world));
      }
    }
    // First terms that are no numbers of the accumulator's format, or a zero that it has not; sums
    // of groups, whose terms are no numbers of that format, while those across groups are.
    for (const char* sums : {"e5m0", "e6m9fnuz", "fp32", "e3m2"}) {
      for (const Scheme scheme : {Scheme::sequential, Scheme::kahan}) {
        Reduce spec;
        spec.format = ParseFormat("e4m3");
        spec.accumulator = {.format = ParseFormat(sums), .scheme = scheme};
        spec.result = ParseFormat("e3m2");
        if (world > 4 && scheme == Scheme::sequential) {
          spec.group_size = 4;
          spec.order = Order::ring;
          spec.exchange = Exchange::hierarchical;
        }
        ExpectVirtual(spec, ranks, LocalTransports(world));
      }
    }
  }
}

/// Kahan's sums, those of groups and codes of any usual width are folded by short steps.
TEST_F(ReduceGpu, KernelsOfShortFolds) {
  if (!testing::queued_kernels()) GTEST_SKIP() << "kernels have names on the CPU alone";
  const Ranks ranks = small_ranks(3, {256});
  for (const char* format : {"e3m0", "e2m1", "e4m3", "e5m10", "bf16", "fp32"}) {
    for (const bool grouped : {false, true}) {
      Reduce spec;
      spec.format = ParseFormat(format);
      spec.accumulator = {.format = ParseFormat("e6m9"), .scheme = Scheme::kahan};
      spec.result = spec.accumulator.format;
      if (grouped) {
        spec.group_size = 2;
        spec.order = Order::ring;
        spec.exchange = Exchange::hierarchical;
      }
      static_cast<void>(testing::queued_kernels());
      ExpectVirtual(spec, ranks, LocalTransports(3));
      const std::vector<std::string> names = testing::queued_kernels().value();
      EXPECT_GT(std::count(names.begin(), names.end(), "short_fold"), 0) << format << grouped;
      EXPECT_EQ(std::count(names.begin(), names.end(), "fold"), 0) << format << grouped;
    }
  }
}

/// Contributions and results that are scaled or rounded outside of binary32.
TEST_F(ReduceGpu, WideContributions) {
  const Ranks ranks = testing::random_ranks(3, {257, 1099}, 8);
  for (const char* format : {"e4m3", "e5m10:bias=140", "e8m7:bias=140"}) {
    for (const float scale : {1.0F, 0x1p126F, 0x1p-126F}) {
      Reduce spec;
      spec.format = ParseFormat(format);
      spec.accumulator.format = kFp32;
      spec.result = scale == 1 ? spec.format : kFp32;
      spec.loss_scale = scale;
      ExpectVirtual(spec, ranks, LocalTransports(3));
    }
  }
}

/// Number `pick` of specs with a codec.
Reduce coded_spec(const std::string& text, std::size_t pick) {
  Reduce spec;
  spec.format = spec.accumulator.format = spec.result = kFp32;
  spec.wire = MakeCodec(text, {.random_bits = 8});
  spec.format = spec.wire->format();
  if (pick % 2 == 0) spec.exchange = Exchange::gather;
  if (pick % 3 == 1) spec.order = Order::ring;
  spec.average = pick % 4 == 3;
  return spec;
}

/// Messages in the host's memory and in the GPU's.
TEST_F(ReduceGpu, CodecsOfLocalRanks) {
  std::size_t pick = 0;
  for (const std::string& text : testing::codec_texts()) {
    SCOPED_TRACE(text);
    const Ranks ranks = testing::random_ranks(3, {1, 0, 257, 9001}, pick);
    ExpectVirtual(coded_spec(text, pick), ranks, LocalTransports(3));
    ExpectVirtual(coded_spec(text, pick), ranks, between_gpus(driver(), 3));
    ++pick;
  }
}

/// Slices that begin within a bucket, whose norms come from the whole layer.
TEST_F(ReduceGpu, ScatteredCodes) {
  const Ranks ranks = testing::random_ranks(3, {7, 9001}, 4);
  for (const char* text : {"qsgd bits=4 bucket=64", "terngrad bucket=100", "terngrad", "mxfp8"}) {
    Reduce spec = coded_spec(text, 2);
    spec.exchange = Exchange::owner;
    spec.order = Order::sequential;
    std::vector<std::vector<Layers>> found(2, std::vector<Layers>(3));
    for (const bool gpu : {false, true}) {
      auto ends = LocalTransports(3);
      std::vector<std::thread> threads;
      for (std::size_t r = 0; r < 3; ++r) {
        threads.emplace_back([&, r] {
          Layers& out = found[gpu ? 1 : 0][r];
          for (const std::vector<float>& layer : ranks[r]) {
            const auto n = static_cast<std::int64_t>(layer.size());
            const auto rank = static_cast<std::int64_t>(r);
            out.emplace_back(
                static_cast<std::size_t>(SliceBegin(n, 3, rank + 1) - SliceBegin(n, 3, rank)));
          }
          Communicator comm(std::move(ends[r]), {.timeout = 60});
          std::vector<TensorView> x, to;
          for (const auto& layer : ranks[r]) x.push_back(testing::view_of(layer));
          for (const auto& layer : out) to.push_back(testing::view_of(layer));
          if (!gpu) {
            comm.ReduceScatter(x, to, spec, false);
            return;
          }
          LayersOnGpu x_there(driver(), ranks[r]);
          LayersOnGpu out_there(driver(), out);
          comm.ReduceScatter(x_there.views(), out_there.views(), spec, false);
          out = out_there.Read();
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    for (std::size_t r = 0; r < 3; ++r) {
      for (std::size_t l = 0; l < 2; ++l) {
        EXPECT_TRUE(testing::bits_equal(std::span<const float>(found[0][r][l]),
                                        std::span<const float>(found[1][r][l])))
            << text << ", layer " << l << " on rank " << r;
      }
    }
  }
}

/// Of less than a thread's piece, of several, and of more than a grid's threads have at once.
TEST_F(ReduceGpu, ChecksumsOfMessages) {
  const std::size_t most = (testing::kCudaOnCpu ? std::size_t{9} : std::size_t{600}) << 20;
  std::vector<std::uint8_t> data(most);
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<std::uint8_t>(i * 2654435761U >> 13);
  }
  const OnGpu memory(driver(), data.data(), data.size());
  const auto* begin = static_cast<const std::uint8_t*>(
      memory.View(View(data.data(), DType::u8, static_cast<std::int64_t>(most)), data.data()).data);
  std::vector<cuda::Bytes> parts;
  std::vector<std::uint32_t> wanted;
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{511}, std::size_t{512}, std::size_t{513},
        std::size_t{200003}, most - 7}) {
    parts.push_back({begin + 7, static_cast<std::int64_t>(count)});
    wanted.push_back(Crc32c(0, parts.back().count, data.data() + 7));
  }
  EXPECT_EQ(cuda::Queue(0).Checksums(parts), wanted);
}

/// An empty layer may be on another GPU, on any stream there.
TEST_F(ReduceGpu, AnEmptyLayerOnAnotherGpu) {
  if (CudaDriver::GetSecond() == nullptr) GTEST_SKIP() << "one GPU, not two";
  const cuda::Queue there(1);
  LayersOnGpu layers(driver(), {{1, 2, 3}});
  TensorView empty = layers.views()[0];
  empty.shape[0] = 0;
  empty.device_index = there.device();
  empty.stream = there.stream();
  const std::array views{empty, layers.views()[0]};
  Communicator comm(std::move(LocalTransports(1)[0]), {});
  comm.AllReduce(views, views, {});
  EXPECT_EQ(layers.Read(), Layers({{1, 2, 3}}));
}

/// One rank: no message, but headers and layers in one GPU's memory; more need more GPUs.
TEST_F(ReduceGpu, Nccl) {
  std::unique_ptr<Transport> transport;
  try {
    transport = NcclTransport(MakeNcclId(), 0, 1, 0, nullptr, 60);
  } catch (const MachineError& error) {
    GTEST_SKIP() << error.what();
  }
  EXPECT_EQ(transport->memory(), Device::cuda);
  std::vector<std::unique_ptr<Transport>> ends;
  ends.push_back(std::move(transport));
  ExpectVirtual(spec_of(1, 1), testing::random_ranks(1, {5, 300000}, 3), std::move(ends));
  ends.clear();
  ends.push_back(NcclTransport(MakeNcclId(), 0, 1, 0, nullptr, 60));
  ExpectVirtual(coded_spec("qsgd bits=4", 0), testing::random_ranks(1, {5, 3000}, 3),
                std::move(ends));
}

}  // namespace
}  // namespace cpd
