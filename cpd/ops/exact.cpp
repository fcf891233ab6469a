// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/exact.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"
#include "cpd/base/guarded.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/numeric/round/flag_limits.h"
#include "cpd/numeric/round/short_exact.h"
#include "cpd/numeric/round/soft_float.h"
#include "cpd/numeric/round/soft_limits.h"
#include "cpd/spec/error.h"
#include "cpd/spec/wide_format.h"

namespace cpd {
namespace {

/// The operands of n elements of an operation as contiguous numbers of type T (float or double),
/// and the elements' random integers. y, z and random may be null.
template <class T>
struct Run {
  soft::Target to;
  std::int64_t n = 0;
  const T* x = nullptr;
  const T* y = nullptr;
  const T* z = nullptr;
  const std::uint32_t* random = nullptr;

  [[nodiscard]] soft::Rounded Compute(soft::Operation operation, std::int64_t i) const {
    return soft::compute(operation, x[i], y != nullptr ? y[i] : 0, z != nullptr ? z[i] : 0, to,
                         random != nullptr ? random[i] : 0);
  }
};

template <soft::Operation kOperation, class T, class Take>
void ForEach(const Run<T>& run, Take take) {
  for (std::int64_t i = 0; i < run.n; ++i) take(i, run.Compute(kOperation, i));
}

template <class T, class Take>
void ForEach(soft::Operation operation, const Run<T>& run, Take take) {
  switch (operation) {
    case soft::Operation::cast:
      return ForEach<soft::Operation::cast>(run, take);
    case soft::Operation::add:
      return ForEach<soft::Operation::add>(run, take);
    case soft::Operation::mul:
      return ForEach<soft::Operation::mul>(run, take);
    case soft::Operation::fma:
      return ForEach<soft::Operation::fma>(run, take);
    case soft::Operation::div:
      return ForEach<soft::Operation::div>(run, take);
    case soft::Operation::sqrt:
      return ForEach<soft::Operation::sqrt>(run, take);
  }
}

/// Reads the operands of up to kStage elements at a time as numbers of type T. Also returns the
/// random integers that the kernels use for these elements.
template <class T>
class Stages {
 public:
  Stages(const Operands& in, const soft::Target& to, const RoundingOptions& options,
         const RandomKey& key, const TensorView* random)
      : x_(in.x), to_(to), options_(options), key_(key) {
    if (in.y != nullptr) y_.emplace(*in.y);
    if (in.z != nullptr) z_.emplace(*in.z);
    if (random != nullptr) given_.emplace(*random);
  }
  Run<T> Read(std::int64_t i, std::int64_t n) {
    return {
        to_,        n, x_.Read(i, n), y_ ? y_->Read(i, n) : nullptr, z_ ? z_->Read(i, n) : nullptr,
        Draws(i, n)};
  }

 private:
  const std::uint32_t* Draws(std::int64_t i, std::int64_t n) {
    if (options_.mode != Rounding::stochastic) return nullptr;
    if (given_) return given_->Read(i, n);
    Kernels().random_integers(options_.random_bits, key_.seed, key_.stream, i, n, drawn_.data());
    return drawn_.data();
  }

