// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cuda.h"

#include <algorithm>
#include <string>

#include "cpd/backend/device_memory.h"
#include "cpd/base/explaining.h"
#include "cpd/base/plans.h"
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

/// Where a call's work is queued, after the faults of earlier calls.
Queue QueueOf(const TensorView& x) {
  CheckDevice(x.device, x.device_index);
  return Queue(x);
}

/// x with its dimensions merged (MergeDimensions), at least one.
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

/// The caller's random integers; no data where there are none. A fault where one is not below
/// 2^random_bits.
Strided IntegersOf(const TensorView* random, int random_bits, const Queue& queue) {
  if (random == nullptr) return {};
  const Strided integers = Merge(*random);
  const std::uint32_t limit = 1U << random_bits;
  const Fault above{"random integers must be below 2^random_bits = " + std::to_string(limit) +
                        ", got a greater one at element ",
                    ""};
  queue.first_above({random->size(), integers, limit, queue.PlaceOf(above)});
  queue.EndChecked();
  return integers;
}

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

/// Where an encoding notes a NaN; null where the format has a code for it.
unsigned long long* PlaceOfNan(const Format& format, const Queue& queue) {
  if (format.has_nan()) return nullptr;
  const Fault lost{"element ", " is NaN, and " + ToString(format) + " has no code for NaN"};
  return queue.PlaceOf(lost);
}

}  // namespace

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
  call.first_nan = PlaceOfNan(format, queue);
  queue.encode(call);
  if (call.first_nan != nullptr) queue.EndChecked();
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

ScaledTensor::ScaledTensor(const TensorView& like, const TensorView* x, const Format& format,
                           const Given& given)
    : like_(like),
      of_blocks_(like, 3 * format.layout.blocks() * std::int64_t{sizeof(float)}),
      of_cells_(like, 3 * format.cell_layout.blocks() * std::int64_t{sizeof(float)}) {
  ScaledCall& call = call_.call;
  call.plan = format.plan;
  call.route = route_of(format.plan);
  call.given = given.blocks != nullptr;
  call.layout = format.layout;
  call.cells = format.cells;
  call.n = like.size();
  if (x != nullptr) call.x = Merge(*x);
  const std::int64_t blocks = format.layout.blocks();
  auto* const block = static_cast<float*>(of_blocks_.data());
  call.tables = {block, block + blocks, block + 2 * blocks};
  const std::int64_t cells = format.cell_layout.blocks();
  auto* const cell = static_cast<float*>(of_cells_.data());
  call_.cells = {cell, cell + cells, cell + 2 * cells};
  call_.cell_layout = format.cell_layout;
  call_.two_levels = format.plan.two_levels;
  call_.given = {given.blocks, given.cells, given.largest};
  call_.choose = format.choose;
  call_.nearest = format.nearest;
}

ScalesCall ScaledTensor::CallWith(const TensorView* random, const DeviceKey& key) const {
  ScalesCall of = call_;
  of.call.random = IntegersOf(random, of.call.plan.element.random_bits, QueueOf(like_));
  of.call.key = key;
  return of;
}

void ScaledTensor::Cast(const TensorView& out, const TensorView* random,
                        const DeviceKey& key) const {
  ScalesCall call = CallWith(random, key);
  call.out = Merge(out);
  QueueOf(like_).cast_scaled(call);
}

void ScaledTensor::CastBoth(const TensorView& out, const ScaledTensor& columns,
                            const TensorView& by_columns, const DeviceKey& key) const {
  CastBothCall both{CallWith(nullptr, key), columns.CallWith(nullptr, key)};
  both.rows.out = Merge(out);
  both.columns.out = Merge(by_columns);
  QueueOf(like_).cast_both(both);
}

void ScaledTensor::Encode(const TensorView& packed, const cpd::Format& element,
                          const TensorView* random, const DeviceKey& key) const {
  const Queue queue = QueueOf(like_);
  ScalesCall call = CallWith(random, key);
  call.packed = static_cast<std::uint8_t*>(packed.data);
  call.first_nan = PlaceOfNan(element, queue);
  queue.encode_scaled(call);
  if (call.first_nan != nullptr) queue.EndChecked();
}

void ScaledTensor::Decode(const TensorView& packed, const TensorView& out) const {
  ScalesCall call = call_;
  call.packed = static_cast<std::uint8_t*>(packed.data);
  call.out = Merge(out);
  QueueOf(like_).decode_scaled(call);
}

TensorView ScaledTensor::ViewOf(float* data, std::int64_t n) const {
  TensorView view = View(data, DType::f32, n);
  view.device = like_.device;
  view.device_index = like_.device_index;
  view.stream = like_.stream;
  return view;
}
TensorView ScaledTensor::blocks() const {
  return ViewOf(call_.call.tables.scale, call_.call.layout.blocks());
}
TensorView ScaledTensor::cells() const {
  return ViewOf(call_.cells.scale, call_.cell_layout.blocks());
}

}  // namespace cpd::cuda
