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

/// Where a call's work is queued, after the faults of earlier calls.
Queue QueueOf(const TensorView& x) {
  CheckDevice(x.device, x.device_index);
  return Queue(x);
}

/// The caller's integers of an ordered sum, `draws` for each element; none where random is null.
/// Throws Error unless they lie one after the other.
GivenDraws DrawsOf(const TensorView* random, std::int64_t draws) {
  if (random == nullptr || random->size() == 0) return {};
  if (!random->is_contiguous()) throw Error("random integers on a GPU must be contiguous");
  return {static_cast<const std::uint32_t*>(random->data), draws};
}

bool NotesProduct(const Accumulator& accumulator, const MatrixProduct& product,
                  const TensorView* random, const TensorView& out) {
  if (!Explains()) return false;
  const AccumulatorPlan plan = AccumulatorPlanOf(accumulator, product.depth);
  return Notes(out, PathOfProduct(plan, random != nullptr).kernel);
}

GemmCall CallOf(const MatrixProduct& product, const Accumulator& accumulator, const RandomKey& key,
                const TensorView* random, std::int64_t draws) {
  const bool draws_from_key = accumulator.rounding.mode == Rounding::stochastic;
  GemmCall call{product, AccumulatorPlanOf(accumulator, product.depth, key),
                draws_from_key ? DeviceKey{key.device_seed, key.device_stream} : DeviceKey{},
                DrawsOf(random, draws)};
  if (random != nullptr) call.plan.sum.first_draw = call.plan.unit.first_draw = 1;  // after c's
  return call;
}

}  // namespace

void Gemm(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
          const TensorView& out, const TensorView* c, const RandomKey& key,
          const TensorView* random, std::int64_t draws) {
  const MatrixProduct product = MakeProduct(a, b, out, c);
  if (NotesProduct(accumulator, product, random, out)) return;
  const GemmCall call = CallOf(product, accumulator, key, random, draws);
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
  const GemmCall call = CallOf(product, accumulator, key, random, draws);
  QueueOf(out).product_scaled({call, scales});
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
