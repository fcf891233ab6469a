// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/work.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "cpd/base/parallel.h"
#include "cpd/numeric/error.h"
#include "cpd/ops/reduce.h"

namespace cpd {
namespace {

constexpr std::int64_t kStage = 4096;  // values worked on at once: codes of any width end on a byte
constexpr std::int64_t kBatch = 64;    // blocks between two looks at the transport

std::unique_ptr<float[]> Room(std::int64_t floats) {
  return std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(floats));
}

}  // namespace

/// At most kStage neighbouring values of a part.
struct Work::Block {
  std::size_t segment = 0;
  int layer = 0;
  std::int64_t begin = 0, n = 0;  ///< in the layer
  std::int64_t at = 0;            ///< in the segment
  std::int64_t position = 0;      ///< in the part
};

/// Packed codes of a part's values in one message.
class Work::Codes {
 public:
  Codes() = default;
  Codes(const Part& part, const Format& format, std::uint8_t* memory)
      : format_(format), bits_(format.bits()), memory_(memory) {
    starts_.reserve(part.segments.size());
    for (const Segment& segment : part.segments) {
      starts_.push_back(bytes_);
      bytes_ += (segment.count * bits_ + 7) / 8;
    }
  }

  [[nodiscard]] bool has_memory() const { return memory_ != nullptr; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  void Load(const Block& block, float* values) const {
    DecodeScaled(format_, 0, 1, block.n, At(block), values);
  }
  void LoadScaled(const Block& block, int shift, float divisor, float* values) const {
    DecodeScaled(format_, shift, divisor, block.n, At(block), values);
  }
  /// Values of the format.
  void Store(const Block& block, const float* values) const { Encode(block, {}, 0, values); }
  void Encode(const Block& block, const RoundingOptions& rounding, int shift,
              const float* values) const {
    const std::int64_t nan =
        EncodeScaled(format_, rounding, shift, block.begin, block.n, values, At(block));
    if (nan < 0) return;
    throw Error("layer " + std::to_string(block.layer) + ", value " +
                std::to_string(block.begin + nan) + " is NaN, and " + ToString(format_) +
                " has no code for NaN");
  }

 private:
  [[nodiscard]] std::uint8_t* At(const Block& block) const {
    return memory_ + starts_[block.segment] + block.at * bits_ / 8;
  }

  Format format_;
  int bits_ = 0;
  std::uint8_t* memory_ = nullptr;
  std::int64_t bytes_ = 0;
  std::vector<std::int64_t> starts_;  // of the segments
};

Work::Work(const Reduction& reduction, int rank, Layers layers, bool plain,
           std::function<void()> progress)
    : reduction_(reduction),
      rank_(rank),
      layers_(std::move(layers)),
      plain_(plain),
      progress_(std::move(progress)) {}

Format Work::Travelling(const Format& format) const { return plain_ ? kFp32 : format; }

std::int64_t Work::WireBytes(const Part& part) const {
  return part.Bytes(Travelling(reduction_.spec().format).bits());
}
std::int64_t Work::ResultBytes(const Part& part) const {
  return part.Bytes(Travelling(reduction_.spec().result).bits());
}
std::int64_t Work::StateBytes(const Part& part) const {
  std::int64_t bytes = 0;
  const Level level = reduction_.Across(0);
  for (int q = 0; q < level.planes(); ++q) {
    bytes += part.Bytes(Travelling(level.plane_format(q)).bits());
  }
  return bytes;
}

void Work::Each(const Part& part, const std::function<void(const Block&)>& body) const {
  std::vector<Block> blocks;
  std::int64_t position = 0;
  for (std::size_t s = 0; s < part.segments.size(); ++s) {
    const Segment& segment = part.segments[s];
    for (std::int64_t at = 0; at < segment.count; at += kStage) {
      const std::int64_t n = std::min(kStage, segment.count - at);
      blocks.push_back({s, segment.layer, segment.begin + at, n, at, position + at});
    }
    position += segment.count;
  }
  const auto count = static_cast<std::int64_t>(blocks.size());
  const std::int64_t batch = kBatch * MaxThreads();
  for (std::int64_t first = 0; first < count; first += batch) {
    parallel_for(std::min(batch, count - first), 1, 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) body(blocks[static_cast<std::size_t>(first + i)]);
    });
    progress_();
  }
}

