// SPDX-License-Identifier: Apache-2.0
//
// Reductions of a GPU's layers, on the CPU: the kernels' bodies against the CPU's operations, and
// the whole way (queues, messages in pinned and in device memory) over a stand-in for the GPU
// against the virtual ranks.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <thread>

#include "cpd/backend/device_memory.h"
#include "cpd/comm/all_reduce.h"
#include "cpd/comm/engine/layout.h"
#include "cpd/comm/transport/local.h"
#include "cpd/ops/reduce.h"
#include "tests/testing/bits.h"
#include "tests/testing/cuda_stand_in.h"
#include "tests/testing/formats.h"
#include "tests/testing/patterns.h"
#include "tests/testing/reduce.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::CudaStandIn;
using testing::HostBlock;
using testing::Layers;
using testing::Ranks;

// ---- bodies -------------------------------------------------------------------------------------

std::vector<Format> formats() {
  std::vector<Format> all;
  for (const char* name :
       {"e4m3", "e5m2", "e3m0", "e2m1", "e4m3fn", "e5m2fnuz", "e8m0", "bf16", "fp16", "fp32",
        "e5m7", "e1m1", "e8m22", "binary8p4se", "e4m3fn:bias=11:nosub:unsigned", "e5m10:nosub"}) {
    all.push_back(ParseFormat(name));
  }
  all.push_back(MakeFormat(8, 3, Encoding::ieee, 144));  // its grid leaves binary32's normal range
  return all;
}

RoundingOptions options_of(Rounding mode, int random_bits = 13) {
  RoundingOptions options;
  options.mode = mode;
  options.random_bits = random_bits;
  options.variant = random_bits == 13 ? Variant::B : Variant::A;
  return options;
}

std::vector<float> inputs_of(const Format& format, std::size_t n, std::uint64_t seed) {
  const reference::Spec spec = reference::spec_of(format);
  std::vector<float> values = testing::moderate_values(spec, n, seed);
  const std::vector<float> wild = testing::mixed_values(spec, n / 2, seed + 1);
  std::copy(wild.begin(), wild.end(), values.begin());
  return values;
}

template <class Run>
void with_every_mode(Run run) {
  for (const Rounding mode : testing::kDeterministicModes) {
    with_mode(mode, [&]<Rounding kMode>() { run.template operator()<kMode>(); });
  }
  run.template operator()<Rounding::stochastic>();
}

/// Code i of the format by the CPU's kernel.
std::vector<std::uint8_t> encoded(const Format& format, const std::vector<float>& values) {
  const auto n = static_cast<std::int64_t>(values.size());
  std::vector<std::uint8_t> packed(static_cast<std::size_t>((n * format.bits() + 7) / 8));
  EncodeScaled(format, {}, 0, 0, n, values.data(), packed.data());
  return packed;
}
std::vector<float> decoded(const Format& format, int shift, float divisor, std::int64_t n,
                           const std::vector<std::uint8_t>& packed) {
  std::vector<float> values(static_cast<std::size_t>(n));
  DecodeScaled(format, shift, divisor, n, packed.data(), values.data());
  return values;
}

TEST(ReduceTile, Casts) {
  constexpr std::int64_t first = (std::int64_t{1} << 32) - 77;
  for (const Format& format : formats()) {
    const std::vector<float> x = inputs_of(format, 300, 1);
    with_every_mode([&]<Rounding mode>() {
      const RoundingOptions options = options_of(mode);
      const RoundPlan plan = make_plan(format, options, testing::kKey);
      for (const int shift : {0, 3, -7, 126, -140, 300}) {
        std::vector<float> expected(x.size());
        std::vector<float> got(x.size());
        // The CPU's ranges do not cross a multiple of 2^32.
        CastScaled(format, options, shift, first, 77, x.data(), expected.data(), testing::kKey);
        CastScaled(format, options, shift, first + 77, 223, x.data() + 77, expected.data() + 77,
                   testing::kKey);
        for (std::size_t i = 0; i < x.size(); ++i) {
          const std::uint32_t random = cuda::element_draw<mode>(
              plan, testing::kKey.stream, first + static_cast<std::int64_t>(i));
          got[i] = cuda::cast_scaled<mode>(x[i], shift, random, plan);
        }
        const auto about = [&](std::size_t i) {
          return ", " + ToString(format) + " " + ToString(mode) + " of " + testing::hex(x[i]) +
                 " * 2^" + std::to_string(shift);
        };
        ASSERT_TRUE(testing::bits_equal(std::span<const float>(expected),
                                        std::span<const float>(got), about));
      }
    });
  }
}

