// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/message_ops.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cpd/backend/cpu/spans.h"
#include "cpd/backend/segments.h"
#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/compress/packed.h"
#include "cpd/numeric/draws/streams.h"

namespace cpd {
namespace {

constexpr std::int64_t kBatch = 64;  // blocks a thread, between two polls of the transport

std::size_t Index(Codes codes) { return static_cast<std::size_t>(codes); }

/// Returns the kind of packed codes in a message with contributions, results or running sums. The
/// state of a running sum has up to two values for each element. A message holds the first value
/// of every element as plane 0, and the second value as plane 1. `plane` selects the plane.
Codes CodesOf(Content content, std::size_t plane) {
  if (content == Content::contributions) return Codes::wire;
  if (content == Content::results) return Codes::result;
  return plane == 0 ? Codes::plane0 : Codes::plane1;
}

/// Returns the codecs for the results that owners of slices send. With `in_fp32`, a codec without a
/// code for NaN is replaced by a codec of fp32 values (Codec::ForResults).
std::vector<SharedCodec> ResultCodecs(const Reduction& reduction, bool in_fp32) {
  std::vector<SharedCodec> codecs(reduction.results().begin(), reduction.results().end());
  for (std::size_t l = 0; l < codecs.size() && in_fp32; ++l) {
    if (codecs[l] == nullptr || codecs[l]->has_nan()) continue;
    codecs[l] = reduction.wires()[l]->ForResults(kFp32, reduction.world());
  }
  return codecs;
}

CodecState* StateOf(const std::vector<CodecState*>& states, int layer) {
  return states.empty() ? nullptr : states[static_cast<std::size_t>(layer)];
}

const std::uint8_t* BytesOf(const float* values) {
  return reinterpret_cast<const std::uint8_t*>(values);
}

}  // namespace

MessageOps::MessageOps(const Reduction& reduction, int rank, Layers layers, bool in_fp32,
                       SharedQueue queue, std::function<void()> progress)
    : reduction_(reduction),
      rank_(rank),
      layers_(std::move(layers)),
      in_fp32_(in_fp32),
      queue_(std::move(queue)),
      progress_(std::move(progress)),
      casts_(dynamic_cast<const Packed*>(reduction.wires()[0].get()) != nullptr),
      codecs_{Codecs(reduction.wires()), Codecs(reduction.wires()), Codecs(reduction.wires())} {
  const Reduce& spec = reduction.spec();
  const auto sums = [&](const Format& format) {
    return reduction.wires()[0]->ForSums(in_fp32 ? kFp32 : format);
  };
  const auto of = [&](Content content) -> Codecs& {
    return codecs_[static_cast<std::size_t>(content)];
  };
  const SharedCodec packed = std::make_shared<Packed>(kFp32);
  of(Content::contributions).Add(as_values() ? std::span(&packed, 1) : reduction.wires());
  const Level across = reduction.Across();
  for (int q = 0; q < across.planes(); ++q) {
    const SharedCodec plane = sums(across.plane_format(q));
    of(Content::running_sums).Add({&plane, 1});
  }
  of(Content::results).Add(ResultCodecs(reduction, in_fp32), sums(spec.result));
  call_ = MakeCall();
}

bool MessageOps::is_direct(Content content) const {
  return content == Content::contributions ? casts_ : codecs(content).is_packed();
}

ReduceCall MessageOps::MakeCall() const {
  const Level across = reduction_.Across();
  ReduceCall call;
  if (casts_) {
    const auto& wire = dynamic_cast<const Packed&>(*reduction_.wires()[0]);
    call.cast = PlanOf(wire.format(), wire.rounding(), {.seed = reduction_.seed()});
  }
  call.codes.fill(PlanOf(kFp32));
  for (const Content content : {Content::contributions, Content::running_sums, Content::results}) {
    for (std::size_t q = 0; q < codecs(content).planes() && is_direct(content); ++q) {
      call.codes[Index(CodesOf(content, q))] = PlanOf(codecs(content).of(q, 0).format());
    }
  }
  call.across = SumPlanOf(across);
  call.group = SumPlanOf(reduction_.Group());
  call.rounds = reduction_.rounds();
  call.world = reduction_.world();
  call.group_size = reduction_.spec().group_size;
  call.cast_stream = StreamOf(Purpose::wire, reduction_.step(), 0, rank_);
  call.sum_stream = StreamOf(Purpose::sum, reduction_.step(), 0, 0);
  call.result_stream = StreamOf(Purpose::result, reduction_.step(), 0, 0);
  return call;
}

/// Memory for decoded values on the queue's device. Each set of blocks reuses the memory of the set
/// of blocks before it.
class MessageOps::Scratch {
 public:
  explicit Scratch(const SharedQueue& queue) : queue_(queue) {}
  /// Lets Take return the memory again that it has returned so far. Call Reset before each new set
  /// of blocks.
  void Reset() { used_ = 0; }
  /// Returns memory for n values, valid until the next call of Reset.
  float* Take(std::int64_t n) {
    if (used_ == memory_.size()) memory_.emplace_back();
    auto& [size, values] = memory_[used_++];
    if (size < n) values = QueuedValues(queue_, size = n);
    return values.get();
  }

