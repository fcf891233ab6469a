// SPDX-License-Identifier: Apache-2.0
//
// Kernels for reductions over ranks, and counts of NaN, infinities and values that a cast makes
// zero. Blocks of values are computed on threads.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <optional>
#include <string>
#include <vector>

#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/cpu/rank_sums.h"
#include "cpd/backend/cpu/spans.h"
#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/numeric/draws/streams.h"

namespace cpd::cpu {
namespace {

constexpr std::int64_t kBatch = 64;  // blocks a thread, between two calls of `between`

void Raise(std::uint32_t value, std::uint32_t& to) {
  const std::atomic_ref most(to);
  std::uint32_t before = most.load(std::memory_order_relaxed);
  while (before < value && !most.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
}

/// Finds the largest finite magnitude of a segment (a range of a layer's values), and counts its
/// NaN and infinite values.
void Measure(const ReduceSegment& segment, SegmentCounts& counts) {
  parallel_for(segment.count, kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t non_finite = 0;
    const float most = Kernels().max_abs(end - begin, segment.x + begin, &non_finite);
    Raise(std::bit_cast<std::uint32_t>(most), counts.largest);
    AddCounts({.non_finite = static_cast<unsigned long long>(non_finite)}, counts);
  });
}

/// Casts this rank's contributions, and counts NaN, infinities, underflows and zeros (CountLosses).
void CountCast(const ReduceCall& call, const ReduceSegment& segment, SegmentCounts& counts) {
  RoundPlan cast = call.cast;
  cast.stream = StreamFrom(call.cast_stream, segment.layer, 0);
  parallel_for(segment.count, kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    SegmentCounts lost;
    float terms[kStage];
    for (std::int64_t i = begin; i < end; i += kStage) {
      const std::int64_t n = std::min(kStage, end - i);
      CastSpan(cast, segment.shift, segment.begin + i, n, segment.x + i, terms);
      CountLosses(n, segment.x + i, terms, lost);
    }
    AddCounts(lost, counts);
  });
}

/// Divides a call's segments (ranges of layers) into blocks of up to kStage values.
class Blocks {
 public:
  explicit Blocks(const ReduceCall& call) : call_(call) {
    for (std::int32_t s = 0; s < call.segment_count; ++s) {
      begins_.push_back(size_);
      size_ += (call.segments[s].count + kStage - 1) / kStage;
    }
  }
  [[nodiscard]] std::int64_t size() const { return size_; }

  /// A block: `n` values of a segment (a range of a layer), starting with the segment's value
  /// number `at`.
  struct Block {
    const ReduceSegment* segment;
    std::int64_t at, n;
  };
  [[nodiscard]] Block operator[](std::int64_t index) const {
    const auto s = std::ranges::upper_bound(begins_, index) - begins_.begin() - 1;
    const ReduceSegment& segment = call_.segments[s];
    const std::int64_t at = (index - begins_[static_cast<std::size_t>(s)]) * kStage;
    return {&segment, at, std::min(kStage, segment.count - at)};
  }

 private:
  const ReduceCall& call_;
  std::vector<std::int64_t> begins_;  ///< each segment's first block
  std::int64_t size_ = 0;
};
using Block = Blocks::Block;

/// Does one thread's part of a ReduceCall: the call's task (ReduceTask) for one block of values
/// after the other.
class Work {
 public:
  explicit Work(const ReduceCall& call)
      : call_(call),
        planes_(planes_of_sum(call.across.order.scheme, call.rounds.units)),
        rows_(RowsOf(call.task), kStage) {
    if (call.task == ReduceTask::fold) sums_.emplace(call, kStage);
  }

  void Do(const Block& block) {
    switch (call_.task) {
      case ReduceTask::pack:
        return Pack(block);
      case ReduceTask::fold:
        return Store(
            block, call_.to_codes,
            sums_->Fold(*block.segment, block.segment->begin + block.at, block.n,
                        [&](std::int64_t r, float* row) { return Contribution(block, r, row); }));
      case ReduceTask::hop:
        return Hop(block);
      case ReduceTask::transcode:
        return Transcode(block);
      case ReduceTask::unpack:
        return Unpack(block);
    }
  }