  Reader<T> x_;
  std::optional<Reader<T>> y_, z_;
  std::optional<Reader<std::uint32_t>> given_;
  soft::Target to_;
  const RoundingOptions& options_;
  const RandomKey& key_;
  std::array<std::uint32_t, kStage> drawn_;
};

void CheckCount(soft::Operation operation, const Operands& in) {
  const int given = in.z != nullptr ? 3 : in.y != nullptr ? 2 : 1;
  if (given == soft::operands_of(operation)) return;
  throw Error(ToString(operation) + " takes " + std::to_string(soft::operands_of(operation)) +
              " operands, got " + std::to_string(given));
}

template <class T>
void ToOdd(soft::Operation operation, const Run<T>& run, T* exact) {
  Kernels().to_odd({.op = operation,
                    .n = run.n,
                    .x = Contiguous(run.x),
                    .y = Contiguous(run.y),
                    .z = Contiguous(run.z),
                    .random = {},
                    .out = Contiguous(exact)});
}

/// Stores the exceptions of all elements in `flags`. Calls raise(run, i, raised) for up to kStage
/// elements at a time, from element i on; `run` has the elements' operands (Run<T>). raise must
/// write the elements' exceptions to `raised`, and may return false only if no operand is NaN. If
/// raise returns true, ForFlags adds the exceptions of signaling NaNs.
template <class T, class Raise>
void ForFlags(const Operands& in, const soft::Target& to, const RoundingOptions& options,
              const RandomKey& key, const TensorView& flags, const TensorView* random,
              Raise raise) {
  parallel_for(flags.size(), kStage, kStage, [&](std::int64_t begin, std::int64_t end) {
    Stages<T> stages(in, to, options, key, random);
    std::array<std::uint8_t, kStage> raised;
    for (std::int64_t i = begin; i < end; i += kStage) {
      const std::int64_t n = std::min(kStage, end - i);
      if (raise(stages.Read(i, n), i, raised.data())) {
        for (const TensorView* operand : {&in.x, in.y, in.z}) {
          if (operand != nullptr) RaiseSignalling(*operand, i, n, raised.data());
        }
      }
      Scatter(raised.data(), i, n, flags);
    }
  });
}

constexpr std::int64_t kLimitsFrom = 2048;  ///< elements that outweigh finding the limits

/// Computes exception flags with the fast kernels: rounds the exact results, and compares exact and
/// rounded results with limits. T must hold the exact results, or the results rounded to odd. If
/// the comparisons do not determine an element's exceptions, soft_float.h computes them.
template <class T>
void FlagsByLimits(soft::Operation operation, const Operands& in, const Format& format,
                   const RoundingOptions& options, const soft::Target& to, const RandomKey& key,
                   const TensorView& flags, const TensorView* random) {
  const RoundPlan plan = PlanOf(format, options, key);
  const auto limits = Guarded([&] { return soft::flag_limits<T>(to); });
  ForFlags<T>(in, to, options, key, flags, random,
              [&](const Run<T>& run, std::int64_t i, std::uint8_t* raised) {
                std::array<T, kStage> exact, rounded;
                const T* x = run.x;
                if (operation != soft::Operation::cast) {
                  ToOdd(operation, run, exact.data());
                  x = exact.data();
                }
                Kernels().cast({.n = run.n,
                                .first = i,
                                .x = Contiguous(x),
                                .random = Contiguous(run.random),
                                .out = Contiguous(rounded.data()),
                                .plan = &plan});
                if (!Kernels().flags({kTypeOf<T>, run.n, x, rounded.data(), &limits, raised})) {
                  return false;
                }
                for (std::int64_t k = 0; k < run.n; ++k) {
                  if ((raised[k] & kOpen) != 0) raised[k] = run.Compute(operation, k).flags;
                }
                return true;
              });
}

/// Returns whether most of the first kStage results, rounded to odd, can be computed in binary32
/// (short_exact.h). Uncertain results, such as many products of fma, are computed by the slow
/// soft_float.h.
bool MostlyCertain(soft::Operation operation, const Operands& in, const soft::Target& to,
                   const RoundingOptions& options, const RandomKey& key) {
  Stages<float> stages(in, to, options, key, nullptr);
  const Run<float> run = stages.Read(0, std::min(kStage, in.x.size()));
  std::array<float, kStage> exact;
  ToOdd(operation, run, exact.data());
  const auto doubts =
      std::count_if(exact.begin(), exact.begin() + run.n, [](float x) { return x != x; });
  return doubts <= run.n / 8;
}

}  // namespace

void Compute(soft::Operation operation, const Operands& in, const Format& format,
             const RoundingOptions& options, const TensorView& out, const RandomKey& key,
             const TensorView* random) {
  Check(OnCpuAlone::wide_formats, in.x);
  const soft::Target to = soft::target(format, options);
  if (Explains()) {
    NotePath(ToString(operation).c_str(),
             {"integers", is_wide(format) ? "the format is wider than binary32"
                                          : "binary64 operands of a quotient or a root"});
    Explaining::Current()->Run("portable", "soft_float");
  }
  parallel_for(out.size(), kStage, kStage, [&](std::int64_t begin, std::int64_t end) {
    Stages<double> stages(in, to, options, key, random);
    Writer<double> writer(out);
    for (std::int64_t i = begin; i < end; i += kStage) {
      const std::int64_t n = std::min(kStage, end - i);
      const Run<double> run = stages.Read(i, n);
      double* values = writer.Target(i, n);
      ForEach(operation, run, [&](std::int64_t k, soft::Rounded y) { values[k] = y.value; });
      writer.Flush(i, n);
    }
  });
}

void Flags(soft::Operation operation, const Operands& in, const Format& format,
           const RoundingOptions& options, soft::Tininess tininess, const TensorView& flags,
           const RandomKey& key, const TensorView* random) {
  CheckCount(operation, in);
  CheckOperands(in);
  CheckOfElements(format);
  Check(flags, "flags");
  if (flags.dtype != DType::u8) throw Error("flags must be uint8, got " + ToString(flags.dtype));
  CheckSameShape(in.x, flags, "x and flags");
  CheckSameDevice(in.x, flags);
  CheckRandom(random, flags, options, key);
  Check(OnCpuAlone::flags, in.x);
  if (Explains()) {
    NotePath("flags", {"limits", "or integers: the values decide"});
    return NoteKernel("flags");
  }
  const soft::Target to = soft::target(format, options, tininess);
  const bool has_limits =
      flags.size() >= kLimitsFrom && !is_wide(format) && soft::has_flag_limits(to);
  const bool is_cast = operation == soft::Operation::cast;
  const bool is_narrow = !in.has(DType::f64);
  const auto in_binary32 = [&] {
    return is_cast || (rounds_from_odd(PlanOf(format, options)) &&
                       MostlyCertain(operation, in, to, options, key));
  };
  if (has_limits && is_narrow && in_binary32()) {
    return FlagsByLimits<float>(operation, in, format, options, to, key, flags, random);
  }
  if (has_limits && (is_cast || is_narrow)) {
    return FlagsByLimits<double>(operation, in, format, options, to, key, flags, random);
  }
  ForFlags<double>(in, to, options, key, flags, random,
                   [&](const Run<double>& run, std::int64_t, std::uint8_t* raised) {
                     ForEach(operation, run,
                             [&](std::int64_t k, soft::Rounded y) { raised[k] = y.flags; });
                     return true;
                   });
}

}  // namespace cpd