Work::Codes Work::WireCodes(const Part& part, const Message* message) const {
  return {part, Travelling(reduction_.spec().format),
          message == nullptr ? nullptr : message->payload()};
}
Work::Codes Work::ResultCodes(const Part& part, const Message& message) const {
  return {part, Travelling(reduction_.spec().result), message.payload()};
}

/// Of the running sum's planes, one behind the other.
std::vector<Work::Codes> Work::StateCodes(const Part& part, const Message* message) const {
  std::vector<Codes> planes;
  if (message == nullptr) return planes;
  const Level level = reduction_.Across(0);
  std::uint8_t* memory = message->payload();
  for (int q = 0; q < level.planes(); ++q) {
    planes.emplace_back(part, Travelling(level.plane_format(q)), memory);
    memory += planes.back().bytes();
  }
  return planes;
}

std::vector<Work::Codes> Work::AllWireCodes(const Part& part,
                                            std::span<const SharedMessage> from) const {
  std::vector<Codes> all;
  all.reserve(from.size());
  for (const SharedMessage& message : from) all.push_back(WireCodes(part, message.get()));
  return all;
}

void Work::OwnTerms(const Block& block, float* terms) const {
  const auto l = static_cast<std::size_t>(block.layer);
  reduction_.ToWire(block.layer, rank_, layers_.shifts[l], block.begin, block.n,
                    layers_.x[l] + block.begin, terms);
}

void Work::Contribution(const Block& block, const Codes& codes, float* terms) const {
  if (codes.has_memory()) return codes.Load(block, terms);
  OwnTerms(block, terms);
}

void Work::Pack(const Part& part, const Message& to) const {
  const Codes codes = WireCodes(part, &to);
  Each(part, [&](const Block& block) {
    const auto l = static_cast<std::size_t>(block.layer);
    if (plain_) {
      float terms[kStage];
      OwnTerms(block, terms);
      return codes.Store(block, terms);
    }
    codes.Encode(block, reduction_.WireRounding(block.layer, rank_), layers_.shifts[l],
                 layers_.x[l] + block.begin);
  });
}

/// The sums of n of the block's values, from its value number `offset` on, within a group.
void Work::GroupSums(const Block& block, std::int64_t unit, std::int64_t offset, std::int64_t n,
                     std::span<const Codes> members, float* sums) const {
  const Level level = reduction_.Group(block.layer, unit);
  const auto state = Room(level.planes() * n);
  float terms[kStage];
  for (std::int64_t m = 0; m < level.terms; ++m) {
    Contribution(block, members[static_cast<std::size_t>(m)], terms);
    Reduction::Take(level, m, block.begin + offset, n, terms + offset, {state.get(), n});
  }
  std::copy_n(state.get(), n, sums);
}

void Work::UnitTerms(const Block& block, std::int64_t unit, std::int64_t offset, std::int64_t n,
                     std::span<const Codes> from, float* terms) const {
  const auto members = from.subspan(static_cast<std::size_t>(reduction_.group_begin(unit)),
                                    static_cast<std::size_t>(reduction_.group_size(unit)));
  if (reduction_.grouped()) return GroupSums(block, unit, offset, n, members, terms);
  Contribution(block, members[0], terms);
  if (offset > 0) std::copy(terms + offset, terms + offset + n, terms);
}

void Work::FoldUnits(const Block& block, std::int64_t slice, std::int64_t offset, std::int64_t n,
                     std::span<const Codes> from, float* sums) const {
  const Level across = reduction_.Across(block.layer);
  const auto state = Room(across.planes() * n);
  float terms[kStage];
  for (std::int64_t k = 0; k < across.terms; ++k) {
    UnitTerms(block, reduction_.rounds().unit_of_term(k, slice), offset, n, from, terms);
    Reduction::Take(across, k, block.begin + offset, n, terms, {state.get(), n});
  }
  std::copy_n(state.get(), n, sums);
}

