// SPDX-License-Identifier: Apache-2.0
//
// Codecs with kernels: what they measure, round, encode and decode of layers and pieces on a GPU
// are the CPU's bits and bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cpd/backend/cuda.h"
#include "cpd/backend/device_memory.h"
#include "cpd/compress/on_gpu.h"
#include "cpd/ops/elementwise.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/codec_texts.h"
#include "tests/testing/cuda_memory.h"

namespace cpd {
namespace {

using testing::OnGpu;

constexpr std::uint64_t kStream = 11;

enum class Values : std::uint8_t { normal, with_specials, tiny, equal };

std::vector<float> values_of(std::int64_t n, Values kind) {
  std::mt19937 random(static_cast<unsigned>(n));
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = kind == Values::equal ? -0.1F : normal(random);
    if (kind == Values::tiny) x[i] = std::ldexp(x[i], -140);
    if (kind != Values::with_specials) continue;
    if (i % 997 == 5) x[i] = std::numeric_limits<float>::infinity();
    if (i % 1499 == 0) x[i] = std::nanf("");
    if (i % 13 == 3) x[i] = -0.0F;
  }
  return x;
}

class LevelsGpu : public testing::GpuTest {
 protected:
  /// A layer on the GPU and the CPU.
  struct Both {
    Both(const testing::CudaDriver& driver, const Codec& codec, std::vector<float> values,
         int shift)
        : x(std::move(values)),
          memory(driver, x.data(), 4 * x.size()),
          queue(std::make_shared<const cuda::Queue>(0)) {
      whole = PieceOf(0, static_cast<std::int64_t>(x.size()));
      whole.shift = shift;
      state = codec.MakeState(whole.n);
      if (state != nullptr) state->Begin(whole, x.data());
      const auto* there = static_cast<const float*>(memory.View(View(x), x.data()).data);
      on_gpu = codec.on_gpu()->Begin(queue, whole, there);
      if (codec.measured() == Measured::nothing) return;
      whole.scale = codec.Measure(whole, state.get(), x.data());
      EXPECT_TRUE(testing::bits_equal(std::span<const float>(&whole.scale, 1), Measured1()));
    }
    [[nodiscard]] std::span<const float> Measured1() {
      measured = on_gpu->Measure();
      return {&measured, 1};
    }
    [[nodiscard]] Piece PieceOf(std::int64_t begin, std::int64_t n) const {
      Piece piece = whole;
      piece.begin = begin;
      piece.n = n;
      piece.size = static_cast<std::int64_t>(x.size());
      piece.stream = kStream;
      return piece;
    }

    std::vector<float> x;
    OnGpu memory;
    SharedQueue queue;
    Piece whole;
    std::unique_ptr<CodecState> state;
    std::unique_ptr<LayerOnGpu> on_gpu;
    float measured = 0;
  };

  void ExpectRound(const Codec& codec, Both& both) const {
    std::vector<float> expected(both.x.size());
    codec.Round(both.whole, both.state.get(), both.x.data(), expected.data());
    const auto y = QueuedValues(both.queue, both.whole.n);
    both.on_gpu->Round(both.whole, y.get(), nullptr);
    std::vector<float> got(both.x.size());
    if (!got.empty()) both.queue->Copy(got.data(), y.get(), both.whole.n * 4);
    EXPECT_TRUE(testing::bits_equal(std::span<const float>(expected), std::span<const float>(got)));
  }

  void ExpectMessage(const Codec& codec, Both& both, std::int64_t begin, std::int64_t n) const {
    SCOPED_TRACE("values " + std::to_string(begin) + " + " + std::to_string(n));
    const Piece piece = both.PieceOf(begin, n);
    const std::int64_t before = begin % codec.bucket();
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(codec.MostBytes(n, before)));
    ASSERT_EQ(codec.Encode(piece, both.state.get(), both.x.data() + begin, bytes.data()),
              static_cast<std::int64_t>(bytes.size()));
    // At an odd address, as the segments of a message.
    std::vector<std::uint8_t> got(bytes.size() + 1, 77);
    OnGpu memory(driver(), got.data(), got.size());
    auto* there = static_cast<std::uint8_t*>(
        memory.View(View(got.data(), DType::u8, static_cast<std::int64_t>(got.size())), got.data())
            .data);
    both.on_gpu->Encode(piece, there + 1);
    both.queue->Wait();
    memory.Read(got.data());
    EXPECT_EQ(got[0], 77);
    EXPECT_EQ(std::vector<std::uint8_t>(got.begin() + 1, got.end()), bytes);
    for (const auto& [shift, divisor] : {std::pair{0, 1.0F}, {-5, 3.0F}, {200, 4.0F}}) {
      std::vector<float> expected(static_cast<std::size_t>(n));
      std::vector<float> decoded(expected.size());
      codec.Decode(bytes, n, shift, divisor, expected.data(), before);
      const auto y = QueuedValues(both.queue, n);
      codec.on_gpu()->Decode(*both.queue, there + 1, n, shift, divisor, y.get(), before);
      if (n > 0) both.queue->Copy(decoded.data(), y.get(), 4 * n);
      EXPECT_TRUE(
          testing::bits_equal(std::span<const float>(expected), std::span<const float>(decoded)));
    }
  }
};

