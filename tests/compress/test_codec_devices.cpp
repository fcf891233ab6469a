// SPDX-License-Identifier: Apache-2.0
//
// Tests codecs that have kernels for measuring, rounding, encoding, decoding and storing. For whole
// layers and for ranges, every device gives the bits and bytes of the scalar kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/device_memory.h"
#include "cpd/backend/queue.h"
#include "cpd/compress/codec.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/codec_texts.h"
#include "tests/testing/devices.h"
#include "tests/testing/losses.h"

namespace cpd {
namespace {

using testing::Copies;
using testing::same;
using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;

constexpr RandomKey kKey{.seed = 3, .stream = 11};
constexpr RoundingOptions kBits{.random_bits = 9};

enum class ValueKind : std::uint8_t { normal, with_specials, tiny, equal, zero };

Floats values_of(std::int64_t n, ValueKind kind, unsigned seed = 0) {
  std::mt19937 random(static_cast<unsigned>(n) + seed);
  std::normal_distribution<float> normal;
  Floats x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = kind == ValueKind::equal ? -0.1F : normal(random);
    if (kind == ValueKind::zero) x[i] = i % 2 == 0 ? 0.0F : -0.0F;
    if (kind == ValueKind::tiny) x[i] = std::ldexp(x[i], -140);
    if (kind != ValueKind::with_specials) continue;
    if (i % 997 == 5) x[i] = std::numeric_limits<float>::infinity();
    if (i % 1499 == 0) x[i] = std::nanf("");
    if (i % 13 == 3) x[i] = -0.0F;
  }
  return x;
}

SharedCodec codec_of(const std::string& text) {
  const SharedCodec codec = MakeCodec(text, kBits);
  return codec->by_rows() ? codec->ForRows(40) : codec;
}

/// Two states of a codec for one layer: one for the scalar kernels, one for a device. If the codec
/// stores errors, both begin with equal errors.
struct States {
  States(const Codec& codec, std::int64_t n)
      : scalar(codec.MakeState(n)), there(codec.MakeState(n)) {
    if (scalar == nullptr || scalar->Kept().empty()) return;
    const Floats kept = values_of(n, ValueKind::normal, 7);
    scalar->Restore(kept);
    there->Restore(kept);
  }
  void ExpectSame() const {
    if (scalar == nullptr) return;
    EXPECT_TRUE(same(scalar->Kept(), there->Kept()));
  }
  void Commit() const {
    if (scalar == nullptr) return;
    scalar->Commit();
    there->Commit();
    ExpectSame();
  }

  std::unique_ptr<CodecState> scalar, there;
};

class CodecDevices : public testing::OnDevice {
 protected:
  /// The layer that one call of a codec encodes, and the layer's copy on the device.
  struct Layer {
    Layer(const CodecDevices& test, const Codec& codec, Floats values, int shift,
          const States& states)
        : x(std::move(values)),
          copies(test.There()),
          there(copies.Of(x)),
          queue(test.NewQueue()),
          state(states.scalar.get()),
          state_there(states.there.get()) {
      whole = PieceOf(0, static_cast<std::int64_t>(x.size()));
      whole.shift = shift;
      const float scale = test.OnScalar([&] {
        if (state != nullptr) state->Begin(whole, x.data());
        return codec.measured() == Measured::nothing ? 0 : codec.Measure(whole, state, x.data());
      });
      if (state_there != nullptr) state_there->BeginOn(queue, whole, there);
      if (codec.measured() == Measured::nothing) return;
      whole.scale = scale;
      const float measured = codec.MeasureOn(*queue, whole, state_there, there);
      EXPECT_TRUE(same({&scale, 1}, {&measured, 1}));
    }
    [[nodiscard]] Piece PieceOf(std::int64_t begin, std::int64_t n) const {
      Piece piece = whole;
      piece.begin = begin;
      piece.n = n;
      piece.size = static_cast<std::int64_t>(x.size());
      piece.key = kKey;
      return piece;
    }

    Floats x;
    Copies copies;
    const float* there;
    SharedQueue queue;
    Piece whole;
    CodecState* state;
    CodecState* state_there;
  };

