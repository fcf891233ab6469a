// SPDX-License-Identifier: Apache-2.0
//
// How an input of the fuzzer is read: a piece's measures, then its bytes. A whole stream
// (compress/stream.h) is an input of the codec named `stream`, with nothing ahead.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace cpd::fuzz {

inline const std::string kStream = "stream";

/// Of these, n is taken modulo kFew + 1 unless `mode` has kMany: most runs should be short.
struct Measures {
  std::uint8_t mode = 0;
  std::uint8_t shift = 0;    ///< signed
  std::uint16_t n = 0;       ///< values
  std::uint16_t before = 0;  ///< modulo the codec's bucket
};
static_assert(sizeof(Measures) == 6);
constexpr std::uint8_t kExact = 1;    ///< a fixed codec's bytes are cut or filled up to its size
constexpr std::uint8_t kMany = 0xFE;  ///< all these bits
constexpr std::uint16_t kFew = 512;

}  // namespace cpd::fuzz
