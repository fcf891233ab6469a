// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/residual.h"

#include <algorithm>
#include <string>

#include "cpd/numeric/error.h"

namespace cpd {

Residual::Residual(std::int64_t size)
    : kept_(static_cast<std::size_t>(size)), next_(static_cast<std::size_t>(size)) {}

void Residual::Begin(const Piece& layer, const float* /*x*/) { begin_ = layer.begin; }
void Residual::Commit() { kept_.swap(next_); }
std::vector<float> Residual::Kept() const { return kept_; }

void Residual::Restore(std::span<const float> kept) {
  if (kept.size() != kept_.size()) {
    throw Error("a residual of " + std::to_string(kept_.size()) + " values cannot be one of " +
                std::to_string(kept.size()));
  }
  std::ranges::copy(kept, kept_.begin());
}

Stretch BucketsAround(const Piece& piece, std::int64_t bucket) {
  const std::int64_t end = piece.begin + piece.n;
  if (piece.size == 0) return {piece.begin, end};
  const std::int64_t whole = (end + bucket - 1) / bucket * bucket;
  return {piece.begin / bucket * bucket, std::min(piece.size, whole)};
}

}  // namespace cpd
