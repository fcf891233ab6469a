// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/arithmetic.h"

#include <algorithm>
#include <vector>

#include "cpd/backend/roster.h"
#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/numeric/error.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/elementwise.h"
#include "cpd/ops/reduce.h"

namespace cpd {
namespace {

void CheckOperand(const TensorView& x, const char* name) {
  CheckFloat(x, name);
  if (x.dtype == DType::f64) {
    throw Error(std::string(name) + " must be fp32, bf16 or fp16, got fp64");
  }
  if (x.device != Device::cpu) throw Error(std::string(name) + " must be on the CPU");
}

/// z is null but for fma.
void Operate(Operation op, const TensorView& x, const TensorView& y, const TensorView* z,
             const Format& format, const RoundingOptions& options, const TensorView& out,
             const TensorView* random) {
  CheckOperand(x, "x");
  CheckOperand(y, "y");
  CheckSameShape(x, y, "x and y");
  if (z != nullptr) {
    CheckOperand(*z, "z");
    CheckSameShape(x, *z, "x and z");
  }
  Check(out, "out");
  CheckCarrier(out.dtype, format);
  CheckSameShape(x, out, "x and out");
  CheckSameDevice(x, out);
  CheckRandom(random, out, options);
  const RoundPlan plan = PlanOf(format, options);
  parallel_for(x.size(), kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Reader<float> read_x(x);
    Reader<float> read_y(y);
    Reader<float> read_z(z != nullptr ? *z : x);
    Reader<std::uint32_t> read_random(random != nullptr ? *random : x);
    Writer<float> writer(out);
    for (std::int64_t i = begin; i < end; i += kStage) {
      const std::int64_t n = std::min(kStage, end - i);
      Kernels().arithmetic(op, plan, i, n, read_x.Read(i, n), read_y.Read(i, n),
                           z != nullptr ? read_z.Read(i, n) : nullptr,
                           random != nullptr ? read_random.Read(i, n) : nullptr,
                           writer.Target(i, n));
      writer.Flush(i, n);
    }
  });
}

/// x with `dim` fixed at index k, shape and strides of the rest.
TensorView Slice(const TensorView& x, int dim, std::int64_t k) {
  TensorView slice = x;
  slice.data = static_cast<std::uint8_t*>(x.data) +
               k * x.stride[dim] * static_cast<std::int64_t>(SizeOf(x.dtype));
  for (int d = dim; d + 1 < x.rank; ++d) {
    slice.shape[d] = x.shape[d + 1];
    slice.stride[d] = x.stride[d + 1];
  }
  slice.rank = x.rank - 1;
  return slice;
}

}  // namespace

void Add(const TensorView& x, const TensorView& y, const Format& format,
         const RoundingOptions& options, const TensorView& out, const TensorView* random) {
  Operate(Operation::add, x, y, nullptr, format, options, out, random);
}
void Mul(const TensorView& x, const TensorView& y, const Format& format,
         const RoundingOptions& options, const TensorView& out, const TensorView* random) {
  Operate(Operation::mul, x, y, nullptr, format, options, out, random);
}
void Fma(const TensorView& x, const TensorView& y, const TensorView& z, const Format& format,
         const RoundingOptions& options, const TensorView& out, const TensorView* random) {
  Operate(Operation::fma, x, y, &z, format, options, out, random);
}

void Sum(const TensorView& x, int dim, const Accumulator& accumulator, const TensorView& out,
         const TensorView* random) {
  CheckOperand(x, "x");
  if (dim < 0 || dim >= x.rank) {
    throw Error("dim must be 0…" + std::to_string(x.rank - 1) + ", got " + std::to_string(dim));
  }
  Check(out, "out");
  CheckCarrier(out.dtype, accumulator.format);
  CheckSameShape(Slice(x, dim, 0), out, "x without dim and out");
  CheckSameDevice(x, out);
  Check(accumulator);
  const std::int64_t terms = x.shape[dim];
  CheckFold(accumulator, terms);
  const std::int64_t draws = DrawsOfSum(accumulator, terms);
  CheckDraws(random, out, draws, accumulator.rounding);
  const GivenIntegers integers(random, draws);
  const auto planes = static_cast<std::size_t>(FoldPlanes(accumulator, terms));
  parallel_for(out.size(), kBlock, kStage, [&](std::int64_t begin, std::int64_t end) {
    Writer<float> writer(out);
    std::vector<float> state(planes * static_cast<std::size_t>(kStage));
    for (std::int64_t i = begin; i < end; i += kStage) {
      const std::int64_t n = std::min(kStage, end - i);
      const FoldState sums{state.data(), kStage, integers.draws().from(i)};
      for (std::int64_t k = 0; k < terms; ++k) {
        if (k % 64 == 63) CheckInterrupt();
        const TensorView slice = Slice(x, dim, k);
        Reader<float> reader(slice);
        FoldStep(accumulator, kFp32, k, i, n, reader.Read(i, n), sums);
      }
      if (terms > 0) {
        FoldEnd(accumulator, kFp32, terms, i, n, sums);
      } else {
        CastScaled(accumulator.format, {}, 0, i, n, state.data(), state.data());
      }
      std::copy_n(state.data(), n, writer.Target(i, n));
      writer.Flush(i, n);
    }
  });
}

}  // namespace cpd
