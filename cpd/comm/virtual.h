// SPDX-License-Identifier: Apache-2.0
//
// W virtual ranks in one process: the all-reduce of Reduce with no transport. Ranks are
// processed one at a time, so that memory holds one rank's values and the running sums.
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
  /// world >= 1; sizes: values per layer; layers.states: of all ranks, must outlive this object.
  /// Throws Error.
  VirtualReduce(const Reduce& spec, int world, const std::vector<std::int64_t>& sizes,
                const TensorOptions& layers = {});
  ~VirtualReduce();
  VirtualReduce(VirtualReduce&&) noexcept;
  VirtualReduce& operator=(VirtualReduce&&) noexcept;

  /// True where APS needs every rank's Observe before the first Contribute.
  [[nodiscard]] bool wants_ranges() const;
  /// Throws Error for a layer that was observed `world` times.
  void Observe(int layer, const TensorView& x);

  /// The ranks in the order in which they must contribute: each once, or nearly twice for `ring`,
  /// whose slices start at different ranks.
  [[nodiscard]] std::vector<int> schedule() const;
  /// Adds layer `layer` of the schedule's next rank (x: float32, contiguous, the layer's size),
  /// each layer once, in any order. `stays`: its values stay as they are until the schedule's last
  /// EndRank, so that several ranks are added in one pass over the sums. Throws
  /// Error for a second time, and where layers are on several devices. The layers' device computes
  /// the sums.
  void Contribute(int layer, const TensorView& x, bool stays = false);
  /// Ends that rank's contribution. Throws Error if one of its layers is missing.
  void EndRank();

  /// Commits the caller's states, where layers.commits is false; after the schedule's last rank.
  void Commit();
  /// Writes the reduced layer to `out` (float32, contiguous), after the schedule's last rank.
  void Result(int layer, const TensorView& out);
  /// Returns the counts; waits for the device's work.
  [[nodiscard]] TensorReport report(int layer) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cpd