 private:
  const SharedQueue& queue_;
  std::size_t used_ = 0;
  std::vector<std::pair<std::int64_t, std::shared_ptr<float>>> memory_;
};

template <class Body>
void MessageOps::ForBlocks(const Part& part, const Body& body) const {
  if (part.count == 0) return;
  if (!by_blocks()) {
    const std::vector<Block> segments = SegmentsOf(part);
    Scratch scratch(queue_);
    body(Blocks(segments), scratch);
    return progress_();
  }
  const std::vector<Block> blocks = BlocksOf(part, codecs(Content::contributions));
  const auto count = static_cast<std::int64_t>(blocks.size());
  const std::int64_t batch = kBatch * MaxThreads();
  for (std::int64_t first = 0; first < count; first += batch) {
    parallel_for(std::min(batch, count - first), 1, 8, [&](std::int64_t begin, std::int64_t end) {
      Scratch scratch(queue_);
      for (std::int64_t i = begin; i < end; ++i) {
        scratch.Reset();
        body(Blocks(blocks).subspan(static_cast<std::size_t>(first + i), 1), scratch);
      }
    });
    CheckInterrupt();
    progress_();
  }
}

/// The argument of the function that Convert calls repeatedly: the next blocks of values, the
/// messages to read and the message to write.
struct MessageOps::Work {
  Blocks blocks;
  Scratch& scratch;
  const std::vector<CodedPart>& read;
  CodedPart& written;
};

template <class Body>
void MessageOps::Convert(const Part& part, const std::vector<Source>& from, Content content,
                         Message* to, const Body& body) const {
  if (queue_ == nullptr) return;
  std::vector<CodedPart> read;
  read.reserve(from.size());
  for (const Source& source : from) {
    read.push_back(CodedPart::Read(part, codecs(source.content), source.message, *queue_));
  }
  CodedPart written;
  if (to != nullptr) written = CodedPart::Write(part, codecs(content), *to, *queue_);
  ForBlocks(part,
            [&](Blocks blocks, Scratch& scratch) { body(Work{blocks, scratch, read, written}); });
  if (to != nullptr) written.End(*to);
}

/// Prepares and runs one call of the backend's operation `reduce` for some blocks of values.
/// `reduce` reads and writes only packed codes and binary32 values. So a codec decodes other
/// messages to values before the call, and encodes values to a message after the call. Decoded
/// values lie in memory in the blocks' order: plane 0 of all blocks (the sums or
/// other values), then plane 1 of all blocks (the second values of the sums' states).
class MessageOps::Step {
 public:
  Step(const MessageOps& ops, ReduceTask task, const Work& work)
      : ops_(ops), blocks_(work.blocks), scratch_(work.scratch), call_(ops.call_) {
    call_.task = task;
    call_.from_codes = call_.to_codes = Codes::values;
    std::int64_t tiles = 0;
    segments_.reserve(blocks_.size());
    for (const Block& block : blocks_) {
      const auto l = static_cast<std::size_t>(block.layer);
      ReduceSegment& segment = segments_.emplace_back();
      segment.layer = ops.reduction_.number(block.layer);
      segment.size = ops.layers_.sizes[l];
      segment.begin = block.begin;
      segment.count = block.n;
      segment.tile = tiles;
      segment.x = ops.layers_.x[l] + block.begin;
      segment.shift = BoundedShift(ops.layers_.shifts[l]);
      const std::int64_t place = PlaceOf(block) * kBytes;
      segment.start.fill(place);
      count_ += block.n;
      tiles += tiles_of(block.n);
    }
    for (ReduceSegment& segment : segments_) segment.start[Index(Codes::plane1)] += count_ * kBytes;
  }

