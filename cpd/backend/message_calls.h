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

/// Returns the number of tiles that hold n codes.
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
  /// Adds the messages from[r] of all ranks r and writes the sums to `to`. If `unit` is not -1,
  /// adds instead the messages from[m] of all members m of group `unit`. The terms are in `wire`
  /// codes. from_codes may be `values` if the codes of kind `wire` have the same format and the
  /// same places in messages as the codes of kind `values`.
  fold,
  /// Adds term k, which is message from[1] (in from_codes), to the running sum in message from[0]
  /// (null for k = 0). Writes the new sum to `to`, or after the last term the result.
  hop,
  /// Converts message from[0], in from_codes, to message `to`, in to_codes.
  transcode,
  /// Decodes message from[0] (in from_codes), multiplies by 2^-shift, divides by `divisor`, and
  /// writes to the segments' `out`.
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
  /// The messages to read. On a CPU, a null message in the task `fold`, or as the term of the task
  /// `hop`, stands for this rank's contributions. They are then cast while they are added.
  const std::uint8_t* const* from = nullptr;
  std::uint8_t* to = nullptr;
  /// A function that a CPU calls repeatedly with `waiting` while it computes; may be null.
  /// Transfers can advance in it.
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
  /// (StreamFrom). cast_stream is the stream of this rank's cast. The other two are the streams at
  /// position 0: of the additions, and of the rounding of sums to the result.
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

constexpr int kMostPassRanks = 16;  ///< whose values are added in one pass over a layer's sums

/// A layer of virtual ranks, which contribute one after the other. A call adds the values of some
/// ranks to the running sums of one level, or finishes these sums. All memory is on the device.
struct VirtualCall {
  std::int64_t size = 0;
  /// The range of values that the ranks contribute. Only a CPU may take less than the whole layer.
  std::int64_t begin = 0, end = 0;
  /// x[r] points to value `begin` of rank number r of this call. With order ring, a call has one
  /// rank. If `casts` is false, the values are terms. If `casts` is set, the call first casts x /
  /// divisor * 2^shift to terms.
  const float* x[kMostPassRanks] = {};
  int ranks = 1;
  bool casts = false;
  float divisor = 1;
  std::int32_t shift = 0;
  RoundPlan cast;
  std::uint64_t cast_stream[kMostPassRanks] = {};
  float* terms = nullptr;  ///< memory for one rank's terms
  /// The running sums are in `planes`: arrays of `size` values, one array for each value of a sum's
  /// state. Each sum has `count` terms, and the ranks add the terms number k, k + 1, …. If `visit`
  /// is not negative, a term's number depends on the slice instead of `k`: Rounds computes it from
  /// the slice and `visit`, the first rank's position in the order of contributions.
  SumPlan plan;
  Rounds rounds;
  std::int64_t count = 0, k = 0, visit = -1;
  std::uint64_t sum_stream = 0, result_stream = 0;
  float* planes = nullptr;
  /// On a CPU: the running sums as bf16 patterns in place of `planes`, if every value is a bf16
  /// number. Null: `planes` has the sums, in binary32.
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
  SegmentCounts* counts = nullptr;     ///< a rounding adds its losses, unless null
  /// A decoding lowers *damaged to the lowest index of a value whose norm or scale is invalid.
  unsigned long long* damaged = nullptr;
};

