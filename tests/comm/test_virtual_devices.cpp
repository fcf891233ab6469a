// SPDX-License-Identifier: Apache-2.0
//
// Tests that virtual ranks on every device give the bits and the reports of the scalar kernels.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cpd/comm/virtual.h"
#include "cpd/compress/codec.h"
#include "cpd/compress/codecs.h"
#include "cpd/ops/cast.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/codec_texts.h"
#include "tests/testing/devices.h"

namespace cpd {
namespace {

const std::vector<std::int64_t> kSizes = {2100, 0, 77};

/// Returns the values of rank r's layer. A cast to a narrow format turns some of them into 0 or
/// infinity.
std::vector<float> LayerOf(int rank, std::size_t layer, bool finite) {
  std::mt19937 random(static_cast<unsigned>(100 * rank) + static_cast<unsigned>(layer));
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(kSizes[layer]));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = normal(random) * (i % 7 == 0 ? 0x1p-9F : 1);
    if (i % 31 == 5) x[i] = 0;
    if (!finite && i % 97 == 11 && rank == 1) x[i] = std::numeric_limits<float>::infinity();
  }
  return x;
}

struct Reduced {
  std::vector<std::vector<float>> results;
  std::vector<TensorReport> reports;
};

class VirtualDevices : public testing::OnDevice {
 protected:
  using Copies = testing::Copies;

  /// Runs the virtual ranks with layers on the device. If `stays` is true, the layers remain
  /// unchanged until all ranks have contributed.
  [[nodiscard]] Reduced Run(bool stays, const Reduce& spec, int world, bool finite,
                            CodecStates* states = nullptr, std::uint64_t step = 3) const {
    return Run([this] { return There(); }, stays, spec, world, finite, states, step);
  }
  [[nodiscard]] Reduced RunOnScalar(const Reduce& spec, int world, bool finite,
                                    CodecStates* states = nullptr, std::uint64_t step = 3) const {
    return OnScalar([&] {
      return Run([] { return Copies(nullptr); }, false, spec, world, finite, states, step);
    });
  }

  /// Compares the device with the scalar kernels. In every second case, the layers remain unchanged
  /// until all ranks have contributed (`stays`). If `both` is true, each case runs with and without
  /// `stays`.
  void ExpectSame(const Reduce& spec, int world, bool finite = true, bool both = false) {
    if (!testing::is_chosen_on_cpu(++case_, 1)) return;
    const Reduced expected = RunOnScalar(spec, world, finite);
    stays_ = !stays_;
    for (const bool stays : {false, true}) {
      if (both || stays_ == stays) {
        ExpectSame(spec, expected, Run(stays, spec, world, finite), world);
      }
    }
  }

  /// Compares the device with the scalar kernels: the results of two reductions over four virtual
  /// ranks, and the codecs' states after the reductions.
  void ExpectCalls(const Reduce& spec, bool finite) {
    if (!testing::is_chosen_on_cpu(++case_, 1)) return;
    CodecStates on_scalar;
    CodecStates on_device;
    for (const std::uint64_t step : {0, 1}) {
      ExpectSame(spec, RunOnScalar(spec, 4, finite, &on_scalar, step),
                 Run(true, spec, 4, finite, &on_device, step), 4);
    }
    const auto kept = on_scalar.Save();
    const auto also = on_device.Save();
    ASSERT_EQ(kept.size(), also.size());
    for (const auto& [key, state] : kept) {
      EXPECT_TRUE(testing::bits_equal(state.values, also.at(key).values));
    }
  }

  void ExpectSame(const Reduce& spec, const Reduced& expected, const Reduced& got,
                  int world) const {
    const bool is_staged =
        !on_host() && spec.wire != nullptr &&
        (spec.wire->kernels() == KernelSupport::none || !spec.wire->counts_bytes());
    for (std::size_t l = 0; l < kSizes.size(); ++l) {
      const std::string about = "layer " + std::to_string(l) + " of " + std::to_string(world) +
                                " ranks, " + ToString(spec.accumulator) + " " +
                                ToString(spec.order) + " groups of " +
                                std::to_string(spec.group_size);
      EXPECT_TRUE(testing::bits_equal(expected.results[l], got.results[l])) << about;
      const TensorReport& a = expected.reports[l];
      const TensorReport& b = got.reports[l];
      EXPECT_EQ(
          std::tie(a.shift, a.non_finite, a.overflowed, a.underflowed, a.values, a.zeros, a.bytes),
          std::tie(b.shift, b.non_finite, b.overflowed, b.underflowed, b.values, b.zeros, b.bytes))
          << about;
      EXPECT_EQ(a.bits, b.bits) << about;
      EXPECT_EQ(a.staged_bytes, 0);
      EXPECT_EQ(b.staged_bytes > 0, is_staged && kSizes[l] > 0) << about;
    }
  }

