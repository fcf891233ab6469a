// SPDX-License-Identifier: Apache-2.0
//
// A self-describing encoding of a layer, for files and for using a codec alone. All numbers are
// little-endian. The header has these fields, with their numbers of bytes:
//   4 bytes  "CPDS"
//   2, 2     version; length of the codec's name
//   4        CRC-32C of the codec's text(), with the key's seed after each random_bits
//   4        shift
//   8, 8, 8  number of values; values of a row (0: not known); bytes of all blocks
//   4        the unit of the values, binary32 (Measured::shared; else 0)
//   4        number of block sizes: one for each block, or 0 if the codec is_fixed()
// After the header follow the name, the block sizes (4 bytes each), the blocks, and the CRC-32C of
// everything before. Block k holds values k * block() … of the layer, as Encode writes them.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpd/compress/codec.h"
#include "cpd/export.h"

namespace cpd {

/// The options with which EncodeStream encodes the values of a layer.
struct StreamOptions {
  RandomKey key{};
  int shift = 0;                            ///< at most ±kMostStreamShift
  std::int64_t row = 0;                     ///< values of a row; 0: the layer is one row
  std::optional<float> scale{};             ///< the result of Measure, as all ranks agreed on it
  std::span<const std::uint32_t> random{};  ///< random integers for all values; empty: the key's
};
constexpr int kMostStreamShift = 600;

/// The contents of a stream's header.
struct StreamInfo {
  std::string codec;          ///< name(), which MakeCodec takes
  std::uint32_t options = 0;  ///< CRC-32C of text() with the seed
  int shift = 0;
  std::int64_t count = 0;  ///< the number of values
  std::int64_t row = 0;    ///< the number of values of a row; 0: not known
  std::int64_t bytes = 0;  ///< the bytes of all blocks
  float scale = 0;         ///< Measured::shared: the unit of the values
};
struct DecodedStream {
  StreamInfo info;
  std::vector<float> values;
};

/// The numbers of bytes of a stream.
struct StreamSize {
  std::int64_t all = 0;
  std::int64_t blocks = 0;  ///< the bytes of the stream's blocks, as in StreamInfo
};

/// Returns memory for `most` elements of a result. EncodeStream and DecodeStream call the function
/// once, on the caller's thread, and pass its exceptions to the caller.
template <class T>
using Memory = std::function<T*(std::int64_t most)>;

/// Returns the codec for a layer whose rows have `row` values (0: the layer is one row of `count`
/// values). Returns `codec` itself unless it is by_rows().
CPD_API SharedCodec CodecOfRows(const SharedCodec& codec, std::int64_t row, std::int64_t count);

/// Encodes a layer in a complete call: state->Begin, Measure (unless options.scale is set), the
/// blocks in parallel, Commit. `state` is a state of the codec that CodecOfRows returns, for
/// x.size() values. Null makes a new state if the codec has states. Throws Error for options out of
/// range and for values without a code; the state is then not committed.
CPD_API std::vector<std::uint8_t> EncodeStream(const SharedCodec& codec, CodecState* state,
                                               const StreamOptions& options,
                                               std::span<const float> x);
/// Encodes into memory of the caller. Requests memory for the largest size that the stream may
/// have.
CPD_API StreamSize EncodeStream(const SharedCodec& codec, CodecState* state,
                                const StreamOptions& options, std::span<const float> x,
                                const Memory<std::uint8_t>& memory);

/// Reads a stream's header. Checks the whole stream except the contents of the blocks, and throws
/// DamagedBytes if a check fails.
CPD_API StreamInfo ReadStream(std::span<const std::uint8_t> bytes);

/// Decodes the values of the layer: the values that Decode gives, with the shift undone. For
/// Measured::shared, the values are first multiplied by the scale (rounded once). Allocates up to
/// `most_values` values, and never more than the blocks' bytes can hold. Throws DamagedBytes, also
/// if the stream holds more than most_values.
CPD_API DecodedStream
DecodeStream(std::span<const std::uint8_t> bytes,
             std::int64_t most_values = std::numeric_limits<std::int64_t>::max());
/// Decodes into memory of the caller. Requests memory for the number of values in the stream, after
/// everything but the contents of the blocks was checked.
CPD_API StreamInfo
DecodeStream(std::span<const std::uint8_t> bytes, const Memory<float>& memory,
             std::int64_t most_values = std::numeric_limits<std::int64_t>::max());

}  // namespace cpd
