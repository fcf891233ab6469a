// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/qsgd.h"

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <string>

#include "cpd/compress/buckets.h"
#include "cpd/compress/words.h"
#include "cpd/spec/error.h"
#include "cpd/spec/names.h"

namespace cpd {
namespace {

constexpr int kLeastBits = 2, kMostBits = 16;  // of signed levels
constexpr int kMostSteps = (1 << (kMostBits - 1)) - 1;
constexpr std::array<std::string_view, 2> kNorms{"max", "2"};
constexpr std::array<std::string_view, 2> kLevels{"signed", "intervals"};
constexpr std::array<std::string_view, 4> kCodings{"fixed", "elias-dense", "elias-sparse",
                                                   "smallest"};  // in LevelCoding's order
constexpr std::array<std::string_view, 2> kSpacings{"uniform", "optimal"};

bool HasBits(const QsgdOptions& options) { return options.steps == 0; }
bool HasBucket(const QsgdOptions& /*options*/) { return true; }

constexpr std::array<Key<QsgdOptions>, 9> kQsgdKeys{{
    RangedKey<"s", &QsgdOptions::steps, 1, kMostSteps>(),
    RangedKey<"bits", &QsgdOptions::bits, 1, kMostBits>(nullptr, &HasBits),
    BucketKey<&QsgdOptions::bucket>(&HasBucket),
    WholeKey<&QsgdOptions::bucket>(),
    AxisKey<&QsgdOptions::axis>(),
    ChoiceKey<"norm", &QsgdOptions::euclidean, kNorms>(),
    ChoiceKey<"levels", &QsgdOptions::intervals, kLevels>(),
    ChoiceKey<"coding", &QsgdOptions::coding, kCodings>(),
    ChoiceKey<"spacing", &QsgdOptions::spaced, kSpacings>(),
}};
constexpr Keys<QsgdOptions> kQsgd{"qsgd", kQsgdKeys};

LevelPlan PlanOf(const QsgdOptions& options, const RoundingOptions& rounding) {
  Check(rounding);
  if (options.steps < 0 || options.steps > kMostSteps) {
    throw Error("qsgd: s must be 1…" + std::to_string(kMostSteps) + ", got " +
                std::to_string(options.steps));
  }
  if (options.steps != 0 && options.intervals) {
    throw Error("qsgd: s=" + std::to_string(options.steps) +
                " is of signed levels: give bits with levels=intervals");
  }
  if (options.bits < (options.intervals ? 1 : kLeastBits) || options.bits > kMostBits) {
    throw Error("qsgd: bits must be 2…16, or 1 with levels=intervals, got " +
                std::to_string(options.bits));
  }
  if (options.bucket < 0 || options.bucket > kMostBucket) {
    throw Error("qsgd: bucket must be 1…65536 values, or 'tensor', got " +
                std::to_string(options.bucket));
  }
  if (options.bucket == 0 && options.axis) {
    throw Error("qsgd: axis=" + std::to_string(*options.axis) +
                " is of buckets: give bucket=N, got bucket=tensor");
  }
  if (options.intervals && options.coding != LevelCoding::fixed) {
    throw Error("qsgd: Elias codes are of signed levels: give levels=signed or coding=fixed");
  }
  const int steps = options.steps != 0
                        ? options.steps
                        : (1 << (options.intervals ? options.bits : options.bits - 1)) - 1;
  if (options.spaced && options.intervals) {
    throw Error("qsgd: spacing=optimal is for signed levels, not for levels=intervals");
  }
  if (options.spaced && steps > LevelSpacing::kMostSteps) {
    throw Error("qsgd: spacing=optimal is for at most 127 signed levels, got " +
                std::to_string(steps));
  }
  // A code of one of 2 s + 1 levels needs as many bits as the binary number 2 s.
  const int bits =
      options.steps != 0 ? std::bit_width(2 * static_cast<unsigned>(steps)) : options.bits;
  return {.bits = bits,
          .steps = steps,
          .most = steps,
          .intervals = options.intervals,
          .random_bits = rounding.random_bits};
}

LevelBlocks BlocksOf(const QsgdOptions& options, const RoundingOptions& rounding) {
  return {PlanOf(options, rounding),
          {.norm = options.euclidean ? LevelNorm::euclidean : LevelNorm::largest,
           .bucket = options.bucket,
           .coding = options.coding,
           .spaced = options.spaced}};
}

}  // namespace

Qsgd::Qsgd(const QsgdOptions& options, const RoundingOptions& rounding)
    : options_(options), rounding_(rounding), blocks_(BlocksOf(options, rounding)) {}

Qsgd::Qsgd(const QsgdOptions& options, const RoundingOptions& rounding, std::int64_t row)
    : options_(options), rounding_(rounding), blocks_(BlocksOf(options, rounding)), row_(row) {}

std::string Qsgd::name() const { return "qsgd" + TextOfKeys(kQsgd, options_, {}); }

std::string Qsgd::text() const {
  return name() + (row_ == 0 ? "" : " of columns of " + std::to_string(row_)) +
         " random_bits=" + std::to_string(rounding_.random_bits);
}

std::int64_t Qsgd::MostBytes(std::int64_t n, std::int64_t before) const {
  return blocks_.MostBytes(n, before);
}

std::int64_t Qsgd::bucket() const { return options_.bucket == 0 ? 1 : options_.bucket; }

struct Qsgd::Layer final : CodecState {
  explicit Layer(const LevelBlocks& coder) : blocks(coder) {}
  void BeginOn(const SharedQueue& queue, const Piece& layer, const float* x) override {
    levels = blocks.MeasureLevels(*queue, layer, x);
  }
  void Commit() override {}

