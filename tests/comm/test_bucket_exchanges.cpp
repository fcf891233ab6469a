// SPDX-License-Identifier: Apache-2.0
//
// Tests codecs with buckets in every exchange that they support. Real ranks give the bits of the
// virtual ranks, and the virtual ranks give the sums of a serial oracle. Tests also states that
// pass from call to call, rows, and a scale that all ranks share.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cpd/comm/engine/layout.h"
#include "cpd/numeric/draws/streams.h"
#include "cpd/spec/error.h"
#include "tests/testing/bucket_codec.h"
#include "tests/testing/codec_texts.h"
#include "tests/testing/expect_virtual.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::all_reduce;
using testing::blank;
using testing::Buckets;
using testing::expect_well;
using testing::Layers;
using testing::on_ranks;
using testing::options_of;
using testing::Ranks;
using testing::same_layers;
using testing::sizes_of;
using testing::views_of;

Reduce spec_of(const Buckets::Options& options, Exchange exchange, Order order = Order::sequential,
               int group_size = 0) {
  Reduce spec;
  spec.wire = std::make_shared<Buckets>(options);
  spec.exchange = exchange;
  spec.order = order;
  spec.group_size = group_size;
  return spec;
}

std::vector<Buckets::Options> kinds() {
  return {{.bucket = 64},
          {.bucket = 7},
          {.bucket = 5000},
          {.bucket = 64, .feeds_back = true},
          {.bucket = 300, .feeds_back = true, .fixed = false},
          {.bucket = 64, .encodes_results = false},
          {.bucket = 1, .encodes_results = false, .measured = Measured::own},
          {.bucket = 1, .encodes_results = false, .measured = Measured::shared},
          {.by_rows = true, .feeds_back = true}};
}

/// Returns the values to which the codec rounds one rank's layer in a single call.
std::vector<float> rounded(const Reduce& spec, const std::vector<float>& x, Purpose purpose,
                           std::int64_t position, std::int64_t layer, float scale = 0) {
  std::vector<float> y(x.size());
  const auto n = static_cast<std::int64_t>(x.size());
  const Piece piece{
      .n = n, .key = {.stream = StreamOf(purpose, 0, layer, position)}, .size = n, .scale = scale};
  spec.wire->Round(piece, nullptr, x.data(), y.data());
  return y;
}

TEST(BucketExchanges, VirtualRanksAreASerialSum) {
  for (const int world : {1, 3, 8}) {
    const Ranks ranks = testing::random_ranks(static_cast<std::size_t>(world), {1000, 0, 63}, 5);
    for (const Exchange exchange : {Exchange::owner, Exchange::gather}) {
      const Reduce spec = spec_of({.bucket = 64}, exchange);
      const Layers got = testing::virtual_reduce(spec, ranks);
      for (std::size_t l = 0; l < 3; ++l) {
        const auto layer = static_cast<std::int64_t>(l);
        std::vector<float> sum(got[l].size(), 0.0F);
        for (int r = 0; r < world; ++r) {
          const auto terms =
              rounded(spec, ranks[static_cast<std::size_t>(r)][l], Purpose::wire, r, layer);
          for (std::size_t i = 0; i < sum.size(); ++i)
            sum[i] = r == 0 ? terms[i] : sum[i] + terms[i];
        }
        if (exchange == Exchange::owner) {
          sum = rounded(spec, sum, Purpose::result, kEncoded, layer);
        }
        EXPECT_TRUE(same_layers({sum}, {got[l]})) << "layer " << l;
      }
    }
  }
}

TEST(BucketExchanges, ASharedScaleComesOnceAtTheEnd) {
  const Ranks ranks = testing::random_ranks(5, {300}, 7);
  Reduce spec = spec_of({.bucket = 1, .encodes_results = false, .measured = Measured::shared},
                        Exchange::owner);
  spec.average = true;
  float scale = 0;
  for (const Layers& rank : ranks) {
    for (const float x : rank[0]) scale = std::max(scale, std::fabs(x));
  }
  std::vector<float> sum(300, 0.0F);
  for (std::size_t r = 0; r < 5; ++r) {
    const auto terms =
        rounded(spec, ranks[r][0], Purpose::wire, static_cast<std::int64_t>(r), 0, scale);
    for (std::size_t i = 0; i < 300; ++i) sum[i] += terms[i];
  }
  for (float& value : sum) value = value * scale / 5.0F;
  EXPECT_TRUE(same_layers({sum}, testing::virtual_reduce(spec, ranks)));
}

