// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/sparse.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <vector>

#include "cpd/backend/queue.h"
#include "cpd/backend/roster.h"
#include "cpd/base/plans.h"
#include "cpd/compress/places.h"
#include "cpd/compress/words.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

constexpr std::uint8_t kDense = 0, kGaps = 1;
constexpr std::int64_t kRun = 4096;

bool IsZero(float value) { return std::bit_cast<std::uint32_t>(value) == 0; }

/// Returns the indices of all values that are not +0.
std::vector<std::int64_t> PlacesOf(std::int64_t n, const float* x) {
  std::vector<std::int64_t> places;
  std::uint32_t found[kRun];
  for (std::int64_t i = 0; i < n; i += kRun) {
    const std::int64_t count = Kernels().find_large(~std::uint32_t{0}, 1, std::min(kRun, n - i),
                                                    x + i, nullptr, nullptr, found);
    for (std::int64_t k = 0; k < count; ++k) places.push_back(i + found[k]);
  }
  return places;
}

}  // namespace

Sparse::Sparse(const Format& format) : values_(format) {
  if (!format.has_zero()) throw Error("sparse: " + ToString(format) + " has no zero");
}

SharedCodec Sparse::Make(CodecWords& words, const RoundingOptions& /*rounding*/) {
  const std::string format = words.Next();
  words.End("sparse", {}, "a format");
  return std::make_shared<Sparse>(format.empty() ? kFp32 : ParseFormat(format));
}

std::string Sparse::name() const {
  return format() == kFp32 ? "sparse" : "sparse " + ToString(format());
}

std::int64_t Sparse::MostBytes(std::int64_t n, std::int64_t /*before*/) const {
  return n == 0 ? 0 : 1 + values_.MostBytes(n);
}

std::int64_t Sparse::EncodeOn(const Queue& queue, const Piece& piece, CodecState* /*state*/,
                              const float* x, std::uint8_t* to) const {
  if (piece.n == 0) return 0;
  std::vector<float> shifted;
  if (piece.shift != 0) {
    shifted.resize(static_cast<std::size_t>(piece.n));
    Unscale(piece.shift, 1, piece.n, x, shifted.data());
    x = shifted.data();
  }
  const auto dense = [&] {
    *to = kDense;
    return 1 + values_.EncodeOn(queue, {piece.layer, 0, piece.n}, nullptr, x, to + 1);
  };
  const std::int64_t count = piece.n - std::count_if(x, x + piece.n, IsZero);
  // Each index takes at least one bit. If this bound shows that indices save nothing, sends all
  // values.
  if (count * (format().bits() + 1) >= piece.n * format().bits()) return dense();
  const std::vector<std::int64_t> places = PlacesOf(piece.n, x);
  std::vector<std::uint8_t> gaps(static_cast<std::size_t>(MostPlaceBytes(piece.n)));
  gaps.resize(static_cast<std::size_t>(PutPlaces(places, 0, piece.n, gaps.data()) - gaps.data()));
  const auto size = static_cast<std::int64_t>(gaps.size());
  if (size + values_.MostBytes(count) >= values_.MostBytes(piece.n)) return dense();
  std::vector<float> values(places.size());
  std::ranges::transform(places, values.begin(), [&](std::int64_t place) { return x[place]; });
  *to = kGaps;
  std::ranges::copy(gaps, to + 1);
  return 1 + size +
         values_.EncodeOn(queue, {piece.layer, 0, count}, nullptr, values.data(), to + 1 + size);
}

void Sparse::DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n,
                      int shift, float divisor, float* y, std::int64_t /*before*/) const {
  if (n == 0 && bytes.empty()) return;
  if (n == 0 || bytes.empty() || bytes[0] > kGaps) {
    throw DamagedBytes("values of " + name() + " begin with a byte 0 or 1");
  }
  const std::uint8_t kind = bytes[0];
  bytes = bytes.subspan(1);
  if (kind == kDense) return values_.DecodeOn(queue, bytes, n, shift, divisor, y);
  const std::vector<std::int64_t> places = TakePlaces(bytes, n);
  std::vector<float> values(places.size());
  values_.DecodeOn(queue, bytes, static_cast<std::int64_t>(places.size()), shift, divisor,
                   values.data());
  const float zero = 0 / divisor;
  std::fill_n(y, n, zero);
  for (std::size_t k = 0; k < places.size(); ++k) y[places[k]] = values[k];
}

void Sparse::RoundOn(const Queue& queue, const Piece& piece, CodecState* /*state*/, const float* x,
                     float* y, SegmentCounts* counts) const {
  if (piece.n == 0) return;
  VirtualCall call;
  call.cast = PlanOf(format());
  call.x[0] = x;
  call.size = call.end = piece.n;
  call.shift = piece.shift;
  call.terms = y;
  call.counts = counts;
  queue.cast_terms(call);
}

}  // namespace cpd
