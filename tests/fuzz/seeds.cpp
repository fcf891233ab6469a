// SPDX-License-Identifier: Apache-2.0
//
// Prints valid inputs for the fuzzer of decoders, one on each line: the codec's text, a tab, and
// the bytes in hex.
#include <cstdio>

#include "cpd/compress/codecs.h"
#include "cpd/compress/stream.h"
#include "tests/fuzz/input.h"
#include "tests/testing/codec_texts.h"

namespace cpd::fuzz {
namespace {

std::vector<float> Values(std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto level = static_cast<std::int64_t>(i * i * 2654435761U % 257) - 128;
    x[i] = i % 5 == 0 ? 0.0F : static_cast<float>(level) / (i % 7 == 0 ? 4096.0F : 32.0F);
  }
  return x;
}

void Print(const std::string& text, std::span<const std::uint8_t> bytes) {
  std::printf("%s\t", text.c_str());
  for (const std::uint8_t byte : bytes) std::printf("%02x", byte);
  std::printf("\n");
}

void PrintPiece(const std::string& text, std::size_t n) {
  const std::vector<float> x = Values(n);
  const SharedCodec codec = CodecOfRows(MakeCodec(text), 100, 0);
  const auto state = codec->MakeState(static_cast<std::int64_t>(n));
  Piece layer{.n = static_cast<std::int64_t>(n), .size = static_cast<std::int64_t>(n)};
  if (state != nullptr) state->Begin(layer, x.data());
  layer.scale = codec->Measure(layer, state.get(), x.data());
  Measures measures{.mode = kExact, .n = static_cast<std::uint16_t>(n)};
  std::vector<std::uint8_t> bytes(sizeof(measures) +
                                  static_cast<std::size_t>(codec->MostBytes(layer.n)));
  std::memcpy(bytes.data(), &measures, sizeof(measures));
  const std::int64_t used =
      codec->Encode(layer, state.get(), x.data(), bytes.data() + sizeof(measures));
  bytes.resize(sizeof(measures) + static_cast<std::size_t>(used));
  Print(text, bytes);
}

}  // namespace
}  // namespace cpd::fuzz

int main() {
  using namespace cpd::fuzz;
  for (const std::string& text : cpd::testing::codec_texts()) {
    for (const std::size_t n : {1, 2, 17, 64, 200}) PrintPiece(text, n);
    for (const std::size_t n : {0, 3, 40}) {
      Print(kStream, EncodeStream(cpd::MakeCodec(text), nullptr, {.row = 8}, Values(n)));
    }
  }
}
