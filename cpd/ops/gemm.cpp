// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/gemm.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "cpd/backend/blas.h"
#include "cpd/backend/explain.h"
#include "cpd/base/plans.h"
#include "cpd/base/product.h"
#include "cpd/numeric/sums/order.h"
#include "cpd/ops/call.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/product.h"
#include "cpd/spec/block_fma.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

// --- checks --------------------------------------------------------------------------------------

void CheckGemm(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
               const TensorView& out, const TensorView* c, const RandomKey& key,
               const TensorView* random) {
  CheckProduct(a, b, out, c);
  Check(accumulator);
  CheckStorage(out.dtype, accumulator.format);
  const std::int64_t depth = a.shape[a.rank - 1];
  CheckNumbers(accumulator, out, depth, key, random, DrawsOfGemm(accumulator, depth));
}

void CheckUnitOperands(const Accumulator& accumulator, const TensorView& a, const TensorView& b) {
  if (!accumulator.unit) return;
  CheckUnitOperand(a, accumulator.unit->a, "a");
  CheckUnitOperand(b, accumulator.unit->b, "b");
}

void CheckFp32(const TensorView& x, const char* name) {
  if (x.dtype != DType::f32) {
    throw Error(std::string("a BLAS takes fp32, got ") + name + " in " + ToString(x.dtype));
  }
}

/// Throws Error unless the accumulator is the arithmetic of a BLAS: products are exact (fma) or
/// rounded to fp32, and sums are sequential and rounded to fp32. All roundings are to nearest-even,
/// and an overflow gives infinity.
void CheckIsFp32(const Accumulator& accumulator) {
  const bool rounds_so = accumulator.rounding.mode == Rounding::nearest_even &&
                         accumulator.rounding.overflow == Overflow::ieee;
  const bool products_fit =
      accumulator.exact_products || accumulator.product.value_or(kFp32) == kFp32;
  if (accumulator.format != kFp32 || accumulator.scheme != Scheme::sequential || !rounds_so ||
      !products_fit) {
    throw Error(
        "a BLAS has one accumulator: fp32, sequential, rounded nearest_even, overflow ieee, "
        "products fp32 or exact; got " +
        ToString(accumulator));
  }
}

// --- scales --------------------------------------------------------------------------------------

std::int64_t parts_of(std::int64_t n, std::int64_t part) {
  return n / part + (n % part != 0 ? 1 : 0);
}

bool IsUnitWithScales(const Accumulator& accumulator) {
  return accumulator.unit && accumulator.unit->scale;
}

/// Returns the finer block of both operands: the number of values of k that share one scale of a
/// and one scale of b.
std::int64_t BlockOf(const OperandScales& a, const OperandScales& b, std::int64_t depth) {
  const std::int64_t of_a = a.scales == nullptr ? 0 : a.block;
  const std::int64_t of_b = b.scales == nullptr ? 0 : b.block;
  if (of_a < 0 || of_b < 0 || a.lines < 0 || b.lines < 0) {
    throw Error("block and lines of scales must be at least 0, got blocks " + std::to_string(of_a) +
                " and " + std::to_string(of_b) + ", lines " + std::to_string(a.lines) + " and " +
                std::to_string(b.lines));
  }
  const std::int64_t finer = of_a == 0 || (of_b != 0 && of_b < of_a) ? of_b : of_a;
  const std::int64_t other = finer == of_a ? of_b : of_a;
  if (finer != 0 && other % finer != 0) {
    throw Error(
        "the blocks along k of a's and b's scales must be equal, or one a multiple of the other, "
        "got " +
        std::to_string(of_a) + " and " + std::to_string(of_b));
  }
  return finer == 0 ? std::max<std::int64_t>(1, depth) : finer;
}

/// One of the two operands of a product a * b. The value determines which of the operand's last two
/// dimensions is k. The other dimension counts the operand's lines: rows of a or columns of b.
enum class Side : std::uint8_t { a, b };

const char* NameOf(Side side) { return side == Side::a ? "a" : "b"; }