  [[nodiscard]] ReduceCall& call() { return call_; }
  [[nodiscard]] ReduceSegment& segment(std::size_t i) { return segments_[i]; }

  /// Adds `messages` to the inputs of the operation `reduce`. All of them have the given content. A
  /// missing message of contributions stands for this rank's own contributions.
  void Read(Content content, std::span<const CodedPart> messages) {
    if (ops_.is_direct(content)) {
      Locate(content, messages[0]);  // all have the same places
      call_.from_codes = CodesOf(content, 0);
      for (const CodedPart& message : messages) from_.push_back(message.memory());
      return;
    }
    float* values = Values(content, messages.size());
    for (const CodedPart& message : messages) {
      const bool is_own = !message.is_there() && content == Content::contributions;
      from_.push_back(message.is_there() || is_own ? BytesOf(values) : nullptr);
      for (const Block& block : blocks_) {
        if (is_own) ops_.Round(block, values + PlaceOf(block));
        for (int q = 0; q < message.planes() && message.is_there(); ++q) {
          message.Load(q, block, values + q * count_ + PlaceOf(block));
        }
      }
      values += message.planes() * count_;
    }
  }
  /// Makes `values` (binary32) one more input of the operation `reduce`. values[i] is the value at
  /// position i in the message's list of ranges.
  void Read(const float* values) { from_.push_back(BytesOf(values + blocks_[0].position)); }
  /// Sets `values` as the output of the operation `reduce`, instead of a message. values[i] is the
  /// value at position i in the message's list of ranges.
  void WriteTo(float* values) {
    call_.to = reinterpret_cast<std::uint8_t*>(values + blocks_[0].position);
  }

  void Run() {
    Walk(call_, segments_);
    if (!ops_.by_blocks()) {  // else other threads work, too
      call_.between = [](const void* ops) { static_cast<const MessageOps*>(ops)->progress_(); };
      call_.waiting = &ops_;
    }
    call_.from = from_.data();
    call_.from_count = static_cast<std::int32_t>(from_.size());
    ops_.queue_->reduce(call_);
  }
  /// Runs the operation `reduce` and writes its results for the blocks into `message`.
  void Run(Content content, CodedPart& message) {
    if (ops_.is_direct(content)) {
      Locate(content, message);
      call_.to_codes = CodesOf(content, 0);
      call_.to = message.memory();
      return Run();
    }
    float* const values = Values(content);
    call_.to = reinterpret_cast<std::uint8_t*>(values);
    Run();
    for (const Block& block : blocks_) {
      for (int q = 0; q < message.planes(); ++q) {
        Encode(content, q, block, values + q * count_ + PlaceOf(block), message);
      }
    }
  }

 private:
  static constexpr auto kBytes = static_cast<std::int64_t>(sizeof(float));

  /// Returns the index of a block's first value in the memory for decoded values.
  [[nodiscard]] std::int64_t PlaceOf(const Block& block) const {
    return block.position - blocks_[0].position;
  }
  /// Returns memory for the decoded values of `messages` messages, including all values of each
  /// sum's state.
  float* Values(Content content, std::size_t messages = 1) {
    const std::size_t planes = messages * ops_.codecs(content).planes();
    return scratch_.Take(static_cast<std::int64_t>(planes) * count_);
  }
  /// Sets the offsets at which the blocks of a message begin.
  void Locate(Content content, const CodedPart& message) {
    for (std::size_t q = 0; q < ops_.codecs(content).planes(); ++q) {
      const std::size_t codes = Index(CodesOf(content, q));
      for (std::size_t i = 0; i < segments_.size(); ++i) {
        segments_[i].start[codes] = message.Place(static_cast<int>(q), blocks_[i]);
      }
    }
  }
  /// Encodes sums. Results of a codec (Codec::ForResults) are encoded with loss, all other sums
  /// without loss.
  void Encode(Content content, int plane, const Block& block, const float* sums,
              CodedPart& message) const {
    const Reduction& reduction = ops_.reduction_;
    if (content != Content::results || reduction.results(block.layer) == nullptr) {
      return message.Store(plane, block, sums);
    }
    message.Encode(block, reduction.ResultPiece(block.layer, block.begin, block.n),
                   StateOf(ops_.layers_.results, block.layer), sums);
  }

