// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/message_ops.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/compress/packed.h"
#include "cpd/ops/reduce.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

constexpr std::int64_t kBatch = 64;  // blocks a thread, between two polls of the transport

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};

/// Memory for n values.
std::shared_ptr<float> Values(std::int64_t n) {
  auto values = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(n));
  return {values.release(), std::default_delete<float[]>()};
}

/// Rows of a block's values, each beginning at a cache line.
class Rows {
 public:
  Rows(std::int64_t rows, std::int64_t n) : width_((n + 15) / 16 * 16) {
    const std::size_t bytes = static_cast<std::size_t>(rows * width_) * sizeof(float);
    memory_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (memory_ == nullptr) throw NoMemory(bytes, "a block of terms");
  }
  [[nodiscard]] float* operator[](std::int64_t row) const { return memory_.get() + row * width_; }
  [[nodiscard]] FoldState state() const { return {memory_.get(), width_}; }

 private:
  std::int64_t width_;
  std::unique_ptr<float, Free> memory_;
};

/// Calls take(k, terms) for a level's terms, several at a time: load(k, row) makes term number k,
/// of at most n values.
template <class Load, class Take>
void InBatches(std::int64_t terms, std::int64_t n, const Load& load, const Take& take) {
  constexpr std::int64_t kTerms = 8;
  const std::int64_t most = std::min(kTerms, terms);
  const Rows rows(most, n);
  std::array<const float*, kTerms> row{};
  for (std::int64_t j = 0; j < most; ++j) row[static_cast<std::size_t>(j)] = rows[j];
  for (std::int64_t k = 0; k < terms; k += most) {
    const std::int64_t count = std::min(most, terms - k);
    for (std::int64_t j = 0; j < count; ++j) load(k + j, rows[j]);
    take(k, std::span(row).first(static_cast<std::size_t>(count)));
  }
}

class HostMessageOps final : public MessageOps {
 public:
  HostMessageOps(const Reduction& reduction, int rank, Layers layers, bool in_fp32,
                 std::function<void()> progress)
      : MessageOps(reduction, rank, std::move(layers), in_fp32, std::move(progress)) {}

  void Pack(const Part& part, Message& to) const override;
  void Fold(const Part& part, std::span<const SharedMessage> from, Message& to) const override;
  void FoldGroup(const Part& part, std::span<const SharedMessage> from, Message& to) const override;
  void Hop(const Part& part, std::int64_t k, const Message* from, Message& to) const override;
  [[nodiscard]] std::shared_ptr<float> Allocate(std::int64_t n) const override;
  void HopValues(const Part& part, std::int64_t k, const Message* from, const float* values,
                 Message& to) const override;
  void LoadResults(const Part& part, const Message& from, float* values) const override;
  void StoreResults(const Part& part, const float* values, Message& to) const override;
  void Unpack(const Part& part, const Message& from) const override;
  void UnpackWire(const Part& part, const Message& from,
                  std::span<const std::int64_t> offset) const override;
  [[nodiscard]] std::vector<Losses> CountLosses() const override;

 private:
  void Each(const Part& part, const std::function<void(const Block&)>& body) const;
  [[nodiscard]] CodedPart Read(Content content, const Part& part, const Message* from) const {
    return CodedPart::Read(part, codecs(content), from);
  }
  [[nodiscard]] CodedPart Write(Content content, const Part& part, const Message& to) const {
    return CodedPart::Write(part, codecs(content), to);
  }
  [[nodiscard]] std::vector<CodedPart> ReadAll(const Part& part,
                                               std::span<const SharedMessage> from) const;
  [[nodiscard]] float ScaleOf(int layer) const;
  [[nodiscard]] Piece OwnPiece(const Block& block) const;
  [[nodiscard]] static CodecState* StateOf(const std::vector<CodecState*>& states, int layer);
  void OwnTerms(const Block& block, float* terms) const;
  void StoreResult(CodedPart& results, const Block& block, const float* sums) const;
  void Contribution(const Block& block, const CodedPart& coded, std::int64_t offset, std::int64_t n,
                    float* terms) const;
  void GroupSums(const Block& block, std::int64_t unit, std::int64_t offset, std::int64_t n,
                 std::span<const CodedPart> members, float* sums) const;
  void UnitTerms(const Block& block, std::int64_t unit, std::int64_t offset, std::int64_t n,
                 std::span<const CodedPart> from, float* terms) const;
  void FoldUnits(const Block& block, std::int64_t slice, std::int64_t offset, std::int64_t n,
                 std::span<const CodedPart> from, float* sums) const;
  void HopBlocks(const Part& part, std::int64_t k, const Message* from, Message& to,
                 const std::function<void(const Block&, float* terms)>& term) const;
};

