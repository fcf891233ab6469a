// SPDX-License-Identifier: Apache-2.0
//
// The sums of virtual ranks (VirtualReduce) whose layers are on a GPU: contributions are cast and
// folded there, on a stream of the caller's, one rank after the other or, where their values stay
// as they are, some ranks in one pass over the sums. The host waits only for what it reads: largest
// magnitudes, what a codec measures, how many values one keeps for another, counts when a report is
// asked for, and layers that a codec rounds on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpd/backend/queue.h"
#include "cpd/comm/reduction.h"
#include "cpd/compress/codec.h"

namespace cpd {

class VirtualSumsOnGpu {
 public:
  /// Queues its work on the stream of `first`, the first layer.
  VirtualSumsOnGpu(const Reduction& reduction, const std::vector<std::int64_t>& sizes,
                   const TensorView& first);
  ~VirtualSumsOnGpu();
  VirtualSumsOnGpu(const VirtualSumsOnGpu&) = delete;
  VirtualSumsOnGpu& operator=(const VirtualSumsOnGpu&) = delete;

  /// The largest finite |x| of a rank's layer as it enters the reduction.
  [[nodiscard]] float Largest(const TensorView& x) const;
  /// What a codec that has kernels will encode of it (Codec::Largest); waits.
  [[nodiscard]] float Largest(const TensorView& x, const Codec& codec, const Piece& whole,
                              CodecState* state) const;
  /// Where a contribution goes: as a member of its unit, which is visited.
  struct Turn {
    std::int64_t rank = 0, member = 0, unit = 0, visit = 0;
    bool counts = false;        ///< its losses; each rank's once
    bool counts_bytes = false;  ///< with them, the bytes of messages that have no fixed sizes
  };
  /// `stays`: x's values stay as they are until the group or the schedule ends, so that those of
  /// several ranks may be folded together.
  void Contribute(int layer, const TensorView& x, int shift, const Turn& turn, bool stays);
  /// The same with a codec that has kernels. `whole`: the layer as a piece; `state`: what the codec
  /// keeps of it, or null.
  void Contribute(int layer, const TensorView& x, const Codec& codec, const Piece& whole,
                  CodecState* state, const Turn& turn);
  /// Codec::Measure of a rank's layer; waits.
  [[nodiscard]] float Measure(const TensorView& x, const Codec& codec, const Piece& whole,
                              CodecState* state) const;
  /// Replaces a layer's sums by what a codec that has kernels makes of them.
  void EncodeResults(int layer, const Codec& codec, const Piece& whole, CodecState* state);
  /// Copies a rank's layer to the host; the values stay until the next call.
  const float* Staged(int layer, const TensorView& x);
  /// Memory on the host for as many values as the layer has.
  [[nodiscard]] std::shared_ptr<float> OnHost(int layer) const;
  /// Contributes what a codec made of a rank's layer: terms on the host.
  void ContributeTerms(int layer, const float* terms, const Turn& turn);
  /// A layer's sums, after the schedule's last rank, on the host; and in their place others.
  [[nodiscard]] std::shared_ptr<float> Sums(int layer);
  void SetSums(int layer, const float* sums);
  /// The bytes that these copied.
  [[nodiscard]] std::int64_t staged_bytes(int layer) const;
  /// Adds the sums of the turn's group to those across groups.
  void EndGroup(const Turn& turn);
  /// Folds what has been contributed and is kept.
  void FoldKept();
  /// Writes a layer's result, its sums times `scale`.
  void Result(int layer, int shift, float scale, const TensorView& out);
  struct Counts {
    Losses contributions;          ///< of those that kernels rounded
    std::int64_t bad_results = 0;  ///< NaN and infinities
    std::int64_t bytes = 0;        ///< of contributions whose messages have no fixed sizes
  };
  /// Of a layer, up to now; waits.
  [[nodiscard]] Counts counts(int layer) const;

 private:
  struct Layer;

  [[nodiscard]] VirtualCall CallOf(const Layer& layer, const Level& level, float* planes) const;
  /// The call that adds ranks' values, from the turn's on.
  [[nodiscard]] VirtualCall AcrossCall(int layer, std::int64_t visit) const;
  [[nodiscard]] VirtualCall TurnCall(int layer, const Turn& turn) const;
  void TakeTerms(int layer, const Turn& turn);
  void Fold(Layer& layer);
  void Copy(int layer, void* to, const void* from);
  /// A rank's values as they enter the reduction.
  [[nodiscard]] std::shared_ptr<const float> Entering(const TensorView& x) const;
  [[nodiscard]] std::shared_ptr<float> Floats(std::int64_t n) const;

  const Reduction& reduction_;
  std::shared_ptr<const Queue> queue_;
  std::vector<Layer> layers_;
  std::shared_ptr<float> staged_;
};

}  // namespace cpd
