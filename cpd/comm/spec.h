// SPDX-License-Identifier: Apache-2.0
//
// Reduce, the options of a reduction over ranks, and its form as text.
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

/// The messages that a real transport moves. The exchange does not change the result's bits: these
/// depend on `order` and `group_size`. The exception is a codec that encodes results again
/// (Codec::ForResults): only with exchange `owner` are results encoded again.
enum class Exchange : std::uint8_t {
  owner,         ///< a slice's owner gathers and sums it, then sends the result; any order
  gather,        ///< every rank gathers all contributions and sums them; any order
  ring,          ///< partial sums hop around a ring; order ring, no groups
  hierarchical,  ///< members to master, ring of masters, broadcast; order ring, with groups
};

/// The point at which an average divides by the number of ranks W, in binary32.
enum class Divide : std::uint8_t {
  after,   ///< the sum, once, at the end
  before,  ///< each contribution, before its scale is measured and it is cast (as torch's DDP)
};

/// The options of an all-reduce: the cast of each contribution, the rule of the sum, and the format
/// of the result.
struct Reduce {
  /// Everything in fp32.
  Reduce() = default;
  /// Rounds contributions, sums and results to one format, as the Python front end's
  /// `Reduce(format)` does.
  explicit Reduce(const Format& all) : format(all), accumulator{.format = all}, result(all) {}

  Format format = kFp32;       ///< of contributions; with a `wire`, the codec's format()
  RoundingOptions rounding{};  ///< of the cast to `format`; a `wire` has its own
  SharedCodec wire{};          ///< the codec of contributions; null: `format`, packed
  Accumulator accumulator{};   ///< its scheme: sequential, kahan, chunked or pairwise
  Format result = kFp32;       ///< each level's sum is rounded once more to it
  Order order = Order::sequential;
  Exchange exchange = Exchange::owner;
  /// The number of ranks in a group, at most W (the number of ranks); 0: no groups. Each group is
  /// summed in rank order to its first rank; then the groups' sums are added in `order`. One group
  /// of all W ranks gives the bits of order sequential without groups.
  int group_size = 0;
  Aps aps = Aps::off;
  double loss_scale = 1;  ///< constant power of two for all layers, undone at the end; not with APS
  bool average = false;   ///< divide by the number of ranks
  Divide divide = Divide::after;  ///< where an average divides; without one it has no effect
};

/// Throws Error if an option is out of range or two options exclude each other.
CPD_API void Check(const Reduce& spec);
/// Does the same as Check(spec), and also throws Error if `world` is below 1 or a group has more
/// than `world` ranks.
CPD_API void Check(const Reduce& spec, int world);

/// Returns whether a sequential sum, rounded to nearest, has more than 2^precision terms within a
/// group or across groups. If all terms are equal, later terms may then not change the sum.
CPD_API bool MayStall(const Reduce& spec, int world);

CPD_API Order ParseOrder(std::string_view name);
CPD_API Exchange ParseExchange(std::string_view name);
CPD_API Divide ParseDivide(std::string_view name);
/// Returns the names of all enumerators, in the enumerators' order.
CPD_API std::span<const std::string_view> NamesOf(Order order);
CPD_API std::span<const std::string_view> NamesOf(Exchange exchange);
CPD_API std::span<const std::string_view> NamesOf(Divide divide);

/// Returns whether `scale` is a power of two from 2^-126 to 2^126.
CPD_API bool IsLossScale(double scale);

/// Reads the text of a reduction. It begins with the form of contributions: a format, a scaled
/// format, or a compressor with its options. Then come keys, each as name=value, with values of
/// several words in quotes: `e4m3 aps accumulator='e5m10 kahan'`. `aps` and `average` may stand
/// without a value, which switches them on. By default the sum and the result are in the format of
/// contributions, or in fp32 for a scaled format or a compressor. Elements of a scaled format
/// saturate. Throws Error for any other text.
CPD_API Reduce ParseReduce(std::string_view text);
template <>
CPD_API Reduce Make<Reduce>(std::string_view text, std::span<const Option> keys);
/// Returns the keys of a reduction's text. The key `aps` has a bool or `paper` as its value.
/// `group_size` has no value without groups. `format` and `codec` are fields that a text cannot set
/// by name; `format` is not set for a compressor.
template <>
CPD_API Keys<Reduce> KeysOf<Reduce>();
/// Returns the canonical text: the form of the contributions, then every key that differs from its
/// default. ParseReduce(ToString(r)) gives r, unless the codec r.wire rounds by other options than
/// r.rounding.
CPD_API std::string ToString(const Reduce& spec);
/// Returns the keys of the canonical text, with their values.
CPD_API std::vector<Option> OptionsOf(const Reduce& spec);

}  // namespace cpd
