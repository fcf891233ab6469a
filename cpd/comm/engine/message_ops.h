// SPDX-License-Identifier: Apache-2.0
//
// Computes on messages: encodes a rank's contributions, adds received contributions (fold), and
// decodes results.
//
// Every device takes the same steps: a codec decodes messages to values (DecodeOn), the operation
// `reduce` adds the values in order, and a codec encodes the sums (EncodeOn). `reduce` itself reads
// and writes the codes of packed formats. A CPU computes a codec's blocks one by one, on threads,
// and a block's values stay in the caches. All other work is queued for whole parts.
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
  std::vector<CodecState*> states;   ///< after Begin; empty: the codec has no states
  std::vector<CodecState*> results;  ///< states of the results that this rank owns
};

/// The content of a message.
enum class Content : std::uint8_t { contributions, running_sums, results };

/// One rank's operations on the messages of a call.
class MessageOps {
 public:
  /// Layers and values are in the memory of the queue's device. With a null `queue` nothing is
  /// computed, and messages have only sizes. `in_fp32`: whether values that would be packed travel
  /// in fp32, because some may have no code in the formats. `progress` is called repeatedly during
  /// long computations.
  MessageOps(const Reduction& reduction, int rank, Layers layers, bool in_fp32, SharedQueue queue,
             std::function<void()> progress);
  MessageOps(const MessageOps&) = delete;
  MessageOps& operator=(const MessageOps&) = delete;

  [[nodiscard]] const Reduction& reduction() const { return reduction_; }
  [[nodiscard]] int rank() const { return rank_; }

  /// Returns whether every message with this content (contributions, running sums or results) has
  /// exactly MostBytes bytes.
  [[nodiscard]] bool is_fixed(Content content) const { return codecs(content).is_fixed(); }
  [[nodiscard]] std::int64_t MostBytes(Content content, const Part& part) const {
    return cpd::MostBytes(part, codecs(content));
  }

  /// Encodes this rank's contributions. In Pack and in the functions below, `to` has its maximum
  /// size before the call and its actual size after the call.
  void Pack(const Part& part, Message& to) const;
  /// Adds the contributions of all ranks to the values of `part` and writes the results to `to`.
  /// from[r] is the message that Pack made on rank r. The entry of this rank may be null.
  void Fold(const Part& part, std::span<const SharedMessage> from, Message& to) const;
  /// Adds the contributions of all members of this rank's group and writes the sums to `to`.
  /// from[m] is the message of member m. The entry of this rank is null.
  void FoldGroup(const Part& part, std::span<const SharedMessage> from, Message& to) const;
  /// Adds this rank's own contribution, as term number k, to the running sum across ranks. `from`:
  /// a message with the sum's state; null for k = 0. Writes the sum's new state to message `to`, or
  /// after the last term the result.
  void Hop(const Part& part, std::int64_t k, const Message* from, Message& to) const;
  /// Allocates memory for n values, which the functions below take as `values`. values[i] is the
  /// value at position i in the Part (a list of ranges of layers).
  [[nodiscard]] std::shared_ptr<float> Allocate(std::int64_t n) const;
  /// Adds `values`, such as the sums of a group, as term k of the sum across ranks. Reads `from`
  /// and writes `to` as Hop does. values[i] is the term at position i in the Part (a list of ranges
  /// of layers).
  void HopValues(const Part& part, std::int64_t k, const Message* from, const float* values,
                 Message& to) const;
  /// LoadResults decodes results to values, and StoreResults encodes values as results. values[i]
  /// is the value at position i in the Part (a list of ranges of layers), still multiplied by the
  /// layer's scale.
  void LoadResults(const Part& part, const Message& from, float* values) const;
  void StoreResults(const Part& part, const float* values, Message& to) const;
  /// Writes results to the layers: divides each value by the layer's scale and, if the average is
  /// taken after the sum (Divide::after), by the number of ranks.
  void Unpack(const Part& part, const Message& from) const;
  /// Decodes another rank's packed contributions and writes them to out + offset[layer].
  void UnpackWire(const Part& part, const Message& from,
                  std::span<const std::int64_t> offset) const;
  /// Returns, for each layer, how many of this rank's values the cast to contributions loses:
  /// underflowed, zero, NaN and infinite values.
  [[nodiscard]] std::vector<Losses> CountLosses() const;

 private:
  class Scratch;
  class Step;
  struct Work;
  using Blocks = std::span<const Block>;
  /// A message to read; null for a missing message.
  struct Source {
    Content content;
    const Message* message;
  };

  [[nodiscard]] const Codecs& codecs(Content content) const {
    return codecs_[static_cast<std::size_t>(content)];
  }
  /// Returns whether contributions travel as fp32 values. This is so if `in_fp32` is set and the
  /// codec has no bytes for NaN.
  [[nodiscard]] bool as_values() const {
    const SharedCodec& wire = reduction_.spec().wire;
    return in_fp32_ && (wire == nullptr || !wire->has_nan());
  }
  /// Returns whether a codec's blocks are computed one by one, on threads of the host.
  [[nodiscard]] bool by_blocks() const { return !casts_ && queue_->on_host(); }
  /// Returns whether the backend's operation `reduce` itself decodes and encodes messages with this
  /// content (contributions, running sums or results). If false, a codec does that.
  [[nodiscard]] bool is_direct(Content content) const;
  [[nodiscard]] ReduceCall MakeCall() const;

  /// Divides the values of the part into blocks. Calls body(blocks, scratch) repeatedly, each time
  /// with the next few blocks, until `body` has received all of them. `scratch` provides memory.
  template <class Body>
  void ForBlocks(const Part& part, const Body& body) const;
  /// Calls body(work) repeatedly. `work` has the next few blocks of the part's values, the messages
  /// `from`, which `body` reads, and the message `to`, which it writes (null: no message).
  template <class Body>
  void Convert(const Part& part, const std::vector<Source>& from, Content content, Message* to,
               const Body& body) const;
  void FoldFrom(const Part& part, std::span<const SharedMessage> from, std::int64_t unit,
                Message& to) const;
  void HopFrom(const Part& part, std::int64_t k, const Message* from, const float* values,
               Message& to) const;
  /// On devices other than the CPU, encodes this rank's contributions and returns the message. On
  /// the CPU returns null: the CPU casts or encodes this rank's contributions while it adds them.
  [[nodiscard]] std::unique_ptr<Message> OwnMessage(const Part& part) const;

  [[nodiscard]] Piece OwnPiece(const Block& block) const;
  /// Writes to `terms` the values that every rank decodes from this rank's contributions, for one
  /// block.
  void Round(const Block& block, float* terms, SegmentCounts* counts = nullptr) const;

  const Reduction& reduction_;
  int rank_;
  Layers layers_;
  bool in_fp32_;
  SharedQueue queue_;
  std::function<void()> progress_;
  bool casts_;                    // contributions are packed codes of a format
  std::array<Codecs, 3> codecs_;  // indexed by Content
  ReduceCall call_;               // the members that all calls share
};

/// Returns the plan by which the sum of a level (within a group, or across groups or ranks) is
/// computed and rounded to its result.
SumPlan SumPlanOf(const Level& level);

/// Returns the layers divided by `divisor`, rounded once to binary32 (Unscale), in new memory of
/// the queue's device.
std::vector<std::shared_ptr<float>> Quotients(const SharedQueue& queue,
                                              std::span<const TensorView> x, float divisor);

}  // namespace cpd
