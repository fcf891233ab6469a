// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/gemm.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cpd/backend/cuda.h"
#include "cpd/backend/roster.h"
#include "cpd/base/guarded.h"
#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/base/product.h"
#include "cpd/numeric/error.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/elementwise.h"
#include "cpd/ops/operands.h"

namespace cpd {
namespace {

constexpr std::int64_t kMostRows = 512;     ///< of a task's block of sums
constexpr std::int64_t kMostColumns = 512;  ///< the same
constexpr std::int64_t kMostDepth = 128;    ///< values of k packed at once
constexpr std::int64_t kBand = 128;         ///< rows between two questions whether to go on
constexpr std::int64_t kSerialWork = std::int64_t{1}
                                     << 17;  ///< products that one thread does alone

std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// --- memory --------------------------------------------------------------------------------------

/// Element (row, column) of matrix number `batch` of an operand, and what follows it.
TensorView Part(const MatrixProduct& product, const ProductOperand& x, std::int64_t batch,
                std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
  std::int64_t offset = row * x.row_stride + column * x.column_stride;
  for (int d = product.batch_rank - 1; d >= 0; --d) {
    const auto at = static_cast<std::size_t>(d);
    offset += batch % product.batch_shape[at] * x.batch_stride[at];
    batch /= product.batch_shape[at];
  }
  TensorView view;
  view.data =
      static_cast<std::uint8_t*>(x.data) + offset * static_cast<std::int64_t>(SizeOf(x.dtype));
  view.dtype = x.dtype;
  view.rank = 2;
  view.shape = {rows, columns};
  view.stride = {x.row_stride, x.column_stride};
  return view;
}

/// What a thread works in, kept from call to call: fresh memory would be cleared by the system.
struct Buffers {
  std::vector<float> a, b, state, outer;
  std::vector<PanelRange> a_ranges, b_ranges;
  std::vector<std::int32_t> a_logs, b_logs;
};
thread_local Buffers g_buffers;
constexpr std::size_t kMostKept = std::size_t{4} << 20;  ///< floats

/// At least n elements; their values do not matter.
template <class T>
T* Sized(std::vector<T>& buffer, std::int64_t n) {
  if (buffer.size() < static_cast<std::size_t>(n)) buffer.resize(static_cast<std::size_t>(n));
  return buffer.data();
}

/// An operand's packed panels and their ranges (GemmBlock).
class Panels {
 public:
  Panels(std::int64_t lines, std::int64_t depth, int width, std::vector<float>& packed,
         std::vector<PanelRange>& ranges, std::vector<std::int32_t>* logs)
      : width_(width),
        packed_(Sized(packed, round_up(lines, width) * depth)),
        ranges_(Sized(ranges,
                      round_up(lines, width) / width * ((depth + kRangeGroup - 1) / kRangeGroup))),
        logs_(logs == nullptr ? nullptr : Sized(*logs, round_up(lines, width) * depth)) {}

  /// x: lines x k, or, with `across`, k x lines.
  void Pack(const TensorView& x, bool across, bool last_bits) {
    const int line = across ? 1 : 0;
    const std::int64_t lines = x.shape[line];
    const std::int64_t count = x.shape[1 - line];
    if (x.dtype == DType::f32) {
      return Kernels().pack(lines, count, static_cast<const float*>(x.data), x.stride[line],
                            x.stride[1 - line], width_, last_bits, packed_, ranges_, logs_);
    }
    const float* values = Widen(x);
    Kernels().pack(lines, count, values, across ? 1 : count, across ? lines : 1, width_, last_bits,
                   packed_, ranges_, logs_);
  }
  [[nodiscard]] const float* packed() const { return packed_; }
  [[nodiscard]] const PanelRange* ranges() const { return ranges_; }
  [[nodiscard]] const std::int32_t* logs() const { return logs_; }

 private:
  /// A 16-bit tensor's elements, row by row, in binary32.
  const float* Widen(const TensorView& x) {
    const std::int64_t n = x.size();
    wide_.resize(static_cast<std::size_t>(n));
    Reader<float> reader(x);
    for (std::int64_t i = 0; i < n; i += kStage) {
      const std::int64_t count = std::min(kStage, n - i);
      std::copy_n(reader.Read(i, count), count, wide_.data() + i);
    }
    return wide_.data();
  }