void HostMessageOps::Each(const Part& part, const std::function<void(const Block&)>& body) const {
  const std::vector<Block> blocks = BlocksOf(part, codecs(Content::contributions));
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

std::vector<CodedPart> HostMessageOps::ReadAll(const Part& part,
                                               std::span<const SharedMessage> from) const {
  std::vector<CodedPart> all;
  all.reserve(from.size());
  for (const SharedMessage& message : from) {
    all.push_back(Read(Content::contributions, part, message.get()));
  }
  return all;
}

float HostMessageOps::ScaleOf(int layer) const {
  const auto& scales = layers().scales;
  return scales.empty() ? 0 : scales[static_cast<std::size_t>(layer)];
}

Piece HostMessageOps::OwnPiece(const Block& block) const {
  return reduction().PieceOf(block.layer, rank(),
                             layers().shifts[static_cast<std::size_t>(block.layer)],
                             ScaleOf(block.layer), block.begin, block.n);
}

CodecState* HostMessageOps::StateOf(const std::vector<CodecState*>& states, int layer) {
  return states.empty() ? nullptr : states[static_cast<std::size_t>(layer)];
}

void HostMessageOps::OwnTerms(const Block& block, float* terms) const {
  const float* x = layers().x[static_cast<std::size_t>(block.layer)] + block.begin;
  const Codec& wire = *reduction().wire(block.layer);
  try {
    wire.Round(OwnPiece(block), StateOf(layers().states, block.layer), x, terms);
  } catch (const DamagedBytes& error) {
    ThrowDamaged(-1, block, error);
  }
}

/// Writes sums for all ranks: without loss, or encoded again (Codec::ForResults).
void HostMessageOps::StoreResult(CodedPart& results, const Block& block, const float* sums) const {
  if (reduction().results(block.layer) == nullptr) return results.Store(0, block, sums);
  results.Encode(block, reduction().ResultPiece(block.layer, block.begin, block.n),
                 StateOf(layers().results, block.layer), sums);
}

/// Writes to `terms` n of a rank's contributions to the block, from the block's value `offset` on.
void HostMessageOps::Contribution(const Block& block, const CodedPart& coded, std::int64_t offset,
                                  std::int64_t n, float* terms) const {
  if (coded.is_there()) {
    coded.Load(0, block, terms);
  } else {
    OwnTerms(block, terms);
  }
  if (offset > 0) std::copy(terms + offset, terms + offset + n, terms);
}

void HostMessageOps::Pack(const Part& part, Message& to) const {
  CodedPart coded = Write(Content::contributions, part, to);
  Each(part, [&](const Block& block) {
    if (as_values()) {
      const Rows terms(1, block.n);
      OwnTerms(block, terms[0]);
      return coded.Store(0, block, terms[0]);
    }
    coded.Encode(block, OwnPiece(block), StateOf(layers().states, block.layer),
                 layers().x[static_cast<std::size_t>(block.layer)] + block.begin);
  });
  coded.End(to);
}

/// Writes to `sums` a group's sums of n of the block's values, from the block's value `offset` on.
void HostMessageOps::GroupSums(const Block& block, std::int64_t unit, std::int64_t offset,
                               std::int64_t n, std::span<const CodedPart> members,
                               float* sums) const {
  const Level level = reduction().Group(block.layer, unit);
  const Rows state(level.planes(), n);
  InBatches(
      level.terms, block.n,
      [&](std::int64_t m, float* terms) {
        Contribution(block, members[static_cast<std::size_t>(m)], offset, n, terms);
      },
      [&](std::int64_t m, std::span<const float* const> terms) {
        Reduction::Take(level, m, terms, block.begin + offset, n, state.state());
      });
  std::copy_n(state[0], n, sums);
}

void HostMessageOps::UnitTerms(const Block& block, std::int64_t unit, std::int64_t offset,
                               std::int64_t n, std::span<const CodedPart> from,
                               float* terms) const {
  const auto members = from.subspan(static_cast<std::size_t>(reduction().group_begin(unit)),
                                    static_cast<std::size_t>(reduction().group_size(unit)));
  if (reduction().grouped()) return GroupSums(block, unit, offset, n, members, terms);
  Contribution(block, members[0], offset, n, terms);
}

void HostMessageOps::FoldUnits(const Block& block, std::int64_t slice, std::int64_t offset,
                               std::int64_t n, std::span<const CodedPart> from, float* sums) const {
  const Level across = reduction().Across(block.layer);
  const Rows state(across.planes(), n);
  InBatches(
      across.terms, block.n,
      [&](std::int64_t k, float* terms) {
        UnitTerms(block, reduction().rounds().unit_of_term(k, slice), offset, n, from, terms);
      },
      [&](std::int64_t k, std::span<const float* const> terms) {
        Reduction::Take(across, k, terms, block.begin + offset, n, state.state());
      });
  std::copy_n(state[0], n, sums);
}

void HostMessageOps::Fold(const Part& part, std::span<const SharedMessage> from,
                          Message& to) const {
  const std::vector<CodedPart> contributions = ReadAll(part, from);
  CodedPart results = Write(Content::results, part, to);
  const Rounds& rounds = reduction().rounds();
  Each(part, [&](const Block& block) {
    const std::int64_t size = layers().sizes[static_cast<std::size_t>(block.layer)];
    const Rows sums(1, block.n);
    for (std::int64_t i = 0; i < block.n;) {  // a ring's slices begin at different units
      const std::int64_t slice = rounds.slice_of(size, block.begin + i);
      const std::int64_t end = std::min(block.n, rounds.begin(size, slice + 1) - block.begin);
      FoldUnits(block, slice, i, end - i, contributions, sums[0] + i);
      i = end;
    }
    StoreResult(results, block, sums[0]);
  });
  results.End(to);
}

void HostMessageOps::FoldGroup(const Part& part, std::span<const SharedMessage> from,
                               Message& to) const {
  const std::vector<CodedPart> members = ReadAll(part, from);
  CodedPart results = Write(Content::results, part, to);
  const std::int64_t unit = rank() / reduction().spec().group_size;
  Each(part, [&](const Block& block) {
    const Rows sums(1, block.n);
    GroupSums(block, unit, 0, block.n, members, sums[0]);
    results.Store(0, block, sums[0]);
  });
  results.End(to);
}

void HostMessageOps::HopBlocks(const Part& part, std::int64_t k, const Message* from, Message& to,
                               const std::function<void(const Block&, float*)>& term) const {
  const bool last = k + 1 == reduction().rounds().units;
  const CodedPart before = Read(Content::running_sums, part, from);
  CodedPart after = Write(last ? Content::results : Content::running_sums, part, to);
  Each(part, [&](const Block& block) {
    const Level level = reduction().Across(block.layer);
    const int planes = level.planes();
    const Rows rows(planes + 1, block.n);  // the state, and the term
    for (int q = 0; q < planes; ++q) {
      if (from == nullptr) std::fill_n(rows[q], block.n, 0.0F);  // the whole state travels
      if (from != nullptr) before.Load(q, block, rows[q]);
    }
    const float* terms = rows[planes];
    term(block, rows[planes]);
    Reduction::Take(level, k, {&terms, 1}, block.begin, block.n, rows.state());
    for (int q = 0; q < after.planes(); ++q) after.Store(q, block, rows[q]);
  });
  after.End(to);
}

void HostMessageOps::Hop(const Part& part, std::int64_t k, const Message* from, Message& to) const {
  HopBlocks(part, k, from, to, [&](const Block& block, float* terms) { OwnTerms(block, terms); });
}

std::shared_ptr<float> HostMessageOps::Allocate(std::int64_t n) const { return Values(n); }

void HostMessageOps::HopValues(const Part& part, std::int64_t k, const Message* from,
                               const float* values, Message& to) const {
  HopBlocks(part, k, from, to, [&](const Block& block, float* terms) {
    std::copy_n(values + block.position, block.n, terms);
  });
}

void HostMessageOps::LoadResults(const Part& part, const Message& from, float* values) const {
  const CodedPart results = Read(Content::results, part, &from);
  Each(part, [&](const Block& block) { results.Load(0, block, values + block.position); });
}

void HostMessageOps::StoreResults(const Part& part, const float* values, Message& to) const {
  CodedPart results = Write(Content::results, part, to);
  Each(part, [&](const Block& block) { results.Store(0, block, values + block.position); });
  results.End(to);
}

void HostMessageOps::Unpack(const Part& part, const Message& from) const {
  const CodedPart results = Read(Content::results, part, &from);
  Each(part, [&](const Block& block) {
    const auto l = static_cast<std::size_t>(block.layer);
    float* const out = layers().out[l] + (block.begin - layers().out_begin[l]);
    if (reduction().measured() != Measured::shared) {
      return results.LoadUnscaled(0, block, -layers().shifts[l], reduction().divisor(), out);
    }
    results.Load(0, block, out);
    reduction().Finish(layers().shifts[l], ScaleOf(block.layer), block.n, out);
  });
}

void HostMessageOps::UnpackWire(const Part& part, const Message& from,
                                std::span<const std::int64_t> offset) const {
  const CodedPart coded = Read(Content::contributions, part, &from);
  Each(part, [&](const Block& block) {
    const auto l = static_cast<std::size_t>(block.layer);
    coded.Load(0, block, layers().out[l] + offset[l] + block.begin);
  });
}

std::vector<Losses> HostMessageOps::CountLosses() const {
  std::vector<Losses> all;
  for (std::size_t l = 0; l < layers().sizes.size(); ++l) {
    Losses losses;
    const int layer = static_cast<int>(l);
    const std::int64_t most = codecs(Content::contributions).block(layer);
    const Rows terms(1, std::min(most, layers().sizes[l]));
    for (std::int64_t i = 0; i < layers().sizes[l]; i += most) {
      if (i / most % 64 == 63) CheckInterrupt();
      const Block block{
          .layer = layer, .begin = i, .n = std::min(most, layers().sizes[l] - i), .at = i};
      OwnTerms(block, terms[0]);
      const Losses found = cpd::CountLosses(block.n, layers().x[l] + i, terms[0]);
      losses.non_finite += found.non_finite;
      losses.underflowed += found.underflowed;
      losses.zeros += found.zeros;
    }
    all.push_back(losses);
  }
  return all;
}

/// The codecs of owners' sums; with `in_fp32` all have codes for NaN.
std::vector<SharedCodec> ResultCodecs(const Reduction& reduction, bool in_fp32) {
  std::vector<SharedCodec> codecs(reduction.results().begin(), reduction.results().end());
  for (std::size_t l = 0; l < codecs.size() && in_fp32; ++l) {
    if (codecs[l] == nullptr || codecs[l]->has_nan()) continue;
    codecs[l] = reduction.wires()[l]->ForResults(kFp32, reduction.world());
  }
  return codecs;
}

}  // namespace

