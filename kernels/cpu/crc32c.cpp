// SPDX-License-Identifier: Apache-2.0
//
// CRC-32C (numeric/lanes/crc.h). The steps of one stream depend on each other. Therefore the data
// is split into three streams, which are interleaved to hide the latency of the CRC instruction,
// and the three results are combined.
#include "cpd/numeric/lanes/crc.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

#ifndef CPD_VECTORS
/// entry[k][b] is the CRC remainder of byte b followed by k zero bytes.
struct Tables {
  uint32_t entry[8][256];
};
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) tables.entry[0][b] = crc_of_byte(b);
  for (int k = 1; k < 8; ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t before = tables.entry[k - 1][b];
      tables.entry[k][b] = (before >> 8) ^ tables.entry[0][before & 0xFF];
    }
  }
  return tables;
}
constexpr Tables kTables = make_tables();

CPD_FN uint32_t crc_byte(uint32_t crc, uint8_t byte) {
  return (crc >> 8) ^ kTables.entry[0][(crc ^ byte) & 0xFF];
}
CPD_FN uint32_t next_word(uint32_t crc, const uint8_t* from) {
  uint32_t next = 0;
  for (int k = 0; k < 8; ++k) {
    const uint32_t byte = from[k] ^ (k < 4 ? crc >> (8 * k) : 0);
    next ^= kTables.entry[7 - k][byte & 0xFF];
  }
  return next;
}
#else
CPD_FN uint32_t next_word(uint32_t crc, const uint8_t* from) {
  return crc_word(crc, load<uint64_t>(from));
}
#endif

constexpr int64_t kPart = 4096;  ///< bytes of each of the three streams
constexpr uint32_t kAfterOne = crc_zeros(kPart);
constexpr uint32_t kAfterTwo = crc_zeros(2 * kPart);

}  // namespace

uint32_t crc32c(uint32_t crc, int64_t n, const uint8_t* data) {
  crc = ~crc;
  for (; n >= 3 * kPart; n -= 3 * kPart, data += 3 * kPart) {
    uint32_t second = 0;
    uint32_t third = 0;
    for (int64_t i = 0; i < kPart; i += 8) {
      crc = next_word(crc, data + i);
      second = next_word(second, data + kPart + i);
      third = next_word(third, data + 2 * kPart + i);
    }
    crc = crc_multiply(kAfterTwo, crc) ^ crc_multiply(kAfterOne, second) ^ third;
  }
  for (; n >= 8; n -= 8, data += 8) crc = next_word(crc, data);
  for (; n > 0; --n, ++data) crc = crc_byte(crc, *data);
  return ~crc;
}

}  // namespace CPD_ISA
}  // namespace cpd
