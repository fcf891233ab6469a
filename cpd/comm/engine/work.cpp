// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/work.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/numeric/error.h"
#include "cpd/ops/reduce.h"

namespace cpd {
namespace {

constexpr std::int64_t kStage = 4096;  // values worked on at once: codes of any width end on a byte
constexpr std::int64_t kBatch = 64;    // blocks between two looks at the transport

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};

/// Rows of kStage floats, from a cache line on.
class Rows {
 public:
  explicit Rows(std::int64_t rows)
      : memory_(static_cast<float*>(
            std::aligned_alloc(64, static_cast<std::size_t>(rows * kStage) * sizeof(float)))) {
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  [[nodiscard]] float* operator[](std::int64_t row) const { return memory_.get() + row * kStage; }
  [[nodiscard]] FoldState state() const { return {memory_.get(), kStage}; }

 private:
  std::unique_ptr<float, Free> memory_;
};

/// Calls take(k, terms) for a level's terms, several at a time: load(k, row) makes term number k.
template <class Load, class Take>
void InBatches(std::int64_t terms, const Load& load, const Take& take) {
  constexpr std::int64_t kTerms = 8;
  const std::int64_t most = std::min(kTerms, terms);
  const Rows rows(most);
  std::array<const float*, kTerms> row{};
  for (std::int64_t j = 0; j < most; ++j) row[static_cast<std::size_t>(j)] = rows[j];
  for (std::int64_t k = 0; k < terms; k += most) {
    const std::int64_t count = std::min(most, terms - k);
    for (std::int64_t j = 0; j < count; ++j) load(k + j, rows[j]);
    take(k, std::span(row).first(static_cast<std::size_t>(count)));
  }
}

class HostWork final : public Work {
 public:
  HostWork(const Reduction& reduction, int rank, Layers layers, bool plain,
           std::function<void()> progress)
      : Work(reduction, rank, std::move(layers), plain, std::move(progress)) {}

  void Pack(const Part& part, const Message& to) const override;
  void Fold(const Part& part, std::span<const SharedMessage> from,
            const Message& to) const override;
  void FoldGroup(const Part& part, std::span<const SharedMessage> from,
                 const Message& to) const override;
  void Hop(const Part& part, std::int64_t k, const Message* from, const Message& to) const override;
  [[nodiscard]] std::shared_ptr<float> Room(std::int64_t n) const override;
  void HopValues(const Part& part, std::int64_t k, const Message* from, const float* values,
                 const Message& to) const override;
  void LoadResults(const Part& part, const Message& from, float* values) const override;
  void StoreResults(const Part& part, const float* values, const Message& to) const override;
  void Unpack(const Part& part, const Message& from) const override;
  void UnpackWire(const Part& part, const Message& from,
                  std::span<const std::int64_t> offset) const override;
  [[nodiscard]] std::vector<Losses> CountLosses() const override;

 private:
  struct Block;
  class Codes;