void Work::Fold(const Part& part, std::span<const SharedMessage> from, const Message& to) const {
  const std::vector<Codes> contributions = AllWireCodes(part, from);
  const Codes results = ResultCodes(part, to);
  const Rounds& rounds = reduction_.rounds();
  Each(part, [&](const Block& block) {
    const std::int64_t size = layers_.sizes[static_cast<std::size_t>(block.layer)];
    float sums[kStage];
    for (std::int64_t i = 0; i < block.n;) {  // a ring's slices begin at different units
      const std::int64_t slice = rounds.slice_of(size, block.begin + i);
      const std::int64_t end = std::min(block.n, rounds.begin(size, slice + 1) - block.begin);
      FoldUnits(block, slice, i, end - i, contributions, sums + i);
      i = end;
    }
    results.Store(block, sums);
  });
}

void Work::FoldGroup(const Part& part, std::span<const SharedMessage> from,
                     const Message& to) const {
  const std::vector<Codes> members = AllWireCodes(part, from);
  const Codes results = ResultCodes(part, to);
  const std::int64_t unit = rank_ / reduction_.spec().group_size;
  Each(part, [&](const Block& block) {
    float sums[kStage];
    GroupSums(block, unit, 0, block.n, members, sums);
    results.Store(block, sums);
  });
}

void Work::HopBlocks(const Part& part, std::int64_t k, const Message* from, const Message& to,
                     const std::function<void(const Block&, float*)>& term) const {
  const bool last = k + 1 == reduction_.rounds().units;
  const std::vector<Codes> before = StateCodes(part, from);
  const std::vector<Codes> after = StateCodes(part, last ? nullptr : &to);
  const Codes results = ResultCodes(part, to);
  Each(part, [&](const Block& block) {
    const Level level = reduction_.Across(block.layer);
    const std::int64_t floats = level.planes() * block.n;
    const auto state = Room(floats);
    if (from == nullptr) std::fill_n(state.get(), floats, 0.0F);  // all of it travels
    const auto plane = [&](std::size_t q) {
      return state.get() + static_cast<std::int64_t>(q) * block.n;
    };
    for (std::size_t q = 0; q < before.size(); ++q) before[q].Load(block, plane(q));
    float terms[kStage];
    term(block, terms);
    Reduction::Take(level, k, block.begin, block.n, terms, {state.get(), block.n});
    for (std::size_t q = 0; q < after.size(); ++q) after[q].Store(block, plane(q));
    if (last) results.Store(block, plane(0));
  });
}

void Work::Hop(const Part& part, std::int64_t k, const Message* from, const Message& to) const {
  HopBlocks(part, k, from, to, [&](const Block& block, float* terms) { OwnTerms(block, terms); });
}

void Work::HopValues(const Part& part, std::int64_t k, const Message* from, const float* values,
                     const Message& to) const {
  HopBlocks(part, k, from, to, [&](const Block& block, float* terms) {
    std::copy_n(values + block.position, block.n, terms);
  });
}

void Work::LoadResults(const Part& part, const Message& from, float* values) const {
  const Codes results = ResultCodes(part, from);
  Each(part, [&](const Block& block) { results.Load(block, values + block.position); });
}

void Work::StoreResults(const Part& part, const float* values, const Message& to) const {
  const Codes results = ResultCodes(part, to);
  Each(part, [&](const Block& block) { results.Store(block, values + block.position); });
}

void Work::Unpack(const Part& part, const Message& from) const {
  const Codes results = ResultCodes(part, from);
  Each(part, [&](const Block& block) {
    const auto l = static_cast<std::size_t>(block.layer);
    results.LoadScaled(block, -layers_.shifts[l], reduction_.divisor(),
                       layers_.out[l] + (block.begin - layers_.out_begin[l]));
  });
}

void Work::UnpackWire(const Part& part, const Message& from,
                      std::span<const std::int64_t> offset) const {
  const Codes codes = WireCodes(part, &from);
  Each(part, [&](const Block& block) {
    const auto l = static_cast<std::size_t>(block.layer);
    codes.Load(block, layers_.out[l] + offset[l] + block.begin);
  });
}

}  // namespace cpd
