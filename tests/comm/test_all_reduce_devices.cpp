// SPDX-License-Identifier: Apache-2.0
//
// Tests that reductions of layers in any device's memory give the bits of the virtual ranks. The
// ranks are threads that share the device, with messages in the host's or the device's memory;
// another test runs over NCCL.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpd/backend/queue.h"
#include "cpd/base/plans.h"
#include "cpd/comm/all_reduce.h"
#include "cpd/comm/engine/layout.h"
#include "cpd/comm/transport/libraries.h"
#include "cpd/comm/transport/local.h"
#include "cpd/ops/reduce.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/codec_texts.h"
#include "tests/testing/device_transport.h"
#include "tests/testing/devices.h"
#include "tests/testing/expect_virtual.h"
#include "tests/testing/formats.h"
#include "tests/testing/patterns.h"

namespace cpd {
namespace {

using testing::blank;
using testing::Copies;
using testing::Layers;
using testing::options_of;
using testing::Ranks;
using testing::Transports;
using testing::Way;
using testing::ways;

class AllReduceDevices : public testing::RanksOnDevice {
 protected:
  void ExpectVirtual(const Reduce& spec, const Ranks& ranks, Transports ends,
                     bool in_place = false) const {
    testing::expect_virtual(std::move(ends), device(), spec, ranks, options_of(50000), in_place);
  }
  void ExpectVirtual(const Reduce& spec, const Ranks& ranks) const {
    ExpectVirtual(spec, ranks, Ends(static_cast<int>(ranks.size())));
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, AllReduceDevices, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

/// Returns rounding mode number `mode`, modulo the number of modes. Mode 0 is stochastic.
RoundingOptions rounding_of(std::size_t mode, int random_bits) {
  constexpr std::size_t kModes = testing::kDeterministicModes.size() + 1;
  RoundingOptions options;
  options.mode =
      mode % kModes == 0 ? Rounding::stochastic : testing::kDeterministicModes[mode % kModes - 1];
  options.random_bits = random_bits;
  return options;
}

std::vector<Format> device_formats() {
  std::vector<Format> all;
  for (const char* name :
       {"e4m3", "e5m2", "e3m0", "e2m1", "e4m3fn", "e5m2fnuz", "e8m0", "bf16", "fp16", "fp32",
        "e5m7", "e1m1", "e8m22", "binary8p4se", "e4m3fn:bias=11:nosub:unsigned", "e5m10:nosub"}) {
    all.push_back(ParseFormat(name));
  }
  all.push_back(MakeFormat(8, 3, Encoding::ieee, 144));  // its grid leaves binary32's normal range
  return all;
}

/// The layers have many sizes, and some are empty. Messages are in the host's or the device's
/// memory, and results may replace the layers.
TEST_P(AllReduceDevices, LocalRanks) {
  std::size_t pick = 0;
  for (const int world : {1, 2, 3, 5, 8}) {
    const auto w = static_cast<std::size_t>(world);
    const std::size_t large = testing::kOnGpuItself ? 300000 : 5003;
    const Ranks ranks =
        testing::random_ranks(w, {0, 1, w + 1, 257, 0, large / 4, 2047, 2049, large}, w);
    for (const Way& way : ways(world)) {
      for (int specs = 0; specs < 4; ++specs) {
        if (!testing::is_chosen_on_cpu(++pick, 16)) continue;
        ExpectVirtual(testing::spec_of(way, pick), ranks, Ends(world, pick % 2 == 1),
                      pick % 7 == 0);
      }
    }
  }
}

/// Messages are in binary32, so the terms of the sums may be any values.
TEST_P(AllReduceDevices, SumsOfAnyTerms) {
  const reference::Spec of_values = reference::spec_of(ParseFormat("e5m2"));
  std::size_t pick = 0;
  for (const int world : {6, 1, 9, 2}) {
    Ranks ranks;
    for (int r = 0; r < world; ++r) {
      const auto seed = static_cast<std::uint64_t>(r) * 2;
      std::vector<float> values = testing::moderate_values(of_values, 331, seed);
      const std::vector<float> wild = testing::mixed_values(of_values, 165, seed + 1);
      std::copy(wild.begin(), wild.end(), values.begin());
      ranks.push_back({values});
    }
    for (const char* name : {"e4m3", "e3m0", "bf16", "e6m9", "e5m2fnuz", "fp32"}) {
      for (const std::size_t mode : {0, 1, 5}) {
        for (const Way& way : ways(world)) {
          if (way.exchange != Exchange::owner || way.group == 1 || way.group > 3) continue;
          auto all =
              testing::accumulators(ParseFormat(name), rounding_of(mode, mode == 0 ? 8 : 24));
          if (way.order == Order::tree) all.resize(1);
          for (const Accumulator& accumulator : all) {
            if (!testing::is_chosen_on_cpu(++pick, 24)) continue;
            Reduce spec;
            spec.accumulator = accumulator;
            spec.order = way.order;
            spec.group_size = way.group;
            ExpectVirtual(spec, ranks);
          }
        }
      }
    }
  }
}

/// Packs one rank's values into a message and unpacks the message. The cases vary the shift (values
/// are multiplied by 2^shift), the divisor and the byte at which the message begins. Checks the
/// codes and the decoded values.
TEST_P(AllReduceDevices, PackedContributions) {
  constexpr std::int64_t n = 501;
  constexpr std::int64_t first = (std::int64_t{1} << 32) - 77;
  const SharedQueue queue = NewQueue();
  std::size_t pick = 0;
  for (const Format& format : device_formats()) {
    const reference::Spec of_values = reference::spec_of(format);
    std::vector<float> x = testing::moderate_values(of_values, n, 1);
    const std::vector<float> wild = testing::mixed_values(of_values, n / 2, 2);
    std::copy(wild.begin(), wild.end(), x.begin());
    for (float& value : x) {
      if (!format.has_nan() && !std::isfinite(value)) value = 1;
    }
    Copies values = There();
    const float* const x_there = values.Of(x);
    const auto bytes = static_cast<std::size_t>(PackedBytes(format, n));
    for (std::size_t mode = 0; mode <= testing::kDeterministicModes.size(); ++mode) {
      for (const int shift : {0, 3, -7, 126, -140, 300}) {
        ++pick;
        RoundingOptions options = rounding_of(mode, pick % 2 == 0 ? 13 : 8);
        options.variant = pick % 2 == 0 ? Variant::B : Variant::A;
        const auto skip = pick % 4;
        std::vector<std::uint8_t> packed(bytes + skip, 0xA5);
        const std::vector<float> y(n);
        Copies copies = There();
        std::uint8_t* const there = copies.Of(packed);
        ReduceSegment segment;
        segment.size = first + n;
        segment.begin = first;
        segment.count = n;
        segment.x = x_there;
        segment.shift = shift;
        segment.start.fill(static_cast<std::int64_t>(skip));
        ReduceCall call;
        call.segments = &segment;
        call.segment_count = 1;
        call.tiles = 1;
        call.to = there;
        call.cast = PlanOf(format, options, testing::kKey);
        call.codes.fill(PlanOf(format));
        call.cast_stream = testing::kKey.stream;
        queue->reduce(call);
        queue->Wait();
        copies.Read(packed.data());
        // The indices of one call of CastScaled may not cross a multiple of 2^32, so the test casts
        // the values in two calls.
        std::vector<float> cast(n);
        CastScaled(format, options, shift, first, 77, x.data(), cast.data(), testing::kKey);
        CastScaled(format, options, shift, first + 77, n - 77, x.data() + 77, cast.data() + 77,
                   testing::kKey);
        std::vector<std::uint8_t> expected(bytes + skip, 0xA5);
        EncodeScaled(format, {}, 0, 0, n, cast.data(), expected.data() + skip);
        const std::string about = testing::describe(format, options) + ", shift " +
                                  std::to_string(shift) + ", at byte " + std::to_string(skip);
        ASSERT_EQ(packed, expected) << about;

        const float divisor = std::array{1.0F, 3.0F, 8.0F}.at(pick % 3);
        segment.out = copies.Of(y);
        const std::uint8_t* from = there;
        call.task = ReduceTask::unpack;
        call.from = &from;
        call.from_count = 1;
        call.unscales = true;
        call.divisor = divisor;
        queue->reduce(call);
        queue->Wait();
        copies.Read(y.data());
        std::vector<float> decoded(n);
        DecodeScaled(format, -shift, divisor, n, packed.data() + skip, decoded.data());
        ASSERT_TRUE(testing::bits_equal(decoded, y)) << about << ", divisor " << divisor;
      }
    }
  }
}

TEST_P(AllReduceDevices, RefusesOtherPlaces) {
  if (on_host()) GTEST_SKIP() << "one device, not two";
  const Layers layers = blank({10, 0, 20});
  Copies there = There();
  using Views = std::vector<TensorView>;
  TensorView there_too = there(View(layers[0]));
  const std::string first = NameOf(there_too);
  there_too.device_index = 1;
  const std::string second = NameOf(there_too);
  const auto refusal = [&](bool on_device, const std::function<void(Views&, Views&)>& change) {
    Views x = views_of(layers, there);
    Views out = x;
    change(x, out);
    return testing::on_ranks(Ends(1, on_device), options_of(50000),
                             [&](Communicator& comm) { comm.AllReduce(x, out, Reduce{}); })[0]
        .what;
  };
  EXPECT_EQ(refusal(false, [](Views& x, Views& /*out*/) { x[2].device_index = 1; }),
            "x[2] must be contiguous fp32 on " + first + ", got fp32 on " + second);
  EXPECT_EQ(refusal(false, [](Views& /*x*/, Views& out) { out[0].device = Device::cpu; }),
            "out[0] must be contiguous fp32 on " + first + ", got fp32 on the CPU");
  const auto to_second = [](Views& x, Views& out) {
    for (Views* views : {&x, &out}) {
      for (TensorView& view : *views) view.device_index = 1;
    }
  };
  EXPECT_EQ(refusal(true, to_second),
            "transport local takes tensors on " + first + ", got them on " + second);
  EXPECT_EQ(refusal(false, [](Views& x, Views& /*out*/) { x[1].device = Device::cpu; }), "")
      << "an empty layer may be anywhere";
}

/// Returns the layers of all ranks, with values so small that no sum overflows a format of 4 bits.
/// Such formats have no NaN, so a possible NaN would make the reduction send its messages in fp32.
Ranks small_ranks(int world, const std::vector<std::size_t>& sizes) {
  Ranks ranks = testing::random_ranks(static_cast<std::size_t>(world), sizes, 9);
  for (auto& layers : ranks) {
    for (auto& layer : layers) {
      for (float& x : layer) x = std::isfinite(x) ? std::fmod(x, 0.25F) : -0.0F;
    }
  }
  return ranks;
}

/// Tests sums of 8-bit codes that are added rank after rank and rounded to nearest-even. The values
/// lie within the format and beyond it, with zeros of both signs, NaN and infinities. The codes of
/// a layer begin at any byte of a message.
TEST_P(AllReduceDevices, ShortFolds) {
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
        ExpectVirtual(spec, spec.format.bits() == 4 ? small : ranks);
      }
    }
    // The first term of a sum need not be a value of the accumulator's format: it can be -0
    // although the format has no -0. With groups, this is true of the sums within groups. The sum
    // over the groups adds values of the accumulator's format only.
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
        ExpectVirtual(spec, ranks);
      }
    }
  }
}

