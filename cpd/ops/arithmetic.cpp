// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/arithmetic.h"

#include <algorithm>
#include <array>
#include <vector>

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/cuda.h"
#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"
#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/exact.h"
#include "cpd/ops/reduce.h"
#include "cpd/ops/sum_fixed.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// Computes an operation by a kernel in T: float, or double for operands of binary64.
template <class T>
void OperateIn(Operation op, const RoundPlan& plan, const Operands& in, const TensorView* random,
               const TensorView& out) {
  if (Explains()) NoteKernel("arithmetic");
  parallel_for(in.x.size(), kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Reader<T> read_x(in.x);
    Reader<T> read_y(in.y != nullptr ? *in.y : in.x);
    Reader<T> read_z(in.z != nullptr ? *in.z : in.x);
    Reader<std::uint32_t> read_random(random != nullptr ? *random : in.x);
    Writer<T> writer(out);
    for (std::int64_t i = begin; i < end; i += kStage) {
      const std::int64_t n = std::min(kStage, end - i);
      Kernels().arithmetic(
          {.op = op,
           .n = n,
           .first = i,
           .x = Contiguous(read_x.Read(i, n)),
           .y = Contiguous(in.y != nullptr ? read_y.Read(i, n) : nullptr),
           .z = Contiguous(in.z != nullptr ? read_z.Read(i, n) : nullptr),
           .random = Contiguous(random != nullptr ? read_random.Read(i, n) : nullptr),
           .out = Contiguous(writer.Target(i, n)),
           .plan = &plan});
      writer.Flush(i, n);
    }
  });
}

/// Whether a kernel computes the operation of these operands.
bool HasKernel(Operation op, const Operands& in, const Format& format) {
  if (is_wide(format) || op == Operation::cast) return false;
  const bool has_remainder = op == Operation::div || op == Operation::sqrt;
  return !has_remainder || !in.has(DType::f64);
}

void CheckElementwise(const Operands& in, const Format& format, const RoundingOptions& options,
                      const TensorView& out, const RandomKey& key, const TensorView* random) {
  CheckOperands(in);
  Check(out, "out");
  CheckStorage(out.dtype, format);
  CheckSameShape(in.x, out, "x and out");
  CheckSameDevice(in.x, out);
  CheckRandom(random, out, options, key);
}

void Operate(soft::Operation op, const Operands& in, const Format& format,
             const RoundingOptions& options, const TensorView& out, const RandomKey& key,
             const TensorView* random) {
  CheckElementwise(in, format, options, out, key, random);
  if (!HasKernel(op, in, format)) return Compute(op, in, format, options, out, key, random);
  const RoundPlan plan = PlanOf(format, options, key);
  if (Explains()) {
    NotePath(ToString(op).c_str(), PathOf(format, options, in.has(DType::f64)));
  }
  if (out.size() == 0) return;
  if (!in.x.on_host()) {
    return cuda::Operate(op, in.x, in.y, in.z, plan, out, random, cuda::KeyOf(options, key));
  }
  in.has(DType::f64) ? OperateIn<double>(op, plan, in, random, out)
                     : OperateIn<float>(op, plan, in, random, out);
}

/// x at index k of `dim`, with the remaining dimensions.
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

void Steps(const Accumulator& accumulator, std::int64_t k, std::int64_t count, std::int64_t first,
           std::int64_t n, const float* const* terms, FoldState state, const RandomKey& key) {
  FoldSteps(accumulator, kFp32, k, count, first, n, terms, state, key);
}
void Steps(const Accumulator& accumulator, std::int64_t k, std::int64_t count, std::int64_t first,
           std::int64_t n, const double* const* terms, FoldState64 state, const RandomKey& key) {
  FoldSteps(accumulator, k, count, first, n, terms, state, key);
}
void End(const Accumulator& accumulator, std::int64_t terms, std::int64_t first, std::int64_t n,
         FoldState state, const RandomKey& key) {
  if (terms > 0) return FoldEnd(accumulator, kFp32, terms, first, n, state, key);
  CastScaled(accumulator.format, {}, 0, first, n, state.planes, state.planes);
}
void End(const Accumulator& accumulator, std::int64_t terms, std::int64_t first, std::int64_t n,
         FoldState64 state, const RandomKey& key) {
  if (terms > 0) return FoldEnd(accumulator, terms, first, n, state, key);
  RoundInPlace(PlanOf(accumulator.format, {}), first, n, state.planes);
}

