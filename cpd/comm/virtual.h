// SPDX-License-Identifier: Apache-2.0
//
// W virtual ranks in one process: the all-reduce of Reduce with no transport. Ranks are
// processed one at a time. Memory holds one rank's values and the running sums.
//
//   VirtualReduce reduce(spec, world, sizes);
//   if (reduce.wants_ranges()) for each rank r, layer l: reduce.Observe(l, x_of(r, l));
//   for (int r : reduce.schedule()) {
//     for each layer l: reduce.Contribute(l, x_of(r, l));
//     reduce.EndRank();
//   }
//   for each layer l: reduce.Result(l, out);
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpd/base/tensor.h"
#include "cpd/comm/reduction.h"
#include "cpd/comm/report.h"
#include "cpd/comm/spec.h"

namespace cpd {

class CPD_API VirtualReduce {
 public:
  /// `world`: the number of ranks, at least 1. `sizes`: the number of values of each layer.
  /// `layers.states`, if not null, holds the states of all ranks and must outlive this object.
  /// Throws Error if the spec or an option is out of range.
  VirtualReduce(const Reduce& spec, int world, const std::vector<std::int64_t>& sizes,
                const TensorOptions& layers = {});
  ~VirtualReduce();
  VirtualReduce(VirtualReduce&&) noexcept;
  VirtualReduce& operator=(VirtualReduce&&) noexcept;

  /// Returns true if every rank's layers must be passed to Observe before the first Contribute.
  /// This is so with APS, and with a codec whose scale all ranks share.
  [[nodiscard]] bool wants_ranges() const;
  /// Finds the range of one rank's layer: its largest magnitude, or its scale if ranks share
  /// scales. Throws Error if the layer was observed `world` times already.
  void Observe(int layer, const TensorView& x);

  /// Returns the ranks in the order in which they must contribute. With order `sequential` or
  /// `tree`, each rank appears once. With order `ring`, sums of slices start at different ranks, so
  /// all ranks except one (or, with groups, the ranks of one group) appear twice.
  [[nodiscard]] std::vector<int> schedule() const;
  /// Adds layer `layer` of the rank that is next in schedule() to the sums. x is float32,
  /// contiguous and of the layer's size. A rank contributes each layer once, in any order. The
  /// layers' device computes the sums.
  ///
  /// `stays`: x's values stay unchanged until EndRank of the last rank in schedule(). Several ranks
  /// may then be added in one pass over the sums. Throws Error if the rank has contributed this
  /// layer already, or if layers are on several devices.
  void Contribute(int layer, const TensorView& x, bool stays = false);
  /// Ends the contribution of the rank that is next in schedule(). Throws Error if one of the
  /// rank's layers is missing.
  void EndRank();

  /// Makes the caller's new codec states final, so that the next call finds them. Needed only if
  /// `layers.commits` is false. Throws Error before EndRank of the last rank in schedule().
  void Commit();
  /// Writes the reduced layer to `out` (float32, contiguous). Throws Error before EndRank of the
  /// last rank in schedule().
  void Result(int layer, const TensorView& out);
  /// Returns the layer's counts. Waits for the device's work.
  [[nodiscard]] TensorReport report(int layer) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cpd