/// Tests contributions and results whose scaled or rounded values do not fit in binary32.
TEST_P(AllReduceDevices, WideContributions) {
  const Ranks ranks = testing::random_ranks(3, {257, 1099}, 8);
  for (const char* format : {"e4m3", "e5m10:bias=140", "e8m7:bias=140"}) {
    for (const float scale : {1.0F, 0x1p126F, 0x1p-126F}) {
      Reduce spec;
      spec.format = ParseFormat(format);
      spec.accumulator.format = kFp32;
      spec.result = scale == 1 ? spec.format : kFp32;
      spec.loss_scale = scale;
      ExpectVirtual(spec, ranks);
    }
  }
}

/// Returns a reduction that uses the codec with this text. `pick` selects the exchange, the order
/// and whether the sum is divided.
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

/// Runs each reduction twice: with messages in the host's memory and in the device's memory.
TEST_P(AllReduceDevices, CodecsOfLocalRanks) {
  std::size_t pick = 0;
  for (const std::string& text : testing::codec_texts()) {
    if (!testing::is_chosen_on_cpu(++pick, 1)) continue;
    SCOPED_TRACE(text);
    const Ranks ranks = testing::random_ranks(3, {1, 0, 257, 9001}, pick - 1);
    ExpectVirtual(coded_spec(text, pick - 1), ranks);
    ExpectVirtual(coded_spec(text, pick - 1), ranks, Ends(3, true));
  }
}

