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

/// The number of tiles of n codes.
CPD_FN std::int64_t tiles_of(std::int64_t n) { return (n + kCodeTile - 1) / kCodeTile; }

/// The kind of a reduction's packed codes: contributions, results, planes of a running sum, or
/// binary32 values unchanged.
enum class Codes : std::uint8_t { wire, result, plane0, plane1, values };
constexpr int kCodes = 5;

/// Contiguous values of one layer.
struct ReduceSegment {
  std::int64_t layer = 0;
  std::int64_t size = 0;  ///< values of the whole layer
  std::int64_t begin = 0, count = 0;
  std::int64_t tile = 0;     ///< number of tiles in the segments before it (reduce_tile.cuh)
  const float* x = nullptr;  ///< value `begin` of this rank's layer
  float* out = nullptr;      ///< the memory of its result
  std::int32_t shift = 0;    ///< the layer's scale is 2^shift; -600 … 600
  float scale = 1;           ///< multiplies results, rounded once
  std::array<std::int64_t, kCodes> start{};  ///< the byte of a message at which its codes begin
};

enum class ReduceTask : std::uint8_t {
  pack,  ///< casts this rank's contributions and writes them to `to` as `to_codes`
  fold,  ///< sums from[r] of each rank (of group `unit` alone, if not -1, by member) to `to`; they
         ///< are `wire` codes, or `values` where `wire` has their format and places, too
  hop,   ///< adds term k, from[1] (as from_codes), to the running sum from[0] (null for k = 0);
         ///< writes the new sum, or after the last term the result, to `to`
  transcode,  ///< converts from[0] (as from_codes) to `to` (as to_codes)
  unpack,     ///< writes from[0] (as from_codes) times 2^-shift, divided, to the segments' `out`
};

/// The work of one kernel of a reduction. Its pointers are to tables of the caller, on the host.
struct ReduceCall {
  ReduceTask task = ReduceTask::pack;
  Codes from_codes = Codes::wire, to_codes = Codes::wire;
  const ReduceSegment* segments = nullptr;
  std::int32_t segment_count = 0;
  std::int32_t from_count = 0;
  std::int64_t tiles = 0;  ///< tiles of all segments
  /// Messages; on a CPU null, in a fold or as the term of a hop: this rank's contributions, which
  /// are cast in passing.
  const std::uint8_t* const* from = nullptr;
  std::uint8_t* to = nullptr;
  /// Called with `waiting` now and then by a CPU, which works while the host waits; may be null.
  void (*between)(const void* waiting) = nullptr;
  const void* waiting = nullptr;

  std::int64_t unit = -1;
  std::int64_t k = 0;
  bool unscales = false;  ///< unpack: multiply and divide; else values are written unchanged
  float divisor = 1;

  RoundPlan cast;                       ///< casts contributions
  std::array<RoundPlan, kCodes> codes;  ///< the format of each kind of codes
  SumPlan group, across;
  Rounds rounds;
  std::int64_t world = 1, group_size = 0;  ///< 0: no groups
  /// Random streams (streams.h) of layer 0: for this rank's cast; for sums, and for their roundings
  /// to the result, at position 0.
  std::uint64_t cast_stream = 0, sum_stream = 0, result_stream = 0;
};

/// The counts over a segment of this rank's values.
struct SegmentCounts {
  unsigned long long non_finite = 0;   ///< NaN and Inf
  unsigned long long underflowed = 0;  ///< nonzero values that the cast rounds to zero
  unsigned long long zeros = 0;        ///< values that are zero after the cast
  std::uint32_t largest = 0;           ///< the bits of the largest finite |x|
};

/// Counts each segment's values. Lost values and zeros are counted only if `casts`.
struct CountCall {
  ReduceCall reduce;  ///< its segments, tiles and cast
  bool casts = false;
  SegmentCounts* counts = nullptr;  ///< one for each segment, on the host
};

constexpr int kMostPassRanks = 16;  ///< whose values are added in one pass over a layer's sums

