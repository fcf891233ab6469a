// SPDX-License-Identifier: Apache-2.0
//
// The arguments of kernels for reductions over ranks and for messages (operations.def).
#pragma once

#include <array>
#include <cstdint>

#include "cpd/backend/calls.h"
#include "cpd/numeric/scaled/largest_limit.h"
#include "cpd/numeric/scaled/levels.h"
#include "cpd/numeric/sums/rounds.h"

namespace cpd {

constexpr int kCodeTile = 2048;  ///< codes in a tile; a multiple of kBlock

/// Returns the number of tiles of kCodeTile codes into which n codes are divided.
CPD_FN std::int64_t tiles_of(std::int64_t n) { return (n + kCodeTile - 1) / kCodeTile; }

/// The kinds of packed codes in a reduction: contributions, results, the two values of a running
/// sum's state, and unchanged binary32 values.
enum class Codes : std::uint8_t { wire, result, plane0, plane1, values };
constexpr int kCodes = 5;

/// Contiguous values of one layer.
struct ReduceSegment {
  std::int64_t layer = 0;
  std::int64_t size = 0;  ///< values of the whole layer
  std::int64_t begin = 0, count = 0;
  std::int64_t tile = 0;     ///< number of tiles in earlier segments (reduce_tile.cuh)
  const float* x = nullptr;  ///< value `begin` of this rank's layer
  float* out = nullptr;      ///< the memory of its result
  std::int32_t shift = 0;    ///< the layer's scale is 2^shift; -600 … 600
  float scale = 1;           ///< factor of results; each product is rounded once
  std::array<std::int64_t, kCodes> start{};  ///< the byte of a message at which its codes begin
};

enum class ReduceTask : std::uint8_t {
  /// Casts this rank's contributions and writes their codes, in to_codes, to message `to`.
  pack,
  /// Adds the contributions in the messages from[r] of all ranks r and writes the sums to `to`. If
  /// `unit` is not -1, adds only the contributions in the messages from[m] of all members m of the
  /// group number `unit`. from_codes, the kind of the contributions' codes, is Codes::wire.
  /// Codes::values is allowed if both kinds have the same format and begin at the same byte of a
  /// message.
  fold,
  /// Adds term k to the running sum in message from[0] (null for k = 0). Term k is in message
  /// from[1], whose codes are of kind from_codes. Writes the new sum to message `to`, or after the
  /// last term the result.
  hop,
  /// Converts the packed codes in message from[0], which are of the kind (Codes) from_codes, to the
  /// kind to_codes, and writes them to message `to`.
  transcode,
  /// Decodes the codes in message from[0], which are of kind from_codes. Multiplies the values by
  /// 2^-shift, divides them by `divisor`, and writes them to `out` of each segment.
  unpack,
};

/// The work of one kernel of a reduction. Its pointers point to the caller's tables on the host.
struct ReduceCall {
  ReduceTask task = ReduceTask::pack;
  Codes from_codes = Codes::wire, to_codes = Codes::wire;
  const ReduceSegment* segments = nullptr;
  std::int32_t segment_count = 0;
  std::int32_t from_count = 0;
  std::int64_t tiles = 0;  ///< tiles of all segments
  /// The messages to read. On a CPU, from[r] may be null for this rank in the task `fold`, and
  /// from[1] in the task `hop`. Then this rank's values are cast and added without a message.
  const std::uint8_t* const* from = nullptr;
  std::uint8_t* to = nullptr;
  /// A function of the caller that lets transfers advance; may be null. A CPU calls it repeatedly
  /// while it computes, and passes it the caller's pointer `waiting`.
  void (*between)(const void* waiting) = nullptr;
  const void* waiting = nullptr;

  std::int64_t unit = -1;
  std::int64_t k = 0;
  bool unscales = false;  ///< unpack: whether to multiply and divide
  float divisor = 1;

