// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include "cpd/backend/cpu/spans.h"
#include "cpd/backend/segments.h"
#include "cpd/base/plans.h"
#include "cpd/comm/engine/message_ops.h"
#include "cpd/numeric/draws/streams.h"

namespace cpd {
namespace {

std::size_t Index(Codes codes) { return static_cast<std::size_t>(codes); }

class DeviceOps final : public MessageOps {
 public:
  DeviceOps(const Reduction& reduction, int rank, Layers layers, bool in_fp32,
            std::function<void()> progress, SharedQueue queue)
      : MessageOps(reduction, rank, std::move(layers), in_fp32, std::move(progress)),
        queue_(std::move(queue)) {}

  void Pack(const Part& part, Message& to) const override { Contribute(part, to.payload()); }

  void Fold(const Part& part, std::span<const SharedMessage> from, Message& to) const override {
    FoldFrom(part, from, -1, to);
  }
  void FoldGroup(const Part& part, std::span<const SharedMessage> from,
                 Message& to) const override {
    FoldFrom(part, from, rank() / reduction().spec().group_size, to);
  }

  void Hop(const Part& part, std::int64_t k, const Message* from, Message& to) const override {
    const auto own = OwnMessage(part);
    HopFrom(part, k, from, own.get(), Codes::wire, to);
  }
  [[nodiscard]] std::shared_ptr<float> Allocate(std::int64_t n) const override {
    return QueuedValues(queue_, n);
  }
  void HopValues(const Part& part, std::int64_t k, const Message* from, const float* values,
                 Message& to) const override {
    HopFrom(part, k, from, reinterpret_cast<const std::uint8_t*>(values), Codes::values, to);
  }

  void LoadResults(const Part& part, const Message& from, float* values) const override {
    Transcode(part, from.payload(), Codes::result, reinterpret_cast<std::uint8_t*>(values),
              Codes::values);
  }
  void StoreResults(const Part& part, const float* values, Message& to) const override {
    Transcode(part, reinterpret_cast<const std::uint8_t*>(values), Codes::values, to.payload(),
              Codes::result);
  }

  void Unpack(const Part& part, const Message& from) const override {
    ReduceCall call = this->call();
    call.task = ReduceTask::unpack;
    call.from_codes = codes_results() ? Codes::values : Codes::result;
    call.unscales = true;
    call.divisor = reduction().divisor();
    std::vector<ReduceSegment> segments = SegmentsOf(part);
    const bool shares = reduction().measured() == Measured::shared;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const auto l = static_cast<std::size_t>(part.segments[i].layer);
      segments[i].out = layers().out[l] + (segments[i].begin - layers().out_begin[l]);
      if (shares) segments[i].scale = layers().scales[l];
    }
    std::shared_ptr<float> decoded;
    if (codes_results()) decoded = Decoded(Content::results, part, from.payload());
    const auto* values = reinterpret_cast<const std::uint8_t*>(decoded.get());
    Run(call, segments,
        std::array<const std::uint8_t*, 1>{decoded == nullptr ? from.payload() : values});
  }
  void UnpackWire(const Part& part, const Message& from,
                  std::span<const std::int64_t> offset) const override {
    ReduceCall call = this->call();
    call.task = ReduceTask::unpack;
    call.from_codes = Codes::wire;
    std::vector<ReduceSegment> segments = SegmentsOf(part);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const auto l = static_cast<std::size_t>(part.segments[i].layer);
      segments[i].out = layers().out[l] + offset[l] + segments[i].begin;
    }
    Run(call, segments, std::array<const std::uint8_t*, 1>{from.payload()});
  }

  [[nodiscard]] std::vector<Losses> CountLosses() const override {
    if (coded()) return CountCoded();
    std::vector<ReduceSegment> segments = WholeLayers(layers().sizes);
    for (std::size_t l = 0; l < segments.size(); ++l) {
      segments[l].layer = reduction().number(static_cast<std::int64_t>(l));
      segments[l].x = layers().x[l];
      segments[l].shift = BoundedShift(layers().shifts[l]);
    }
    ReduceCall call = this->call();
    Walk(call, segments);
    std::vector<Losses> all;
    for (const SegmentCounts& counts : queue_->Count(call, true)) {
      all.push_back(LossesOf(counts));
    }
    return all;
  }

