// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/pieces.h"

#include <string>

namespace cpd {

void CheckFixedSize(const Codec& codec, std::span<const std::uint8_t> bytes, std::int64_t n,
                    std::int64_t before) {
  const std::int64_t expected = codec.MostBytes(n, before);
  if (static_cast<std::int64_t>(bytes.size()) == expected) return;
  throw DamagedBytes(std::to_string(n) + " values of " + codec.name() + " take " +
                     std::to_string(expected) + " bytes, got " + std::to_string(bytes.size()));
}

ValueRange BucketsAround(const Piece& piece, std::int64_t bucket) {
  const std::int64_t end = piece.begin + piece.n;
  if (piece.size == 0) return {piece.begin, end};
  const std::int64_t whole = (end + bucket - 1) / bucket * bucket;
  return {piece.begin / bucket * bucket, std::min(piece.size, whole)};
}

}  // namespace cpd