TEST(ReduceTile, Codes) {
  for (const Format& format : formats()) {
    const RoundPlan plan = make_plan(format, {});
    std::vector<float> x = inputs_of(format, 501, 5);
    for (float& value : x) {
      if (!format.has_nan() && !std::isfinite(value)) value = 1;
    }
    // In memory at every alignment.
    const std::vector<std::uint8_t> packed = encoded(format, x);
    const auto n = static_cast<std::int64_t>(x.size());
    const std::vector<float> values = decoded(format, 0, 1, n, packed);
    for (std::size_t skip = 0; skip < 4; ++skip) {
      std::vector<std::uint8_t> moved(packed.size() + skip);
      std::copy(packed.begin(), packed.end(), moved.begin() + static_cast<std::ptrdiff_t>(skip));
      for (std::int64_t i = 0; i < n; ++i) {
        const std::uint32_t code = cuda::code_at(moved.data() + skip, i, plan.bits);
        const float value = values[static_cast<std::size_t>(i)];
        ASSERT_EQ(testing::hex(cuda::value_of(code, plan)), testing::hex(value))
            << ToString(format) << ", code " << code;
        ASSERT_EQ(cuda::code_of(value, plan), code) << ToString(format) << ", " << value;
      }
    }
    for (const int shift : {0, 5, 126, 127, -127, -128, -130, 140}) {
      for (const float divisor : {1.0F, 3.0F, 8.0F}) {
        const std::vector<float> expected = decoded(format, -shift, divisor, n, packed);
        std::vector<float> got;
        got.reserve(values.size());
        for (const float value : values) got.push_back(cuda::unscaled(value, shift, divisor));
        ASSERT_TRUE(
            testing::bits_equal(std::span<const float>(expected), std::span<const float>(got)))
            << ToString(format) << ", shift " << shift << ", divisor " << divisor;
      }
    }
  }
}

std::vector<Accumulator> accumulators(const Format& format, const RoundingOptions& rounding) {
  std::vector<Accumulator> all;
  for (const Scheme scheme : {Scheme::sequential, Scheme::kahan, Scheme::pairwise}) {
    all.push_back({.format = format, .scheme = scheme, .rounding = rounding});
  }
  for (const std::int64_t chunk : {1, 3, 64}) {
    all.push_back({.format = format, .scheme = Scheme::chunked, .rounding = rounding});
    all.back().chunk = chunk;
    if (chunk == 3) all.back().inner = ParseFormat("e5m2");
  }
  return all;
}

/// The sums of W ranks' contributions by what the whole reduction calls: fp32 on the wire, so that
/// terms are any values.
Reduce spec_of_sum(const Accumulator& accumulator) {
  Reduce spec;
  spec.accumulator = accumulator;
  return spec;
}

// ---- the whole way ------------------------------------------------------------------------------

/// A transport between GPUs: what it is given lies in the stand-in's device memory.
class BetweenGpus final : public Transport {
 public:
  explicit BetweenGpus(std::unique_ptr<Transport> hosts) : hosts_(std::move(hosts)) {
    CudaStandIn::api()->open_stream(0, &launch_.stream);
  }
  ~BetweenGpus() override { CudaStandIn::api()->close_stream(0, launch_.stream); }
  BetweenGpus(const BetweenGpus&) = delete;
  BetweenGpus& operator=(const BetweenGpus&) = delete;

  [[nodiscard]] std::string name() const override { return "between GPUs"; }
  [[nodiscard]] int rank() const override { return hosts_->rank(); }
  [[nodiscard]] int size() const override { return hosts_->size(); }
  [[nodiscard]] int ranks_on_host() const override { return 1; }
  [[nodiscard]] Device memory() const override { return Device::cuda; }
  [[nodiscard]] int device_index() const override { return 2; }