 private:
  [[nodiscard]] int RowsOf(ReduceTask task) const {
    if (task == ReduceTask::hop) return planes_ + 1;
    return task == ReduceTask::fold ? 0 : 1;
  }
  [[nodiscard]] const RoundPlan& PlanOf(Codes codes) const {
    return call_.codes[static_cast<std::size_t>(codes)];
  }
  /// Returns the offset of the block's first byte in a message.
  [[nodiscard]] std::int64_t Place(const Block& block, Codes codes) const {
    return block.segment->start[static_cast<std::size_t>(codes)] +
           block.at / 8 * PlanOf(codes).bits;
  }
  [[nodiscard]] static float* Values(const std::uint8_t* memory) {
    return reinterpret_cast<float*>(const_cast<std::uint8_t*>(memory));
  }

  /// Decodes the block's codes in message from[which], multiplies the values by 2^shift, divides
  /// them by `divisor` and writes them to y.
  void Decode(const Block& block, std::int64_t which, Codes codes, int shift, float divisor,
              float* y) const {
    Kernels().decode({.n = block.n,
                      .plan = &PlanOf(codes),
                      .packed = call_.from[which] + Place(block, codes),
                      .out = Contiguous(y),
                      .shift = shift,
                      .divisor = divisor});
  }
  /// Returns the block's values in message from[which]. If the message holds binary32 values,
  /// returns their address in the message. Otherwise decodes the values to `row` and returns `row`.
  const float* Load(const Block& block, std::int64_t which, Codes codes, float* row) const {
    if (codes == Codes::values) return Values(call_.from[which] + Place(block, codes));
    Decode(block, which, codes, 0, 1, row);
    return row;
  }

  /// Rounds values by `plan` and writes their packed codes.
  void Encode(const Block& block, Codes codes, const RoundPlan& plan, int shift,
              const float* x) const {
    const std::int64_t first = block.segment->begin + block.at;
    std::uint8_t* const to = call_.to + Place(block, codes);
    unsigned long long nan = ~0ULL;
    const auto encode = [&](std::int64_t i, std::int64_t n, const std::uint32_t* random) {
      Kernels().encode({.n = n,
                        .first = first + i,
                        .x = Contiguous(x + i),
                        .random = Contiguous(random),
                        .plan = &plan,
                        .shift = shift,
                        .packed = to + i * plan.bits / 8,
                        .first_nan = &nan});
    };
    WithIntegers(plan, first, block.n, encode);
    if (nan == ~0ULL) return;
    throw Error("a message's value " + std::to_string(nan) +
                " is NaN, and its format has no code for NaN");
  }
  void Store(const Block& block, Codes codes, const float* values) const {
    if (codes != Codes::values) return Encode(block, codes, PlanOf(codes), 0, values);
    std::copy_n(values, block.n, Values(call_.to + Place(block, codes)));
  }

  [[nodiscard]] RoundPlan CastPlan(const Block& block) const {
    RoundPlan cast = call_.cast;
    cast.stream = StreamFrom(call_.cast_stream, block.segment->layer, 0);
    return cast;
  }
  [[nodiscard]] static const float* Own(const Block& block) { return block.segment->x + block.at; }

  /// Returns the values that rank `which` contributes, decoded from message from[which]. If
  /// from[which] is null, casts this rank's own values to `row`.
  const float* Contribution(const Block& block, std::int64_t which, float* row) const {
    if (call_.from[which] != nullptr) return Load(block, which, call_.from_codes, row);
    CastSpan(CastPlan(block), block.segment->shift, block.segment->begin + block.at, block.n,
             Own(block), row);
    return row;
  }