void CheckScales(const OperandScales& given, Side side, const TensorView& out, std::int64_t depth) {
  const std::string name = NameOf(side);
  const std::int64_t lines = out.shape[out.rank - (side == Side::a ? 2 : 1)];
  const auto shape = [&](std::int64_t of_lines, std::int64_t of_k) {
    return side == Side::a ? std::array{of_lines, of_k} : std::array{of_k, of_lines};
  };
  if (given.scales != nullptr) {
    CheckGrid(*given.scales, out, (name + "'s scales").c_str(),
              shape(given.lines == 0 ? 1 : parts_of(lines, given.lines),
                    given.block == 0 ? 1 : parts_of(depth, given.block)),
              false);
  }
  if (given.factor != nullptr) {
    CheckGrid(*given.factor, out, (name + "'s factor").c_str(), shape(lines, 1), true);
  }
}

/// Throws Error unless the scales are values of the matrix unit's scale format, in blocks whose
/// size is a multiple of the matrix unit's scale_block.
void CheckUnitScales(const BlockFma& unit, const OperandScales& given, Side side) {
  if (given.scales == nullptr) return;
  const std::string name = NameOf(side);
  if (given.block % unit.scale_block != 0) {
    throw Error("the unit takes scales of " + std::to_string(unit.scale_block) +
                " values of k, got blocks of " + std::to_string(given.block) + " of " + name);
  }
  CheckUnitOperand(*given.scales, *unit.scale, (name + "'s scales").c_str());
}

void CheckScaled(const OperandScales& a, const OperandScales& b, const Accumulator& accumulator,
                 ScalesAt at, const TensorView& out, std::int64_t depth) {
  if (at != ScalesAt::block && at != ScalesAt::epilogue) {
    throw Error("scales_at must be block or epilogue in a product of elements and scales");
  }
  if (out.dtype != DType::f32) {
    throw Error("the product of scaled operands must be fp32, got out in " + ToString(out.dtype));
  }
  Check(accumulator);
  const std::int64_t block = BlockOf(a, b, depth);
  CheckScales(a, Side::a, out, depth);
  CheckScales(b, Side::b, out, depth);
  if (IsUnitWithScales(accumulator)) {
    if (at == ScalesAt::epilogue) {
      throw Error("a unit that takes scales goes with scales_at block, got epilogue");
    }
    CheckUnitScales(*accumulator.unit, a, Side::a);
    CheckUnitScales(*accumulator.unit, b, Side::b);
  } else if (at == ScalesAt::epilogue && block < depth) {
    const auto text = [&](const OperandScales& x) {
      return x.scales == nullptr || x.block == 0 ? "all" : std::to_string(x.block);
    };
    throw Error("scales_at epilogue takes scales that are constant along k, got one for " +
                text(a) + " of a's and " + text(b) + " of b's " + std::to_string(depth) +
                " values of k");
  }
}

GridOfScales GridOf(const TensorView* scales, std::int64_t lines, std::int64_t block, Side side,
                    int batch_rank) {
  if (scales == nullptr) return {};
  GridOfScales grid{OperandOf(*scales, batch_rank), std::max<std::int64_t>(1, lines),
                    std::max<std::int64_t>(1, block)};
  if (side == Side::b) std::swap(grid.at.row_stride, grid.at.column_stride);
  return grid;
}

/// Stores both operands' scales, and their factors (second scales), in the arguments `call` of a
/// product.
void SetScales(const OperandScales& a, const OperandScales& b, const Accumulator& accumulator,
               ScalesAt at, ScaledGemmCall& call) {
  const MatrixProduct& product = call.product;
  ProductScales& scales = call.scales;
  const auto grid = [&](const OperandScales& x, Side side) {
    return GridOf(x.scales, x.lines, x.block, side, product.batch_rank);
  };
  const auto factor = [&](const OperandScales& x, Side side) {
    return GridOf(x.factor, 1, 1, side, product.batch_rank);
  };
  const GridsOfScales given{grid(a, Side::a), grid(b, Side::b)};
  scales.factors = {factor(a, Side::a), factor(b, Side::b)};
  if (IsUnitWithScales(accumulator) || at == ScalesAt::epilogue) {
    (IsUnitWithScales(accumulator) ? scales.in_unit : scales.of_sums) = given;
    scales.sums = 1;
    scales.block = product.depth;
    scales.start = -0.0F;  // -0 + x = x for every x
    return;
  }
  scales.of_sums = given;
  scales.block = BlockOf(a, b, product.depth);
  scales.sums = parts_of(product.depth, scales.block);
  scales.draws = std::max<std::int64_t>(
      0, DrawsOfGemm(accumulator, std::min(scales.block, product.depth)) - 1);
}

