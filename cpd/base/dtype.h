// SPDX-License-Identifier: Apache-2.0
//
// The element types of tensors: their names, their sizes, and the formats that each can store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cpd/spec/format.h"

namespace cpd {

/// Element types of tensors.
enum class DType : std::uint8_t { f32, f64, bf16, f16, u8, u32, i64 };

constexpr std::size_t SizeOf(DType type) {
  switch (type) {
    case DType::f32:
    case DType::u32:
      return 4;
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
      break;
  }
  return 1;
}

/// Returns true for the four floating-point types, which can store emulated values.
constexpr bool IsFloat(DType type) { return type <= DType::f16; }

CPD_API std::string ToString(DType type);

/// Throws Error if `format` has a value that `type` does not have ("fp16 holds no …").
CPD_API void CheckStorage(DType type, const Format& format);

}  // namespace cpd