/// Slices begin within a bucket, but the bucket's norm is computed from the whole layer.
TEST_P(AllReduceDevices, ScatteredCodes) {
  const Ranks ranks = testing::random_ranks(3, {7, 9001}, 4);
  for (const char* text : {"qsgd bits=4 bucket=64", "terngrad bucket=100", "terngrad", "mxfp8"}) {
    Reduce spec = coded_spec(text, 2);
    spec.exchange = Exchange::owner;
    spec.order = Order::sequential;
    const auto scatter = [&](const auto& there_now) {
      std::vector<Layers> slices(3);
      testing::expect_well(testing::on_ranks(3, options_of(50000), [&](Communicator& comm) {
        const auto r = static_cast<std::size_t>(comm.rank());
        std::vector<std::int64_t> sizes;
        for (const std::int64_t n : testing::sizes_of(ranks[r])) {
          sizes.push_back(SliceBegin(n, 3, comm.rank() + 1) - SliceBegin(n, 3, comm.rank()));
        }
        slices[r] = blank(sizes);
        Copies there = there_now();
        comm.ReduceScatter(views_of(ranks[r], there), views_of(slices[r], there), spec, false);
        read_back(slices[r], there);
      }));
      return slices;
    };
    const auto expected = OnScalar([&] { return scatter([] { return Copies(nullptr); }); });
    const auto got = scatter([this] { return There(); });
    for (std::size_t r = 0; r < 3; ++r) {
      EXPECT_TRUE(testing::same_layers(expected[r], got[r])) << text << " on rank " << r;
    }
  }
}