/// Buckets and layers on both sides of what sixteen threads, and what a block of them, handle.
TEST_F(LevelsGpu, EveryCodecWithKernels) {
  int found = 0;
  std::vector<std::string> texts = testing::codec_texts();
  for (const char* more : {"qsgd bits=5 bucket=5000", "qsgd bucket=3001 norm=2",
                           "qsgd bits=16 bucket=tensor norm=2", "terngrad clip=none",
                           "terngrad bucket=4500", "terngrad share=off", "qsgd s=200 bucket=7"}) {
    texts.emplace_back(more);
  }
  for (const std::string& text : texts) {
    const SharedCodec made = MakeCodec(text, {.random_bits = 9, .seed = 3});
    if (made->on_gpu() == nullptr) continue;
    const SharedCodec codec = made->by_rows() ? made->ForRows(40) : made;
    ++found;
    for (const std::int64_t n : {0, 1, 77, 2048, 12345}) {
      for (const auto kind : {Values::normal, Values::with_specials, Values::tiny, Values::equal}) {
        for (const int shift : {0, 7, -130}) {
          const auto number = static_cast<std::size_t>(found + n + shift);
          if (kind != Values::equal && !testing::is_chosen_on_cpu(number, 3)) continue;
          SCOPED_TRACE(text + ", " + std::to_string(n) + " values of kind " +
                       std::to_string(static_cast<int>(kind)) + ", shift " + std::to_string(shift));
          Both both(driver(), *codec, values_of(n, kind), shift);
          ExpectRound(*codec, both);
          ExpectMessage(*codec, both, 0, n);
          if (n > 2048) {
            ExpectMessage(*codec, both, 1029, 1);
            ExpectMessage(*codec, both, 3, n - 1000);
          }
        }
      }
    }
  }
  EXPECT_GE(found, 15);
}

/// Whole numbers, as sums of ternary values are, and NaN.
TEST_F(LevelsGpu, IntegerSums) {
  const SharedCodec codec = MakeCodec("terngrad")->ForResults(kFp32, 5);
  std::vector<float> sums = values_of(5000, Values::normal);
  for (float& sum : sums) sum = std::round(std::fmin(std::fmax(2 * sum, -5.0F), 5.0F));
  sums[7] = std::nanf("");
  Both both(driver(), *codec, sums, 0);
  ExpectRound(*codec, both);
  ExpectMessage(*codec, both, 0, 5000);
  ExpectMessage(*codec, both, 8, 801);
}

TEST_F(LevelsGpu, ANormThatIsNoneIsAFault) {
  const SharedCodec codec = MakeCodec("qsgd bits=4 bucket=64");
  const SharedQueue queue = std::make_shared<const cuda::Queue>(0);
  for (const float norm : {-1.0F, std::numeric_limits<float>::infinity()}) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(codec->MostBytes(100)));
    std::copy_n(reinterpret_cast<const std::uint8_t*>(&norm), 4, bytes.data() + 4);
    const OnGpu memory(driver(), bytes.data(), bytes.size());
    const TensorView host = View(bytes.data(), DType::u8, static_cast<std::int64_t>(bytes.size()));
    const auto y = QueuedValues(queue, 100);
    codec->on_gpu()->Decode(*queue,
                            static_cast<const std::uint8_t*>(memory.View(host, bytes.data()).data),
                            100, 0, 1, y.get(), 0);
    queue->Wait();
    try {
      cuda::CheckDevice(0);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what())
                    .find("value 64 of a message: its bucket's norm is negative or infinite"),
                0U)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace cpd