  void Pack(const Block& block) const {
    const RoundPlan cast = CastPlan(block);
    const RoundPlan& plan = PlanOf(call_.to_codes);
    if (plan.bits == cast.bits && plan.has_nan == cast.has_nan) {
      return Encode(block, call_.to_codes, cast, block.segment->shift, Own(block));
    }
    CastSpan(cast, block.segment->shift, block.segment->begin + block.at, block.n, Own(block),
             rows_[0]);
    Store(block, call_.to_codes, rows_[0]);
  }

  void Hop(const Block& block) const {
    constexpr std::array kPlanes = {Codes::plane0, Codes::plane1};
    const std::int64_t units = call_.rounds.units;
    for (int q = 0; q < planes_; ++q) {
      const Codes plane = kPlanes[static_cast<std::size_t>(q)];
      if (call_.k > 0) Decode(block, 0, plane, 0, 1, rows_[q]);
      if (call_.k == 0) std::fill_n(rows_[q], block.n, 0.0F);  // the whole state travels
    }
    const float* const term = Contribution(block, 1, rows_[planes_]);
    AddTerms(PlanOfSum(call_, call_.across, block.segment->layer, kAcross), units, call_.k,
             {&term, 1}, block.segment->begin + block.at, block.n, rows_[0], rows_.width());
    if (call_.k + 1 == units) return Store(block, Codes::result, rows_[0]);
    for (int q = 0; q < planes_; ++q) {
      Store(block, kPlanes[static_cast<std::size_t>(q)], rows_[q]);
    }
  }

  void Transcode(const Block& block) const {
    if (call_.to_codes == Codes::values) {
      return Decode(block, 0, call_.from_codes, 0, 1,
                    Values(call_.to + Place(block, Codes::values)));
    }
    Store(block, call_.to_codes, Load(block, 0, call_.from_codes, rows_[0]));
  }

  void Unpack(const Block& block) const {
    float* const out = block.segment->out + block.at;
    const int shift = call_.unscales ? -block.segment->shift : 0;
    const float divisor = call_.unscales ? call_.divisor : 1;
    const float scale = block.segment->scale;
    if (!call_.unscales || scale == 1) {
      return Decode(block, 0, call_.from_codes, shift, divisor, out);
    }
    const float* const values = Load(block, 0, call_.from_codes, out);
    for (std::int64_t i = 0; i < block.n; ++i) out[i] = values[i] * scale;
    UnscaleSpan(shift, divisor, block.n, out, out);
  }

  const ReduceCall& call_;
  int planes_;
  AlignedRows rows_;
  std::optional<RankSums> sums_;
};

}  // namespace

int reduce(const Launch& /*launch*/, const ReduceCall& call) {
  const Blocks blocks(call);
  const std::int64_t batch = kBatch * MaxThreads();
  for (std::int64_t first = 0; first < blocks.size(); first += batch) {
    const std::int64_t count = std::min(batch, blocks.size() - first);
    parallel_for(count, 1, 8, [&](std::int64_t begin, std::int64_t end) {
      Work work(call);
      for (std::int64_t i = begin; i < end; ++i) work.Do(blocks[first + i]);
    });
    CheckInterrupt();
    const bool last = first + count == blocks.size();
    if (!last && call.between != nullptr) call.between(call.waiting);
  }
  return 0;
}

int checksums(const Launch& /*launch*/, const ChecksumCall& call) {
  for (int i = 0; i < call.n; ++i) {
    call.crcs[i] = Kernels().crc32c(0, call.bytes[i].count, call.bytes[i].data);
  }
  return 0;
}

int count(const Launch& /*launch*/, const CountCall& call) {
  for (std::int32_t s = 0; s < call.reduce.segment_count; ++s) {
    const ReduceSegment& segment = call.reduce.segments[s];
    if (call.casts) CountCast(call.reduce, segment, call.counts[s]);
    if (!call.casts) Measure(segment, call.counts[s]);
  }
  return 0;
}

}  // namespace cpd::cpu
