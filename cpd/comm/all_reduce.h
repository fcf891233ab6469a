// SPDX-License-Identifier: Apache-2.0
//
// Reductions over real ranks, over any transport. The sums equal, bit for bit, the sums of virtual
// ranks (virtual.h). The layers (tensors) of one call are merged into common messages, but each
// layer has its own APS exponent.
//
// A call has these phases (Phase). Handshake: all ranks compare their intents. Exponents, if
// needed: the ranks agree on the maximum of each layer's largest magnitude or scale. Then for each
// chunk: exchange sends contributions, fold adds them, and gather sends results. The phases of
// several chunks overlap.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpd/base/tensor.h"
#include "cpd/comm/errors.h"
#include "cpd/comm/reduction.h"
#include "cpd/comm/report.h"
#include "cpd/comm/spec.h"
#include "cpd/comm/transport/transport.h"

namespace cpd {

struct CommOptions {
  double timeout = kDefaultTimeout;  ///< seconds of silence after which a rank is lost
  /// The number of values that are exchanged at a time, equal on all ranks. A call needs memory for
  /// a small multiple of this number, in addition to inputs and results.
  std::int64_t chunk = std::int64_t{1} << 20;
};

/// A rank's endpoint in a group of ranks, from which the rank calls collectives. Every rank makes
/// the same calls in the same order, one call at a time.
class CPD_API Communicator {
 public:
  /// Throws Error if an option is out of range.
  Communicator(std::unique_ptr<Transport> transport, const CommOptions& options);
  ~Communicator();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;

  [[nodiscard]] Transport& transport() const;
  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  /// Returns the reason why the communicator takes no more calls; empty while the communicator
  /// works. Another thread may call this function during a call.
  [[nodiscard]] std::string broken() const;

  /// Writes the sum over ranks of x[l] to out[l].
  ///
  /// x and out are float32, contiguous and all on one device. Sizes are equal on all ranks. out[l]
  /// may be x[l] itself; otherwise out and x do not overlap. `counts`: whether to fill
  /// TensorReport's counts, which are equal on all ranks and cost one more pass. `layers`: the
  /// call's seed and step, the layers' numbers and shapes (all equal on all ranks), and this rank's
  /// codec states. Throws Mismatch, RankLost, Corrupt or Error. After an error the states are
  /// unchanged, and so is x unless out[l] is x[l].
  ReduceReport AllReduce(std::span<const TensorView> x, std::span<const TensorView> out,
                         const cpd::Reduce& spec, bool counts = false,
                         const TensorOptions& layers = {});
  /// Reduces like AllReduce, but only rank `root` receives the result. `out` is empty on all other
  /// ranks. Throws Error for an exchange other than `owner`.
  ReduceReport Reduce(std::span<const TensorView> x, std::span<const TensorView> out,
                      const cpd::Reduce& spec, int root, bool counts = false,
                      const TensorOptions& layers = {});
  /// Reduce-scatter: like AllReduce, but rank r receives only slice r of each layer. Of a layer of
  /// n values, the first n mod W slices (W: the number of ranks) are one value longer than the
  /// others. out[l] has the size of this rank's slice. Throws Error for an exchange other than
  /// `owner`.
  ReduceReport ReduceScatter(std::span<const TensorView> x, std::span<const TensorView> out,
                             const cpd::Reduce& spec, bool counts = false,
                             const TensorOptions& layers = {});
  /// Gathers every rank's x, rounded to `format` and sent as packed codes. out[l] receives x[l] of
  /// rank 0, then x[l] of rank 1, and so on, so it has size() times as many values as x[l].
  /// Stochastic rounding uses the same random stream as the rounding of this rank's contribution in
  /// AllReduce at the same `layers.step`.
  Traffic AllGather(std::span<const TensorView> x, std::span<const TensorView> out,
                    const Format& format, const RoundingOptions& rounding,
                    const TensorOptions& layers = {});
  /// Gathers every rank's bytes, which may differ in length, by ascending rank. Throws Mismatch,
  /// RankLost or Corrupt.
  std::vector<std::vector<std::uint8_t>> AllGatherBytes(std::span<const std::uint8_t> own);
  void Barrier();
  /// For a rank whose own arguments are invalid, while the other ranks call a collective: tells
  /// them the reason `why`. They then throw a Mismatch with that text at once. Throws RankLost or
  /// Corrupt.
  void Refuse(const std::string& why);

  /// Returns a communicator of the ranks `ranks`, which are ascending and include this rank. Only
  /// these ranks call Subgroup. The call also works after RankLost.
  [[nodiscard]] Communicator Subgroup(std::span<const int> ranks) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cpd
