// SPDX-License-Identifier: Apache-2.0
//
// Reductions over real ranks, over any transport. Their sums equal, bit for bit, the sums of the
// virtual ranks (virtual.h). The layers of one call are merged into messages of many layers; each
// layer keeps its own APS exponent.
//
// A call has these phases: handshake (all ranks compare their intents), exponents (one maximum of
// 8-bit integers), then for each chunk exchange, fold and gather. Chunks overlap.
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
  /// Values of a chunk; memory in addition to inputs and results is a small multiple of it. Equal
  /// on all ranks.
  std::int64_t chunk = std::int64_t{1} << 20;
};

/// One rank's end of a group of ranks. Every rank makes the same calls in the same order; one call
/// at a time.
class CPD_API Communicator {
 public:
  /// Throws Error for options out of range.
  Communicator(std::unique_ptr<Transport> transport, const CommOptions& options);
  ~Communicator();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;

  [[nodiscard]] Transport& transport() const;
  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  /// Why the communicator takes no more calls; empty while it works. May be called during a call.
  [[nodiscard]] std::string broken() const;

  /// out[l] = the sum over ranks of x[l]. x and out: float32, contiguous, all on one device, the
  /// sizes equal on all ranks; out[l] may be x[l] itself, else they do not overlap. `counts`: fill
  /// TensorReport's counts (equal on all ranks; one pass more). `layers`: the call's seed and step,
  /// the layers' numbers and shapes, equal on all ranks, and this rank's states of a codec. Throws
  /// Mismatch, RankLost, Corrupt, Error; x, unless it is out, and the states are then unchanged.
  ReduceReport AllReduce(std::span<const TensorView> x, std::span<const TensorView> out,
                         const cpd::Reduce& spec, bool counts = false,
                         const TensorOptions& layers = {});
  /// AllReduce with the result on rank `root` alone; elsewhere out is empty. Exchange owner only.
  ReduceReport Reduce(std::span<const TensorView> x, std::span<const TensorView> out,
                      const cpd::Reduce& spec, int root, bool counts = false,
                      const TensorOptions& layers = {});
  /// Reduce-scatter: like AllReduce, but rank r receives only slice r of each layer (the first n
  /// mod W slices are one value longer). out[l] has the slice's size. Exchange owner only.
  ReduceReport ReduceScatter(std::span<const TensorView> x, std::span<const TensorView> out,
                             const cpd::Reduce& spec, bool counts = false,
                             const TensorOptions& layers = {});
  /// Gathers every rank's x, rounded to `format` and sent packed: out[l] holds size() times x[l]'s
  /// values, rank ascending. A stochastic rounding has the stream of a contribution at `step`.
  Traffic AllGather(std::span<const TensorView> x, std::span<const TensorView> out,
                    const Format& format, const RoundingOptions& rounding,
                    const TensorOptions& layers = {});
  /// Gathers every rank's bytes, of any lengths, rank ascending. Throws Mismatch, RankLost,
  /// Corrupt.
  std::vector<std::vector<std::uint8_t>> AllGatherBytes(std::span<const std::uint8_t> own);
  void Barrier();
  /// Takes the place of the call that the others make, on a rank that refuses its arguments: the
  /// others throw a Mismatch with `why` at once. Throws RankLost, Corrupt.
  void Refuse(const std::string& why);

  /// A communicator of some ranks (ascending, this one among them), called by these alone; works
  /// after RankLost.
  [[nodiscard]] Communicator Subgroup(std::span<const int> ranks) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cpd
