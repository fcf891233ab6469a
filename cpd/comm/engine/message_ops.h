// SPDX-License-Identifier: Apache-2.0
//
// What a rank computes on messages: encodes its contributions, folds what came, decodes results.
// A device's backend does this by calls of `reduce` and a codec's kernels (device_ops.cpp); codecs
// without kernels encode and decode on the host, block by block (codec_ops.cpp, coded.h).
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
#include "cpd/comm/engine/memory.h"
#include "cpd/comm/reduction.h"
#include "cpd/scale/aps.h"

namespace cpd {

/// One rank's layers in one call.
struct Layers {
  std::vector<std::int64_t> sizes;
  std::vector<const float*> x;
  std::vector<float*> out;              ///< where value out_begin[l] of layer l goes
  std::vector<std::int64_t> out_begin;  ///< the first value that this rank keeps
  std::vector<int> shifts;
  std::vector<float> scales;         ///< what was measured; empty: nothing
  std::vector<CodecState*> states;   ///< after Begin; empty: the codec keeps nothing
  std::vector<CodecState*> results;  ///< states of the results that this rank owns
};

/// What a message holds.
enum class Content : std::uint8_t { contributions, running_sums, results };

/// One rank's operations on the messages of a call.
class MessageOps {
 public:
  MessageOps(const MessageOps&) = delete;
  MessageOps& operator=(const MessageOps&) = delete;
  virtual ~MessageOps();

  [[nodiscard]] const Reduction& reduction() const { return reduction_; }
  [[nodiscard]] int rank() const { return rank_; }

  /// Whether messages of this content always take their most bytes.
  [[nodiscard]] bool is_fixed(Content content) const { return codecs(content).is_fixed(); }
  [[nodiscard]] std::int64_t MostBytes(Content content, const Part& part) const {
    return cpd::MostBytes(part, codecs(content));
  }

  /// Encodes this rank's contributions. Here and below `to` has its most bytes at first, and in the
  /// end those that were used.
  virtual void Pack(const Part& part, Message& to) const = 0;
  /// The whole reduction of a part: from[r] is what Pack made on rank r; this rank's own may be
  /// null. Results go to `to`.
  virtual void Fold(const Part& part, std::span<const SharedMessage> from, Message& to) const = 0;
  /// The sum of this rank's group, to `to`: from[m] is member m's message, this rank's own null.
  virtual void FoldGroup(const Part& part, std::span<const SharedMessage> from,
                         Message& to) const = 0;
  /// Adds this rank's own contribution as term k of the sum across units, whose running state is in
  /// `from` (null for k = 0); the new state, or after the last term the result, goes to `to`.
  virtual void Hop(const Part& part, std::int64_t k, const Message* from, Message& to) const = 0;
  /// Memory for n values, indexed by position, for the functions below.
  [[nodiscard]] virtual std::shared_ptr<float> Allocate(std::int64_t n) const = 0;
  /// Hop whose terms are `values`, indexed by position.
  virtual void HopValues(const Part& part, std::int64_t k, const Message* from, const float* values,
                         Message& to) const = 0;
  /// Decodes results to values indexed by position, and encodes such values, neither unscaled.
  virtual void LoadResults(const Part& part, const Message& from, float* values) const = 0;
  virtual void StoreResults(const Part& part, const float* values, Message& to) const = 0;
  /// Writes results to the layers: scale undone, divided.
  virtual void Unpack(const Part& part, const Message& from) const = 0;
  /// Writes another rank's contributions, as decoded, to out + offset[layer].
  virtual void UnpackWire(const Part& part, const Message& from,
                          std::span<const std::int64_t> offset) const = 0;
  /// The losses of each layer's cast.
  [[nodiscard]] virtual std::vector<Losses> CountLosses() const = 0;

 protected:
  MessageOps(const Reduction& reduction, int rank, Layers layers, bool in_fp32,
             std::function<void()> progress);

  [[nodiscard]] const Layers& layers() const { return layers_; }
  /// What all calls of the reduction have.
  [[nodiscard]] const ReduceCall& call() const { return call_; }
  /// Whether codecs of the layers make the messages of contributions.
  [[nodiscard]] bool coded() const { return reduction_.spec().wire != nullptr && !as_values(); }
  /// Whether contributions travel as fp32 values: with in_fp32, unless their codec has bytes for
  /// NaN.
  [[nodiscard]] bool as_values() const {
    const SharedCodec& wire = reduction_.spec().wire;
    return in_fp32_ && (wire == nullptr || !wire->has_nan());
  }
  /// The format in which values of `format` travel.
  [[nodiscard]] Format MessageFormat(const Format& format) const {
    return in_fp32_ ? kFp32 : format;
  }
  [[nodiscard]] const Codecs& codecs(Content content) const {
    return codecs_[static_cast<std::size_t>(content)];
  }
  void Progress() const { progress_(); }

 private:
  [[nodiscard]] ReduceCall MakeCall() const;

  const Reduction& reduction_;
  int rank_;
  Layers layers_;
  bool in_fp32_;
  std::function<void()> progress_;
  ReduceCall call_;
  std::vector<Codecs> codecs_;  // by Content
};

/// Operations on the queue's device: of packed contributions, and of codecs that have kernels
/// there. Layers and values are in its memory, and all work is queued. `in_fp32`: what would be
/// packed travels in fp32, since some values may have no code in the formats. `progress` is called
/// now and then.
std::unique_ptr<MessageOps> MakeDeviceOps(const Reduction& reduction, int rank, Layers layers,
                                          bool in_fp32, std::function<void()> progress,
                                          SharedQueue queue);
/// Operations of codecs on the CPU.
std::unique_ptr<MessageOps> MakeCodecOps(const Reduction& reduction, int rank, Layers layers,
                                         bool in_fp32, std::function<void()> progress);

/// The plan of a level's sum and of its rounding to the result.
SumPlan SumPlanOf(const Level& level);

/// Layers divided by `divisor`, once in binary32 (Unscale), in new memory of the queue's device.
std::vector<std::shared_ptr<float>> Quotients(const SharedQueue& queue,
                                              std::span<const TensorView> x, float divisor);

}  // namespace cpd