  static Floats Read(const SharedQueue& queue, const float* from, std::int64_t n) {
    Floats values(static_cast<std::size_t>(n));
    if (n > 0) queue->Copy(values.data(), from, 4 * n);
    return values;
  }

  void ExpectRound(const Codec& codec, const Layer& layer) const {
    const std::int64_t n = layer.whole.n;
    const Floats expected = OnScalar([&] {
      Floats y(layer.x.size());
      codec.Round(layer.whole, layer.state, layer.x.data(), y.data());
      return y;
    });
    const auto y = QueuedValues(layer.queue, n);
    const testing::Losses losses(layer.queue);
    codec.RoundOn(*layer.queue, layer.whole, layer.state_there, layer.there, y.get(), losses.get());
    EXPECT_TRUE(same(expected, Read(layer.queue, y.get(), n)));
    losses.Expect(layer.x, expected);
  }

  /// Calls `encode(to)`, which encodes values on the device, with an odd address `to`. Expects that
  /// the encoding equals `bytes`, and that the device decodes the encoding to the values that the
  /// scalar kernels decode.
  template <class Encode>
  void ExpectBytes(const Codec& codec, const SharedQueue& queue, const Bytes& bytes, std::int64_t n,
                   std::int64_t before, Encode encode) const {
    Bytes got(bytes.size() + 1, 77);
    Copies copies = There();
    std::uint8_t* const there = copies.Of(got);
    encode(there + 1);
    queue->Wait();
    copies.Read(got.data());
    EXPECT_EQ(got[0], 77);
    EXPECT_EQ(Bytes(got.begin() + 1, got.end()), bytes);
    for (const auto& [shift, divisor] : {std::pair{0, 1.0F}, {-5, 3.0F}, {200, 4.0F}}) {
      const Floats expected = OnScalar([&, shift = shift, divisor = divisor] {
        Floats y(static_cast<std::size_t>(n));
        codec.Decode(bytes, n, shift, divisor, y.data(), before);
        return y;
      });
      const auto y = QueuedValues(queue, n);
      codec.DecodeOn(*queue, {there + 1, bytes.size()}, n, shift, divisor, y.get(), before);
      EXPECT_TRUE(same(expected, Read(queue, y.get(), n)));
    }
  }

  Bytes EncodedByScalar(const Codec& codec, const Piece& piece, CodecState* state,
                        const float* x) const {
    return OnScalar([&] {
      Bytes bytes(static_cast<std::size_t>(codec.MostBytes(piece.n, piece.begin % codec.bucket())));
      EXPECT_EQ(codec.Encode(piece, state, x, bytes.data()),
                static_cast<std::int64_t>(bytes.size()));
      return bytes;
    });
  }

  void ExpectMessage(const Codec& codec, const Layer& layer, std::int64_t begin,
                     std::int64_t n) const {
    SCOPED_TRACE("values " + std::to_string(begin) + " + " + std::to_string(n));
    const Piece piece = layer.PieceOf(begin, n);
    const Bytes bytes = EncodedByScalar(codec, piece, layer.state, layer.x.data() + begin);
    ExpectBytes(codec, layer.queue, bytes, n, begin % codec.bucket(), [&](std::uint8_t* to) {
      EXPECT_EQ(codec.EncodeOn(*layer.queue, piece, layer.state_there, layer.there + begin, to),
                static_cast<std::int64_t>(bytes.size()));
    });
  }

