// SPDX-License-Identifier: Apache-2.0
//
// A fuzz target: any bytes must decode to values or throw DamagedBytes. CPD_FUZZ_CODEC names the
// codec. For the name `stream`, the bytes get a valid checksum and are decoded as a whole stream.
#include <bit>
#include <cmath>
#include <cstdlib>

#include "cpd/compress/codecs.h"
#include "cpd/compress/stream.h"
#include "cpd/ops/reduce.h"
#include "tests/fuzz/input.h"

namespace cpd::fuzz {
namespace {

constexpr std::int64_t kMostValues = kMany;  // of a stream

/// Aborts if a NaN is not the quiet NaN 0x7FC00000. A decoder may give no other NaN.
void CheckValues(std::span<const float> values) {
  for (const float value : values) {
    if (std::isnan(value) && std::bit_cast<std::uint32_t>(value) != 0x7FC00000) std::abort();
  }
}

void RunStream(std::vector<std::uint8_t> bytes) {
  if (bytes.size() > sizeof(std::uint32_t)) {
    const std::size_t body = bytes.size() - sizeof(std::uint32_t);
    const std::uint32_t crc = Crc32c(0, static_cast<std::int64_t>(body), bytes.data());
    std::memcpy(bytes.data() + body, &crc, sizeof(crc));
  }
  CheckValues(DecodeStream(bytes, kMostValues).values);
}

void RunPiece(const Codec& codec, const Measures& measures, std::vector<std::uint8_t> bytes) {
  const std::int64_t n = measures.n % ((measures.mode == kLong ? kMany : kFew) + 1);
  const std::int64_t before = measures.before % codec.bucket();
  if (codec.is_fixed() && (measures.mode & kExact) != 0) {
    bytes.resize(static_cast<std::size_t>(codec.MostBytes(n, before)));
  }
  bytes.shrink_to_fit();
  std::vector<float> values(static_cast<std::size_t>(n));
  codec.Decode(bytes, n, static_cast<std::int8_t>(measures.shift), 3, values.data(), before);
  CheckValues(values);
}

SharedCodec TheCodec() {
  const char* const text = std::getenv("CPD_FUZZ_CODEC");
  if (text == nullptr) std::abort();
  if (text == kStream) return nullptr;
  const SharedCodec codec = MakeCodec(text);
  return CodecOfRows(codec, 100, 0);
}

}  // namespace
}  // namespace cpd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cpd::fuzz;
  static const cpd::SharedCodec codec = TheCodec();
  std::vector<std::uint8_t> bytes(data, data + size);
  Measures measures;
  try {
    if (codec == nullptr) {
      RunStream(std::move(bytes));
    } else if (size >= sizeof(measures)) {
      std::memcpy(&measures, data, sizeof(measures));
      bytes.erase(bytes.begin(), bytes.begin() + sizeof(measures));
      RunPiece(*codec, measures, std::move(bytes));
    }
  } catch (const cpd::DamagedBytes&) {
    return 0;
  }
  return 0;
}
