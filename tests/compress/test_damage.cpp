// SPDX-License-Identifier: Apache-2.0
//
// Tests decoders on damaged bytes. Valid encodings of every codec are changed in each bit, and cut
// or extended to each length. A decoder must give values or throw DamagedBytes, and may not read
// outside the bytes, which sanitizers check. The checksum of a stream must detect every change.
// test_damage_exhaustive.cpp runs more cases.
#include "tests/testing/damage.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

TEST(Damage, EveryBitFlipAndTruncation) {
  const int layers = testing::kEverything ? 150 : testing::kSanitized ? 60 : 40;
  for (const std::string& text : testing::codec_texts()) testing::damage_encodings(text, layers);
  for (const std::string& text : testing::more_codec_texts()) {
    testing::damage_encodings(text, layers / 4);
  }
}

TEST(Damage, StreamsFindIt) {
  for (const std::string& text : testing::codec_texts())
    testing::damage_streams(text, testing::kEverything ? 30 : 10);
}

}  // namespace
}  // namespace cpd
