// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cuda.h"

#include <algorithm>
#include <string>

#include "cpd/backend/device_memory.h"
#include "cpd/base/explaining.h"
#include "cpd/base/plans.h"
#include "cpd/base/product.h"
#include "cpd/spec/error.h"

namespace cpd::cuda {
namespace {

/// Where this thread explains: notes a kernel on x's device.
bool Notes(const TensorView& x, const char* kernel) {
  Explaining* const explaining = Explaining::Current();
  if (explaining == nullptr) return false;
  explaining->Run(NameOf(x), kernel);
  return true;
}

}  // namespace

Queue QueueOf(const TensorView& x) {
  if (!x.on_host()) CheckDevice(x.device, x.device_index);
  return Queue(x);
}

Strided Merge(const TensorView& x) {
  TensorView merged = x;
  TensorView* const views[] = {&merged};
  MergeDimensions(views);
  if (merged.rank == 0) {
    merged.rank = 1;
    merged.shape[0] = 1;
    merged.stride[0] = 1;
  }
  Strided all;
  all.data = x.data;
  all.dtype = x.dtype;
  all.rank = merged.rank;
  std::copy_n(merged.shape.begin(), merged.rank, all.shape);
  std::copy_n(merged.stride.begin(), merged.rank, all.stride);
  return all;
}

Strided IntegersOf(const TensorView* random, int random_bits, const Queue& queue) {
  if (random == nullptr) return {};
  const Strided integers = Merge(*random);
  if (random->on_host()) return integers;
  const std::uint32_t limit = 1U << random_bits;
  const Fault above{"random integers must be below 2^random_bits = " + std::to_string(limit) +
                        ", got a greater one at element ",
                    ""};
  queue.first_above({random->size(), integers, limit, queue.PlaceOf(above)});
  queue.EndChecked();
  return integers;
}

namespace {

/// The caller's integers of an ordered sum, `draws` for each element; none where random is null.
/// Throws Error unless they lie one after the other.
GivenDraws DrawsOf(const TensorView* random, std::int64_t draws, int random_bits,
                   const Queue& queue) {
  if (random == nullptr || random->size() == 0) return {};
  if (!random->is_contiguous()) throw Error("random integers on a GPU must be contiguous");
  static_cast<void>(IntegersOf(random, random_bits, queue));
  return {static_cast<const std::uint32_t*>(random->data), draws};
}

}  // namespace

namespace {

/// A fault unless all of x are values of the format; `must` begins its text.
void CheckValues(const TensorView& x, const Format& format, bool negative,
                 const std::string& must) {
  const Queue queue = QueueOf(x);
  const Fault outside{must + ", got another at element ", ""};
  queue.first_outside({x.size(), Merge(x), PlanOf(format), negative, queue.PlaceOf(outside)});
  queue.EndChecked();
}

}  // namespace

void CheckInside(const TensorView& x, const Format& format, const char* name) {
  if (Explains()) return;
  if (x.size() == 0 || format == kFp32) return;
  CheckValues(x, format, true, std::string(name) + " must hold values of " + ToString(format));
}

void CheckScales(const TensorView& x, const Format& format, const char* name) {
  if (Explains()) return;
  if (x.size() == 0) return;
  CheckValues(x, format, false,
              std::string(name) + " must be numbers of " + ToString(format) + ", none negative");
}

namespace {

Fault LostNanOf(const Format& format) {
  return {"element ", " is NaN, and " + ToString(format) + " has no code for NaN"};
}

}  // namespace

LostNan::LostNan(const Format& format, const Queue& queue) : format_(format), queue_(queue) {
  if (format.has_nan()) return;
  place_ = queue.kind() == Device::cpu ? &found_ : queue.PlaceOf(LostNanOf(format));
}
void LostNan::Raise() const {
  if (found_ != ~0ULL) {
    const Fault fault = LostNanOf(format_);
    throw Error(fault.before + std::to_string(found_) + fault.after);
  }
  if (place_ != nullptr) queue_.EndChecked();
}

DeviceKey KeyOf(const RoundingOptions& options, const RandomKey& key) {
  if (options.mode != Rounding::stochastic) return {};
  return {key.device_seed, key.device_stream};
}

void Cast(const TensorView& x, const RoundPlan& plan, const TensorView& out,
          const TensorView* random, const DeviceKey& key) {
  if (Notes(x, "cast")) return;
  const Queue queue = QueueOf(x);
  CastCall call;
  call.n = x.size();
  call.x = Merge(x);
  call.random = IntegersOf(random, plan.random_bits, queue);
  call.out = Merge(out);
  call.plan = &plan;
  call.key = key;
  queue.cast(call);
}

void Encode(const TensorView& x, const Format& format, const RoundPlan& plan,
            const TensorView& packed, const TensorView* random, const DeviceKey& key) {
  if (Notes(x, "encode")) return;
  const Queue queue = QueueOf(x);
  EncodeCall call;
  call.n = x.size();
  call.x = Merge(x);
  call.random = IntegersOf(random, plan.random_bits, queue);
  call.plan = &plan;
  call.key = key;
  call.packed = static_cast<std::uint8_t*>(packed.data);
  LostNan lost(format, queue);
  call.first_nan = lost.place();
  queue.encode(call);
  lost.Raise();
}

void Decode(const TensorView& packed, const RoundPlan& plan, const TensorView& out) {
  if (Notes(out, "decode")) return;
  QueueOf(packed).decode(
      {out.size(), &plan, static_cast<const std::uint8_t*>(packed.data), Merge(out)});
}

std::int64_t FirstOutside(const TensorView& x, const Format& format) {
  if (x.size() == 0 || format == kFp32) return -1;
  unsigned long long first = ~0ULL;
  const Scratch found(x, sizeof(first));
  found.Upload(&first, sizeof(first));
  QueueOf(x).first_outside(
      {x.size(), Merge(x), PlanOf(format), true, static_cast<unsigned long long*>(found.data())});
  Queue(x).Copy(&first, found.data(), sizeof(first));
  return static_cast<std::int64_t>(first);
}

namespace {

bool NotesProduct(const Accumulator& accumulator, const MatrixProduct& product,
                  const TensorView* random, const TensorView& out) {
  if (!Explains()) return false;
  const AccumulatorPlan plan = AccumulatorPlanOf(accumulator, product.depth);
  return Notes(out, PathOfProduct(plan, random != nullptr).kernel);
}

GemmCall CallOf(const MatrixProduct& product, const Accumulator& accumulator, const TensorView& out,
                const RandomKey& key, const TensorView* random, std::int64_t draws) {
  const RoundingOptions& rounding = accumulator.rounding;
  GemmCall call{product, AccumulatorPlanOf(accumulator, product.depth, key), KeyOf(rounding, key),
                DrawsOf(random, draws, rounding.random_bits, QueueOf(out))};
  if (random != nullptr) call.plan.sum.first_draw = call.plan.unit.first_draw = 1;  // after c's
  return call;
}

}  // namespace

void Gemm(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
          const TensorView& out, const TensorView* c, const RandomKey& key,
          const TensorView* random, std::int64_t draws) {
  if (accumulator.unit) {
    CheckInside(a, accumulator.unit->a, "a");
    CheckInside(b, accumulator.unit->b, "b");
  }
  const MatrixProduct product = MakeProduct(a, b, out, c);
  if (NotesProduct(accumulator, product, random, out)) return;
  const GemmCall call = CallOf(product, accumulator, out, key, random, draws);
  QueueOf(out).product(call);
}

void Gemm(const MatrixProduct& product, const AccumulatorPlan& plan, const DeviceKey& key,
          const TensorView& out) {
  if (Notes(out, PathOfProduct(plan, false).kernel)) return;
  QueueOf(out).product({product, plan, key, {}});
}

void GemmScaled(const MatrixProduct& product, const ProductScales& scales,
                const Accumulator& accumulator, const TensorView& out, const RandomKey& key,
                const TensorView* random, std::int64_t draws) {
  if (NotesProduct(accumulator, product, random, out)) return;
  const GemmCall call = CallOf(product, accumulator, out, key, random, draws);
  QueueOf(out).product_scaled({call, scales});
}

void Operate(Operation op, const TensorView& x, const TensorView* y, const TensorView* z,
             const RoundPlan& plan, const TensorView& out, const TensorView* random,
             const DeviceKey& key) {
  if (Notes(x, "arithmetic")) return;
  const Queue queue = QueueOf(x);
  ArithmeticCall call;
  call.op = op;
  call.n = out.size();
  call.x = Merge(x);
  if (y != nullptr) call.y = Merge(*y);
  if (z != nullptr) call.z = Merge(*z);
  call.random = IntegersOf(random, plan.random_bits, queue);
  call.out = Merge(out);
  call.plan = &plan;
  call.key = key;
  queue.arithmetic(call);
}

void Sum(const TensorView& first, std::int64_t terms, std::int64_t step,
         const Accumulator& accumulator, const TensorView& out, const RandomKey& key,
         const TensorView* random, std::int64_t draws) {
  if (Notes(first, "sum")) return;
  SumCall call;
  call.plan.order = fold_order(accumulator);
  call.plan.terms = TermsPlanOf(accumulator, kFp32, key);
  call.plan.sums = SumsPlanOf(accumulator, key);
  call.n = out.size();
  call.terms = terms;
  call.step = step;
  call.x = Merge(first);
  call.out = Merge(out);
  call.empty = PlanOf(accumulator.format);
  call.key = KeyOf(accumulator.rounding, key);
  call.random = DrawsOf(random, draws, accumulator.rounding.random_bits, QueueOf(first));
  QueueOf(first).sum(call);
}

void SumFixed(const TensorView& first, std::int64_t terms, std::int64_t step, const FixedPlan& plan,
              const TensorView& out) {
  if (Notes(first, "sum_fixed")) return;
  FixedSumCall call;
  call.plan = plan;
  call.n = out.size();
  call.terms = terms;
  call.step = step;
  call.x = Merge(first);
  call.out = Merge(out);
  QueueOf(first).sum_fixed(call);
}

void Transform(const TensorView& x, const HadamardPlan& plan, int axis, const TensorView& out) {
  if (Notes(x, "hadamard")) return;
  const auto firsts = [&](TensorView all) {
    all.shape[axis] /= plan.size;
    all.stride[axis] *= plan.size;
    return Merge(all);
  };
  HadamardCall call;
  call.plan = &plan;
  call.groups = x.size() / plan.size;
  call.x_step = x.stride[axis];
  call.out_step = out.stride[axis];
  call.x = firsts(x);
  call.out = firsts(out);
  QueueOf(x).hadamard(call);
}

void GemmByBlas(const TensorView& a, const TensorView& b, const TensorView& out,
                const TensorView* c) {
  if (Notes(out, "cublas")) return;
  const char* error = nullptr;
  const Queue queue = QueueOf(out);
  const int status =
      queue.backend().blas({out.device_index, out.stream}, {MakeProduct(a, b, out, c), &error});
  if (error != nullptr) throw MachineError(std::string("cuBLAS: ") + error);
  CheckStatus(queue.backend(), status);
}

}  // namespace cpd::cuda