  int width_;
  float* packed_;
  PanelRange* ranges_;
  std::int32_t* logs_;
  std::vector<float> wide_;
};

/// Adds term number k to n sums; `index` is the first one's element number, `given` its draws. The
/// kernel's ranges end where bits 32 and up of the index change.
void Fold(const FoldPlan& plan, std::int64_t k, std::uint64_t index, std::int64_t n,
          const float* terms, float* sum, GivenDraws given) {
  while (n > 0) {
    const std::uint64_t left = (std::uint64_t{1} << 32) - (index & 0xFFFFFFFFU);
    const auto count = static_cast<std::int64_t>(std::min<std::uint64_t>(left, n));
    Kernels().fold(plan, k == 0, k, static_cast<std::int64_t>(index), count, 1, &terms, sum,
                   nullptr, given);
    index += left;
    given = given.from(count);
    n -= count;
    terms += count;
    sum += count;
  }
}

/// How many values of k are packed at once: whole groups, pairs and blocks.
std::int64_t DepthStep(const AccumulatorPlan& plan) {
  if (plan.scheme != Scheme::block_fma) return kMostDepth;
  return kMostDepth / plan.unit.block * plan.unit.block;
}

// --- one task ------------------------------------------------------------------------------------

/// A block of sums of one matrix of the batch: everything a thread needs for it.
struct Task {
  std::int64_t batch, row, rows, column, columns;
};

/// One thread's buffers, and the computation of its tasks.
class Worker {
 public:
  /// given: the draws of the result's first element and those after it.
  Worker(const MatrixProduct& product, const AccumulatorPlan& plan, GivenDraws given,
         std::int64_t rows, std::int64_t columns)
      : buffers_(std::exchange(g_buffers, {})),
        product_(product),
        plan_(plan),
        given_(given),
        state_columns_(round_up(columns, Kernels().gemm_columns)),
        plane_(round_up(rows, Kernels().gemm_rows) * state_columns_),
        depth_(std::min(product.depth, DepthStep(plan))),
        a_(rows, depth_, Kernels().gemm_rows, buffers_.a, buffers_.a_ranges,
           LogsFor(plan, buffers_.a_logs)),
        b_(columns, depth_, Kernels().gemm_columns, buffers_.b, buffers_.b_ranges,
           LogsFor(plan, buffers_.b_logs)),
        state_(Sized(buffers_.state, plane_ * plan.planes)),
        outer_(Sized(buffers_.outer, plan.chunk > 0 ? plane_ : 0)),
        row_(static_cast<std::size_t>(state_columns_)) {}
  ~Worker() {
    if (buffers_.state.size() > kMostKept) buffers_.state = {};
    if (buffers_.outer.size() > kMostKept) buffers_.outer = {};
    g_buffers = std::move(buffers_);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Run(const Task& task) {
    task_ = task;
    std::fill_n(state_, plane_ * plan_.planes, 0.0F);
    if (plan_.chunk > 0) std::fill_n(outer_, plane_, 0.0F);
    if (plan_.chunk > 0) {
      Start(outer_);
      AddChunks();
      Store(outer_);
    } else {
      Start(state_);
      AddProducts(plan_.sum, 0, product_.depth);
      Store(state_);
    }
  }

 private:
  static std::vector<std::int32_t>* LogsFor(const AccumulatorPlan& plan,
                                            std::vector<std::int32_t>& logs) {
    return plan.scheme != Scheme::block_fma && takes_logs(plan.sum.split) ? &logs : nullptr;
  }
  [[nodiscard]] std::uint64_t IndexOf(std::int64_t row) const {
    return static_cast<std::uint64_t>(
        ((task_.batch * product_.rows + task_.row + row) * product_.columns) + task_.column);
  }

  [[nodiscard]] GivenDraws GivenAt(std::uint64_t index) const {
    return given_.from(static_cast<std::int64_t>(index));
  }

  /// The sums before the first product: c, rounded, or +0.
  void Start(float* sums) {
    const bool given = product_.c.data != nullptr;
    if (!given && plan_.first.round.has_zero) return;  // the buffers hold +0
    const TensorView c = given ? Part(product_, product_.c, task_.batch, task_.row, task_.rows,
                                      task_.column, task_.columns)
                               : TensorView{};
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      for (std::int64_t j = 0; j < task_.columns; j += kStage) {
        const std::int64_t n = std::min(kStage, task_.columns - j);
        const TensorView part = given ? RowOf(c, i, j, n) : TensorView{};
        Reader<float> reader(part);
        const float* terms = given ? reader.Read(0, n) : row_.data() + j;
        const std::uint64_t index = IndexOf(i) + static_cast<std::uint64_t>(j);
        Fold(plan_.first, 0, index, n, terms, sums + i * state_columns_ + j, GivenAt(index));
      }
    }
  }

  static TensorView RowOf(const TensorView& x, std::int64_t row, std::int64_t column,
                          std::int64_t n) {
    TensorView part = x;
    part.data = static_cast<std::uint8_t*>(x.data) + (row * x.stride[0] + column * x.stride[1]) *
                                                         static_cast<std::int64_t>(SizeOf(x.dtype));
    part.rank = 1;
    part.shape[0] = n;
    part.stride[0] = x.stride[1];
    return part;
  }

