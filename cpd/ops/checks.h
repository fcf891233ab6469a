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
/// Returns `on the CPU` or a text such as `on cuda:1`, for error messages.
std::string PlaceOf(const TensorView& x);
/// Operations that only the CPU computes. No backend's table has an entry for them.
enum class OnCpuAlone : std::uint8_t {
  casts_for_products,  ///< CastWhereHeld and CastApart (scaled.h)
  convolutions,
  flags,
  random_integers,
  wide_formats,
};
/// Throws Error unless x is on the CPU. The error names the operation and x's device.
void Check(OnCpuAlone operation, const TensorView& x);
/// Returns whether both tensors are on the CPU, or both on the same other device.
bool IsTogether(const TensorView& x, const TensorView& y);
/// Throws Error unless both tensors are on one device.
void CheckSameDevice(const TensorView& a, const TensorView& b);
/// Operands of an element-wise operation. y and z are null if the operation takes fewer operands.
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
/// Throws Error unless the options are valid and the key fits x's device. `random`, if not null,
/// must be a u32 tensor of x's shape and device, for stochastic rounding. On the CPU integers out
/// of range throw Error, too; on another device they are a fault (faults.h).
void CheckRandom(const TensorView* random, const TensorView& x, const RoundingOptions& options,
                 const RandomKey& key);
/// Throws Error if x is on the CPU and the key holds addresses in device memory.
void CheckKey(const RandomKey& key, const TensorView& x);
/// Checks the caller's random integers for an ordered sum, and throws Error as CheckRandom does.
/// `random` must have out's shape and in addition a last dimension of `draws`.
void CheckDraws(const TensorView* random, const TensorView& out, std::int64_t draws,
                const RoundingOptions& options);
/// Throws Error unless out = a * b + c is a batched matrix product (ops/gemm.h) of fp32, bf16 or
/// fp16 tensors on one device. Elements of out must not overlap each other or an input. c may be
/// null.
void CheckProduct(const TensorView& a, const TensorView& b, const TensorView& out,
                  const TensorView* c);
/// Throws Error unless the key fits out's device, and `random`, if not null, has `draws` integers
/// for each element. A product with stochastic rounding also throws Error if its elements or its
/// values of k exceed the range of the random numbers' counters.
void CheckNumbers(const Accumulator& accumulator, const TensorView& out, std::int64_t depth,
                  const RandomKey& key, const TensorView* random, std::int64_t draws);
/// The first element of x, in row-major order, that is not a value of a format; -1 if there is
/// none.
struct Outside {
  std::int64_t element = -1;
  float value = 0;
};
/// Finds the first element of a tensor on the CPU that is not a value of `format`. NaN and infinity
/// are values if the format has them; -0 always is a value.
[[nodiscard]] CPD_API Outside FindOutside(const TensorView& x, const Format& format);
[[noreturn]] void ThrowOutside(const Outside& found, const Format& format, const char* name);
/// Throws Error unless all elements of x are values of `format`, as a matrix unit requires. x: any
/// float type but fp64. On another device than the CPU an element out of range is a fault
/// (faults.h).
void CheckUnitOperand(const TensorView& x, const Format& format, const char* name);
/// Throws Error unless all elements are nonnegative values of `format`. On another device than the
/// CPU, an element out of range is a fault (faults.h).
void CheckScales(const TensorView& x, const Format& format, const char* name);
/// Throws Error unless x is an fp32 tensor on out's device that does not overlap out. Its last two
/// dimensions must be `shape`, or 1 if `broadcasts` is set. Its other dimensions must broadcast to
/// out's.
void CheckGrid(const TensorView& x, const TensorView& out, const char* name,
               const std::array<std::int64_t, 2>& shape, bool broadcasts);

}  // namespace cpd