 private:
  template <class There>
  static Reduced Run(There there_now, bool stays, const Reduce& spec, int world, bool finite,
                     CodecStates* states, std::uint64_t step) {
    TensorOptions options{.seed = 5, .step = step};
    options.states = states;
    const std::vector<std::int64_t> rows = {50, 1, 7};
    if (spec.wire != nullptr && spec.wire->by_rows()) options.rows = rows;
    VirtualReduce reduce(spec, world, kSizes, options);
    const auto with = [&](const std::vector<float>& values, const auto& use) {
      Copies there = there_now();
      use(there(View(values)));
      there.Read(View(values));
    };
    for (int r = 0; r < world && reduce.wants_ranges(); ++r) {
      for (std::size_t l = 0; l < kSizes.size(); ++l) {
        with(LayerOf(r, l, finite),
             [&](const TensorView& view) { reduce.Observe(static_cast<int>(l), view); });
      }
    }
    Copies there = there_now();
    std::deque<std::vector<float>> layers;  // that stay
    for (const int r : reduce.schedule()) {
      for (std::size_t l = 0; l < kSizes.size(); ++l) {
        const auto layer = static_cast<int>(l);
        if (stays) {
          const auto& x = layers.emplace_back(LayerOf(r, l, finite));
          reduce.Contribute(layer, there(View(x)), true);
        } else {
          with(LayerOf(r, l, finite),
               [&](const TensorView& view) { reduce.Contribute(layer, view); });
        }
      }
      reduce.EndRank();
    }
    Reduced reduced;
    for (std::size_t l = 0; l < kSizes.size(); ++l) {
      const auto& out = reduced.results.emplace_back(static_cast<std::size_t>(kSizes[l]), 7.0F);
      with(out, [&](const TensorView& view) { reduce.Result(static_cast<int>(l), view); });
      reduced.reports.push_back(reduce.report(static_cast<int>(l)));
    }
    return reduced;
  }

  bool stays_ = false;
  std::size_t case_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Backends, VirtualDevices, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

Reduce Spec(const std::string& format, const std::string& accumulator, Order order,
            int group_size) {
  Reduce spec;
  spec.format = ParseFormat(format);
  spec.accumulator = ParseAccumulator(accumulator);
  spec.result = spec.accumulator.format;
  spec.order = order;
  spec.group_size = group_size;
  return spec;
}

TEST_P(VirtualDevices, EveryOrderSchemeAndGroup) {
  for (const char* accumulator :
       {"e4m3 sequential", "e4m3 kahan", "fp32 chunked inner=e5m3 chunk=2", "e5m6 pairwise",
        "e4m3 sequential rounding=stochastic"}) {
    for (const Order order : {Order::sequential, Order::ring, Order::tree}) {
      for (const int world : {1, 2, 3, 7, 8}) {
        for (const int group : {0, 2, 3}) {
          if (group > world || (group > 0 && order == Order::ring && world / group < 2)) continue;
          Reduce spec = Spec("e4m3", accumulator, order, group);
          try {
            Check(spec, world);
          } catch (const Error&) {
            continue;
          }
          ExpectSame(spec, world);
        }
      }
    }
  }
}

TEST_P(VirtualDevices, ApsAveragesAndStochasticCasts) {
  for (const bool average : {false, true}) {
    for (const Divide divide : {Divide::before, Divide::after}) {
      for (const Aps aps : {Aps::off, Aps::on}) {
        for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
          Reduce spec = Spec("e3m2", "e6m9 kahan", Order::sequential, 2);
          spec.aps = aps;
          spec.average = average;
          spec.divide = divide;
          spec.rounding.mode = mode;
          ExpectSame(spec, 5);
        }
      }
    }
  }
}

TEST_P(VirtualDevices, SixtyFourRanks) {
  Reduce spec = Spec("e4m3", "e4m3 kahan", Order::sequential, 16);
  spec.aps = Aps::on;
  ExpectSame(spec, 64);
}

/// Sums more ranks than a device adds in one pass, in formats of every kind that has a fast path.
/// Some large values exceed the limit of the fast path.
TEST_P(VirtualDevices, ManyRanks) {
  const std::array formats = {"e4m3", "bf16", "e4m3fn", "fp32"};
  std::size_t pick = 0;
  for (const char* accumulator :
       {"fp32 kahan", "e4m3 kahan", "e4m3 sequential", "e3m0 sequential", "e5m0 kahan",
        "e5m10 kahan", "e6m9 sequential", "e3m2 kahan", "e8m7 kahan", "fp32 sequential"}) {
    for (const bool average : {false, true}) {
      Reduce spec = Spec(formats[pick % 4], accumulator, Order::sequential, 0);
      spec.aps = pick % 3 == 0 ? Aps::on : Aps::off;
      spec.average = average;
      spec.divide = pick % 4 < 2 ? Divide::before : Divide::after;
      if (pick % 5 == 4) spec.order = Order::ring;
      if (pick % 2 == 0) spec.result = ParseFormat("e3m1");
      ExpectSame(spec, 35, true, true);
      pick += 3;
    }
  }
}