/// The common distance in memory of x's successive elements, or 0 where it varies.
std::int64_t EvenStride(const TensorView& x) {
  if (x.rank == 0) return 0;
  for (int d = 0; d + 1 < x.rank; ++d) {
    if (x.stride[d] != x.shape[d + 1] * x.stride[d + 1]) return 0;
  }
  return x.stride[x.rank - 1];
}

/// Reads the terms of some sums, many at a time; terms that are not contiguous over the sums are
/// copied, few enough to stay in cache.
template <class T>
class Terms {
 public:
  static constexpr std::int64_t kMost = 64;

  Terms(const TensorView& x, int dim)
      : first_(static_cast<std::uint8_t*>(x.data)),
        stride_(x.stride[dim] * static_cast<std::int64_t>(SizeOf(x.dtype))),
        slice_(Slice(x, dim, 0)),
        reader_(slice_) {
    if (reader_.is_direct()) return;
    copies_.resize(kMost * kRow);
    const bool along = x.stride[dim] == 1 && SizeOf(x.dtype) == sizeof(T);
    row_stride_ = along ? EvenStride(slice_) : 0;
  }
  Terms(const Terms&) = delete;
  Terms& operator=(const Terms&) = delete;

  /// The number of elements whose terms are read at once.
  [[nodiscard]] std::int64_t elements() const { return copies_.empty() ? kStage : kBlock; }
  /// Terms k … k + count - 1 of elements i … i + n - 1; valid until the next call.
  const T* const* Read(std::int64_t k, std::int64_t count, std::int64_t i, std::int64_t n) {
    for (std::int64_t j = 0; j < count; ++j) {
      terms_[static_cast<std::size_t>(j)] = copies_.data() + j * kRow;
    }
    if (row_stride_ != 0) {
      Transpose(k, count, i, n);
      return terms_.data();
    }
    for (std::int64_t j = 0; j < count; ++j) {
      slice_.data = first_ + (k + j) * stride_;
      const T* const values = reader_.Read(i, n);
      if (copies_.empty()) {
        terms_[static_cast<std::size_t>(j)] = values;
      } else {
        std::copy_n(values, n, copies_.data() + j * kRow);
      }
    }
    return terms_.data();
  }

 private:
  /// The distance of copied terms; multiples of a power of two would share cache sets.
  static constexpr std::int64_t kRow = kBlock + 16;

  void Transpose(std::int64_t k, std::int64_t count, std::int64_t i, std::int64_t n) {
    const T* row = reinterpret_cast<const T*>(first_) + i * row_stride_ + k;
    for (std::int64_t e = 0; e < n; ++e, row += row_stride_) {
      T* to = copies_.data() + e;
      for (std::int64_t j = 0; j < count; ++j, to += kRow) *to = row[j];
    }
  }

  std::uint8_t* first_;
  std::int64_t stride_;  ///< bytes from term to term
  TensorView slice_;
  Reader<T> reader_;
  std::int64_t row_stride_ = 0;  ///< from element to element where each has contiguous terms
  std::vector<T> copies_;
  std::array<const T*, kMost> terms_{};
};

template <class T>
void NoteSum(const Accumulator& accumulator, bool given) {
  const KernelTable& kernels = Kernels();
  if (sizeof(T) == sizeof(double)) {
    NotePath("sum", {"general", "terms of binary64 have no short path"});
    return NoteKernel("fold");
  }
  const Split kind = kernels.fold_path(TermsPlanOf(accumulator, kFp32), given);
  NotePath("sum", PathOfTerms(accumulator, kind, kernels.lanes, given));
  NoteKernel("fold");
}

