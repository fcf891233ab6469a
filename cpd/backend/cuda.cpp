// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cuda.h"

#include <algorithm>
#include <string>

#include "cpd/backend/device_memory.h"
#include "cpd/base/plans.h"
#include "cpd/spec/error.h"

namespace cpd::cuda {
namespace {

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

/// The caller's random integers; no data where there are none.
Strided IntegersOf(const TensorView* random) {
  if (random == nullptr) return {};
  return Merge(*random);
}

/// Where an encoding notes a NaN; null where the format has a code for it.
unsigned long long* PlaceOfNan(const Format& format, const Queue& queue) {
  if (format.has_nan()) return nullptr;
  const Fault lost{"element ", " is NaN, and " + ToString(format) + " has no code for NaN"};
  return queue.PlaceOf(lost);
}

}  // namespace

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
  of.call.random = IntegersOf(random);
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
