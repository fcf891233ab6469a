// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <utility>

#include "cpd/backend/cpu/rank_sums.h"
#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/comm/engine/message_ops.h"

namespace cpd {
namespace {

constexpr std::int64_t kBatch = 64;  // blocks a thread, between two polls of the transport

/// Memory for n values.
std::shared_ptr<float> Values(std::int64_t n) {
  auto values = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(n));
  return {values.release(), std::default_delete<float[]>()};
}

class CodecOps final : public MessageOps {
 public:
  CodecOps(const Reduction& reduction, int rank, Layers layers, bool in_fp32,
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
  void Contribution(const Block& block, const CodedPart& coded, float* terms) const;
  [[nodiscard]] ReduceSegment SegmentOf(const Block& block) const;
  void HopBlocks(const Part& part, std::int64_t k, const Message* from, Message& to,
                 const std::function<void(const Block&, float* terms)>& term) const;
};

void CodecOps::Each(const Part& part, const std::function<void(const Block&)>& body) const {
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

std::vector<CodedPart> CodecOps::ReadAll(const Part& part,
                                         std::span<const SharedMessage> from) const {
  std::vector<CodedPart> all;
  all.reserve(from.size());
  for (const SharedMessage& message : from) {
    all.push_back(Read(Content::contributions, part, message.get()));
  }
  return all;
}

float CodecOps::ScaleOf(int layer) const {
  const auto& scales = layers().scales;
  return scales.empty() ? 0 : scales[static_cast<std::size_t>(layer)];
}

Piece CodecOps::OwnPiece(const Block& block) const {
  return reduction().PieceOf(block.layer, rank(),
                             layers().shifts[static_cast<std::size_t>(block.layer)],
                             ScaleOf(block.layer), block.begin, block.n);
}

CodecState* CodecOps::StateOf(const std::vector<CodecState*>& states, int layer) {
  return states.empty() ? nullptr : states[static_cast<std::size_t>(layer)];
}

void CodecOps::OwnTerms(const Block& block, float* terms) const {
  const float* x = layers().x[static_cast<std::size_t>(block.layer)] + block.begin;
  const Codec& wire = *reduction().wire(block.layer);
  try {
    wire.Round(OwnPiece(block), StateOf(layers().states, block.layer), x, terms);
  } catch (const DamagedBytes& error) {
    ThrowDamaged(-1, block, error);
  }
}

/// Writes sums for all ranks: without loss, or encoded again (Codec::ForResults).
void CodecOps::StoreResult(CodedPart& results, const Block& block, const float* sums) const {
  if (reduction().results(block.layer) == nullptr) return results.Store(0, block, sums);
  results.Encode(block, reduction().ResultPiece(block.layer, block.begin, block.n),
                 StateOf(layers().results, block.layer), sums);
}

/// Writes a rank's contributions to the block.
void CodecOps::Contribution(const Block& block, const CodedPart& coded, float* terms) const {
  if (coded.is_there()) return coded.Load(0, block, terms);
  OwnTerms(block, terms);
}

ReduceSegment CodecOps::SegmentOf(const Block& block) const {
  return {.layer = reduction().number(block.layer),
          .size = layers().sizes[static_cast<std::size_t>(block.layer)]};
}

void CodecOps::Pack(const Part& part, Message& to) const {
  CodedPart coded = Write(Content::contributions, part, to);
  Each(part, [&](const Block& block) {
    if (as_values()) {
      const AlignedRows terms(1, block.n);
      OwnTerms(block, terms[0]);
      return coded.Store(0, block, terms[0]);
    }
    coded.Encode(block, OwnPiece(block), StateOf(layers().states, block.layer),
                 layers().x[static_cast<std::size_t>(block.layer)] + block.begin);
  });
  coded.End(to);
}

void CodecOps::Fold(const Part& part, std::span<const SharedMessage> from, Message& to) const {
  const std::vector<CodedPart> contributions = ReadAll(part, from);
  CodedPart results = Write(Content::results, part, to);
  Each(part, [&](const Block& block) {
    RankSums sums(call(), block.n);
    StoreResult(results, block,
                sums.Fold(SegmentOf(block), block.begin, block.n, [&](std::int64_t r, float* row) {
                  Contribution(block, contributions[static_cast<std::size_t>(r)], row);
                }));
  });
  results.End(to);
}

void CodecOps::FoldGroup(const Part& part, std::span<const SharedMessage> from, Message& to) const {
  const std::vector<CodedPart> members = ReadAll(part, from);
  CodedPart results = Write(Content::results, part, to);
  ReduceCall group = call();
  group.unit = rank() / reduction().spec().group_size;
  group.from_count = static_cast<std::int32_t>(members.size());
  Each(part, [&](const Block& block) {
    RankSums sums(group, block.n);
    results.Store(
        0, block,
        sums.Fold(SegmentOf(block), block.begin, block.n, [&](std::int64_t m, float* row) {
          Contribution(block, members[static_cast<std::size_t>(m)], row);
        }));
  });
  results.End(to);
}

void CodecOps::HopBlocks(const Part& part, std::int64_t k, const Message* from, Message& to,
                         const std::function<void(const Block&, float*)>& term) const {
  const bool last = k + 1 == call().rounds.units;
  const CodedPart before = Read(Content::running_sums, part, from);
  CodedPart after = Write(last ? Content::results : Content::running_sums, part, to);
  const std::int64_t units = call().rounds.units;
  const int planes = fold_planes(call().across.order.scheme, units);
  Each(part, [&](const Block& block) {
    const SumPlan plan = PlanOfSum(call(), call().across, reduction().number(block.layer), kAcross);
    const AlignedRows rows(planes + 1, block.n);  // the state, and the term
    for (int q = 0; q < planes; ++q) {
      if (from == nullptr) std::fill_n(rows[q], block.n, 0.0F);  // the whole state travels
      if (from != nullptr) before.Load(q, block, rows[q]);
    }
    const float* terms = rows[planes];
    term(block, rows[planes]);
    AddTerms(plan, units, k, {&terms, 1}, block.begin, block.n, rows[0], rows.width());
    for (int q = 0; q < after.planes(); ++q) after.Store(q, block, rows[q]);
  });
  after.End(to);
}

void CodecOps::Hop(const Part& part, std::int64_t k, const Message* from, Message& to) const {
  HopBlocks(part, k, from, to, [&](const Block& block, float* terms) { OwnTerms(block, terms); });
}

std::shared_ptr<float> CodecOps::Allocate(std::int64_t n) const { return Values(n); }

void CodecOps::HopValues(const Part& part, std::int64_t k, const Message* from, const float* values,
                         Message& to) const {
  HopBlocks(part, k, from, to, [&](const Block& block, float* terms) {
    std::copy_n(values + block.position, block.n, terms);
  });
}

void CodecOps::LoadResults(const Part& part, const Message& from, float* values) const {
  const CodedPart results = Read(Content::results, part, &from);
  Each(part, [&](const Block& block) { results.Load(0, block, values + block.position); });
}

void CodecOps::StoreResults(const Part& part, const float* values, Message& to) const {
  CodedPart results = Write(Content::results, part, to);
  Each(part, [&](const Block& block) { results.Store(0, block, values + block.position); });
  results.End(to);
}

void CodecOps::Unpack(const Part& part, const Message& from) const {
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

void CodecOps::UnpackWire(const Part& part, const Message& from,
                          std::span<const std::int64_t> offset) const {
  const CodedPart coded = Read(Content::contributions, part, &from);
  Each(part, [&](const Block& block) {
    const auto l = static_cast<std::size_t>(block.layer);
    coded.Load(0, block, layers().out[l] + offset[l] + block.begin);
  });
}

std::vector<Losses> CodecOps::CountLosses() const {
  std::vector<Losses> all;
  for (std::size_t l = 0; l < layers().sizes.size(); ++l) {
    SegmentCounts losses;
    const int layer = static_cast<int>(l);
    const std::int64_t most = codecs(Content::contributions).block(layer);
    const AlignedRows terms(1, std::min(most, layers().sizes[l]));
    for (std::int64_t i = 0; i < layers().sizes[l]; i += most) {
      if (i / most % 64 == 63) CheckInterrupt();
      const Block block{
          .layer = layer, .begin = i, .n = std::min(most, layers().sizes[l] - i), .at = i};
      OwnTerms(block, terms[0]);
      cpd::CountLosses(block.n, layers().x[l] + i, terms[0], losses);
    }
    all.push_back(LossesOf(losses));
  }
  return all;
}

}  // namespace

std::unique_ptr<MessageOps> MakeCodecOps(const Reduction& reduction, int rank, Layers layers,
                                         bool in_fp32, std::function<void()> progress) {
  return std::make_unique<CodecOps>(reduction, rank, std::move(layers), in_fp32,
                                    std::move(progress));
}

}  // namespace cpd
