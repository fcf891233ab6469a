// SPDX-License-Identifier: Apache-2.0
//
// Sums over a dimension.
#include <algorithm>
#include <array>
#include <vector>

#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/cpu/spans.h"
#include "cpd/backend/explain.h"
#include "cpd/base/interrupt.h"

namespace cpd::cpu {
namespace {

/// Reads the terms of several sums, many terms at a time. If terms are not contiguous from sum to
/// sum, copies them to a buffer that is small enough to stay in cache.
template <class T>
class Terms {
 public:
  static constexpr std::int64_t kMost = 64;

  explicit Terms(const SumCall& call)
      : first_(static_cast<std::uint8_t*>(call.x.data)),
        step_(call.step * static_cast<std::int64_t>(SizeOf(call.x.dtype))),
        reader_(call.x) {
    if (reader_.is_direct()) return;
    copies_.resize(kMost * kRow);
    const bool along = call.step == 1 && SizeOf(call.x.dtype) == sizeof(T);
    if (along && call.x.rank == 1) row_stride_ = call.x.stride[0];
  }
  Terms(const Terms&) = delete;
  Terms& operator=(const Terms&) = delete;

  /// Returns the number of elements (sums) whose terms are read together.
  [[nodiscard]] std::int64_t elements() const { return copies_.empty() ? kStage : kBlock; }
  /// Returns terms k … k + count - 1 of elements i … i + n - 1, valid until the next call.
  const T* const* Read(std::int64_t k, std::int64_t count, std::int64_t i, std::int64_t n) {
    for (std::int64_t j = 0; j < count; ++j) {
      terms_[static_cast<std::size_t>(j)] = copies_.data() + j * kRow;
    }
    if (row_stride_ != 0) {
      Transpose(k, count, i, n);
      return terms_.data();
    }
    for (std::int64_t j = 0; j < count; ++j) {
      reader_.Move(first_ + (k + j) * step_);
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
  /// The distance between copied terms. Distances that are multiples of a power of two would share
  /// cache sets.
  static constexpr std::int64_t kRow = kBlock + 16;

  void Transpose(std::int64_t k, std::int64_t count, std::int64_t i, std::int64_t n) {
    const T* row = reinterpret_cast<const T*>(first_) + i * row_stride_ + k;
    for (std::int64_t e = 0; e < n; ++e, row += row_stride_) {
      T* to = copies_.data() + e;
      for (std::int64_t j = 0; j < count; ++j, to += kRow) *to = row[j];
    }
  }

  std::uint8_t* first_;
  std::int64_t step_;  ///< bytes from term to term
  Reader<T> reader_;
  std::int64_t row_stride_ = 0;  ///< between elements with contiguous terms; else 0
  std::vector<T> copies_;
  std::array<const T*, kMost> terms_{};
};

template <class T>
void Sum(const SumCall& call) {
  const SumOrder& order = call.plan.order;
  const auto planes = static_cast<std::size_t>(planes_of_sum(order.scheme, call.terms));
  if (Explains()) NoteKernel("fold");
  parallel_for(call.n, kBlock, SerialBelow(call.terms), [&](std::int64_t begin, std::int64_t end) {
    const PlansOfSum plans{call.plan};
    Writer<T> writer(call.out);
    Terms<T> all(call);
    std::vector<T> state(planes * static_cast<std::size_t>(kStage));
    ForRanges(begin, end, all.elements(), [&](std::int64_t i, std::int64_t n) {
      const FoldStateOf<T> sums{state.data(), kStage, call.random.from(i)};
      for (std::int64_t k = 0; k < call.terms; k += Terms<T>::kMost) {
        CheckInterrupt();
        const std::int64_t count = std::min(Terms<T>::kMost, call.terms - k);
        FoldSpans spans(plans, i, n, all.Read(k, count, i, n), sums);
        SumWalk(order, k).take(spans, count);
      }
      FoldSpans<T, const PlansOfSum> spans(plans, i, n, nullptr, sums);
      if (call.terms > 0) {
        SumWalk(order, call.terms).end(spans);
      } else {
        RoundInPlace(call.empty, i, n, state.data());
      }
      std::copy_n(state.data(), n, writer.Target(i, n));
      writer.Flush(i, n);
    });
  });
}

}  // namespace

int sum(const Launch& /*launch*/, const SumCall& call) {
  call.x.dtype == DType::f64 ? Sum<double>(call) : Sum<float>(call);
  return 0;
}

}  // namespace cpd::cpu
