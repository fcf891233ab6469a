// SPDX-License-Identifier: Apache-2.0
//
// Tests decoders on damaged bytes with 1,000 layers for each codec. test_damage.cpp describes the
// test and uses fewer layers.
#include "tests/testing/damage.h"

namespace cpd {
namespace {

TEST(DamageExhaustive, EveryBitFlipAndTruncation) {
  for (const std::string& text : testing::codec_texts()) testing::damage_encodings(text, 1000);
}

TEST(DamageExhaustive, StreamsFindIt) {
  for (const std::string& text : testing::codec_texts()) testing::damage_streams(text, 1000);
}

}  // namespace
}  // namespace cpd
