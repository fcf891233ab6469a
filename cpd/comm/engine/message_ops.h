// SPDX-License-Identifier: Apache-2.0
//
// Computes on messages: encodes a rank's contributions, folds what came, decodes results.
//
// Every device does this by the same steps: a codec decodes messages to values (DecodeOn), the
// operation `reduce` folds them, and a codec encodes the sums (EncodeOn). `reduce` itself reads and
// writes the codes of packed formats. A CPU takes a codec's blocks one by one, on threads, so that
// a block's values stay in the caches; all other work is queued for whole parts.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cpd/backend/queue.h"
#include "cpd/base/tensor.h"
#include "cpd/comm/engine/coded.h"
#include "cpd/comm/engine/layout.h"
#include "cpd/comm/engine/link.h"
#include "cpd/comm/reduction.h"

namespace cpd {

/// One rank's layers in one call.
struct Layers {
  std::vector<std::int64_t> sizes;
  std::vector<const float*> x;
  std::vector<float*> out;              ///< where value out_begin[l] of layer l goes
  std::vector<std::int64_t> out_begin;  ///< the first value that this rank keeps
  std::vector<int> shifts;
  std::vector<float> scales;         ///< the measured scales; empty: none
  std::vector<CodecState*> states;   ///< after Begin; empty: the codec keeps nothing
  std::vector<CodecState*> results;  ///< states of the results that this rank owns
};

/// The content of a message.
enum class Content : std::uint8_t { contributions, running_sums, results };

/// One rank's operations on the messages of a call.
class MessageOps {
 public:
  /// Layers and values are in the memory of the queue's device. Without a queue nothing is
  /// computed: messages have sizes alone. `in_fp32`: what would be packed travels in fp32, since
  /// some values may have no code in the formats. `progress` is called now and then.
  MessageOps(const Reduction& reduction, int rank, Layers layers, bool in_fp32, SharedQueue queue,
             std::function<void()> progress);
  MessageOps(const MessageOps&) = delete;
  MessageOps& operator=(const MessageOps&) = delete;

  [[nodiscard]] const Reduction& reduction() const { return reduction_; }
  [[nodiscard]] int rank() const { return rank_; }

  /// Returns whether messages of this content always take their most bytes.
  [[nodiscard]] bool is_fixed(Content content) const { return codecs(content).is_fixed(); }
  [[nodiscard]] std::int64_t MostBytes(Content content, const Part& part) const {
    return cpd::MostBytes(part, codecs(content));
  }

  /// Encodes this rank's contributions. Here and below `to` has its most bytes at first, and in the
  /// end those that were used.
  void Pack(const Part& part, Message& to) const;
  /// The whole reduction of a part. from[r] is the message that Pack made on rank r; this rank's
  /// own may be null. Results are written to `to`.
  void Fold(const Part& part, std::span<const SharedMessage> from, Message& to) const;
  /// The sum of this rank's group, to `to`: from[m] is member m's message, this rank's own null.
  void FoldGroup(const Part& part, std::span<const SharedMessage> from, Message& to) const;
  /// Adds this rank's own contribution as term k of the sum across units. The running state is in
  /// `from` (null for k = 0). The new state, or after the last term the result, is written to `to`.
  void Hop(const Part& part, std::int64_t k, const Message* from, Message& to) const;
  /// Memory for n values, indexed by position, for the functions below.
  [[nodiscard]] std::shared_ptr<float> Allocate(std::int64_t n) const;
  /// Hop with terms `values`, indexed by position.
  void HopValues(const Part& part, std::int64_t k, const Message* from, const float* values,
                 Message& to) const;
  /// Decodes results to values indexed by position, and encodes such values, neither unscaled.
  void LoadResults(const Part& part, const Message& from, float* values) const;
  void StoreResults(const Part& part, const float* values, Message& to) const;
  /// Writes results to the layers: scale undone, divided.
  void Unpack(const Part& part, const Message& from) const;
  /// Writes another rank's contributions of a format, as decoded, to out + offset[layer].
  void UnpackWire(const Part& part, const Message& from,
                  std::span<const std::int64_t> offset) const;
  /// The losses of each layer's cast.
  [[nodiscard]] std::vector<Losses> CountLosses() const;

 private:
  class Scratch;
  class Step;
  struct Work;
  using Blocks = std::span<const Block>;
  /// A message to read; null: none.
  struct Source {
    Content content;
    const Message* message;
  };

  [[nodiscard]] const Codecs& codecs(Content content) const {
    return codecs_[static_cast<std::size_t>(content)];
  }
  /// Returns whether contributions travel as fp32 values: with in_fp32, unless their codec has
  /// bytes for NaN.
  [[nodiscard]] bool as_values() const {
    const SharedCodec& wire = reduction_.spec().wire;
    return in_fp32_ && (wire == nullptr || !wire->has_nan());
  }
  /// Returns whether codecs' blocks are computed one by one, on threads.
  [[nodiscard]] bool by_blocks() const { return !casts_ && queue_->on_host(); }
  /// Returns whether `reduce` itself reads and writes messages of this content, not a codec.
  [[nodiscard]] bool is_direct(Content content) const;
  [[nodiscard]] ReduceCall MakeCall() const;

  /// Calls body(blocks, scratch) for all blocks of a part.
  template <class Body>
  void ForBlocks(const Part& part, const Body& body) const;
  /// Reads messages and writes one, which may be null: body(work) for all blocks.
  template <class Body>
  void Convert(const Part& part, const std::vector<Source>& from, Content content, Message* to,
               const Body& body) const;
  void FoldFrom(const Part& part, std::span<const SharedMessage> from, std::int64_t unit,
                Message& to) const;
  void HopFrom(const Part& part, std::int64_t k, const Message* from, const float* values,
               Message& to) const;
  /// On devices other than the CPU this rank's contributions are encoded before they are folded.
  [[nodiscard]] std::unique_ptr<Message> OwnMessage(const Part& part) const;

  [[nodiscard]] Piece OwnPiece(const Block& block) const;
  /// Writes a block of this rank's contributions, as all ranks decode them.
  void Round(const Block& block, float* terms, SegmentCounts* counts = nullptr) const;

  const Reduction& reduction_;
  int rank_;
  Layers layers_;
  bool in_fp32_;
  SharedQueue queue_;
  std::function<void()> progress_;
  bool casts_;                    // contributions are a packed format's
  std::array<Codecs, 3> codecs_;  // by Content
  ReduceCall call_;               // what all calls have
};

/// The plan of a level's sum and of its rounding to the result.
SumPlan SumPlanOf(const Level& level);

/// Layers divided by `divisor`, once in binary32 (Unscale), in new memory of the queue's device.
std::vector<std::shared_ptr<float>> Quotients(const SharedQueue& queue,
                                              std::span<const TensorView> x, float divisor);

}  // namespace cpd