/// A layer of virtual ranks, which contribute one after the other: the values of some ranks as they
/// enter, the running sums of one level, and its end. All memory is the device's.
struct VirtualCall {
  std::int64_t size = 0;
  /// The values that ranks contribute, all of the layer but on a CPU.
  std::int64_t begin = 0, end = 0;
  /// Value `begin` of the next ranks, in a ring of one: terms, or where `casts`, x / divisor *
  /// 2^shift are cast to them.
  const float* x[kMostPassRanks] = {};
  int ranks = 1;
  bool casts = false;
  float divisor = 1;
  std::int32_t shift = 0;
  RoundPlan cast;
  std::uint64_t cast_stream[kMostPassRanks] = {};
  float* terms = nullptr;  ///< memory for one rank's terms
  /// The running sums in `planes`, `size` values each; the ranks' terms are numbers k, k + 1, … of
  /// `count`, or where visit is not negative the terms of that visit and the next ones.
  SumPlan plan;
  Rounds rounds;
  std::int64_t count = 0, k = 0, visit = -1;
  std::uint64_t sum_stream = 0, result_stream = 0;
  float* planes = nullptr;
  /// The planes on a CPU where each value is a bf16 number: its patterns. Null: as binary32.
  std::uint16_t* halves = nullptr;
  float scale = 1;                  ///< multiplies the sums when they are finished, rounded once
  float* out = nullptr;             ///< the finished sums
  SegmentCounts* counts = nullptr;  ///< null: nothing is counted; not null for finish_sums
};

/// The device's memory that a codec's kernel reads and writes.
struct CodecMemory {
  const float* x = nullptr;            ///< of a measurement, a rounding and an encoding
  float* y = nullptr;                  ///< the values of codes; may be x
  std::uint8_t* to = nullptr;          ///< the message of an encoding
  const std::uint8_t* from = nullptr;  ///< the message of a decoding
  SegmentCounts* counts = nullptr;     ///< null, or a rounding adds its losses
  /// A decoding lowers it to the least index of a value whose norm or scale is invalid.
  unsigned long long* damaged = nullptr;
};

/// A piece of a layer as levels of its buckets' norms (numeric/scaled/levels.h). All memory is the
/// device's.
struct LevelCall : CodecMemory {
  LevelPlan plan;                 ///< places of levels on a CPU alone, whose messages lack them
  std::int64_t begin = 0, n = 0;  ///< of the layer: element i has the random integer begin + i
  std::int64_t before = 0;        ///< values of the piece's first bucket that come before it
  std::int32_t shift = 0;         ///< x and decoded values are multiplied by 2^shift
  float divisor = 1;              ///< of decoded values
  const float* norms = nullptr;   ///< of the piece's buckets; null: all have `norm`
  float norm = 1;
  const std::uint32_t* random = nullptr;  ///< on a CPU: the elements' integers, not the plan's
  /// A message: each `block` values on their own, with their buckets' norms first.
  std::int64_t block = 0;
  bool stores_norms = true;
};

/// The terms of the norms of whole buckets.
struct NormCall {
  LevelNorm norm = LevelNorm::largest;
  double clip = 0;  ///< c of LevelNorm::clipped; 0: no clipping
  std::int64_t n = 0, bucket = 0;
  std::int32_t shift = 0;  ///< of x * 2^shift
  const float* x = nullptr;
  float* norms = nullptr;
};

/// A piece of a layer in a scaled format. Its buckets are ranges of neighbors, each with one scale.
/// All memory is the device's.
struct QuantizedCall : CodecMemory {
  ScaledCall scaled;  ///< its plan and route alone
  /// A bucket's number multiplies values, and a code's value is divided by it (FP8 rows).
  bool inverted = false;
  std::int64_t begin = 0, n = 0;  ///< of the layer: element i has the random integer begin + i
  std::uint64_t stream = 0;       ///< of the random integers
  std::int64_t before = 0;        ///< values of the piece's first bucket that come before it
  std::int64_t bucket = 1, block = 0;
  std::int32_t shift = 0;  ///< x and decoded values are multiplied by 2^shift
  float divisor = 1;       ///< of decoded values
  /// The scales of the piece's buckets and the factors of their elements (ElementScale), as
  /// bucket_scales writes them. A CPU writes only their largest magnitudes, to `scale`.
  float* scale = nullptr;
  float* factor = nullptr;
  const std::uint32_t* random = nullptr;  ///< on a CPU: the elements' integers, not the key's
  bool streaming = false;                 ///< `to` is not needed in cache
};