  /// Decodes the bytes as n values. Returns the text of the error; empty if there is none.
  [[nodiscard]] std::string FaultOf(const Codec& codec, const Bytes& bytes, std::int64_t n,
                                    Floats& values) const {
    const SharedQueue queue = NewQueue();
    Copies copies = There();
    const auto y = QueuedValues(queue, n);
    values.resize(static_cast<std::size_t>(n));
    try {
      codec.DecodeOn(*queue, {copies.Of(bytes), bytes.size()}, n, 0, 1, y.get());
      queue->Copy(values.data(), y.get(), 4 * n);
      CheckDevice(kind(), 0);
    } catch (const std::exception& error) {
      return error.what();
    }
    return {};
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, CodecDevices, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

/// Kernels use 16 threads for a short bucket and a whole thread block for a long one. The sizes of
/// buckets and layers lie below and above the length that separates short buckets from long ones.
TEST_P(CodecDevices, EveryCodecWithKernels) {
  int codecs = 0;
  std::size_t number = 0;
  std::vector<std::string> texts = testing::codec_texts();
  for (const char* more : {"qsgd bits=5 bucket=5000",
                           "qsgd bucket=3001 norm=2",
                           "qsgd bits=16 bucket=tensor norm=2",
                           "terngrad clip=none",
                           "terngrad bucket=4500",
                           "terngrad share=off",
                           "qsgd s=200 bucket=7",
                           "int8_rows row=3000 stochastic",
                           "fp8_rows row=5000",
                           "quantized mxfp8 stochastic",
                           "quantized e2m1 16 scale=e4m3fn",
                           "quantized e3m2 3 scale=e4m2",
                           "quantized mxint8",
                           "quantized int8 5000 scale=bf16",
                           "quantized e5m10 7 scale=fp32",
                           "quantized e4m3fn 16 scale=fp32 arithmetic=torchao rule=max_pow2",
                           "one_bit bucket=4100",
                           "feedback qsgd bits=2 bucket=64",
                           "feedback qsgd bits=4 bucket=tensor",
                           "feedback fp8_rows",
                           "feedback terngrad share=off"}) {
    texts.emplace_back(more);
  }
  for (const std::string& text : texts) {
    const SharedCodec codec = codec_of(text);
    if (codec->kernels() != KernelSupport::all) continue;
    ++codecs;
    for (const std::int64_t n : {0, 1, 77, 2048, 6145}) {
      for (const auto kind : {ValueKind::normal, ValueKind::with_specials, ValueKind::tiny,
                              ValueKind::equal, ValueKind::zero}) {
        for (const int shift : {0, 7, -130}) {
          if (!testing::is_chosen_on_cpu(number++, 12)) continue;
          SCOPED_TRACE(text + ", " + std::to_string(n) + " values of kind " +
                       std::to_string(static_cast<int>(kind)) + ", shift " + std::to_string(shift));
          const States states(*codec, n);
          {
            const Layer layer(*this, *codec, values_of(n, kind), shift, states);
            ExpectRound(*codec, layer);
            ExpectMessage(*codec, layer, 0, n);
            if (n > 2048) {
              ExpectMessage(*codec, layer, 1029, 1);
              ExpectMessage(*codec, layer, 3, n - 1000);
            }
          }
          states.Commit();
        }
      }
    }
  }
  EXPECT_GE(codecs, 35);
}

const std::array kStateful{"one_bit", "one_bit bucket=64", "feedback int4",
                           "feedback qsgd bits=2 bucket=64", "feedback fp8_rows"};

/// After calls of any kind, the stored errors equal the scalar kernels' errors. The previous call
/// may have run on the CPU or on the device.
TEST_P(CodecDevices, ErrorsFromCallToCall) {
  constexpr std::int64_t kSize = 2999;
  for (const char* text : kStateful) {
    const SharedCodec codec = codec_of(text);
    ASSERT_EQ(codec->kernels(), KernelSupport::all);
    const States states(*codec, kSize);
    for (unsigned step = 0; step < 7; ++step) {
      SCOPED_TRACE(std::string(text) + ", step " + std::to_string(step));
      const int shift = step % 2 == 0 ? 0 : 3;
      const auto kind = step == 3 ? ValueKind::with_specials : ValueKind::normal;
      const Floats x = values_of(kSize, kind, step);
      if (step % 3 == 2) {  // both on the CPU
        const Piece whole{.n = kSize, .shift = shift, .key = kKey, .size = kSize};
        states.scalar->Begin(whole, x.data());
        states.there->Begin(whole, x.data());
        EXPECT_EQ(EncodedByScalar(*codec, whole, states.scalar.get(), x.data()),
                  EncodedByScalar(*codec, whole, states.there.get(), x.data()));
      } else if (step % 3 == 1) {
        ExpectRound(*codec, Layer(*this, *codec, x, shift, states));
      } else {
        const Layer layer(*this, *codec, x, shift, states);
        ExpectMessage(*codec, layer, 1029, kSize - 1029);
        ExpectMessage(*codec, layer, 0, 1029);
      }
      states.Commit();
      ExpectRound(*codec, Layer(*this, *codec, x, 0, states));  // of a call that fails
      states.ExpectSame();
    }
  }
}

/// A call adds the rounding errors that the previous call stored, although the previous call used
/// another stream and the host has not waited for that stream.
TEST_P(CodecDevices, ErrorsFromStreamToStream) {
  constexpr std::int64_t kSize = 500;
  for (const char* text : kStateful) {
    SCOPED_TRACE(text);
    const SharedCodec codec = codec_of(text);
    const States states(*codec, kSize);
    const Piece whole{.n = kSize, .key = kKey, .size = kSize};
    const Floats x = values_of(2 * kSize, ValueKind::normal);
    Copies copies = There();
    const float* const there = copies.Of(x);
    const std::array queues{NewQueue(), NewQueue()};
    Bytes bytes;
    std::shared_ptr<float> to;
    for (std::size_t call = 0; call < 2; ++call) {
      const auto first = static_cast<std::int64_t>(call) * kSize;
      states.scalar->Begin(whole, x.data() + first);
      bytes = EncodedByScalar(*codec, whole, states.scalar.get(), x.data() + first);
      states.scalar->Commit();
      to = QueuedValues(queues[call], static_cast<std::int64_t>(bytes.size()));
      states.there->BeginOn(queues[call], whole, there + first);
      codec->EncodeOn(*queues[call], whole, states.there.get(), there + first,
                      reinterpret_cast<std::uint8_t*>(to.get()));
      states.there->Commit();
    }
    Bytes got(bytes.size());
    queues[1]->Copy(got.data(), to.get(), static_cast<std::int64_t>(got.size()));
    EXPECT_EQ(got, bytes);
    states.ExpectSame();
  }
}

/// Encodes a slice of sums in ranges, without the rest of the layer, as the rank that owns the
/// slice does in a reduce-scatter.
TEST_P(CodecDevices, ErrorsOfResults) {
  constexpr std::int64_t kSlice = 2500;
  for (const char* text : kStateful) {
    SCOPED_TRACE(text);
    const SharedCodec codec = codec_of(text)->ForResults(kFp32, 3);
    const States states(*codec, kSlice);
    const std::int64_t slice = 5 * codec->bucket();
    const std::int64_t cut = 1280 / codec->bucket() * codec->bucket();
    for (unsigned step = 0; step < 3; ++step) {
      const SharedQueue queue = NewQueue();
      const Floats x = values_of(kSlice, ValueKind::normal, step);
      states.scalar->Begin({.begin = slice, .n = kSlice, .key = kKey}, nullptr);
      states.there->BeginOn(queue, {.begin = slice, .n = kSlice, .key = kKey}, nullptr);
      for (const auto& [begin, n] : {std::pair{cut, kSlice - cut}, {std::int64_t{0}, cut}}) {
        const Piece piece{.begin = slice + begin, .n = n, .key = kKey};
        const Floats values(x.begin() + begin, x.begin() + begin + n);
        const Bytes bytes = EncodedByScalar(*codec, piece, states.scalar.get(), values.data());
        Copies copies = There();
        float* const there = copies.Of(values);
        ExpectBytes(*codec, queue, bytes, n, 0, [&](std::uint8_t* to) {
          codec->EncodeOn(*queue, piece, states.there.get(), there, to);
        });
        // Virtual ranks round a layer in place: the rounded values replace the layer's values.
        if (step == 1) codec->RoundOn(*queue, piece, states.there.get(), there, there);
        queue->Wait();
        Floats rounded(static_cast<std::size_t>(n));
        codec->Decode(bytes, n, 0, 1, rounded.data());
        if (step == 1) {
          EXPECT_TRUE(same(rounded, Read(queue, there, n)));
        }
      }
      states.Commit();
    }
  }
}

/// The values are NaN and whole numbers, because sums of ternary values (-1, 0 and 1) are whole
/// numbers.
TEST_P(CodecDevices, IntegerSums) {
  const SharedCodec codec = MakeCodec("terngrad")->ForResults(kFp32, 5);
  ASSERT_EQ(codec->kernels(), KernelSupport::all);
  Floats sums = values_of(5000, ValueKind::normal);
  for (float& sum : sums) sum = std::round(std::fmin(std::fmax(2 * sum, -5.0F), 5.0F));
  sums[7] = std::nanf("");
  const Layer layer(*this, *codec, sums, 0, States(*codec, 5000));
  ExpectRound(*codec, layer);
  ExpectMessage(*codec, layer, 0, 5000);
  ExpectMessage(*codec, layer, 8, 801);
}

TEST_P(CodecDevices, ANumberOfABucketThatIsNoneIsAFault) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  struct Case {
    std::string text;
    float number;
    std::string fault;
  };
  const std::string norm = "value 64 of a message: its bucket's norm is negative or infinite";
  const std::string scale = "value 64 of a message: its bucket's scale is negative or no number";
  const std::vector<Case> cases{{"qsgd bits=4 bucket=64", -1, norm},
                                {"qsgd bits=4 bucket=64", kInf, norm},
                                {"int8_rows row=64", -1, scale},
                                {"int8_rows row=64", -kInf, scale},
                                {"int8_rows row=64", kInf, ""},
                                {"int8_rows row=64", std::nanf(""), ""},
                                {"fp8_rows row=64", -1, scale},
                                {"fp8_rows row=64", kInf, scale},
                                {"fp8_rows row=64", std::nanf(""), scale},
                                {"feedback int4 bucket=64", -1, scale}};
  for (const auto& [text, number, expected] : cases) {
    SCOPED_TRACE(text + ", " + std::to_string(number));
    const SharedCodec codec = MakeCodec(text);
    Bytes bytes(static_cast<std::size_t>(codec->MostBytes(100)));
    std::copy_n(reinterpret_cast<const std::uint8_t*>(&number), 4, bytes.data() + 4);
    Floats values;
    const std::string fault = FaultOf(*codec, bytes, 100, values);
    EXPECT_EQ(fault.empty(), expected.empty()) << fault;
    if (on_host()) continue;  // whose text names the codec
    EXPECT_EQ(fault.find(expected), 0U) << fault;
  }
}

/// Decodes bytes that no encoder writes. A device reports an error where the scalar kernels throw,
/// and otherwise gives the values of the scalar kernels.
TEST_P(CodecDevices, AnyBytes) {
  constexpr std::int64_t kSize = 150;
  std::mt19937 random(1);
  int faults = 0;
  int fine = 0;
  for (const char* text :
       {"int8_rows row=40", "int4 bucket=7", "fp8_rows row=40", "quantized e2m1 16 scale=e4m3fn",
        "quantized mxfp8", "quantized e5m10 7 scale=fp32", "quantized e3m2 3 scale=e4m2",
        "one_bit bucket=33", "feedback int4"}) {
    const SharedCodec codec = MakeCodec(text);
    Bytes bytes(static_cast<std::size_t>(codec->MostBytes(kSize)));
    for (int trial = 0; trial < 20; ++trial) {
      SCOPED_TRACE(std::string(text) + ", trial " + std::to_string(trial));
      for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
      if (trial % 2 == 0) {  // positive numbers, as far as they fill a byte
        for (std::uint8_t& byte : bytes) byte &= 0x7F;
      }
      Floats expected(static_cast<std::size_t>(kSize));
      Floats got;
      const bool is_damaged = OnScalar([&] {
        try {
          codec->Decode(bytes, kSize, 0, 1, expected.data());
          return false;
        } catch (const DamagedBytes&) {
          return true;
        }
      });
      EXPECT_EQ(!FaultOf(*codec, bytes, kSize, got).empty(), is_damaged);
      if (!is_damaged) {
        EXPECT_TRUE(same(expected, got));
      }
      ++(is_damaged ? faults : fine);
    }
  }
  EXPECT_GE(faults, 40);
  EXPECT_GE(fine, 40);
}

}  // namespace
}  // namespace cpd
