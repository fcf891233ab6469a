// SPDX-License-Identifier: Apache-2.0
//
// Reduce, the options of a reduction over ranks, and their text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpd/compress/codec.h"
#include "cpd/numeric/sums/rounds.h"
#include "cpd/scale/aps.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/keys.h"

namespace cpd {

/// Which messages a real transport moves. The bits depend on `order` and `group_size`, not on this,
/// but that a codec which encodes sums again (Codec::ForResults) does so in `owner` alone.
enum class Exchange : std::uint8_t {
  owner,         ///< a slice's owner gathers and folds it, results are gathered; any order
  gather,        ///< every rank gathers and folds everything; any order
  ring,          ///< partial sums hop around a ring; order ring, no groups
  hierarchical,  ///< members to master, ring of masters, broadcast; order ring, with groups
};

/// The point at which an average divides by the number of ranks W, in binary32.
enum class Divide : std::uint8_t {
  after,   ///< the sum, once, at the end
  before,  ///< each contribution, before its scale is measured and it is cast (as torch's DDP)
};

/// An all-reduce: the cast of each contribution, the rule of the sum, the form of the result.
struct Reduce {
  /// Everything in fp32.
  Reduce() = default;
  /// Contributions in a format, and sums and results too, as the Python front end's
  /// `Reduce(format)`.
  explicit Reduce(const Format& all) : format(all), accumulator{.format = all}, result(all) {}

  Format format = kFp32;       ///< on the wire; with a `wire`, its format()
  RoundingOptions rounding{};  ///< of the cast to the wire; `wire` has its own
  SharedCodec wire{};          ///< the codec of contributions; null: `format`, packed
  Accumulator accumulator{};   ///< of the sum: sequential, kahan, chunked or pairwise
  Format result = kFp32;       ///< a wider accumulator is rounded once more to it, each level
  Order order = Order::sequential;
  Exchange exchange = Exchange::owner;
  /// 0: no groups; else at most W: each group is summed in rank order to its first rank, then the
  /// groups' sums in `order`. One group of all W ranks has no second level: as no groups in order
  /// sequential.
  int group_size = 0;
  Aps aps = Aps::off;
  double loss_scale = 1;  ///< constant power of two for all layers, undone at the end; not with APS
  bool average = false;   ///< divide by the number of ranks
  Divide divide = Divide::after;  ///< where an average divides; without one it has no effect
};

/// Throws Error where an option is out of range or two exclude each other.
CPD_API void Check(const Reduce& spec);
/// Check(spec) for a known number of ranks, which no group may exceed.
CPD_API void Check(const Reduce& spec, int world);

/// Returns whether a sequential sum, rounded to nearest, has more than 2^precision terms at one
/// level: with terms of equal value the later ones may change nothing.
CPD_API bool MayStall(const Reduce& spec, int world);

CPD_API Order ParseOrder(std::string_view name);
CPD_API Exchange ParseExchange(std::string_view name);
CPD_API Divide ParseDivide(std::string_view name);
/// All names, each at its enumerator's place.
CPD_API std::span<const std::string_view> NamesOf(Order order);
CPD_API std::span<const std::string_view> NamesOf(Exchange exchange);
CPD_API std::span<const std::string_view> NamesOf(Divide divide);

/// Returns whether `scale` is a power of two from 2^-126 to 2^126.
CPD_API bool IsLossScale(double scale);

/// Reads a text: what contributions become (a format, a scaled format, or a compressor with its
/// options), then keys, each as name=value, with values of several words in quotes: `e4m3 aps
/// accumulator='e5m10 kahan'`. `aps` and `average` alone are switched on. The sum and the result
/// are by default in the format, in fp32 for a scaled format or a compressor; the elements of a
/// scaled format saturate. Throws Error for any other text.
CPD_API Reduce ParseReduce(std::string_view text);
template <>
CPD_API Reduce Make<Reduce>(std::string_view text, std::span<const Option> keys);
/// The keys; `aps` is a bool or `paper`, `group_size` not set without groups. Fields without a key:
/// `format`, which is not set for a compressor, and `codec`.
template <>
CPD_API Keys<Reduce> KeysOf<Reduce>();
/// Returns the canonical text: the form of the contributions, then every key that is not its
/// default. ParseReduce(ToString(r)) gives r, if the codec of `wire` rounds by `rounding`.
CPD_API std::string ToString(const Reduce& spec);
/// The keys of the canonical text.
CPD_API std::vector<Option> OptionsOf(const Reduce& spec);

}  // namespace cpd