// --- calls ---------------------------------------------------------------------------------------

/// Returns the arguments of a product for the backend, without random integers from the caller.
template <class Call>
Call ProductCall(const TensorView& a, const TensorView& b, const TensorView& out,
                 const TensorView* c, Batch batch, const Accumulator& accumulator,
                 const RandomKey& key) {
  const std::int64_t depth = a.shape[a.rank - 1];
  return {MakeProduct(a, b, out, c, batch), AccumulatorPlanOf(accumulator, depth, key),
          KeyOf(accumulator.rounding, key)};
}

/// Stores the caller's random integers in `call`, the arguments of a product.
void Give(const GivenIntegers& integers, GemmCall& call) {
  call.random = integers.draws();
  if (call.random.random == nullptr) return;
  call.plan.sum.first_draw = call.plan.unit.first_draw = 1;  // after c's
}

/// If this thread records what calls would run and computes nothing (cpd.explain), records the
/// product with the kernel that the device's backend names, and returns true. Otherwise returns
/// false.
bool NotesProduct(const GemmCall& call, const TensorView& out) {
  if (!Explains()) return false;
  const bool given = call.random.random != nullptr;
  return Notes(out, Described(out.device).product_path(call.plan, given).kernel);
}

}  // namespace

std::int64_t DrawsOfGemm(const Accumulator& accumulator, std::int64_t depth) {
  Check(accumulator);
  if (accumulator.rounding.mode != Rounding::stochastic) return 0;
  const std::int64_t k = std::max<std::int64_t>(0, depth);
  if (accumulator.scheme == Scheme::block_fma) {
    const std::int64_t promote = accumulator.unit ? accumulator.unit->promote : 0;
    return 1 + (promote > 0 ? (k + promote - 1) / promote : 1);
  }
  return 1 + draws_of_sum(product_order(accumulator), k);
}

namespace {

/// Throws Error unless Gemm can compute a result that is a part of a larger product. `part` is the
/// position of the result in the larger product. `depth`: the number of products that Gemm adds to
/// each sum.
void CheckPart(const Accumulator& accumulator, const TensorView& out, std::int64_t depth,
               const GemmPart& part) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 40;
  if (part.element < 0 || part.element > kMostElements - out.size()) {
    throw Error("a part's elements must be numbers below 2^40, got " +
                std::to_string(part.element) + " and the next");
  }
  if (part.product == 0) return;
  const bool chunked = accumulator.scheme == Scheme::chunked;
  const bool goes_on = accumulator.scheme == Scheme::sequential ||
                       (chunked && part.product % accumulator.chunk == 0);
  if (part.product < 0 || !goes_on) {
    throw Error(
        "only sequential sums go on from any product, chunked ones from a chunk's first, got " +
        ToString(accumulator) + " from product " + std::to_string(part.product));
  }
  const std::int64_t before =
      std::min(part.product, std::numeric_limits<std::int64_t>::max() - depth);
  CheckNumbers(accumulator, out, before + depth, {}, nullptr, 0);
}

}  // namespace

void NotePathOfProduct(const char* function, const Accumulator& accumulator, std::int64_t depth,
                       bool given, const TensorView& out) {
  if (!Explains()) return;
  const AccumulatorPlan plan = AccumulatorPlanOf(accumulator, depth);
  const ProductPath path = Described(out.device).product_path(plan, given);
  NotePath(function, PathOf(accumulator, path.path, path.lanes, given));
}

void QueueProduct(const GemmCall& call, const TensorView& out) {
  if (!NotesProduct(call, out)) QueueOf(out).product(call);
}