TEST(BucketExchanges, EqualVirtualRanks) {
  for (const int world : {1, 2, 3, 8}) {
    if (testing::kSanitized && world > 3) continue;
    const auto w = static_cast<std::size_t>(world);
    const Ranks ranks = testing::random_ranks(w, {0, 1, w + 1, 257, 9000}, w);
    for (const Buckets::Options& kind : kinds()) {
      for (const Exchange exchange : {Exchange::owner, Exchange::gather}) {
        for (const Order order : {Order::sequential, Order::ring, Order::tree}) {
          for (const std::int64_t chunk : {700, 6000, 1 << 20}) {
            testing::expect_virtual(spec_of(kind, exchange, order), ranks, options_of(chunk), false,
                                    chunk == 700);
          }
        }
        if (world < 3) continue;
        testing::expect_virtual(spec_of(kind, exchange, Order::sequential, 2), ranks,
                                options_of(1500));
      }
    }
  }
}

TEST(BucketExchanges, StatesGoFromCallToCall) {
  const std::vector<std::int64_t> rows{9, 50};
  const Ranks ranks = testing::random_ranks(3, {900, 250}, 9);
  for (const Buckets::Options& kind :
       {Buckets::Options{.bucket = 64, .feeds_back = true},
        Buckets::Options{.by_rows = true, .feeds_back = true, .fixed = false}}) {
    for (const Exchange exchange : {Exchange::owner, Exchange::gather}) {
      Reduce spec = spec_of(kind, exchange);
      CodecStates of_all;
      std::vector<CodecStates> own(3);
      Layers first;
      for (int call = 0; call < 4; ++call) {
        const auto step = static_cast<std::uint64_t>(call);
        const Layers expected = testing::virtual_reduce(
            spec, ranks, nullptr, {.seed = 5, .step = step, .states = &of_all, .rows = rows});
        if (call == 0) first = expected;
        if (call == 2) {  // through a checkpoint
          for (CodecStates& states : own) {
            auto saved = states.Save();
            EXPECT_EQ(saved.size(), exchange == Exchange::owner ? 4U : 2U);
            states = CodecStates();
            states.Load(std::move(saved));
          }
        }
        expect_well(on_ranks(3, options_of(500), [&](Communicator& comm) {
          const auto r = static_cast<std::size_t>(comm.rank());
          Layers out = blank({900, 250});
          comm.AllReduce(views_of(ranks[r]), views_of(out), spec, false,
                         {.seed = 5, .step = step, .states = &own[r], .rows = rows});
          EXPECT_TRUE(same_layers(expected, out)) << "rank " << r << ", call " << call;
        }));
      }
    }
  }
}

/// For every codec of the library, real ranks give the bits of the virtual ranks. Codecs with
/// states are called twice.
TEST(BucketExchanges, EveryCodec) {
  const std::vector<std::string> texts = testing::codec_texts();
  EXPECT_TRUE(testing::has_every_compressor(texts));
  const std::vector<std::int64_t> rows{60, 1, 9000};
  const Ranks ranks = testing::random_ranks(3, {1200, 5, 9000}, 21);
  for (const std::string& text : texts) {
    const SharedCodec codec = MakeCodec(text, {.random_bits = 8});
    for (const Exchange exchange : {Exchange::owner, Exchange::gather}) {
      for (const std::int64_t chunk : {700, 1 << 20}) {
        SCOPED_TRACE(text + " " + ToString(exchange) + ", chunk " + std::to_string(chunk));
        Reduce spec;
        spec.wire = codec;
        spec.format = codec->format();
        spec.exchange = exchange;
        CodecStates of_all;
        std::vector<CodecStates> own(3);
        for (int call = 0; call < 2; ++call) {
          const auto step = static_cast<std::uint64_t>(call);
          const Layers expected = testing::virtual_reduce(
              spec, ranks, nullptr, {.seed = 5, .step = step, .states = &of_all, .rows = rows});
          expect_well(on_ranks(3, options_of(chunk), [&](Communicator& comm) {
            const auto r = static_cast<std::size_t>(comm.rank());
            Layers out = ranks[r];  // in place
            comm.AllReduce(views_of(out), views_of(out), spec, false,
                           {.seed = 5, .step = step, .states = &own[r], .rows = rows});
            EXPECT_TRUE(same_layers(expected, out)) << "rank " << r << ", call " << call;
          }));
        }
      }
    }
  }
}