/// A piece of a layer as signs of x * 2^shift + kept, and two means for each bucket. All memory is
/// the device's.
struct OneBitCall : CodecMemory {
  std::int64_t n = 0;
  std::int64_t before = 0;  ///< values of the piece's first bucket that come before it
  std::int64_t bucket = 1, block = 0;
  bool words = false;           ///< the bits of each bucket fill 32-bit words in a message
  std::int32_t shift = 0;       ///< x and decoded values are multiplied by 2^shift
  float divisor = 1;            ///< of decoded values
  float* means = nullptr;       ///< of the piece's buckets: of values >= 0, of the others
  const float* kept = nullptr;  ///< the residual
  float* next = nullptr;        ///< the next residual
  bool streaming = false;       ///< `next` is not needed in cache
};

/// The sum v = x * 2^shift + kept of n values, and the residual after its decoded values. All
/// memory is the device's.
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

/// The number of times that each value of a digit occurs.
struct DigitCounts {
  unsigned long long of[kMostDigit + 1];
};
/// Results of the search for the values of largest magnitude; on a CPU the last two alone.
struct TopKSearch {
  LargestLimit limit;
  std::int64_t kept;      ///< how many values are kept
  std::uint32_t largest;  ///< the bits of the largest finite magnitude that is selected
};
/// The number of values above the limit, and with its pattern: of a span of a layer's tiles; then
/// of all spans before it.
struct TopKSpan {
  unsigned long long above, equal;
};
/// The values that a message keeps, and the bits of the codes of the gaps before them.
struct TopKPlaces {
  std::uint32_t kept, bits;
};

/// Selects the k values of a layer whose magnitudes v = x + kept are largest, and every NaN and
/// infinity; computes their terms and the residual of v. All memory is the device's.
struct TopKCall {
  std::int64_t n = 0, k = 0;
  const float* x = nullptr;
  const float* kept = nullptr;  ///< the residual; null: there is none, and v is x
  float* sum = nullptr;         ///< v, where there is a residual; on a CPU `next` has it at first
  float* next = nullptr;        ///< the next residual, where there is one
  TopKSearch* search = nullptr;
  /// Kernels count here, a CPU does not: each digit, and the values of each span; a last span has
  /// those of all. Both follow the search in memory, and all three are cleared, or with goes_on
  /// added to: they then have counts of other values, and may lie anywhere.
  DigitCounts* counts_of = nullptr;
  TopKSpan* spans = nullptr;
  bool goes_on = false;
  /// On a CPU: the selected values, in memory of the host.
  Selection* selection = nullptr;
  std::int32_t span = 1;   ///< tiles of a span, a divisor of the tiles of a block
  std::int64_t block = 0;  ///< values of a message
  /// The values that are rounded, all of the layer but on a CPU, and how: terms are v * 2^shift,
  /// rounded.
  std::int64_t begin = 0, end = 0;
  std::int32_t shift = 0;
  /// The terms of the selected values, by rank; null: the terms of the cast.
  const float* terms = nullptr;
  float unit = 1;  ///< the terms are multiples of it
  RoundPlan cast;
  std::uint64_t stream = 0;
  /// The terms, +0 for values that are not selected; may be x if there is no residual. Null, on a
  /// CPU: only the next residual needs the terms.
  float* y = nullptr;
  SegmentCounts* counts = nullptr;  ///< null, or what is lost of x is added
  float* gathered = nullptr;        ///< the selected values, by index
  TopKPlaces* places = nullptr;     ///< what each message keeps

  CPD_FN const float* values() const { return kept == nullptr ? x : sum; }
};

/// Neighboring bytes in memory that is accessible to the device.
struct ByteRange {
  const std::uint8_t* data = nullptr;
  std::int64_t count = 0;
};

/// The CRC-32C of each of n ranges (Crc32c in ops/reduce.h), on the host.
struct ChecksumCall {
  int n = 0;
  const ByteRange* bytes = nullptr;
  std::uint32_t* crcs = nullptr;
};

}  // namespace cpd