  void Each(const Part& part, const std::function<void(const Block&)>& body) const;
  [[nodiscard]] Codes WireCodes(const Part& part, const Message* message) const;
  [[nodiscard]] Codes ResultCodes(const Part& part, const Message& message) const;
  [[nodiscard]] std::vector<Codes> StateCodes(const Part& part, const Message* message) const;
  [[nodiscard]] std::vector<Codes> AllWireCodes(const Part& part,
                                                std::span<const SharedMessage> from) const;
  void OwnTerms(const Block& block, float* terms) const;
  void Contribution(const Block& block, const Codes& codes, std::int64_t offset, std::int64_t n,
                    float* terms) const;
  void GroupSums(const Block& block, std::int64_t unit, std::int64_t offset, std::int64_t n,
                 std::span<const Codes> members, float* sums) const;
  void UnitTerms(const Block& block, std::int64_t unit, std::int64_t offset, std::int64_t n,
                 std::span<const Codes> from, float* terms) const;
  void FoldUnits(const Block& block, std::int64_t slice, std::int64_t offset, std::int64_t n,
                 std::span<const Codes> from, float* sums) const;
  void HopBlocks(const Part& part, std::int64_t k, const Message* from, const Message& to,
                 const std::function<void(const Block&, float* terms)>& term) const;
};

/// At most kStage neighbouring values of a part.
struct HostWork::Block {
  std::size_t segment = 0;
  int layer = 0;
  std::int64_t begin = 0, n = 0;  ///< in the layer
  std::int64_t at = 0;            ///< in the segment
  std::int64_t position = 0;      ///< in the part
};

/// Packed codes of a part's values in one message.
class HostWork::Codes {
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

void HostWork::Each(const Part& part, const std::function<void(const Block&)>& body) const {
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
    CheckInterrupt();
    Progress();
  }
}

HostWork::Codes HostWork::WireCodes(const Part& part, const Message* message) const {
  return {part, Travelling(reduction().spec().format),
          message == nullptr ? nullptr : message->payload()};
}
HostWork::Codes HostWork::ResultCodes(const Part& part, const Message& message) const {
  return {part, Travelling(reduction().spec().result), message.payload()};
}

/// Of the running sum's planes, one behind the other.
std::vector<HostWork::Codes> HostWork::StateCodes(const Part& part, const Message* message) const {
  std::vector<Codes> planes;
  if (message == nullptr) return planes;
  const Level level = reduction().Across(0);
  std::uint8_t* memory = message->payload();
  for (int q = 0; q < level.planes(); ++q) {
    planes.emplace_back(part, Travelling(level.plane_format(q)), memory);
    memory += planes.back().bytes();
  }
  return planes;
}

std::vector<HostWork::Codes> HostWork::AllWireCodes(const Part& part,
                                                    std::span<const SharedMessage> from) const {
  std::vector<Codes> all;
  all.reserve(from.size());
  for (const SharedMessage& message : from) all.push_back(WireCodes(part, message.get()));
  return all;
}

void HostWork::OwnTerms(const Block& block, float* terms) const {
  const auto l = static_cast<std::size_t>(block.layer);
  reduction().ToWire(block.layer, rank(), layers().shifts[l], block.begin, block.n,
                     layers().x[l] + block.begin, terms);
}

/// n of a rank's contributions to the block, from its value number `offset` on.
void HostWork::Contribution(const Block& block, const Codes& codes, std::int64_t offset,
                            std::int64_t n, float* terms) const {
  if (codes.has_memory()) {
    codes.Load(block, terms);
  } else {
    OwnTerms(block, terms);
  }
  if (offset > 0) std::copy(terms + offset, terms + offset + n, terms);
}

void HostWork::Pack(const Part& part, const Message& to) const {
  const Codes codes = WireCodes(part, &to);
  Each(part, [&](const Block& block) {
    const auto l = static_cast<std::size_t>(block.layer);
    if (plain()) {
      float terms[kStage];
      OwnTerms(block, terms);
      return codes.Store(block, terms);
    }
    codes.Encode(block, reduction().WireRounding(block.layer, rank()), layers().shifts[l],
                 layers().x[l] + block.begin);
  });
}

/// The sums of n of the block's values, from its value number `offset` on, within a group.
void HostWork::GroupSums(const Block& block, std::int64_t unit, std::int64_t offset, std::int64_t n,
                         std::span<const Codes> members, float* sums) const {
  const Level level = reduction().Group(block.layer, unit);
  const Rows state(level.planes());
  InBatches(
      level.terms,
      [&](std::int64_t m, float* terms) {
        Contribution(block, members[static_cast<std::size_t>(m)], offset, n, terms);
      },
      [&](std::int64_t m, std::span<const float* const> terms) {
        Reduction::Take(level, m, terms, block.begin + offset, n, state.state());
      });
  std::copy_n(state[0], n, sums);
}

void HostWork::UnitTerms(const Block& block, std::int64_t unit, std::int64_t offset, std::int64_t n,
                         std::span<const Codes> from, float* terms) const {
  const auto members = from.subspan(static_cast<std::size_t>(reduction().group_begin(unit)),
                                    static_cast<std::size_t>(reduction().group_size(unit)));
  if (reduction().grouped()) return GroupSums(block, unit, offset, n, members, terms);
  Contribution(block, members[0], offset, n, terms);
}

void HostWork::FoldUnits(const Block& block, std::int64_t slice, std::int64_t offset,
                         std::int64_t n, std::span<const Codes> from, float* sums) const {
  const Level across = reduction().Across(block.layer);
  const Rows state(across.planes());
  InBatches(
      across.terms,
      [&](std::int64_t k, float* terms) {
        UnitTerms(block, reduction().rounds().unit_of_term(k, slice), offset, n, from, terms);
      },
      [&](std::int64_t k, std::span<const float* const> terms) {
        Reduction::Take(across, k, terms, block.begin + offset, n, state.state());
      });
  std::copy_n(state[0], n, sums);
}

void HostWork::Fold(const Part& part, std::span<const SharedMessage> from,
                    const Message& to) const {
  const std::vector<Codes> contributions = AllWireCodes(part, from);
  const Codes results = ResultCodes(part, to);
  const Rounds& rounds = reduction().rounds();
  Each(part, [&](const Block& block) {
    const std::int64_t size = layers().sizes[static_cast<std::size_t>(block.layer)];
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

void HostWork::FoldGroup(const Part& part, std::span<const SharedMessage> from,
                         const Message& to) const {
  const std::vector<Codes> members = AllWireCodes(part, from);
  const Codes results = ResultCodes(part, to);
  const std::int64_t unit = rank() / reduction().spec().group_size;
  Each(part, [&](const Block& block) {
    float sums[kStage];
    GroupSums(block, unit, 0, block.n, members, sums);
    results.Store(block, sums);
  });
}

void HostWork::HopBlocks(const Part& part, std::int64_t k, const Message* from, const Message& to,
                         const std::function<void(const Block&, float*)>& term) const {
  const bool last = k + 1 == reduction().rounds().units;
  const std::vector<Codes> before = StateCodes(part, from);
  const std::vector<Codes> after = StateCodes(part, last ? nullptr : &to);
  const Codes results = ResultCodes(part, to);
  Each(part, [&](const Block& block) {
    const Level level = reduction().Across(block.layer);
    const int planes = level.planes();
    const Rows rows(planes + 1);  // the state, and the term
    for (int q = 0; q < planes; ++q) {
      if (from == nullptr) std::fill_n(rows[q], block.n, 0.0F);  // all of it travels
      if (from != nullptr) before[static_cast<std::size_t>(q)].Load(block, rows[q]);
    }
    const float* terms = rows[planes];
    term(block, rows[planes]);
    Reduction::Take(level, k, {&terms, 1}, block.begin, block.n, rows.state());
    for (std::size_t q = 0; q < after.size(); ++q) {
      after[q].Store(block, rows[static_cast<std::int64_t>(q)]);
    }
    if (last) results.Store(block, rows[0]);
  });
}

void HostWork::Hop(const Part& part, std::int64_t k, const Message* from, const Message& to) const {
  HopBlocks(part, k, from, to, [&](const Block& block, float* terms) { OwnTerms(block, terms); });
}

std::shared_ptr<float> HostWork::Room(std::int64_t n) const {
  auto values = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(n));
  return {values.release(), std::default_delete<float[]>()};
}

void HostWork::HopValues(const Part& part, std::int64_t k, const Message* from, const float* values,
                         const Message& to) const {
  HopBlocks(part, k, from, to, [&](const Block& block, float* terms) {
    std::copy_n(values + block.position, block.n, terms);
  });
}

void HostWork::LoadResults(const Part& part, const Message& from, float* values) const {
  const Codes results = ResultCodes(part, from);
  Each(part, [&](const Block& block) { results.Load(block, values + block.position); });
}

void HostWork::StoreResults(const Part& part, const float* values, const Message& to) const {
  const Codes results = ResultCodes(part, to);
  Each(part, [&](const Block& block) { results.Store(block, values + block.position); });
}

void HostWork::Unpack(const Part& part, const Message& from) const {
  const Codes results = ResultCodes(part, from);
  Each(part, [&](const Block& block) {
    const auto l = static_cast<std::size_t>(block.layer);
    results.LoadScaled(block, -layers().shifts[l], reduction().divisor(),
                       layers().out[l] + (block.begin - layers().out_begin[l]));
  });
}

void HostWork::UnpackWire(const Part& part, const Message& from,
                          std::span<const std::int64_t> offset) const {
  const Codes codes = WireCodes(part, &from);
  Each(part, [&](const Block& block) {
    const auto l = static_cast<std::size_t>(block.layer);
    codes.Load(block, layers().out[l] + offset[l] + block.begin);
  });
}

std::vector<Losses> HostWork::CountLosses() const {
  std::vector<Losses> all;
  float terms[kStage];
  for (std::size_t l = 0; l < layers().sizes.size(); ++l) {
    Losses losses;
    for (std::int64_t i = 0; i < layers().sizes[l]; i += kStage) {
      if (i / kStage % 64 == 63) CheckInterrupt();
      const std::int64_t n = std::min(kStage, layers().sizes[l] - i);
      const float* x = layers().x[l] + i;
      reduction().ToWire(static_cast<std::int64_t>(l), rank(), layers().shifts[l], i, n, x, terms);
      const Losses found = cpd::CountLosses(n, x, terms);
      losses.non_finite += found.non_finite;
      losses.underflowed += found.underflowed;
    }
    all.push_back(losses);
  }
  return all;
}

}  // namespace

Work::Work(const Reduction& reduction, int rank, Layers layers, bool plain,
           std::function<void()> progress)
    : reduction_(reduction),
      rank_(rank),
      layers_(std::move(layers)),
      plain_(plain),
      progress_(std::move(progress)) {}

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

Work::~Work() = default;

std::unique_ptr<Work> MakeWork(const Reduction& reduction, int rank, Layers layers, bool plain,
                               std::function<void()> progress) {
  return std::make_unique<HostWork>(reduction, rank, std::move(layers), plain, std::move(progress));
}

}  // namespace cpd