  /// The chunks one after the other, each from +0, each added to the outer sums.
  void AddChunks() {
    GemmPlan plan = plan_.sum;
    const std::uint64_t first_draw = plan.first_draw;
    for (std::int64_t k = 0; k < product_.depth; k += plan_.chunk) {
      const std::int64_t end = std::min(product_.depth, k + plan_.chunk);
      const auto number = static_cast<std::uint64_t>(k / plan_.chunk);
      plan.first_draw = first_draw + number;
      std::fill_n(state_, plane_, 0.0F);
      AddProducts(plan, k, end);
      const auto draw = static_cast<std::int64_t>(plan.first_draw + draws_before(plan, end));
      for (std::int64_t i = 0; i < task_.rows; ++i) {
        Fold(plan_.outer, draw, IndexOf(i), task_.columns, state_ + i * state_columns_,
             outer_ + i * state_columns_, GivenAt(IndexOf(i)));
      }
    }
  }

  /// Products of k = begin … end - 1. A unit's sum of none ends as any other: its kernel rounds it
  /// into the accumulator's format.
  void AddProducts(const GemmPlan& plan, std::int64_t begin, std::int64_t end) {
    GemmBlock block;
    block.rows = task_.rows;
    block.columns = task_.columns;
    block.a = a_.packed();
    block.b = b_.packed();
    block.a_range = a_.ranges();
    block.b_range = b_.ranges();
    block.a_logs = a_.logs();
    block.b_logs = b_.logs();
    block.state = state_;
    block.plane = plane_;
    block.state_columns = state_columns_;
    block.index = IndexOf(0);
    block.index_row = static_cast<std::uint64_t>(product_.columns);
    block.given = GivenAt(block.index);
    if (begin == end && plan_.scheme == Scheme::block_fma) {
      block.last = true;
      return Kernels().block_fma(plan_.unit, block);
    }
    for (std::int64_t k = begin; k < end; k += depth_) {
      block.first_k = k;
      block.count = std::min(depth_, end - k);
      block.last = k + block.count == end;
      a_.Pack(Part(product_, product_.a, task_.batch, task_.row, task_.rows, k, block.count), false,
              plan.exact_products);
      b_.Pack(Part(product_, product_.b, task_.batch, k, block.count, task_.column, task_.columns),
              true, plan.exact_products);
      AddBlock(plan, block);
    }
  }

  /// The products of a block, some rows at a time.
  void AddBlock(const GemmPlan& plan, const GemmBlock& block) const {
    const std::int64_t groups = (block.count + kRangeGroup - 1) / kRangeGroup;
    for (std::int64_t row = 0; row < block.rows; row += kBand) {
      CheckInterrupt();
      GemmBlock band = block;
      band.rows = std::min(kBand, block.rows - row);
      band.a += row * block.count;
      band.a_range += row / Kernels().gemm_rows * groups;
      if (band.a_logs != nullptr) band.a_logs += row * block.count;
      band.state += row * block.state_columns;
      band.index += static_cast<std::uint64_t>(row) * block.index_row;
      if (plan_.scheme == Scheme::block_fma) {
        Kernels().block_fma(plan_.unit, band);
      } else {
        Kernels().gemm(plan, band);
      }
    }
  }

  void Store(const float* sums) {
    const TensorView out = Part(product_, product_.out, task_.batch, task_.row, task_.rows,
                                task_.column, task_.columns);
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      for (std::int64_t j = 0; j < task_.columns; j += kStage) {
        const std::int64_t n = std::min(kStage, task_.columns - j);
        const TensorView part = RowOf(out, i, j, n);
        Writer<float> writer(part);
        std::copy_n(sums + i * state_columns_ + j, n, writer.Target(0, n));
        writer.Flush(0, n);
      }
    }
  }