/// Sum in T: float, or double for terms of binary64. given: the draws from out's first element on.
template <class T>
void SumIn(const TensorView& x, int dim, const Accumulator& accumulator, const TensorView& out,
           const RandomKey& key, GivenDraws given) {
  const std::int64_t terms = x.shape[dim];
  const auto planes = static_cast<std::size_t>(FoldPlanes(accumulator, terms));
  const std::int64_t serial_below = SerialBelow(terms);
  if (Explains()) NoteSum<T>(accumulator, given.random != nullptr);
  parallel_for(out.size(), kBlock, serial_below, [&](std::int64_t begin, std::int64_t end) {
    Writer<T> writer(out);
    Terms<T> all(x, dim);
    std::vector<T> state(planes * static_cast<std::size_t>(kStage));
    for (std::int64_t i = begin; i < end; i += all.elements()) {
      const std::int64_t n = std::min(all.elements(), end - i);
      const FoldStateOf<T> sums{state.data(), kStage, given.from(i)};
      for (std::int64_t k = 0; k < terms; k += Terms<T>::kMost) {
        CheckInterrupt();
        const std::int64_t count = std::min(Terms<T>::kMost, terms - k);
        Steps(accumulator, k, count, i, n, all.Read(k, count, i, n), sums, key);
      }
      End(accumulator, terms, i, n, sums, key);
      std::copy_n(state.data(), n, writer.Target(i, n));
      writer.Flush(i, n);
    }
  });
}

}  // namespace

void Add(const TensorView& x, const TensorView& y, const Format& format,
         const RoundingOptions& options, const TensorView& out, const RandomKey& key,
         const TensorView* random) {
  Operate(soft::Operation::add, {x, &y}, format, options, out, key, random);
}
void Mul(const TensorView& x, const TensorView& y, const Format& format,
         const RoundingOptions& options, const TensorView& out, const RandomKey& key,
         const TensorView* random) {
  Operate(soft::Operation::mul, {x, &y}, format, options, out, key, random);
}
void Fma(const TensorView& x, const TensorView& y, const TensorView& z, const Format& format,
         const RoundingOptions& options, const TensorView& out, const RandomKey& key,
         const TensorView* random) {
  Operate(soft::Operation::fma, {x, &y, &z}, format, options, out, key, random);
}
void Div(const TensorView& x, const TensorView& y, const Format& format,
         const RoundingOptions& options, const TensorView& out, const RandomKey& key,
         const TensorView* random) {
  Operate(soft::Operation::div, {x, &y}, format, options, out, key, random);
}
void Sqrt(const TensorView& x, const Format& format, const RoundingOptions& options,
          const TensorView& out, const RandomKey& key, const TensorView* random) {
  Operate(soft::Operation::sqrt, {x}, format, options, out, key, random);
}

void Sum(const TensorView& x, int dim, const Accumulator& accumulator, const TensorView& out,
         const RandomKey& key, const TensorView* random) {
  CheckFloat(x, "x");
  if (dim < 0 || dim >= x.rank) {
    throw Error("dim must be 0…" + std::to_string(x.rank - 1) + ", got " + std::to_string(dim));
  }
  Check(out, "out");
  CheckStorage(out.dtype, accumulator.format);
  CheckSameShape(Slice(x, dim, 0), out, "x without dim and out");
  CheckSameDevice(x, out);
  const bool on_gpu = !x.on_host();
  const std::int64_t terms = x.shape[dim];
  accumulator.fixed ? Check(accumulator) : CheckFold(accumulator, terms);
  Check(key, on_gpu);
  const std::int64_t draws = DrawsOfSum(accumulator, terms);
  CheckDraws(random, out, draws, accumulator.rounding);
  if (Explains() && on_gpu) {
    NotePath("sum", {"general", "a GPU's sums of terms have no short path"});
  }
  if (out.size() == 0) return;
  if (accumulator.fixed) return SumFixed(Slice(x, dim, 0), terms, x.stride[dim], accumulator, out);
  if (on_gpu) {
    return cuda::Sum(Slice(x, dim, 0), terms, x.stride[dim], accumulator, out, key, random, draws);
  }
  const GivenIntegers integers(random, draws);
  if (x.dtype == DType::f64) return SumIn<double>(x, dim, accumulator, out, key, integers.draws());
  SumIn<float>(x, dim, accumulator, out, key, integers.draws());
}

}  // namespace cpd