/// The ranks' layers are on two streams, in alternating pairs of ranks. Each layer is computed late
/// on its stream, and overwritten there after the sums are queued. The result must not depend on
/// which stream works first.
TEST_P(VirtualDevices, RanksOnTwoStreams) {
  constexpr int kWorld = 7;
  const Reduce spec = Spec("e4m3", "e4m3 kahan", Order::sequential, 0);
  const Reduced expected = RunOnScalar(spec, kWorld, true);
  const std::array queues{NewQueue(), NewQueue()};
  for (const std::size_t works_first : {0, 1}) {
    // Uploads (copies to the device) wait for all streams. The test therefore makes all uploads
    // before it queues any other work.
    Copies there = There();
    std::deque<std::vector<float>> memory;
    const auto on = [&](std::size_t queue, std::vector<float> values) {
      TensorView view = there(View(memory.emplace_back(std::move(values))));
      view.stream = queues[queue]->stream();
      return view;
    };
    const std::vector<float> other(static_cast<std::size_t>(kSizes[0]), 99.0F);
    const TensorView sums = on(0, other);
    std::vector<TensorView> sources;
    std::vector<TensorView> layers;
    for (int r = 0; r < kWorld; ++r) {
      sources.push_back(on(static_cast<std::size_t>(r) / 2 % 2, LayerOf(r, 0, true)));
      layers.push_back(on(static_cast<std::size_t>(r) / 2 % 2, other));
    }
    VirtualReduce reduce(spec, kWorld, {kSizes[0]});
    for (std::size_t r = 0; r < layers.size(); ++r) {
      Cast(sources[r], ParseFormat("fp32"), {}, layers[r]);
      reduce.Contribute(0, layers[r], true);
      reduce.EndRank();
    }
    reduce.Result(0, sums);
    for (std::size_t r = 0; r < layers.size(); ++r) {
      queues[r / 2 % 2]->Clear(layers[r].data, 4 * layers[r].size());
    }
    queues[works_first]->Wait();
    queues[0]->Wait();  // the result's
    there.Read(memory.front().data());
    EXPECT_TRUE(testing::bits_equal(expected.results[0], memory.front()));
  }
}

TEST_P(VirtualDevices, InfinitiesAreCounted) {
  ExpectSame(Spec("e4m3", "e4m3 sequential", Order::sequential, 0), 3, false);
  ExpectSame(Spec("fp32", "e5m10 kahan", Order::sequential, 0), 20, false);
}

TEST_P(VirtualDevices, Errors) {
  Reduce spec = Spec("e4m3", "e4m3 sequential", Order::sequential, 0);
  if (on_host()) GTEST_SKIP() << "one device, not two";
  const std::vector<float> x(8, 1.0F);
  Copies there = There();
  VirtualReduce both(spec, 2, {8, 8});
  both.Contribute(0, there(View(x)));
  EXPECT_THROW(both.Contribute(1, View(x)), Error);
}

/// Reduces twice with each codec. The second reduction adds the rounding errors of the first. Some
/// cases sum in groups of ranks, or divide the sum by the number of ranks.
TEST_P(VirtualDevices, EveryCodec) {
  std::size_t pick = 0;
  for (const std::string& text : testing::codec_texts()) {
    SCOPED_TRACE(text);
    Reduce spec = Spec("fp32", "fp32 kahan", Order::sequential, pick % 3 == 1 ? 2 : 0);
    if (pick % 3 == 2) spec.order = Order::ring;
    spec.wire = MakeCodec(text, {.random_bits = 8});
    spec.format = spec.wire->format();
    spec.average = pick % 2 == 1;
    if (pick % 4 == 1 && !spec.wire->has_scales()) spec.divide = Divide::before;
    if (pick % 5 == 4) spec.exchange = Exchange::gather;
    const bool finite = pick % 4 != 3;
    ExpectCalls(spec, finite);
    ++pick;
  }
}

/// Tests top-k codecs in every exchange and with stochastic rounding. The codecs keep residuals,
/// and the APS shifts are computed from the selected values.
TEST_P(VirtualDevices, LargestValues) {
  std::size_t pick = 0;
  for (const char* text : {"top_k 0.05", "top_k 0.02 e4m3", "top_k 0.3 feedback=off e5m2",
                           "top_k 1 fp16", "feedback top_k 0.1 feedback=off"}) {
    for (const Aps aps : {Aps::off, Aps::on}) {
      for (const bool finite : {true, false}) {
        Reduce spec = Spec("fp32", "fp32 kahan", Order::sequential, pick % 3 == 1 ? 2 : 0);
        const auto mode = pick % 4 == 1 ? Rounding::stochastic : Rounding::nearest_even;
        spec.wire = MakeCodec(text, {.mode = mode, .random_bits = 8});
        if (spec.wire->has_scales() && aps == Aps::on) continue;
        SCOPED_TRACE(std::string(text) + ", case " + std::to_string(pick));
        spec.format = spec.wire->format();
        spec.aps = aps;
        if (pick % 3 == 2) spec.order = Order::ring;
        if (pick % 2 == 1) spec.result = ParseFormat("e5m10");
        if (pick % 5 == 4) spec.exchange = Exchange::gather;
        ExpectCalls(spec, finite);
        ++pick;
      }
    }
  }
}

}  // namespace
}  // namespace cpd