  Buffers buffers_;  ///< the thread's: a signal's handler that multiplies has others
  const MatrixProduct& product_;
  const AccumulatorPlan& plan_;
  GivenDraws given_;
  std::int64_t state_columns_, plane_, depth_;
  Panels a_, b_;
  float* state_;
  float* outer_;
  std::vector<float> row_;  ///< zeros
  Task task_{};
};

// --- checks --------------------------------------------------------------------------------------

void CheckGemm(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
               const TensorView& out, const TensorView* c, const TensorView* random) {
  CheckProduct(a, b, out, c);
  Check(accumulator, out.device == Device::cuda);
  CheckCarrier(out.dtype, accumulator.format);
  const std::int64_t depth = a.shape[a.rank - 1];
  if (random != nullptr && out.device != Device::cpu) {
    throw Error("random integers are for products on the CPU; a GPU's take seed and stream");
  }
  CheckDraws(random, out, DrawsOfGemm(accumulator, depth), accumulator.rounding);
  if (accumulator.rounding.mode != Rounding::stochastic) return;
  if (out.size() > std::int64_t{1} << 40) {
    throw Error("stochastic rounding numbers at most 2^40 elements, got " +
                std::to_string(out.size()));
  }
  // Block numbers have 24 bits; a product takes at most five draws and, over a chunk, one more.
  const auto per_block = static_cast<std::int64_t>(first_draw(accumulator.rounding));
  const std::int64_t most = ((std::int64_t{1} << 24) - 2) * per_block / 6;
  if (depth > most) {
    throw Error("a stochastic product takes at most " + std::to_string(most) +
                " values of k with these options, got " + std::to_string(depth));
  }
}

/// Throws Error unless all of x are values of `format`: what a unit's rule supposes.
void CheckOperands(const TensorView& x, const Format& format, const char* name) {
  Reader<float> reader(x);
  for (std::int64_t i = 0; i < x.size(); i += kStage) {
    const std::int64_t n = std::min(kStage, x.size() - i);
    const float* values = reader.Read(i, n);
    const std::int64_t found = FirstOutside(Kernels(), format, n, values);
    if (i / kStage % 64 == 63) CheckInterrupt();
    if (found < 0) continue;
    throw Error(std::string(name) + " must hold values of " + ToString(format) + ", got " +
                std::to_string(values[found]) + " at element " + std::to_string(i + found));
  }
}

}  // namespace

std::int64_t DrawsOfGemm(const Accumulator& accumulator, std::int64_t depth) {
  Check(accumulator, true);  // wherever the product runs
  if (accumulator.rounding.mode != Rounding::stochastic) return 0;
  const std::int64_t k = std::max<std::int64_t>(0, depth);
  if (accumulator.scheme == Scheme::block_fma) {
    const std::int64_t promote = accumulator.unit ? accumulator.unit->promote : 0;
    return 1 + (promote > 0 ? (k + promote - 1) / promote : 1);
  }
  const std::int64_t products = accumulator.exact_products ? 0 : k;
  const std::int64_t sums = accumulator.scheme == Scheme::kahan ? 4 * k : k;
  const bool chunked = accumulator.scheme == Scheme::chunked;
  const std::int64_t chunks = chunked ? (k + accumulator.chunk - 1) / accumulator.chunk : 0;
  return 1 + products + sums + chunks;
}

void Gemm(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
          const TensorView& out, const TensorView* c, const TensorView* random) {
  CheckGemm(a, b, accumulator, out, c, random);
  if (out.size() == 0) return;
  if (out.device == Device::cuda) return cuda::Gemm(a, b, accumulator, out, c);

  if (accumulator.unit) {
    Guarded([&] {
      CheckOperands(a, accumulator.unit->a, "a");
      CheckOperands(b, accumulator.unit->b, "b");
    });
  }
  const MatrixProduct product = MakeProduct(a, b, out, c);
  AccumulatorPlan plan = AccumulatorPlanOf(accumulator, product.depth);
  const GivenIntegers integers(random, DrawsOfGemm(accumulator, product.depth));
  if (random != nullptr) plan.sum.first_draw = 1;  // behind c's
  const std::int64_t batch = product.batch();
  std::int64_t rows = std::min(product.rows, kMostRows);
  std::int64_t columns = std::min(product.columns, kMostColumns);
  const auto tasks = [&] {
    return batch * ((product.rows + rows - 1) / rows) * ((product.columns + columns - 1) / columns);
  };
  const int threads = MaxThreads();
  const int enough = threads == 1 ? 1 : 2 * threads;
  while (tasks() < enough && rows > 4 * Kernels().gemm_rows) rows = round_up(rows / 2, 8);
  while (tasks() < enough && columns > 4 * Kernels().gemm_columns) {
    columns = round_up(columns / 2, 32);
  }
  const std::int64_t across = (product.columns + columns - 1) / columns;
  const std::int64_t down = (product.rows + rows - 1) / rows;
  const bool small = product.depth < (kSerialWork - 1) / out.size();
  parallel_for(tasks(), 1, small ? tasks() : 0, [&](std::int64_t begin, std::int64_t end) {
    Worker worker(product, plan, integers.draws(), rows, columns);
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t row = t / across % down * rows;
      const std::int64_t column = t % across * columns;
      worker.Run({t / across / down, row, std::min(rows, product.rows - row), column,
                  std::min(columns, product.columns - column)});
    }
  });
}

}  // namespace cpd
