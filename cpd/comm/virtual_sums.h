// SPDX-License-Identifier: Apache-2.0
//
// The sums of virtual ranks (VirtualReduce), in the memory of the layers' device. Contributions are
// cast and added there, on the caller's stream: one rank after the other or, if their values stay,
// several ranks in one pass over the sums. The host waits for a device only if it reads from it:
// largest magnitudes, a codec's measurements, counts when a report is requested, and layers that a
// codec rounds on the host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cpd/backend/queue.h"
#include "cpd/comm/engine/staged.h"
#include "cpd/comm/reduction.h"
#include "cpd/compress/codec.h"

namespace cpd {

class VirtualSums {
 public:
  /// Queues its work on the stream of `first`, the first layer.
  VirtualSums(const Reduction& reduction, const std::vector<std::int64_t>& sizes,
              const TensorView& first);
  ~VirtualSums();
  VirtualSums(const VirtualSums&) = delete;
  VirtualSums& operator=(const VirtualSums&) = delete;

  /// Returns whether the device makes the contributions: of a format, or by a codec's kernels. Else
  /// the codec makes them on the host.
  [[nodiscard]] bool rounds() const;
  /// Calls Codec::Measure for a rank's layer; waits. Here and below `whole` is the layer as a
  /// piece, and `state` the codec's state of it, or null.
  [[nodiscard]] float Measure(const TensorView& x, const Codec& codec, const Piece& whole,
                              CodecState* state) const;
  /// The largest finite magnitude that enters the reduction (Codec::Largest); waits.
  [[nodiscard]] float Largest(const TensorView& x, const Codec& codec, const Piece& whole,
                              CodecState* state) const;
  /// The destination of a contribution: it is a member of the visited unit.
  struct Turn {
    std::int64_t rank = 0, member = 0, unit = 0, visit = 0;
    bool counts = false;        ///< its losses; each rank's once
    bool counts_bytes = false;  ///< with them, the bytes of messages that have no fixed sizes
  };
  /// Casts a rank's layer and adds it. `stays`: x's values stay as they are until the group or the
  /// schedule ends, so that several ranks' may be added together.
  void Contribute(int layer, const TensorView& x, int shift, const Turn& turn, bool stays);
  /// Adds what a codec's kernels make of a rank's layer.
  void Contribute(int layer, const TensorView& x, const Codec& codec, const Piece& whole,
                  CodecState* state, const Turn& turn);
  /// Writes values begin … begin + n - 1 of a layer.
  using Make = std::function<void(std::int64_t begin, std::int64_t n, float* values)>;
  /// Adds what the host's threads make, block by block.
  void Contribute(int layer, std::int64_t block, const Turn& turn, const Make& make);
  /// Replaces a layer's sums by the result of a codec's kernels.
  void EncodeResults(int layer, const Codec& codec, const Piece& whole, CodecState* state);
  /// Has the host's threads change the sums in place, block by block.
  void ChangeResults(int layer, std::int64_t block, const Make& change);
  /// A rank's layer in the host's memory; the values stay until the next call.
  const float* OnHost(int layer, const TensorView& x);
  /// The bytes that were copied between host and device.
  [[nodiscard]] std::int64_t staged_bytes(int layer) const {
    return copies_.bytes(static_cast<std::size_t>(layer));
  }
  /// Adds the sums of the turn's group to those across groups.
  void EndGroup(const Turn& turn);
  /// Ends the last turn: adds the stored contributions, and releases groups' sums.
  void End();
  /// Writes a layer's result, its sums times `scale`.
  void Result(int layer, int shift, float scale, const TensorView& out);
  struct Counts {
    Losses contributions;          ///< of contributions that kernels rounded
    std::int64_t bad_results = 0;  ///< NaN and infinities
    std::int64_t bytes = 0;        ///< of contributions whose messages have varying sizes
  };
  /// Of a layer, up to now; waits.
  [[nodiscard]] Counts counts(int layer) const;

 private:
  struct Layer;

  [[nodiscard]] Layer& At(int layer);
  [[nodiscard]] const Layer& At(int layer) const;
  /// The members that the calls of a level have in common; a layer's, by the position of its random
  /// streams.
  [[nodiscard]] VirtualCall CallOf(const Level& level) const;
  [[nodiscard]] VirtualCall CallOf(const VirtualCall& level, int layer,
                                   std::int64_t position) const;
  /// The call that adds ranks' values, from the turn's on.
  [[nodiscard]] VirtualCall AcrossCall(int layer, std::int64_t visit) const;
  [[nodiscard]] VirtualCall TurnCall(int layer, const Turn& turn) const;
  void AddTerms(int layer, const Turn& turn) const;
  void Fold(Layer& layer);
  void FoldKept();
  /// A rank's values as they enter the reduction; the queue follows their stream.
  [[nodiscard]] std::shared_ptr<const float> Entering(const TensorView& x) const;

  const Reduction& reduction_;
  std::shared_ptr<const Queue> queue_;
  bool on_host_;  ///< the layers' memory is the host's
  std::vector<Layer> layers_;
  std::shared_ptr<float> terms_;  ///< of one rank and layer
  VirtualCall across_, group_;    ///< what the calls of each level have in common
  HostCopies copies_;
  std::shared_ptr<float> fetched_;  ///< of OnHost
};

}  // namespace cpd