void Gemm(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
          const TensorView& out, const TensorView* c, const GemmPart& part, const RandomKey& key) {
  CheckGemm(a, b, accumulator, out, c, key, nullptr);
  const std::int64_t depth = a.shape[a.rank - 1];
  CheckPart(accumulator, out, depth, part);
  NotePathOfProduct("gemm", accumulator, depth, false, out);
  if (out.size() == 0) return;
  CheckUnitOperands(accumulator, a, b);
  auto call = ProductCall<GemmCall>(a, b, out, c, Batch::merged, accumulator, key);
  call.product.first_element = part.element;
  if (part.product > 0) {
    call.plan.sum.first_draw +=
        static_cast<std::uint64_t>(draws_before(product_order(accumulator), part.product));
  }
  QueueProduct(call, out);
}

void Gemm(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
          const TensorView& out, const TensorView* c, const RandomKey& key,
          const TensorView* random) {
  CheckGemm(a, b, accumulator, out, c, key, random);
  NotePathOfProduct("gemm", accumulator, a.shape[a.rank - 1], random != nullptr, out);
  if (out.size() == 0) return;
  CheckUnitOperands(accumulator, a, b);
  auto call = ProductCall<GemmCall>(a, b, out, c, Batch::merged, accumulator, key);
  const GivenIntegers integers(random, DrawsOfGemm(accumulator, call.product.depth));
  Give(integers, call);
  QueueProduct(call, out);
}

std::int64_t DrawsOfGemmScaled(const Accumulator& accumulator, std::int64_t depth,
                               std::int64_t block) {
  const std::int64_t of_all = DrawsOfGemm(accumulator, depth);
  if (of_all == 0 || block <= 0 || block >= depth || IsUnitWithScales(accumulator)) return of_all;
  const std::int64_t rest = depth % block;
  const std::int64_t of_blocks = depth / block * (DrawsOfGemm(accumulator, block) - 1);
  return 1 + of_blocks + (rest == 0 ? 0 : DrawsOfGemm(accumulator, rest) - 1);
}

void GemmScaled(const TensorView& a, const OperandScales& a_scales, const TensorView& b,
                const OperandScales& b_scales, const Accumulator& accumulator, ScalesAt at,
                const TensorView& out, const TensorView* c, const RandomKey& key,
                const TensorView* random) {
  CheckProduct(a, b, out, c);
  const std::int64_t depth = a.shape[a.rank - 1];
  CheckScaled(a_scales, b_scales, accumulator, at, out, depth);
  const std::int64_t block = at == ScalesAt::block ? BlockOf(a_scales, b_scales, depth) : 0;
  const std::int64_t draws = DrawsOfGemmScaled(accumulator, depth, block);
  CheckNumbers(accumulator, out, depth, key, random, draws);
  NotePathOfProduct("gemm_scaled", accumulator, depth, random != nullptr, out);
  if (out.size() == 0) return;
  CheckUnitOperands(accumulator, a, b);

  const bool has_factors = a_scales.factor != nullptr || b_scales.factor != nullptr;
  const bool c_in_unit = IsUnitWithScales(accumulator) && !has_factors;
  auto call = ProductCall<ScaledGemmCall>(a, b, out, c_in_unit ? c : nullptr, Batch::as_given,
                                          accumulator, key);
  SetScales(a_scales, b_scales, accumulator, at, call);
  if (c != nullptr && !c_in_unit) call.scales.c = OperandOf(*c, call.product.batch_rank);
  const GivenIntegers integers(random, draws);
  Give(integers, call);
  if (!NotesProduct(call, out)) QueueOf(out).product_scaled(call);
}

void GemmByBlas(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
                const TensorView& out, const TensorView* c) {
  Check(accumulator);
  CheckIsFp32(accumulator);
  CheckProduct(a, b, out, c);
  CheckFp32(a, "a");
  CheckFp32(b, "b");
  CheckFp32(out, "out");
  if (c != nullptr) CheckFp32(*c, "c");
  if (Explains()) NotePath("gemm", {"blas", "blas=True: the order of summation is the library's"});
  if (out.size() == 0) return;
  if (Notes(out, "cublas")) return;
  const char* error = nullptr;
  QueueOf(out).blas({MakeProduct(a, b, out, c), &error});
  if (error != nullptr) throw MachineError(error);
}

std::string_view CpuBlas() {
  try {
    return blas::Cpu().name();
  } catch (const MachineError&) {
    return {};
  }
}

}  // namespace cpd