MessageOps::MessageOps(const Reduction& reduction, int rank, Layers layers, bool in_fp32,
                       std::function<void()> progress)
    : reduction_(reduction),
      rank_(rank),
      layers_(std::move(layers)),
      in_fp32_(in_fp32),
      progress_(std::move(progress)) {
  const Reduce& spec = reduction.spec();
  const SharedCodec packed = std::make_shared<Packed>(kFp32);
  const auto sums = [&](const Format& given) -> SharedCodec {
    const Format format = MessageFormat(given);
    return spec.wire != nullptr ? spec.wire->ForSums(format) : std::make_shared<Packed>(format);
  };
  codecs_.assign(3, Codecs(reduction.wires()));
  const auto of = [&](Content content) -> Codecs& {
    return codecs_[static_cast<std::size_t>(content)];
  };
  of(Content::contributions).Add(as_values() ? std::span(&packed, 1) : reduction.wires());
  const Level across = reduction.Across(0);
  for (int q = 0; q < across.planes(); ++q) {
    const SharedCodec plane = sums(across.plane_format(q));
    of(Content::running_sums).Add({&plane, 1});
  }
  of(Content::results).Add(ResultCodecs(reduction, in_fp32_), sums(spec.result));
}

MessageOps::~MessageOps() = default;

std::vector<std::shared_ptr<float>> Quotients(std::span<const TensorView> x, float divisor) {
  std::vector<std::shared_ptr<float>> all;
  for (const TensorView& layer : x) {
    const std::int64_t size = layer.size();
    all.push_back(Values(size));
    const auto* from = static_cast<const float*>(layer.data);
    float* const to = all.back().get();
    parallel_for(size, 4096, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
      Unscale(0, divisor, end - begin, from + begin, to + begin);
    });
  }
  return all;
}

std::unique_ptr<MessageOps> MakeMessageOps(const Reduction& reduction, int rank, Layers layers,
                                           bool in_fp32, std::function<void()> progress) {
  return std::make_unique<HostMessageOps>(reduction, rank, std::move(layers), in_fp32,
                                          std::move(progress));
}

}  // namespace cpd