/// Computes the checksums of messages on a device. The messages are shorter than one thread's
/// share, as long as several shares, or longer than the shares of all threads of a grid.
TEST_P(AllReduceDevices, ChecksumsOfMessages) {
  const std::size_t most = (testing::kOnGpuItself ? std::size_t{600} : std::size_t{9}) << 20;
  std::vector<std::uint8_t> data(most);
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<std::uint8_t>(i * 2654435761U >> 13);
  }
  Copies there = There();
  const std::uint8_t* const begin = there.Of(data);
  std::vector<ByteRange> parts;
  std::vector<std::uint32_t> wanted;
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{511}, std::size_t{512}, std::size_t{513},
        std::size_t{200003}, most - 7}) {
    parts.push_back({begin + 7, static_cast<std::int64_t>(count)});
    wanted.push_back(Crc32c(0, parts.back().count, data.data() + 7));
  }
  EXPECT_EQ(NewQueue()->Checksums(parts), wanted);
}

/// An empty layer may be on another device than the other layers, and on any stream of its device.
TEST_P(AllReduceDevices, AnEmptyLayerOnAnotherDevice) {
  if (on_host() || second() == nullptr) GTEST_SKIP() << "one device, not two";
  const Queue other(kind(), 1);
  const std::vector<float> layer{1, 2, 3};
  Copies there = There();
  TensorView empty = there(View(layer));
  empty.shape[0] = 0;
  empty.device_index = other.device();
  empty.stream = other.stream();
  const std::array views{empty, there(View(layer))};
  Communicator comm(std::move(LocalTransports(1)[0]), {});
  comm.AllReduce(views, views, {});
  there.Read(layer.data());
  EXPECT_EQ(layer, (std::vector<float>{1, 2, 3}));
}

/// Runs a single rank, so NCCL sends no message. The headers and the layers are in the memory of
/// one GPU. A test with more ranks would need more GPUs.
TEST_P(AllReduceDevices, Nccl) {
  if (kind() != Device::cuda) GTEST_SKIP() << "NCCL is CUDA's";
  std::unique_ptr<Transport> transport;
  try {
    transport = NcclTransport(MakeNcclId(), 0, 1, 0, nullptr, 60);
  } catch (const MachineError& error) {
    GTEST_SKIP() << error.what();
  }
  EXPECT_EQ(transport->memory(), Device::cuda);
  Transports ends;
  ends.push_back(std::move(transport));
  ExpectVirtual(testing::spec_of(ways(1)[0], 1), testing::random_ranks(1, {5, 300000}, 3),
                std::move(ends));
  ends.clear();
  ends.push_back(NcclTransport(MakeNcclId(), 0, 1, 0, nullptr, 60));
  ExpectVirtual(coded_spec("qsgd bits=4", 0), testing::random_ranks(1, {5, 3000}, 3),
                std::move(ends));
}

}  // namespace
}  // namespace cpd
