// SPDX-License-Identifier: Apache-2.0
//
// The sums of virtual ranks (VirtualReduce), in the memory of the layers' device. Contributions are
// cast and added on that device, on the caller's stream. Ranks are added one after the other, or
// several in one pass over the sums if their values stay unchanged.
//
// The host waits for a device only if it reads from the device: largest magnitudes, a codec's
// measurements, the counts of a requested report, and layers that a codec rounds on the host.
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
  /// `sizes`: the number of values of each layer. All work is queued on the stream of `first`, a
  /// tensor on the layers' device.
  VirtualSums(const Reduction& reduction, const std::vector<std::int64_t>& sizes,
              const TensorView& first);
  ~VirtualSums();
  VirtualSums(const VirtualSums&) = delete;
  VirtualSums& operator=(const VirtualSums&) = delete;

  /// Returns whether the device makes the contributions, by a cast to a format or by a codec's
  /// kernels. If false, the codec makes them on the host.
  [[nodiscard]] bool rounds() const;
  /// Calls Codec::Measure for one rank's layer, and waits for the result. Here and below, `whole`
  /// describes the whole layer, and `state` is the codec's state of the layer, or null.
  [[nodiscard]] float Measure(const TensorView& x, const Codec& codec, const Piece& whole,
                              CodecState* state) const;
  /// Returns the largest finite magnitude of the layer as it enters the reduction (Codec::Largest).
  /// Waits for the result.
  [[nodiscard]] float Largest(const TensorView& x, const Codec& codec, const Piece& whole,
                              CodecState* state) const;
  /// Identifies one contribution of a rank. A unit is a group of ranks, or a rank if there are no
  /// groups. `unit` is the number of the rank's unit, `member` the rank's index in it, and `visit`
  /// the position of this contribution in the order in which units contribute.
  struct Turn {
    std::int64_t rank = 0, member = 0, unit = 0, visit = 0;
    bool counts = false;        ///< whether it is counted: once for each rank
    bool counts_bytes = false;  ///< whether bytes of varying sizes count, too
  };
  /// Casts one rank's layer and adds the cast values to the sums. `stays`: x's values stay
  /// unchanged until EndGroup (with groups) or End. Several ranks may then be added in one pass.
  void Contribute(int layer, const TensorView& x, int shift, const Turn& turn, bool stays);
  /// Encodes one rank's layer by a codec's kernels and adds the decoded values to the sums.
  void Contribute(int layer, const TensorView& x, const Codec& codec, const Piece& whole,
                  CodecState* state, const Turn& turn);
  /// A function that writes values begin … begin + n - 1 of a layer to `values`.
  using Make = std::function<void(std::int64_t begin, std::int64_t n, float* values)>;
  /// Adds a rank's contribution that the host computes. Calls `make` for each block of the layer,
  /// on threads; `make` writes the values to add.
  void Contribute(int layer, std::int64_t block, const Turn& turn, const Make& make);
  /// Replaces a layer's sums by the values that result from encoding and decoding them with a
  /// codec's kernels.
  void EncodeResults(int layer, const Codec& codec, const Piece& whole, CodecState* state);
  /// Calls `change` for each block of a layer, on threads of the host. `change` changes the block's
  /// sums in place.
  void ChangeResults(int layer, std::int64_t block, const Make& change);
  /// Returns one rank's layer in the host's memory. The values are valid until the next call.
  const float* OnHost(int layer, const TensorView& x);
  /// Returns the bytes of a layer that were copied between host and device.
  [[nodiscard]] std::int64_t staged_bytes(int layer) const {
    return copies_.bytes(static_cast<std::size_t>(layer));
  }
  /// Adds the sums of the group with number turn.unit to the sums across groups.
  void EndGroup(const Turn& turn);
  /// Call it after all contributions. Adds the contributions that are still stored to the sums, and
  /// releases the memory of groups' sums.
  void End();
  /// Writes a layer's result to `out`: the layer's sums, times `scale`, times 2^-shift, divided by
  /// Reduction::divisor().
  void Result(int layer, int shift, float scale, const TensorView& out);
  struct Counts {
    Losses contributions;          ///< of contributions that kernels rounded
    std::int64_t bad_results = 0;  ///< NaN and infinities
    std::int64_t bytes = 0;        ///< of contributions whose messages have varying sizes
  };
  /// Returns the counts of a layer's contributions that have been added so far. Waits for the
  /// device's work.
  [[nodiscard]] Counts counts(int layer) const;

 private:
  struct Layer;

  [[nodiscard]] Layer& At(int layer);
  [[nodiscard]] const Layer& At(int layer) const;
  /// Returns a kernel's arguments for adding values to sums. The first overload returns the
  /// arguments that all layers have in common, for the sums within groups or the sums across groups
  /// (Level). The second overload copies these arguments from `level` and adds the arguments of one
  /// layer. `position` selects the layer's random streams.
  [[nodiscard]] VirtualCall CallOf(const Level& level) const;
  [[nodiscard]] VirtualCall CallOf(const VirtualCall& level, int layer,
                                   std::int64_t position) const;
  /// Returns the kernel's arguments for adding the values of ranks (or of groups) to the sums
  /// across ranks. The first rank (or group) that the call adds is number `visit` in the order of
  /// contributions.
  [[nodiscard]] VirtualCall AcrossCall(int layer, std::int64_t visit) const;
  [[nodiscard]] VirtualCall TurnCall(int layer, const Turn& turn) const;
  void AddTerms(int layer, const Turn& turn) const;
  void Fold(Layer& layer);
  void FoldKept();
  /// Returns one rank's values as they enter the reduction, that is, divided if Divide::before is
  /// set.
  [[nodiscard]] std::shared_ptr<const float> Entering(const TensorView& x) const;

  const Reduction& reduction_;
  std::shared_ptr<const Queue> queue_;
  bool on_host_;  ///< the layers' memory is the host's
  std::vector<Layer> layers_;
  std::shared_ptr<float> terms_;  ///< the terms of one rank's layer
  VirtualCall across_, group_;    ///< the members that the calls of a level share
  HostCopies copies_;
  std::shared_ptr<float> fetched_;  ///< the values that OnHost returned
};

}  // namespace cpd