 private:
  [[nodiscard]] std::vector<ReduceSegment> SegmentsOf(const Part& part) const {
    const auto bytes = [&](Codes kind, std::int64_t count) {
      return (count * call().codes[Index(kind)].bits + 7) / 8;
    };
    std::vector<ReduceSegment> segments;
    segments.reserve(part.segments.size());
    std::array<std::int64_t, kCodes> start{};
    start[Index(Codes::plane1)] = part.Bytes(call().codes[Index(Codes::plane0)].bits);
    std::int64_t tiles = 0;
    for (const Segment& given : part.segments) {
      const auto l = static_cast<std::size_t>(given.layer);
      ReduceSegment segment;
      segment.layer = reduction().number(given.layer);
      segment.size = layers().sizes[l];
      segment.begin = given.begin;
      segment.count = given.count;
      segment.tile = tiles;
      segment.x = layers().x[l] + given.begin;
      segment.shift = BoundedShift(layers().shifts[l]);
      segment.start = start;
      segments.push_back(segment);
      tiles += tiles_of(given.count);
      for (int c = 0; c < kCodes; ++c) {
        start[static_cast<std::size_t>(c)] += bytes(static_cast<Codes>(c), given.count);
      }
    }
    return segments;
  }

  void Run(ReduceCall& call, const std::vector<ReduceSegment>& segments,
           std::span<const std::uint8_t* const> from) const {
    Walk(call, segments);
    call.between = [](const void* ops) { static_cast<const DeviceOps*>(ops)->Progress(); };
    call.waiting = this;
    call.from = from.data();
    call.from_count = static_cast<std::int32_t>(from.size());
    queue_->reduce(call);
    Progress();
  }

  /// Writes this rank's contributions.
  void Contribute(const Part& part, std::uint8_t* to) const {
    return coded() ? EncodeTo(part, to) : PackTo(part, to);
  }
  void PackTo(const Part& part, std::uint8_t* to) const {
    ReduceCall call = this->call();
    call.task = ReduceTask::pack;
    call.to_codes = Codes::wire;
    call.to = to;
    Run(call, SegmentsOf(part), {});
  }

  /// This rank's contributions as a message; null where `reduce` casts them in passing.
  [[nodiscard]] std::shared_ptr<std::uint8_t> OwnMessage(const Part& part) const {
    if (queue_->kind() == Device::cpu) return nullptr;
    auto own = QueuedValues<std::uint8_t>(queue_, MostBytes(Content::contributions, part));
    Contribute(part, own.get());
    return own;
  }

  void FoldFrom(const Part& part, std::span<const SharedMessage> from, std::int64_t unit,
                Message& to) const {
    std::shared_ptr<std::uint8_t> own;
    std::vector<const std::uint8_t*> memory;
    std::vector<std::shared_ptr<float>> decoded;
    for (const SharedMessage& message : from) {
      if (message == nullptr && own == nullptr) own = OwnMessage(part);
      memory.push_back(message == nullptr ? own.get() : message->payload());
      if (!coded()) continue;
      decoded.push_back(Decoded(Content::contributions, part, memory.back()));
      memory.back() = reinterpret_cast<const std::uint8_t*>(decoded.back().get());
    }
    const auto sums = codes_results() ? QueuedValues(queue_, part.count) : nullptr;
    ReduceCall call = this->call();
    call.task = ReduceTask::fold;
    call.to_codes = codes_results() ? Codes::values : Codes::result;
    call.to = codes_results() ? reinterpret_cast<std::uint8_t*>(sums.get()) : to.payload();
    call.unit = unit;
    Run(call, SegmentsOf(part), memory);
    if (codes_results()) EncodeResults(part, sums.get(), to.payload());
  }

  // --- codecs that have kernels ---

  [[nodiscard]] bool codes_results() const { return reduction().results(0) != nullptr; }

  /// Calls run(segment, its position, the message's byte where it begins).
  template <class Run>
  void ForCoded(Content content, const Part& part, Run run) const {
    std::int64_t position = 0;
    std::int64_t at = 0;
    for (const Segment& segment : part.segments) {
      run(segment, position, at);
      position += segment.count;
      Part alone;
      alone.Add(segment);
      at += MostBytes(content, alone);
    }
  }

  [[nodiscard]] static CodecState* StateOf(const std::vector<CodecState*>& states, std::size_t l) {
    return states.empty() ? nullptr : states[l];
  }

  void EncodeTo(const Part& part, std::uint8_t* to) const {
    ForCoded(Content::contributions, part, [&](const Segment& s, std::int64_t, std::int64_t at) {
      const auto l = static_cast<std::size_t>(s.layer);
      const float scale = layers().scales.empty() ? 0 : layers().scales[l];
      reduction().wire(s.layer)->EncodeOn(
          *queue_,
          reduction().PieceOf(s.layer, rank(), layers().shifts[l], scale, s.begin, s.count),
          StateOf(layers().states, l), layers().x[l] + s.begin, to + at);
    });
    Progress();
  }

