// SPDX-License-Identifier: Apache-2.0
//
// Checks that several operations share.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "cpd/base/tensor.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// Throws Error unless x has a float type.
void CheckFloat(const TensorView& x, const char* name);
/// `on the CPU` or `on cuda:1`.
std::string PlaceOf(const TensorView& x);
/// Operations that the CPU alone computes: no backend's table has an operation for it.
enum class OnCpuAlone : std::uint8_t {
  casts_for_products,  ///< CastWhereHeld and CastApart (scaled.h)
  convolutions,
  flags,
  random_integers,
  wide_formats,
};
/// Throws Error, naming the operation and x's device, unless x is on the CPU.
void Check(OnCpuAlone operation, const TensorView& x);
/// Returns whether both are on the CPU, or on the same other device.
bool IsTogether(const TensorView& x, const TensorView& y);
/// Throws Error unless both are on one device.
void CheckSameDevice(const TensorView& a, const TensorView& b);
/// Operands of an element-wise operation; y and z are null where it takes fewer.
struct Operands {
  const TensorView& x;
  const TensorView* y = nullptr;
  const TensorView* z = nullptr;

  [[nodiscard]] bool has(DType type) const {
    return x.dtype == type || (y != nullptr && y->dtype == type) ||
           (z != nullptr && z->dtype == type);
  }
};
/// Throws Error unless the operands are float tensors of one shape on one device.
void CheckOperands(const Operands& operands);
/// Throws Error unless the options are valid, and the key and `random`, if not null, fit x and the
/// options. On another device than the CPU an integer out of range is a fault (faults.h).
void CheckRandom(const TensorView* random, const TensorView& x, const RoundingOptions& options,
                 const RandomKey& key);
/// Throws Error where the key has addresses, and x is on the CPU, which reads none.
void CheckKey(const RandomKey& key, const TensorView& x);
/// Throws Error as CheckRandom does, for an ordered sum: random's shape is out's and, last,
/// `draws`.
void CheckDraws(const TensorView* random, const TensorView& out, std::int64_t draws,
                const RoundingOptions& options);
/// Throws Error unless out = a * b + c is a batched matrix product (ops/gemm.h) of fp32, bf16 or
/// fp16 tensors on one device, where out's elements overlap neither each other nor the inputs. c
/// may be null.
void CheckProduct(const TensorView& a, const TensorView& b, const TensorView& out,
                  const TensorView* c);
/// Throws Error unless the key fits out's device and `random`, if not null, has `draws` integers
/// for each element, and where a stochastic product has more elements or values of k than counters
/// serve.
void CheckNumbers(const Accumulator& accumulator, const TensorView& out, std::int64_t depth,
                  const RandomKey& key, const TensorView* random, std::int64_t draws);
/// The first element of x, row-major, that a format does not hold; -1 if it holds all.
struct Outside {
  std::int64_t element = -1;
  float value = 0;
};
/// The Outside of a tensor on the CPU. NaN and Inf are values where the format has them, -0 always.
[[nodiscard]] CPD_API Outside FindOutside(const TensorView& x, const Format& format);
[[noreturn]] void ThrowOutside(const Outside& found, const Format& format, const char* name);
/// Throws Error unless all elements of x, not fp64, are values of `format`, as a unit's rule
/// requires; on another device than the CPU it is a fault (faults.h).
void CheckUnitOperand(const TensorView& x, const Format& format, const char* name);
/// Throws Error, as CheckUnitOperand does, unless all elements are values of `format`, or if one is
/// negative.
void CheckScales(const TensorView& x, const Format& format, const char* name);
/// Throws Error unless x is an fp32 tensor on out's device that does not overlap out. Its last two
/// dimensions must be `shape` (or 1 if it broadcasts), and its others must broadcast to out's.
void CheckGrid(const TensorView& x, const TensorView& out, const char* name,
               const std::array<std::int64_t, 2>& shape, bool broadcasts);

}  // namespace cpd
