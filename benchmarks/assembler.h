// SPDX-License-Identifier: Apache-2.0
//
// Generates loops of vector operations on registers as machine code at run time, so that any
// mixture of operations can be timed. Vectors have 16 lanes of AVX-512 (EVEX prefixes) or 8 lanes
// of AVX2 (VEX). Only for x86-64. Encodings: Intel 64 and IA-32 Architectures Software Developer's
// Manual, volume 2.
#pragma once

#if defined(__x86_64__)

#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace assembler {

/// An instruction on 32-bit lanes with three registers: the target (the first register) and two
/// sources. Some instructions also read the target.
struct Operation {
  std::string_view name;
  int map;     ///< of opcodes: 1 is 0F, 2 is 0F 38, 3 is 0F 3A
  int prefix;  ///< 0 none, 1 is 66, 2 is F3
  int opcode;
  bool accumulates = false;  ///< reads its target
  bool evex_only = false;
  int rounding = -1;  ///< embedded; 1 is down
  int immediate = -1;
  int extension = -1;  ///< in the place of a register: shifts by an immediate
  bool wide = false;   ///< EVEX.W
  bool bf16 = false;   ///< of AVX-512 BF16
};

/// Operations: multiplications, additions, 32-bit integer operations, and products of two 32-bit
/// integers. `down`: the instruction itself rounds down. `pairs`: adds two products of bf16 numbers
/// to each lane.
inline constexpr std::array kOperations = {
    Operation{"product", 1, 0, 0x59},
    Operation{"fma", 2, 1, 0xB8, true},
    Operation{"sum", 1, 0, 0x58},
    Operation{"max", 1, 0, 0x5F},
    Operation{"range", 3, 1, 0x50, false, true, -1, 2},
    Operation{"integer_sum", 1, 1, 0xFE},
    Operation{"shift", 1, 1, 0x72, false, false, -1, 1, 2},
    Operation{"logic", 1, 1, 0xDB},
    Operation{"ternary", 3, 1, 0x25, true, true, -1, 0xE8},
    Operation{"wide", 1, 1, 0xF4, false, false, -1, -1, -1, true},
    Operation{"sum_down", 1, 0, 0x58, false, true, 1},
    Operation{"fma_down", 2, 1, 0xB8, true, true, 1},
    Operation{"pairs", 2, 2, 0x52, true, true, -1, -1, -1, false, true},
};

enum class Isa { avx2, avx512 };

constexpr int Lanes(Isa isa) { return isa == Isa::avx512 ? 16 : 8; }

/// A loop over a sequence of operations. The source registers hold constants. Operations that read
/// their target (fma) take 12 targets in turn on AVX-512, 8 on AVX2: each target is one dependency
/// chain. Operations that do not read their target write to the remaining registers, so they wait
/// for no earlier result.
class Loop {
 public:
  Loop(Isa isa, std::span<const Operation* const> sequence) : isa_(isa) {
    const int registers = isa == Isa::avx512 ? 32 : 16;
    for (int r = 0; r < registers; ++r) LoadOnes(r);
    while (code_.size() % 64 != 0) code_.push_back(0x90);
    const std::size_t top = code_.size();
    const int chains = isa == Isa::avx512 ? 12 : 8;
    const int constants = registers - 4;
    int chain = 0;
    int target = chains;
    int source = 0;
    for (const Operation* operation : sequence) {
      int& next = operation->accumulates ? chain : target;
      Emit(*operation, next, constants + source % 4, constants + (source + 1) % 4);
      ++source;
      if (++next == (operation->accumulates ? chains : constants)) {
        next = operation->accumulates ? 0 : chains;
      }
    }
    Bytes({0x48, 0xFF, 0xCE, 0x0F, 0x85});  // dec rsi; jnz
    const auto back = static_cast<std::uint32_t>(top - code_.size() - 4);
    for (int byte = 0; byte < 4; ++byte)
      code_.push_back(static_cast<std::uint8_t>(back >> 8 * byte));
    Bytes({0xC5, 0xF8, 0x77, 0xC3});  // vzeroupper; ret
    Map();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop() { munmap(memory_, code_.size()); }

  void Run(std::int64_t turns) const {
    static constexpr float kOne = 1;
    void (*function)(const float*, std::int64_t);
    std::memcpy(&function, &memory_, sizeof(function));
    function(&kOne, turns);
  }

 private:
  void Bytes(std::initializer_list<int> bytes) {
    for (const int byte : bytes) code_.push_back(static_cast<std::uint8_t>(byte));
  }
  /// vbroadcastss r, [rdi]
  void LoadOnes(int r) {
    Prefix(2, 1, false, r, 0, 7, -1);
    Bytes({0x18, (r & 7) << 3 | 7});
  }
  void Emit(const Operation& o, int target, int first, int second) {
    const bool extended = o.extension >= 0;
    const int reg = extended ? o.extension : target;
    Prefix(o.map, o.prefix, o.wide, reg, extended ? target : first, second, o.rounding);
    Bytes({o.opcode, 0xC0 | (reg & 7) << 3 | (second & 7)});
    if (o.immediate >= 0) Bytes({o.immediate});
  }
  /// Emits an instruction's prefix. All register fields are inverted. With embedded rounding, the
  /// bits for the vector length hold the rounding mode.
  void Prefix(int map, int pp, bool wide, int reg, int vvvv, int rm, int rounding) {
    const auto inverted = [](int r, int bit, int place) { return (~r >> bit & 1) << place; };
    const int v = (~vvvv & 15) << 3;
    if (isa_ == Isa::avx2) {
      Bytes({0xC4, inverted(reg, 3, 7) | 1 << 6 | inverted(rm, 3, 5) | map, v | 1 << 2 | pp});
      return;
    }
    const bool rounds = rounding >= 0;
    Bytes(
        {0x62,
         inverted(reg, 3, 7) | inverted(rm, 4, 6) | inverted(rm, 3, 5) | inverted(reg, 4, 4) | map,
         (wide ? 1 << 7 : 0) | v | 1 << 2 | pp,
         (rounds ? rounding : 2) << 5 | (rounds ? 1 << 4 : 0) | inverted(vvvv, 4, 3)});
  }
  void Map() {
    memory_ =
        mmap(nullptr, code_.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::runtime_error("no memory for machine code");
    std::memcpy(memory_, code_.data(), code_.size());
    if (mprotect(memory_, code_.size(), PROT_READ | PROT_EXEC) != 0) {
      throw std::runtime_error("this system runs no code made at run time");
    }
  }

  Isa isa_;
  std::vector<std::uint8_t> code_;
  void* memory_ = nullptr;
};

}  // namespace assembler

#endif