  RoundPlan cast;                       ///< casts contributions
  std::array<RoundPlan, kCodes> codes;  ///< the format of each kind of codes
  SumPlan group, across;
  Rounds rounds;
  std::int64_t world = 1, group_size = 0;  ///< 0: no groups
  /// Random streams (streams.h) of layer 0, from which kernels compute the streams of all layers
  /// (StreamFrom). cast_stream is for this rank's cast, sum_stream for the additions, and
  /// result_stream for the rounding of sums to the result. For the last two, StreamFrom also takes
  /// the group's number.
  std::uint64_t cast_stream = 0, sum_stream = 0, result_stream = 0;
};

/// Counts over this rank's values in a segment (a range of a layer's values).
struct SegmentCounts {
  unsigned long long non_finite = 0;   ///< NaN and Inf
  unsigned long long underflowed = 0;  ///< nonzero values that the cast rounds to zero
  unsigned long long zeros = 0;        ///< values that are zero after the cast
  std::uint32_t largest = 0;           ///< the bits of the largest finite |x|
};

/// Counts the values of each segment (a range of a layer's values). Underflowed values and zeros
/// are counted only if `casts` is set.
struct CountCall {
  ReduceCall reduce;  ///< its segments, tiles and cast
  bool casts = false;
  SegmentCounts* counts = nullptr;  ///< one for each segment, on the host
};

constexpr int kMostPassRanks = 16;  ///< ranks added in one pass over a layer's sums

/// Adds the values of some virtual ranks to the running sums of one layer, or finishes these sums.
/// The sums are within a group of ranks, or across groups or ranks. Ranks contribute one after the
/// other. All memory is on the device.
struct VirtualCall {
  std::int64_t size = 0;
  /// The call adds or finishes the sums of values begin … end - 1 of the layer. Except on a CPU,
  /// the range must be the whole layer.
  std::int64_t begin = 0, end = 0;
  /// The values that the call adds, of `ranks` ranks (one rank with order ring): x[r] points to
  /// value `begin` of the call's r-th rank. If `casts` is set, the call casts x / divisor * 2^shift
  /// and adds the results. Otherwise it adds the values x themselves.
  const float* x[kMostPassRanks] = {};
  int ranks = 1;
  bool casts = false;
  float divisor = 1;
  std::int32_t shift = 0;
  RoundPlan cast;
  std::uint64_t cast_stream[kMostPassRanks] = {};
  float* terms = nullptr;  ///< memory for one rank's terms
  /// The running sums are in `planes`: arrays of `size` values, one array for each value of a sum's
  /// state. Each sum has `count` terms. The call's ranks add terms k, k + 1, …. `visit` is the
  /// first rank's position in the order of contributions, or -1. If it is not -1, `k` is not used:
  /// the number of the first rank's term is rounds.term(visit, slice), and differs between the
  /// layer's slices.
  SumPlan plan;
  Rounds rounds;
  std::int64_t count = 0, k = 0, visit = -1;
  std::uint64_t sum_stream = 0, result_stream = 0;
  float* planes = nullptr;
  /// On a CPU, if every running sum is a bf16 number: the sums as bf16 patterns; `planes` is then
  /// not used. Null: `planes` has the sums, in binary32.
  std::uint16_t* halves = nullptr;
  float scale = 1;                  ///< multiplies the sums when they are finished, rounded once
  float* out = nullptr;             ///< the finished sums
  SegmentCounts* counts = nullptr;  ///< null: nothing is counted; not null for finish_sums
};

/// The device memory that a codec's kernel reads and writes.
struct CodecMemory {
  const float* x = nullptr;            ///< input of a measurement, a rounding or an encoding
  float* y = nullptr;                  ///< the values of codes; may be x
  std::uint8_t* to = nullptr;          ///< the message of an encoding
  const std::uint8_t* from = nullptr;  ///< the message of a decoding
  SegmentCounts* counts = nullptr;     ///< a rounding adds its counts over x, unless null
  /// A decoding lowers *damaged to the lowest index of a value whose norm or scale is invalid.
  unsigned long long* damaged = nullptr;
};

/// Rounds, encodes or decodes a range of a layer. Each value becomes a level, a fraction of its
/// bucket's norm (numeric/scaled/levels.h). All memory is on the device.
struct LevelCall : CodecMemory {
  LevelPlan plan;                 ///< only a CPU's plan has places of levels
  std::int64_t begin = 0, n = 0;  ///< of the layer: element i has the random integer begin + i
  std::int64_t before = 0;        ///< values of its first bucket that come before the range
  std::int32_t shift = 0;         ///< x and decoded values are multiplied by 2^shift
  float divisor = 1;              ///< of decoded values
  const float* norms = nullptr;   ///< of the range's buckets; null: all have `norm`
  float norm = 1;
  const std::uint32_t* random = nullptr;  ///< on a CPU: the elements' integers, not the plan's
  /// The number of values in each block of a message. A block is encoded separately and begins with
  /// the norms of its buckets.
  std::int64_t block = 0;
  bool stores_norms = true;
};

/// Computes the norm of each bucket of n values. All buckets but the last have `bucket` values.
struct NormCall {
  LevelNorm norm = LevelNorm::largest;
  double clip = 0;  ///< c of LevelNorm::clipped; 0: no clipping
  std::int64_t n = 0, bucket = 0;
  std::int32_t shift = 0;  ///< of x * 2^shift
  const float* x = nullptr;
  float* norms = nullptr;
};

/// Rounds, encodes or decodes a range of a layer in a scaled format. A bucket is a range of
/// neighboring values that share a scale. All memory is on the device.
struct QuantizedCall : CodecMemory {
  ScaledCall scaled;  ///< only its plan and route are used
  /// True if values are multiplied by the number that a message stores for their bucket, before
  /// they are rounded. Decoded values are divided by that number (FP8 rows).
  bool inverted = false;
  std::int64_t begin = 0, n = 0;  ///< of the layer: element i has the random integer begin + i
  std::uint64_t stream = 0;       ///< of the random integers
  std::int64_t before = 0;        ///< values of its first bucket that come before the range
  std::int64_t bucket = 1, block = 0;
  std::int32_t shift = 0;  ///< x and decoded values are multiplied by 2^shift
  float divisor = 1;       ///< of decoded values
  /// For each bucket, its scale and the factor by which its elements are multiplied or divided. The
  /// operation bucket_scales writes both. On a CPU that operation writes only the bucket's largest
  /// magnitude, in place of the scale.
  float* scale = nullptr;
  float* factor = nullptr;
  const std::uint32_t* random = nullptr;  ///< on a CPU: the elements' integers, not the key's
  bool streaming = false;                 ///< `to` is not needed in cache
};

/// Rounds, encodes or decodes a range of a layer by 1-bit SGD. v = x * 2^shift + kept, where `kept`
/// is the residual of the last call. A message stores the sign of each v, and for each bucket the
/// mean of its values v >= 0 and of the others. All memory is on the device.
struct OneBitCall : CodecMemory {
  std::int64_t n = 0;
  std::int64_t before = 0;  ///< values of its first bucket that come before the range
  std::int64_t bucket = 1, block = 0;
  bool words = false;           ///< in a message, each bucket's bits fill 32-bit words
  std::int32_t shift = 0;       ///< x and decoded values are multiplied by 2^shift
  float divisor = 1;            ///< of decoded values
  float* means = nullptr;       ///< two for each bucket: of values >= 0, of other values
  const float* kept = nullptr;  ///< the residual
  float* next = nullptr;        ///< the next residual
  bool streaming = false;       ///< `next` is not needed in cache
};

/// Error feedback for n values. v = x * 2^shift + kept is encoded, where `kept` is the residual of
/// the last call. The next residual is v minus its decoded value. All memory is on the device.
struct FeedbackCall {
  std::int64_t n = 0;
  std::int32_t shift = 0;
  const float* x = nullptr;
  const float* kept = nullptr;  ///< null: 0, and v is x * 2^shift
  float* v = nullptr;
  const float* decoded = nullptr;
  float* next = nullptr;            ///< the next residual
  SegmentCounts* counts = nullptr;  ///< the call adds its counts over x; null: no counts
};

struct Selection;  // backend/cpu/largest.h

/// Counts for one digit of the search for the k-th largest magnitude (largest_limit.h): of[d] is
/// the number of values that have d as this digit and the same higher digits as the k-th largest
/// magnitude.
struct DigitCounts {
  unsigned long long of[kMostDigit + 1];
};
/// The results of the search for the values of largest magnitude. A CPU does not set `limit`, the
/// bit pattern from which on values are selected.
struct TopKSearch {
  LargestLimit limit;
  std::int64_t kept;      ///< the number of selected values
  std::uint32_t largest;  ///< the bits of the largest finite magnitude that is selected
};
/// Counts of the values in a span, a range of a layer's tiles: the values whose magnitudes are
/// above the limit from which on values are selected, and the values equal to the limit. A first
/// kernel counts the values of each span. A second kernel replaces each span's counts by the sums
/// of the counts of all earlier spans.
struct TopKSpan {
  unsigned long long above, equal;
};
/// The content of a message of selected values: `kept`, the number of its values, and `bits`, the
/// total length of the codes that store their indices. A code stores the gap, the number of
/// unselected values before a selected value.
struct TopKPlaces {
  std::uint32_t kept, bits;
};

/// Top-k with error feedback. v = x + kept, where `kept` is the residual of the last call. Selects
/// the k values v of largest magnitude, and every NaN and infinity. Rounds them to terms, and
/// computes the next residual: v minus the value that a receiver decodes for v. All memory is on
/// the device.
struct TopKCall {
  std::int64_t n = 0, k = 0;
  const float* x = nullptr;
  const float* kept = nullptr;  ///< the residual; null: there is none, and v is x
  float* sum = nullptr;         ///< v, if there is a residual; a CPU uses `next`
  float* next = nullptr;        ///< the next residual, where there is one
  TopKSearch* search = nullptr;
  /// Memory for the counts of a GPU's kernels. counts_of has one entry for each digit of the limit.
  /// `spans` has one entry for each span (range of tiles) and one for the totals. Both arrays
  /// follow `search` in memory, and the call clears them first. If `goes_on` is set, the arrays may
  /// be anywhere and are not cleared: the kernels add to the counts of earlier calls.
  DigitCounts* counts_of = nullptr;
  TopKSpan* spans = nullptr;
  bool goes_on = false;
  /// On a CPU: the values that the search has selected, in memory of the host.
  Selection* selection = nullptr;
  std::int32_t span = 1;   ///< tiles of a span, a divisor of the tiles of a block
  std::int64_t block = 0;  ///< values of a message
  /// The call rounds those selected values whose indices are begin … end - 1 to terms, round(v *
  /// 2^shift). Except on a CPU, begin … end - 1 must be the whole layer.
  std::int64_t begin = 0, end = 0;
  std::int32_t shift = 0;
  /// The terms (rounded values) of the selected values with indices begin … end - 1, by ascending
  /// index, if the caller has computed them. Null: the call computes the terms by `cast`.
  const float* terms = nullptr;
  float unit = 1;  ///< the terms are multiples of it
  RoundPlan cast;
  std::uint64_t stream = 0;
  /// Output: the term (rounded value) of each selected value, and +0 for each other value. `y` may
  /// be x if there is no residual. On a CPU, null if the caller needs only the next residual.
  float* y = nullptr;
  SegmentCounts* counts = nullptr;  ///< the call adds its counts over x; null: no counts
  float* gathered = nullptr;        ///< the selected values, by index
  TopKPlaces* places = nullptr;     ///< what each message keeps

  CPD_FN const float* values() const { return kept == nullptr ? x : sum; }
};

/// A range of contiguous bytes in memory that the device can read.
struct ByteRange {
  const std::uint8_t* data = nullptr;
  std::int64_t count = 0;
};

/// Computes the CRC-32C of each of n ranges of bytes (Crc32c in ops/reduce.h). The results are on
/// the host.
struct ChecksumCall {
  int n = 0;
  const ByteRange* bytes = nullptr;
  std::uint32_t* crcs = nullptr;
};

}  // namespace cpd