  std::unique_ptr<Transfer> Start(std::span<const Outgoing> out, std::span<const Incoming> in,
                                  int tag) override {
    auto moved = std::make_unique<Moved>(launch_);
    std::vector<Outgoing> outgoing(out.begin(), out.end());
    for (Outgoing& message : outgoing) {
      message.data = moved->Copy(message.data, nullptr, message.bytes);
    }
    std::vector<Incoming> incoming(in.begin(), in.end());
    for (Incoming& message : incoming) {
      message.data = moved->Copy(nullptr, message.data, message.bytes);
    }
    moved->transfer = hosts_->Start(outgoing, incoming, tag);
    return moved;
  }
  void RaiseAlarm() noexcept override { hosts_->RaiseAlarm(); }
  [[nodiscard]] std::vector<bool> Alarms() override { return hosts_->Alarms(); }
  std::unique_ptr<Transport> Subgroup(std::span<const int> ranks, double timeout) override {
    return std::make_unique<BetweenGpus>(hosts_->Subgroup(ranks, timeout));
  }
  [[noreturn]] void Abort(const std::string& reason) noexcept override {
    hosts_->Abort(reason);
    std::abort();
  }

 private:
  /// Copies on the host of messages in device memory.
  class Moved final : public Transfer {
   public:
    explicit Moved(const cuda::Launch& launch) : launch_(launch) {}
    void* Copy(const void* from, void* to, std::int64_t bytes) {
      copies_.push_back(
          {std::make_unique<std::uint8_t[]>(static_cast<std::size_t>(bytes)), to, bytes});
      void* memory = copies_.back().memory.get();
      if (from != nullptr) CudaStandIn::api()->copy(launch_, memory, from, bytes);
      return memory;
    }
    bool Poll() override {
      if (!transfer->Poll()) return false;
      for (const auto& [memory, to, bytes] : copies_) {
        if (to != nullptr) CudaStandIn::api()->copy(launch_, to, memory.get(), bytes);
      }
      return true;
    }
    [[nodiscard]] std::vector<int> Waiting() const override { return transfer->Waiting(); }

    std::unique_ptr<Transfer> transfer;

   private:
    struct One {
      std::unique_ptr<std::uint8_t[]> memory;
      void* to;
      std::int64_t bytes;
    };
    const cuda::Launch& launch_;
    std::vector<One> copies_;
  };

  std::unique_ptr<Transport> hosts_;
  cuda::Launch launch_;
};

/// Layers in device memory, on GPU 2, with a stream of their own.
class OnDevice {
 public:
  explicit OnDevice(const Layers& layers) : layers_(layers) {
    launch_.device = 2;
    CudaStandIn::api()->open_stream(2, &launch_.stream);
    for (const auto& layer : layers_) {
      const auto bytes = static_cast<std::int64_t>(4 * layer.size());
      void* memory = nullptr;
      CudaStandIn::api()->allocate(launch_, cuda::MemoryKind::device, bytes, &memory);
      CudaStandIn::api()->copy(launch_, memory, layer.data(), bytes);
      TensorView view = testing::view_of(layer);
      view.data = memory;
      view.device = Device::cuda;
      view.device_index = 2;
      view.stream = launch_.stream;
      views_.push_back(view);
    }
  }
  ~OnDevice() {
    for (const TensorView& view : views_) {
      CudaStandIn::api()->release(launch_, cuda::MemoryKind::device, view.data);
    }
    CudaStandIn::api()->close_stream(2, launch_.stream);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  [[nodiscard]] const std::vector<TensorView>& views() const { return views_; }
  /// What is there once the layers' stream is done.
  [[nodiscard]] Layers Read() {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      CudaStandIn::api()->copy(launch_, layers_[l].data(), views_[l].data,
                               static_cast<std::int64_t>(4 * layers_[l].size()));
    }
    return layers_;
  }

 private:
  Layers layers_;
  cuda::Launch launch_;
  std::vector<TensorView> views_;
};

