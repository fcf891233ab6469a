// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/exact.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "cpd/backend/roster.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/numeric/round/quotient.h"
#include "cpd/ops/elementwise.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// An operation on n contiguous elements. y, z and random may be null.
struct Run {
  soft::Target to;
  std::int64_t n = 0;
  const double* x = nullptr;
  const double* y = nullptr;
  const double* z = nullptr;
  const std::uint32_t* random = nullptr;
};

template <soft::Operation kOperation, class Take>
void ForEach(const Run& run, Take take) {
  for (std::int64_t i = 0; i < run.n; ++i) {
    const double y = run.y != nullptr ? run.y[i] : 0;
    const double z = run.z != nullptr ? run.z[i] : 0;
    const std::uint32_t random = run.random != nullptr ? run.random[i] : 0;
    take(i, soft::compute(kOperation, run.x[i], y, z, run.to, random));
  }
}

template <class Take>
void ForEach(soft::Operation operation, const Run& run, Take take) {
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

/// Reads operands stage by stage, with the random integers that the kernels would draw.
class Stages {
 public:
  Stages(const Operands& in, const soft::Target& to, const RoundingOptions& options,
         const TensorView* random)
      : x_(in.x), to_(to), options_(options) {
    if (in.y != nullptr) y_.emplace(*in.y);
    if (in.z != nullptr) z_.emplace(*in.z);
    if (random != nullptr) given_.emplace(*random);
  }
  Run Read(std::int64_t i, std::int64_t n) {
    return {
        to_,        n, x_.Read(i, n), y_ ? y_->Read(i, n) : nullptr, z_ ? z_->Read(i, n) : nullptr,
        Draws(i, n)};
  }

 private:
  const std::uint32_t* Draws(std::int64_t i, std::int64_t n) {
    if (options_.mode != Rounding::stochastic) return nullptr;
    if (given_) return given_->Read(i, n);
    Kernels().random_integers(options_.random_bits, options_.seed, options_.stream, i, n,
                              drawn_.data());
    return drawn_.data();
  }

  Reader<double> x_;
  std::optional<Reader<double>> y_, z_;
  std::optional<Reader<std::uint32_t>> given_;
  soft::Target to_;
  const RoundingOptions& options_;
  std::array<std::uint32_t, kStage> drawn_;
};

void CheckCount(soft::Operation operation, const Operands& in) {
  const int given = in.z != nullptr ? 3 : in.y != nullptr ? 2 : 1;
  if (given == soft::operands_of(operation)) return;
  throw Error(ToString(operation) + " takes " + std::to_string(soft::operands_of(operation)) +
              " operands, got " + std::to_string(given));
}

/// Whether the result is formed by quotient.h in binary64, rounded to odd, and rounded by a kernel.
bool IsShort(soft::Operation operation, const Operands& in, const Format& format) {
  const bool has_route = operation == soft::Operation::div || operation == soft::Operation::sqrt;
  return has_route && !in.has(DType::f64) && !is_wide(format);
}

void ComputeShort(soft::Operation operation, const Operands& in, const Format& format,
                  const RoundingOptions& options, const TensorView& out, const TensorView* random) {
  const RoundPlan plan = PlanOf(format, options);
  parallel_for(out.size(), kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Reader<double> read_x(in.x);
    Reader<double> read_y(in.y != nullptr ? *in.y : in.x);
    Reader<std::uint32_t> read_random(random != nullptr ? *random : in.x);
    Writer<double> writer(out);
    for (std::int64_t i = begin; i < end; i += kStage) {
      const std::int64_t n = std::min(kStage, end - i);
      const double* x = read_x.Read(i, n);
      double* values = writer.Target(i, n);
      if (operation == soft::Operation::div) {
        const double* y = read_y.Read(i, n);
        for (std::int64_t k = 0; k < n; ++k) values[k] = quotient_to_odd(x[k], y[k]);
      } else {
        for (std::int64_t k = 0; k < n; ++k) values[k] = root_to_odd(x[k]);
      }
      const std::uint32_t* draws = random != nullptr ? read_random.Read(i, n) : nullptr;
      Kernels().round_f64(plan, i, n, values, draws, values);
      writer.Flush(i, n);
    }
  });
}

/// Throws Error, naming `what`, where x is not on the CPU.
void CheckOnCpu(const TensorView& x, const char* what) {
  if (x.device == Device::cpu) return;
  throw Error(std::string(what) + " are for tensors on the CPU, got one on a GPU");
}

}  // namespace

void Compute(soft::Operation operation, const Operands& in, const Format& format,
             const RoundingOptions& options, const TensorView& out, const TensorView* random) {
  CheckOnCpu(in.x, "quotients and square roots of fp64 and formats wider than binary32");
  if (IsShort(operation, in, format))
    return ComputeShort(operation, in, format, options, out, random);
  const soft::Target to = soft::target(format, options);
  parallel_for(out.size(), kStage, kStage, [&](std::int64_t begin, std::int64_t end) {
    Stages stages(in, to, options, random);
    Writer<double> writer(out);
    for (std::int64_t i = begin; i < end; i += kStage) {
      const std::int64_t n = std::min(kStage, end - i);
      const Run run = stages.Read(i, n);
      double* values = writer.Target(i, n);
      ForEach(operation, run, [&](std::int64_t k, soft::Rounded y) { values[k] = y.value; });
      writer.Flush(i, n);
    }
  });
}

void Flags(soft::Operation operation, const Operands& in, const Format& format,
           const RoundingOptions& options, soft::Tininess tininess, const TensorView& flags,
           const TensorView* random) {
  CheckCount(operation, in);
  CheckOperands(in);
  CheckOfElements(format);
  Check(flags, "flags");
  if (flags.dtype != DType::u8) throw Error("flags must be uint8, got " + ToString(flags.dtype));
  CheckSameShape(in.x, flags, "x and flags");
  CheckSameDevice(in.x, flags);
  CheckRandom(random, flags, options);
  CheckOnCpu(in.x, "flags");
  const soft::Target to = soft::target(format, options, tininess);
  parallel_for(flags.size(), kStage, kStage, [&](std::int64_t begin, std::int64_t end) {
    Stages stages(in, to, options, random);
    std::array<std::uint8_t, kStage> raised;
    for (std::int64_t i = begin; i < end; i += kStage) {
      const std::int64_t n = std::min(kStage, end - i);
      ForEach(operation, stages.Read(i, n), [&](std::int64_t k, soft::Rounded y) {
        raised[static_cast<std::size_t>(k)] = y.flags;
      });
      for (const TensorView* operand : {&in.x, in.y, in.z}) {
        if (operand != nullptr) RaiseSignalling(*operand, i, n, raised.data());
      }
      Scatter(raised.data(), i, n, flags);
    }
  });
}

}  // namespace cpd