/// A range of a layer, encoded as levels of its buckets' norms (numeric/scaled/levels.h). All
/// memory is on the device.
struct LevelCall : CodecMemory {
  LevelPlan plan;                 ///< only a CPU's plan has places of levels
  std::int64_t begin = 0, n = 0;  ///< of the layer: element i has the random integer begin + i
  std::int64_t before = 0;        ///< values of the piece's first bucket that come before it
  std::int32_t shift = 0;         ///< x and decoded values are multiplied by 2^shift
  float divisor = 1;              ///< of decoded values
  const float* norms = nullptr;   ///< of the piece's buckets; null: all have `norm`
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

/// A range of a layer in a scaled format. Its buckets are ranges of neighbors that share a scale.
/// All memory is on the device.
struct QuantizedCall : CodecMemory {
  ScaledCall scaled;  ///< its plan and route alone
  /// True if values are multiplied by their bucket's stored number before they are rounded, and
  /// decoded values are divided by that number (FP8 rows).
  bool inverted = false;
  std::int64_t begin = 0, n = 0;  ///< of the layer: element i has the random integer begin + i
  std::uint64_t stream = 0;       ///< of the random integers
  std::int64_t before = 0;        ///< values of the piece's first bucket that come before it
  std::int64_t bucket = 1, block = 0;
  std::int32_t shift = 0;  ///< x and decoded values are multiplied by 2^shift
  float divisor = 1;       ///< of decoded values
  /// The scales of the buckets and the factors of their elements (ElementScale), as bucket_scales
  /// writes them. A CPU writes only the buckets' largest magnitudes, to `scale`.
  float* scale = nullptr;
  float* factor = nullptr;
  const std::uint32_t* random = nullptr;  ///< on a CPU: the elements' integers, not the key's
  bool streaming = false;                 ///< `to` is not needed in cache
};

/// A range of a layer, encoded as the signs of x * 2^shift + kept and two means for each bucket.
/// All memory is on the device.
struct OneBitCall : CodecMemory {
  std::int64_t n = 0;
  std::int64_t before = 0;  ///< values of the piece's first bucket that come before it
  std::int64_t bucket = 1, block = 0;
  bool words = false;           ///< in a message, each bucket's bits fill 32-bit words
  std::int32_t shift = 0;       ///< x and decoded values are multiplied by 2^shift
  float divisor = 1;            ///< of decoded values
  float* means = nullptr;       ///< two for each bucket: of values >= 0, of other values
  const float* kept = nullptr;  ///< the residual
  float* next = nullptr;        ///< the next residual
  bool streaming = false;       ///< `next` is not needed in cache
};

/// The sums v = x * 2^shift + kept of n values, and the residual that remains after v is decoded.
/// All memory is on the device.
struct FeedbackCall {
  std::int64_t n = 0;
  std::int32_t shift = 0;
  const float* x = nullptr;
  const float* kept = nullptr;  ///< null: 0, and v is x * 2^shift
  float* v = nullptr;
  const float* decoded = nullptr;
  float* next = nullptr;            ///< the next residual
  SegmentCounts* counts = nullptr;  ///< null, or what is lost of x is added
};

struct Selection;  // backend/cpu/largest.h

/// Counts how often each value of a digit occurs.
struct DigitCounts {
  unsigned long long of[kMostDigit + 1];
};
/// The results of the search for the values of largest magnitude. A CPU sets only the last two.
struct TopKSearch {
  LargestLimit limit;
  std::int64_t kept;      ///< how many values are kept
  std::uint32_t largest;  ///< the bits of the largest finite magnitude that is selected
};
/// Two counts: the values above the limit, and the values equal to the limit. At first the counts
/// are for the values in one span of a layer's tiles. A later step replaces them by the counts for
/// all spans before that span.
struct TopKSpan {
  unsigned long long above, equal;
};
/// The number of values that a message keeps, and the total number of bits of the codes that store
/// the gaps before these values.
struct TopKPlaces {
  std::uint32_t kept, bits;
};

/// Selects the k values of a layer with the largest magnitudes of v = x + kept, and every NaN and
/// infinity. Computes their terms and the residual of v. All memory is on the device.
struct TopKCall {
  std::int64_t n = 0, k = 0;
  const float* x = nullptr;
  const float* kept = nullptr;  ///< the residual; null: there is none, and v is x
  float* sum = nullptr;         ///< v, if there is a residual; a CPU uses `next`
  float* next = nullptr;        ///< the next residual, where there is one
  TopKSearch* search = nullptr;
  /// Counts of a GPU's kernels. counts_of has the counts for each digit. `spans` has the counts for
  /// each span, and one more entry with the totals. Both arrays follow `search` in memory, and the
  /// call clears them first. If `goes_on` is set, both arrays may be anywhere in memory and are not
  /// cleared: the kernels add to counts of other values.
  DigitCounts* counts_of = nullptr;
  TopKSpan* spans = nullptr;
  bool goes_on = false;
  /// On a CPU: the selected values, in memory of the host.
  Selection* selection = nullptr;
  std::int32_t span = 1;   ///< tiles of a span, a divisor of the tiles of a block
  std::int64_t block = 0;  ///< values of a message
  /// The range of values that are rounded to terms: round(v * 2^shift). Only a CPU may take less
  /// than the whole layer.
  std::int64_t begin = 0, end = 0;
  std::int32_t shift = 0;
  /// The terms of the selected values in the range begin … end - 1, in ascending order of the
  /// values' indices. Null: the cast computes the terms.
  const float* terms = nullptr;
  float unit = 1;  ///< the terms are multiples of it
  RoundPlan cast;
  std::uint64_t stream = 0;
  /// Receives the terms, and +0 for values that are not selected. May be x if there is no residual.
  /// On a CPU the pointer is null if only the next residual needs the terms.
  float* y = nullptr;
  SegmentCounts* counts = nullptr;  ///< null, or what is lost of x is added
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