  LevelBlocks blocks;
  LayerLevels levels;
};

std::unique_ptr<CodecState> Qsgd::MakeState(std::int64_t /*size*/) const {
  if (options_.bucket != 0 && !options_.spaced) return nullptr;
  return std::make_unique<Layer>(blocks_);
}

const LayerLevels& Qsgd::LevelsOf(const CodecState* state) const {
  static const LayerLevels kNone;
  const bool has_state = options_.bucket == 0 || options_.spaced;
  return has_state ? dynamic_cast<const Layer&>(*state).levels : kNone;
}

std::int64_t Qsgd::EncodeOn(const Queue& queue, const Piece& piece, CodecState* state,
                            const float* x, std::uint8_t* to) const {
  return blocks_.EncodeOn(queue, piece, LevelsOf(state), x, to);
}

void Qsgd::DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n,
                    int shift, float divisor, float* y, std::int64_t before) const {
  blocks_.DecodeOn(queue, bytes, n, shift, divisor, y, before);
}

void Qsgd::RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                   float* y, SegmentCounts* counts) const {
  blocks_.RoundOn(queue, piece, LevelsOf(state), x, y, counts);
}

RowLayout Qsgd::LayoutOf(std::span<const std::int64_t> shape) const {
  return by_rows() ? ColumnLayout(options_.axis, shape, name()) : Codec::LayoutOf(shape);
}

SharedCodec Qsgd::ForRows(std::int64_t row) const {
  if (!by_rows()) return nullptr;
  row = std::clamp<std::int64_t>(row, 1, kMostBucket);
  return SharedCodec(new Qsgd(options_, rounding_, row));
}

SharedCodec Qsgd::ForResults(const Format& /*format*/, int /*world*/) const {
  if (options_.bucket == 0) return nullptr;
  QsgdOptions options = options_;
  options.spaced = false;
  return SharedCodec(new Qsgd(options, rounding_, row_));
}

SharedCodec MakeQsgd(CodecWords& words, const RoundingOptions& rounding) {
  QsgdOptions options;
  const std::vector<Option> given = words.Take(kQsgd, options);
  if (ValueOf(given, "bits") != nullptr && options.steps != 0) {
    throw Error("qsgd takes bits or s, got " + Quoted(words.text()));
  }
  words.End(kQsgd.owner, NamesOf(kQsgd));
  return std::make_shared<Qsgd>(options, rounding);
}

}  // namespace cpd