  void EncodeResults(const Part& part, const float* sums, std::uint8_t* to) const {
    ForCoded(Content::results, part, [&](const Segment& s, std::int64_t position, std::int64_t at) {
      const Piece piece = reduction().ResultPiece(s.layer, s.begin, s.count);
      reduction().results(s.layer)->EncodeOn(
          *queue_, piece, StateOf(layers().results, static_cast<std::size_t>(s.layer)),
          sums + position, to + at);
    });
    Progress();
  }

  /// A message's values, by position.
  [[nodiscard]] std::shared_ptr<float> Decoded(Content content, const Part& part,
                                               const std::uint8_t* from) const {
    const std::shared_ptr<float> values = QueuedValues(queue_, part.count);
    ForCoded(content, part, [&](const Segment& s, std::int64_t position, std::int64_t at) {
      const Codec& codec = codecs(content).of(0, s.layer);
      const std::int64_t before = s.begin % codec.bucket();
      const auto bytes = static_cast<std::size_t>(codec.MostBytes(s.count, before));
      codec.DecodeOn(*queue_, {from + at, bytes}, s.count, 0, 1, values.get() + position, before);
    });
    return values;
  }

  [[nodiscard]] std::vector<Losses> CountCoded() const {
    std::vector<Losses> all;
    for (std::size_t l = 0; l < layers().sizes.size(); ++l) {
      const auto size = layers().sizes[l];
      const auto layer = static_cast<std::int64_t>(l);
      const float scale = layers().scales.empty() ? 0 : layers().scales[l];
      const auto found = QueuedValues<SegmentCounts>(queue_, 1);
      queue_->Clear(found.get(), sizeof(SegmentCounts));
      reduction().wire(layer)->RoundOn(
          *queue_, reduction().PieceOf(layer, rank(), layers().shifts[l], scale, 0, size),
          StateOf(layers().states, l), layers().x[l], QueuedValues(queue_, size).get(),
          found.get());
      SegmentCounts counts;
      queue_->Copy(&counts, found.get(), sizeof(counts));
      all.push_back(LossesOf(counts));
    }
    return all;
  }

  void HopFrom(const Part& part, std::int64_t k, const Message* from, const std::uint8_t* terms,
               Codes terms_in, Message& to) const {
    ReduceCall call = this->call();
    call.task = ReduceTask::hop;
    call.from_codes = terms_in;
    call.to = to.payload();
    call.k = k;
    const std::array<const std::uint8_t*, 2> memory{from == nullptr ? nullptr : from->payload(),
                                                    terms};
    Run(call, SegmentsOf(part), memory);
  }

  void Transcode(const Part& part, const std::uint8_t* from, Codes from_codes, std::uint8_t* to,
                 Codes to_codes) const {
    ReduceCall call = this->call();
    call.task = ReduceTask::transcode;
    call.from_codes = from_codes;
    call.to_codes = to_codes;
    call.to = to;
    Run(call, SegmentsOf(part), std::array<const std::uint8_t*, 1>{from});
  }

  SharedQueue queue_;
};

}  // namespace

std::unique_ptr<MessageOps> MakeDeviceOps(const Reduction& reduction, int rank, Layers layers,
                                          bool in_fp32, std::function<void()> progress,
                                          SharedQueue queue) {
  return std::make_unique<DeviceOps>(reduction, rank, std::move(layers), in_fp32,
                                     std::move(progress), std::move(queue));
}

std::vector<std::shared_ptr<float>> Quotients(const SharedQueue& queue,
                                              std::span<const TensorView> x, float divisor) {
  ReduceCall call;
  call.task = ReduceTask::unpack;
  call.from_codes = Codes::values;
  call.codes[Index(Codes::values)] = PlanOf(kFp32);
  call.unscales = true;
  call.divisor = divisor;
  call.from_count = 1;
  std::vector<std::shared_ptr<float>> all;
  for (const TensorView& layer : x) {
    const std::int64_t size = layer.size();
    all.push_back(QueuedValues(queue, size));
    std::vector<ReduceSegment> segments = WholeLayers({&size, 1});
    segments[0].out = all.back().get();
    const auto* from = static_cast<const std::uint8_t*>(layer.data);
    call.from = &from;
    Walk(call, segments);
    if (size > 0) queue->reduce(call);
  }
  return all;
}

}  // namespace cpd