TEST(BucketExchanges, ScatteredAndToRootAsGather) {
  const Ranks ranks = testing::random_ranks(4, {1000, 3, 130}, 8);
  for (const Buckets::Options& kind : kinds()) {
    const Layers expected = testing::virtual_reduce(spec_of(kind, Exchange::gather), ranks);
    const Reduce spec = spec_of(kind, Exchange::owner);
    Layers at_root = blank(sizes_of(ranks[0]));
    expect_well(on_ranks(4, options_of(50), [&](Communicator& comm) {
      const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())]);
      comm.Reduce(x, comm.rank() == 3 ? views_of(at_root) : std::vector<TensorView>{}, spec, 3);
      Layers slices;
      std::vector<std::int64_t> sizes;
      for (const auto& layer : expected) {
        const auto n = static_cast<std::int64_t>(layer.size());
        const std::int64_t begin = SliceBegin(n, 4, comm.rank());
        const std::int64_t end = SliceBegin(n, 4, comm.rank() + 1);
        sizes.push_back(end - begin);
        slices.emplace_back(layer.begin() + begin, layer.begin() + end);
      }
      Layers out = blank(sizes);
      comm.ReduceScatter(x, views_of(out), spec);
      EXPECT_TRUE(same_layers(slices, out)) << "rank " << comm.rank();
    }));
    EXPECT_TRUE(same_layers(expected, at_root));
  }
}

/// In a reduce-scatter in place, results replace some values of a bucket while others are still
/// inputs. The bucket's scale must come from the inputs.
TEST(BucketExchanges, OneRankScattersInPlace) {
  const Ranks ranks = testing::random_ranks(1, {9000}, 8);
  for (const char* text : {"one_bit bucket=5000", "qsgd bits=2 bucket=5000 norm=2"}) {
    Reduce spec;
    spec.wire = MakeCodec(text);
    spec.exchange = Exchange::gather;
    const Layers expected = testing::virtual_reduce(spec, ranks);
    spec.exchange = Exchange::owner;
    Layers out = ranks[0];
    expect_well(on_ranks(1, options_of(700), [&](Communicator& comm) {
      comm.ReduceScatter(views_of(out), views_of(out), spec);
    }));
    EXPECT_TRUE(same_layers(expected, out)) << text;
  }
}

TEST(BucketExchanges, RefusesWhatItCannot) {
  const Ranks ranks = testing::random_ranks(4, {100}, 8);
  const auto error_of = [&](const Reduce& spec, const TensorOptions& layers = {}) {
    try {
      testing::virtual_reduce(spec, ranks, nullptr, layers);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(
      error_of(spec_of({}, Exchange::ring, Order::ring)),
      "exchange ring hands partial sums on, for which codec 'buckets 64 0' has no bytes: take "
      "exchange owner or gather");
  EXPECT_NE(error_of(spec_of({}, Exchange::hierarchical, Order::ring, 2)), "none");
  Reduce spec = spec_of({}, Exchange::owner);
  spec.aps = Aps::on;
  EXPECT_EQ(error_of(spec),
            "aps chooses a scale of each tensor; codec 'buckets 64 0' has scales of its own");
  const std::vector<std::int64_t> rows{33};
  EXPECT_EQ(error_of(spec_of({.by_rows = true}, Exchange::owner), {.rows = rows}),
            "tensor 0 of 100 values cannot have rows of 33");
}

TEST(BucketExchanges, RanksAgreeOnRows) {
  const Ranks ranks = testing::random_ranks(2, {100}, 8);
  const Reduce spec = spec_of({.by_rows = true}, Exchange::owner);
  const auto fates = on_ranks(2, options_of(50), [&](Communicator& comm) {
    const std::vector<std::int64_t> rows{comm.rank() == 0 ? 10 : 20};
    Layers out = blank({100});
    comm.AllReduce(views_of(ranks[static_cast<std::size_t>(comm.rank())]), views_of(out), spec,
                   false, {.rows = rows});
  });
  for (const auto& fate : fates) {
    EXPECT_EQ(fate.what, "the ranks do not agree: tensors' rows is 10 on rank 0 and 20 on rank 1");
  }
}

TEST(Layout, CutsAtBuckets) {
  const std::vector<std::int64_t> sizes{1000, 0, 7, 130, 64};
  const std::vector<std::int64_t> buckets{64, 64, 64, 10, 1};
  for (const int slices : {1, 3, 4}) {
    for (const std::int64_t chunk : {1, 300, 5000}) {
      Layout layout(sizes, slices, chunk, buckets);
      std::vector<std::vector<int>> seen;
      for (const std::int64_t n : sizes) seen.emplace_back(static_cast<std::size_t>(n), 0);
      while (!layout.done()) {
        for (const Part& part : layout.Next()) {
          for (const Segment& segment : part.segments) {
            const auto l = static_cast<std::size_t>(segment.layer);
            EXPECT_EQ(segment.begin % buckets[l], 0);
            const std::int64_t end = segment.begin + segment.count;
            EXPECT_TRUE(end % buckets[l] == 0 || end == sizes[l]);
            for (std::int64_t i = segment.begin; i < end; ++i)
              ++seen[l][static_cast<std::size_t>(i)];
          }
        }
      }
      for (const auto& layer : seen) {
        EXPECT_EQ(std::accumulate(layer.begin(), layer.end(), 0), static_cast<int>(layer.size()));
      }
    }
  }
}

}  // namespace
}  // namespace cpd
