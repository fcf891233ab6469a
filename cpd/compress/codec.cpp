// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/codec.h"

#include <cmath>
#include <limits>
#include <vector>

#include "cpd/base/guarded.h"
#include "cpd/compress/packed.h"
#include "cpd/numeric/error.h"

namespace cpd {

CodecState::~CodecState() = default;
Codec::~Codec() = default;

void Codec::Round(const Piece& piece, const CodecState* state, const float* x, float* y) const {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(MostBytes(piece.n)));
  const std::int64_t used = Encode(piece, state, x, bytes.data());
  Decode(std::span(bytes).first(static_cast<std::size_t>(used)), piece.n, 0, 1, y);
}

std::unique_ptr<CodecState> Codec::MakeState(std::int64_t /*size*/) const { return nullptr; }

SharedCodec Codec::ForSums(const Format& format) const { return std::make_shared<Packed>(format); }

void Unscale(int shift, float divisor, std::int64_t n, const float* x, float* y) {
  Guarded([&] {
    const double scale = std::ldexp(1.0, shift);
    for (std::int64_t i = 0; i < n; ++i) {
      const float value = static_cast<float>(x[i] * scale) / divisor;
      y[i] = std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
    }
  });
}

CodecState* CodecStates::Of(const Codec& codec, int rank, std::int64_t number, std::int64_t size) {
  const auto found = kept_.find({rank, number});
  if (found == kept_.end()) {
    std::unique_ptr<CodecState> made = codec.MakeState(size);
    CodecState* state = made.get();
    if (made != nullptr) kept_[{rank, number}] = {codec.text(), size, std::move(made)};
    return state;
  }
  const Kept& kept = found->second;
  if (kept.text == codec.text() && kept.size == size) return kept.state.get();
  throw Error("layer number " + std::to_string(number) + " of rank " + std::to_string(rank) +
              " was kept by codec '" + kept.text + "' with " + std::to_string(kept.size) +
              " values, and comes by '" + codec.text() + "' with " + std::to_string(size));
}

}  // namespace cpd