  const MessageOps& ops_;
  Blocks blocks_;
  Scratch& scratch_;
  ReduceCall call_;
  std::int64_t count_ = 0;
  std::vector<ReduceSegment> segments_;
  std::vector<const std::uint8_t*> from_;
};

Piece MessageOps::OwnPiece(const Block& block) const {
  const auto l = static_cast<std::size_t>(block.layer);
  const float scale = layers_.scales.empty() ? 0 : layers_.scales[l];
  return reduction_.PieceOf(block.layer, rank_, layers_.shifts[l], scale, block.begin, block.n);
}

void MessageOps::Round(const Block& block, float* terms, SegmentCounts* counts) const {
  const float* const x = layers_.x[static_cast<std::size_t>(block.layer)] + block.begin;
  try {
    reduction_.wire(block.layer)
        ->RoundOn(*queue_, OwnPiece(block), StateOf(layers_.states, block.layer), x, terms, counts);
  } catch (const DamagedBytes& error) {
    ThrowDamaged(-1, block, error);
  }
}

void MessageOps::Pack(const Part& part, Message& to) const {
  Convert(part, {}, Content::contributions, &to, [&](const Work& work) {
    if (casts_) {
      return Step(*this, ReduceTask::pack, work).Run(Content::contributions, work.written);
    }
    for (const Block& block : work.blocks) {
      if (!as_values()) {
        work.written.Encode(block, OwnPiece(block), StateOf(layers_.states, block.layer),
                            layers_.x[static_cast<std::size_t>(block.layer)] + block.begin);
        continue;
      }
      float* const terms = work.scratch.Take(block.n);
      Round(block, terms);
      work.written.Store(0, block, terms);
    }
  });
}

std::unique_ptr<Message> MessageOps::OwnMessage(const Part& part) const {
  if (queue_ == nullptr || queue_->on_host()) return nullptr;
  auto own =
      std::make_unique<Message>(std::make_shared<const MessageMemory>(queue_, MemoryKind::queued),
                                MostBytes(Content::contributions, part));
  Pack(part, *own);
  return own;
}

void MessageOps::Fold(const Part& part, std::span<const SharedMessage> from, Message& to) const {
  FoldFrom(part, from, -1, to);
}
void MessageOps::FoldGroup(const Part& part, std::span<const SharedMessage> from,
                           Message& to) const {
  FoldFrom(part, from, rank_ / reduction_.spec().group_size, to);
}

void MessageOps::FoldFrom(const Part& part, std::span<const SharedMessage> from, std::int64_t unit,
                          Message& to) const {
  std::unique_ptr<Message> own;
  std::vector<Source> sources;
  for (const SharedMessage& message : from) {
    if (message == nullptr && own == nullptr) own = OwnMessage(part);
    sources.push_back({Content::contributions, message == nullptr ? own.get() : message.get()});
  }
  Convert(part, sources, Content::results, &to, [&](const Work& work) {
    Step step(*this, ReduceTask::fold, work);
    step.call().unit = unit;
    step.Read(Content::contributions, work.read);
    step.Run(Content::results, work.written);
  });
}

void MessageOps::Hop(const Part& part, std::int64_t k, const Message* from, Message& to) const {
  HopFrom(part, k, from, nullptr, to);
}
void MessageOps::HopValues(const Part& part, std::int64_t k, const Message* from,
                           const float* values, Message& to) const {
  HopFrom(part, k, from, values, to);
}

void MessageOps::HopFrom(const Part& part, std::int64_t k, const Message* from, const float* values,
                         Message& to) const {
  const bool last = k + 1 == call_.rounds.units;
  const Content content = last ? Content::results : Content::running_sums;
  const auto own = values == nullptr ? OwnMessage(part) : nullptr;
  Convert(part, {{Content::running_sums, from}, {Content::contributions, own.get()}}, content, &to,
          [&](const Work& work) {
            Step step(*this, ReduceTask::hop, work);
            step.call().k = k;
            step.Read(Content::running_sums, std::span(work.read).first(1));
            step.call().from_codes = Codes::values;  // the term's
            if (values == nullptr) step.Read(Content::contributions, std::span(work.read).last(1));
            if (values != nullptr) step.Read(values);
            step.Run(content, work.written);
          });
}

std::shared_ptr<float> MessageOps::Allocate(std::int64_t n) const {
  if (queue_ == nullptr) return std::make_shared<float>();  // an address that is not read
  return QueuedValues(queue_, n);
}

void MessageOps::LoadResults(const Part& part, const Message& from, float* values) const {
  Convert(part, {{Content::results, &from}}, {}, nullptr, [&](const Work& work) {
    Step step(*this, ReduceTask::transcode, work);
    step.Read(Content::results, work.read);
    step.WriteTo(values);
    step.Run();
  });
}

void MessageOps::StoreResults(const Part& part, const float* values, Message& to) const {
  Convert(part, {}, Content::results, &to, [&](const Work& work) {
    Step step(*this, ReduceTask::transcode, work);
    step.Read(values);
    step.Run(Content::results, work.written);
  });
}

void MessageOps::Unpack(const Part& part, const Message& from) const {
  const bool shares = reduction_.measured() == Measured::shared;
  const auto unpack = [&](const Work& work) {
    const auto out = [&](const Block& block) {
      const auto l = static_cast<std::size_t>(block.layer);
      return layers_.out[l] + (block.begin - layers_.out_begin[l]);
    };
    const auto shift = [&](const Block& block) {
      return layers_.shifts[static_cast<std::size_t>(block.layer)];
    };
    if (!shares && (by_blocks() || !is_direct(Content::results))) {
      for (const Block& block : work.blocks) {
        work.read[0].LoadUnscaled(0, block, -shift(block), reduction_.divisor(), out(block));
      }
      return;
    }
    Step step(*this, ReduceTask::unpack, work);
    step.Read(Content::results, work.read);
    step.call().unscales = true;
    step.call().divisor = reduction_.divisor();
    for (std::size_t i = 0; i < work.blocks.size(); ++i) {
      const auto l = static_cast<std::size_t>(work.blocks[i].layer);
      step.segment(i).out = out(work.blocks[i]);
      if (shares) step.segment(i).scale = layers_.scales[l];
    }
    step.Run();
  };
  Convert(part, {{Content::results, &from}}, {}, nullptr, unpack);
}

void MessageOps::UnpackWire(const Part& part, const Message& from,
                            std::span<const std::int64_t> offset) const {
  Convert(part, {{Content::contributions, &from}}, {}, nullptr, [&](const Work& work) {
    Step step(*this, ReduceTask::unpack, work);
    step.Read(Content::contributions, work.read);
    for (std::size_t i = 0; i < work.blocks.size(); ++i) {
      const Block& block = work.blocks[i];
      const auto l = static_cast<std::size_t>(block.layer);
      step.segment(i).out = layers_.out[l] + offset[l] + block.begin;
    }
    step.Run();
  });
}

std::vector<Losses> MessageOps::CountLosses() const {
  const std::size_t count = layers_.sizes.size();
  Part all;
  for (std::size_t l = 0; l < count; ++l) all.Add({static_cast<int>(l), 0, layers_.sizes[l]});
  std::vector<SegmentCounts> counts(count);
  if (casts_) {
    std::vector<ReduceSegment> segments = WholeLayers(layers_.sizes);
    for (std::size_t l = 0; l < count; ++l) {
      segments[l].layer = reduction_.number(static_cast<std::int64_t>(l));
      segments[l].x = layers_.x[l];
      segments[l].shift = BoundedShift(layers_.shifts[l]);
    }
    ReduceCall call = call_;
    Walk(call, segments);
    counts = queue_->Count(call, true);
  } else {
    const auto lost = QueuedValues<SegmentCounts>(queue_, static_cast<std::int64_t>(count));
    const auto bytes = static_cast<std::int64_t>(count * sizeof(SegmentCounts));
    queue_->Clear(lost.get(), bytes);
    ForBlocks(all, [&](Blocks blocks, Scratch& scratch) {
      for (const Block& block : blocks) {
        const auto l = static_cast<std::size_t>(block.layer);
        scratch.Reset();
        float* const terms = scratch.Take(block.n);
        Round(block, terms, queue_->on_host() ? nullptr : lost.get() + l);
        if (!queue_->on_host()) continue;
        SegmentCounts of_block;
        cpd::CountLosses(block.n, layers_.x[l] + block.begin, terms, of_block);
        AddCounts(of_block, lost.get()[l]);
      }
    });
    queue_->Copy(counts.data(), lost.get(), bytes);
  }
  std::vector<Losses> losses;
  for (const SegmentCounts& layer : counts) losses.push_back(LossesOf(layer));
  return losses;
}

SumPlan SumPlanOf(const Level& level) {
  const Accumulator& accumulator = level.accumulator;
  const RandomKey key{.seed = level.seed};
  return {sum_order(accumulator), TermsPlanOf(accumulator, level.terms_in, key),
          SumsPlanOf(accumulator, key), level.result != accumulator.format,
          PlanOf(level.result, level.rounding, key)};
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