Layers blank(const std::vector<std::int64_t>& sizes) {
  Layers layers;
  for (const std::int64_t n : sizes) layers.emplace_back(static_cast<std::size_t>(n), -12345.0F);
  return layers;
}

class ReduceOnGpu : public ::testing::Test {
 protected:
  void SetUp() override { cuda::SetLibrary(CudaStandIn::api()); }
  void TearDown() override {
    cuda::SetLibrary(nullptr);
    EXPECT_EQ(CudaStandIn::allocated(), 0);
  }

  /// Runs work(communicator) on each rank's thread; what it threw, else nothing.
  static std::vector<std::string> OnRanks(int world, bool between_gpus,
                                          const std::function<void(Communicator&)>& work) {
    std::vector<std::unique_ptr<Transport>> ends = LocalTransports(world);
    std::vector<std::string> failures(ends.size());
    std::vector<std::thread> threads;
    threads.reserve(ends.size());
    for (std::size_t r = 0; r < ends.size(); ++r) {
      threads.emplace_back([&, r] {
        try {
          std::unique_ptr<Transport> transport = std::move(ends[r]);
          if (between_gpus) transport = std::make_unique<BetweenGpus>(std::move(transport));
          CommOptions options;
          options.timeout = 60;
          options.chunk = 3000;
          Communicator comm(std::move(transport), options);
          work(comm);
        } catch (const std::exception& error) {
          failures[r] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return failures;
  }

  static void ExpectVirtual(const Reduce& spec, const Ranks& ranks, bool between_gpus,
                            bool in_place = false) {
    SCOPED_TRACE(ToString(spec.exchange) + ", order " + ToString(spec.order) + ", groups of " +
                 std::to_string(spec.group_size) + ", W = " + std::to_string(ranks.size()) + ", " +
                 ToString(spec.format) + " " + ToString(spec.rounding.mode) + " -> " +
                 ToString(spec.accumulator) + " -> " + ToString(spec.result) +
                 (between_gpus ? ", between GPUs" : ""));
    std::vector<TensorReport> reports;
    const Layers expected = testing::virtual_reduce(spec, ranks, &reports, testing::kCall);
    std::vector<Layers> results(ranks.size());
    std::vector<ReduceReport> theirs(ranks.size());
    const auto failures =
        OnRanks(static_cast<int>(ranks.size()), between_gpus, [&](Communicator& comm) {
          const auto r = static_cast<std::size_t>(comm.rank());
          OnDevice x(ranks[r]);
          OnDevice out(in_place ? Layers() : blank(testing::sizes_of(ranks[r])));
          OnDevice& to = in_place ? x : out;
          theirs[r] = comm.AllReduce(x.views(), to.views(), spec, true, testing::kCall);
          results[r] = to.Read();
        });
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      ASSERT_EQ(failures[r], "");
      for (std::size_t l = 0; l < expected.size(); ++l) {
        const TensorReport& report = theirs[r].layers[l];
        EXPECT_TRUE(testing::bits_equal(std::span<const float>(expected[l]),
                                        std::span<const float>(results[r][l])))
            << "layer " << l << " on rank " << r;
        EXPECT_EQ(report.shift, reports[l].shift);
        EXPECT_EQ(report.non_finite, reports[l].non_finite);
        EXPECT_EQ(report.underflowed, reports[l].underflowed);
        EXPECT_EQ(report.overflowed, reports[l].overflowed);
        EXPECT_EQ(report.values, reports[l].values);
        EXPECT_EQ(report.zeros, reports[l].zeros);
        EXPECT_EQ(report.bytes, reports[l].bytes);
      }
    }
  }
};

/// An order, its messages, its groups.
struct Way {
  Order order;
  Exchange exchange;
  int group;
};

std::vector<Way> ways(int world) {
  std::vector<Way> all;
  for (const int group : {0, 2, 3, world}) {
    if (group > world) continue;
    for (const Order order : {Order::sequential, Order::ring, Order::tree}) {
      all.push_back({order, Exchange::owner, group});
    }
    all.push_back({Order::ring, Exchange::gather, group});
    all.push_back({Order::ring, group == 0 ? Exchange::ring : Exchange::hierarchical, group});
  }
  return all;
}

constexpr std::array kModes = {Rounding::nearest_even, Rounding::stochastic, Rounding::down};

std::vector<Accumulator> accumulators_of(const Way& way, const Format& format,
                                         const RoundingOptions& rounding) {
  std::vector<Accumulator> all = accumulators(format, rounding);
  if (way.order == Order::tree) all.resize(1);
  if (way.exchange == Exchange::ring || way.exchange == Exchange::hierarchical) {
    std::erase_if(all, [](const Accumulator& a) { return a.scheme == Scheme::pairwise; });
  }
  return all;
}

TEST_F(ReduceOnGpu, SumsOfAnyTerms) {
  for (const int world : testing::thinned<int>({6, 1, 9, 2}, 2)) {
    Ranks ranks;
    for (int r = 0; r < world; ++r) {
      ranks.push_back({inputs_of(ParseFormat("e5m2"), 331, static_cast<std::uint64_t>(r) * 2)});
    }
    for (const char* name : {"e4m3", "e3m0", "bf16", "e6m9", "e5m2fnuz", "fp32"}) {
      for (const Rounding mode : kModes) {
        for (const Way& way : ways(world)) {
          if (way.exchange != Exchange::owner || way.group > 2) continue;
          const Format format = ParseFormat(name);
          for (const Accumulator& accumulator :
               accumulators_of(way, format, options_of(mode, mode == kModes[1] ? 8 : 24))) {
            if (testing::kSanitized && accumulator.scheme != Scheme::chunked) continue;
            Reduce spec = spec_of_sum(accumulator);
            spec.order = way.order;
            spec.group_size = way.group;
            ExpectVirtual(spec, ranks, false);
          }
        }
      }
    }
  }
}

TEST_F(ReduceOnGpu, EqualsVirtualRanks) {
  const std::vector<Format> all = formats();
  std::size_t pick = 0;
  for (const int world : {1, 2, 3, 5, 8}) {
    const auto w = static_cast<std::size_t>(world);
    const Ranks ranks = testing::random_ranks(w, {0, 1, w + 1, 255, 0, 2047, 2049, 5003}, w);
    for (const Way& way : ways(world)) {
      for (int specs = 0; specs < (testing::kSanitized ? 1 : 6); ++specs, ++pick) {
        Reduce spec;
        spec.order = way.order;
        spec.exchange = way.exchange;
        spec.group_size = way.group;
        spec.format = all[pick % all.size()];
        const Format& sum = all[(pick / 2) % all.size()];
        const auto sums = accumulators_of(way, pick % 3 == 0 ? sum : spec.format,
                                          options_of(kModes[pick % 3], pick % 2 == 0 ? 8 : 24));
        spec.accumulator = sums[pick % sums.size()];
        spec.result = pick % 4 == 1 ? all[(pick / 4) % all.size()] : spec.accumulator.format;
        spec.rounding = options_of(kModes[(pick / 3) % 3], 16);
        if (pick % 3 == 1) spec.aps = Aps::on;
        if (pick % 3 == 2) spec.loss_scale = 0x1p-3;
        spec.average = pick % 5 == 4;
        ExpectVirtual(spec, ranks, pick % 2 == 1, pick % 7 == 0);
      }
    }
  }
  EXPECT_GT(CudaStandIn::kernels(), 0);
}

TEST_F(ReduceOnGpu, OtherCalls) {
  Reduce spec;
  spec.format = spec.accumulator.format = spec.result = ParseFormat("e4m3");
  spec.aps = Aps::on;
  const Ranks ranks = testing::random_ranks(3, {700, 0, 4001}, 4);
  const Layers expected = testing::virtual_reduce(spec, ranks);
  const auto sizes = testing::sizes_of(ranks[0]);
  for (const bool between_gpus : {false, true}) {
    const auto failures = OnRanks(3, between_gpus, [&](Communicator& comm) {
      const auto r = static_cast<std::size_t>(comm.rank());
      const OnDevice x(ranks[r]);
      OnDevice whole(comm.rank() == 1 ? blank(sizes) : Layers());
      comm.Reduce(x.views(), whole.views(), spec, 1);
      if (comm.rank() == 1) {
        EXPECT_EQ(whole.Read(), expected);
      }

      std::vector<std::int64_t> parts;
      std::vector<std::int64_t> copies;
      for (const std::int64_t n : sizes) {
        parts.push_back(SliceBegin(n, 3, comm.rank() + 1) - SliceBegin(n, 3, comm.rank()));
        copies.push_back(3 * n);
      }
      OnDevice slice(blank(parts));
      comm.ReduceScatter(x.views(), slice.views(), spec);
      const Layers got = slice.Read();
      OnDevice gathered(blank(copies));
      comm.AllGather(x.views(), gathered.views(), ParseFormat("bf16"), {});
      const Layers together = gathered.Read();
      for (std::size_t l = 0; l < sizes.size(); ++l) {
        const auto begin = expected[l].begin() + SliceBegin(sizes[l], 3, comm.rank());
        EXPECT_TRUE(std::equal(got[l].begin(), got[l].end(), begin)) << "layer " << l;
        std::vector<float> all;
        for (const Layers& theirs : ranks) {
          const std::vector<float> cast = testing::run_cast(theirs[l], ParseFormat("bf16"), {});
          all.insert(all.end(), cast.begin(), cast.end());
        }
        EXPECT_EQ(together[l], all) << "layer " << l;
      }
      comm.Barrier();
    });
    for (const std::string& failure : failures) EXPECT_EQ(failure, "");
  }
}

TEST_F(ReduceOnGpu, RefusesOtherPlaces) {
  const Layers layers = blank({10, 0, 20});
  const auto refusal = [&](bool between_gpus, const auto& change) {
    return OnRanks(1, between_gpus, [&](Communicator& comm) {
      const OnDevice x(layers);
      const OnDevice out(layers);
      std::vector<TensorView> from = x.views();
      std::vector<TensorView> to = out.views();
      change(from, to);
      comm.AllReduce(from, to, Reduce{});
    })[0];
  };
  using Views = std::vector<TensorView>;
  EXPECT_EQ(refusal(false, [](Views& x, Views& /*out*/) { x[2].device_index = 1; }),
            "x[2] must be contiguous fp32 on GPU 2, got fp32 on GPU 1");
  EXPECT_EQ(refusal(false, [](Views& /*x*/, Views& out) { out[0].device = Device::cpu; }),
            "out[0] must be contiguous fp32 on GPU 2, got fp32 on the CPU");
  const auto to_first = [](Views& x, Views& out) {
    for (Views* views : {&x, &out}) {
      for (TensorView& view : *views) view.device_index = 1;
    }
  };
  EXPECT_EQ(refusal(true, to_first),
            "transport between GPUs takes tensors on GPU 2, got them on GPU 1");
  EXPECT_EQ(refusal(false, [](Views& x, Views& /*out*/) { x[1].device = Device::cpu; }), "")
      << "an empty layer may be anywhere";
}

/// Where a rank's GPU has none left for what the call prepares: the kind of error of a front end.
TEST_F(ReduceOnGpu, NoMemoryIsAnErrorOfItsOwn) {
  static const cuda::Api kWithout = [] {
    cuda::Api api = *CudaStandIn::api();
    api.describe = [](int /*status*/) { return "out of memory: 9 bytes"; };
    api.allocate = [](const cuda::Launch&, cuda::MemoryKind, std::int64_t, void**) { return 2; };
    return api;
  }();
  Reduce spec;
  spec.average = true;
  spec.divide = Divide::before;
  const auto failures = OnRanks(2, false, [&](Communicator& comm) {
    const OnDevice x(blank({10}));
    const OnDevice out(blank({10}));
    cuda::SetLibrary(&kWithout);
    try {
      comm.AllReduce(x.views(), out.views(), spec);
      ADD_FAILURE() << "no error";
    } catch (const cuda::NoDeviceMemory& error) {
      EXPECT_EQ(std::string(error.what()), "CUDA out of memory: 9 bytes");
    }
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

}  // namespace
}  // namespace cpd
