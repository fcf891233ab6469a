// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/residual.h"

#include <algorithm>
#include <string>

#include "cpd/base/huge_pages.h"
#include "cpd/base/parallel.h"
#include "cpd/spec/error.h"

namespace cpd {

namespace {

constexpr std::int64_t kGrain = std::int64_t{1} << 12;

}  // namespace

Residual::Values Residual::Zeros(std::int64_t size) {
  constexpr std::size_t kLine = 64;
  const std::size_t bytes = (static_cast<std::size_t>(size) * sizeof(float) / kLine + 1) * kLine;
  Values values(static_cast<float*>(std::aligned_alloc(kLine, bytes)));
  if (values == nullptr) throw NoMemory(bytes, "a residual");
  AdviseHugePages(values.get(), bytes);
  // Written first by the threads that encode, so that the pages are near them.
  parallel_for(size, kGrain, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    std::fill(values.get() + begin, values.get() + end, 0.0F);
  });
  return values;
}

Residual::Residual(std::int64_t size) : size_(size), kept_(Zeros(size)), next_(Zeros(size)) {}

void Residual::Begin(const Piece& layer, const float* /*x*/) { begin_ = layer.begin; }
void Residual::Commit() { kept_.swap(next_); }
std::vector<float> Residual::Kept() const { return {kept_.get(), kept_.get() + size_}; }

void Residual::Restore(std::span<const float> kept) {
  if (static_cast<std::int64_t>(kept.size()) != size_) {
    throw Error("a residual of " + std::to_string(size_) + " values cannot be one of " +
                std::to_string(kept.size()));
  }
  std::ranges::copy(kept, kept_.get());
}

ValueRange BucketsAround(const Piece& piece, std::int64_t bucket) {
  const std::int64_t end = piece.begin + piece.n;
  if (piece.size == 0) return {piece.begin, end};
  const std::int64_t whole = (end + bucket - 1) / bucket * bucket;
  return {piece.begin / bucket * bucket, std::min(piece.size, whole)};
}

}  // namespace cpd
