// SPDX-License-Identifier: Apache-2.0
//
// Defines a fuzzer's input: a struct `Measures`, whose numbers describe a range of a layer, then
// the encoded bytes of the range. An input of the codec `stream` has only the bytes of a whole
// stream (compress/stream.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace cpd::fuzz {

inline const std::string kStream = "stream";

/// The numbers at the start of a fuzzer's input, before the encoded bytes. `n` is taken modulo
/// kMany + 1 if `mode` is kLong, and modulo kFew + 1 otherwise, because most inputs should be
/// short.
struct Measures {
  std::uint8_t mode = 0;
  std::uint8_t shift = 0;    ///< signed
  std::uint16_t n = 0;       ///< values
  std::uint16_t before = 0;  ///< modulo the codec's bucket
};
static_assert(sizeof(Measures) == 6);
constexpr std::uint8_t kExact = 1;    ///< a bit: a fixed codec's bytes are cut or filled up
constexpr std::uint8_t kLong = 0xFF;  ///< all bits
constexpr std::int64_t kFew = 64;
constexpr std::int64_t kMany = 4200;  ///< beyond a block of 4096

}  // namespace cpd::fuzz
