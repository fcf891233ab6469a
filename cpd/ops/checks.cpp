// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/checks.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/base/explaining.h"
#include "cpd/base/plans.h"
#include "cpd/numeric/draws/philox.h"
#include "cpd/ops/call.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// Throws Error unless the mode is stochastic and `random` has type u32 and x's device.
void CheckIntegers(const TensorView& random, const TensorView& x, const RoundingOptions& options) {
  Check(random, "random");
  if (options.mode != Rounding::stochastic) {
    throw Error("random integers are for stochastic rounding, got " + ToString(options.mode));
  }
  if (random.dtype != DType::u32) {
    throw Error("random integers must be uint32, got " + ToString(random.dtype));
  }
  CheckSameDevice(x, random);
}

/// Returns the value of an element of a tensor on the CPU, as text.
std::string TextOf(const TensorView& x, std::int64_t element) {
  if (x.dtype == DType::u32) return std::to_string(*Reader<std::uint32_t>(x).Read(element, 1));
  return std::to_string(*Reader<float>(x).Read(element, 1));
}

/// Throws Error for a faulty element of x. run(queue, first) must lower *first to the index of the
/// first faulty element, if there is one. On another device than the CPU, the device records a
/// fault instead. `must` returns the beginning of the error's text, such as "x must be …". If the
/// call does not wait for the device, the element's value is not known, and `other` replaces it in
/// the text.
template <class Must, class Run>
void CheckElements(const TensorView& x, Must must, const char* other, Run run) {
  if (x.size() == 0 || Explains()) return;
  const Queue queue = QueueOf(x);
  const auto fault = [&](std::int64_t element) {
    const std::string got = element < 0 ? other : TextOf(x, element);
    return Fault{must() + ", got " + got + " at element ", ""};
  };
  RunChecked(queue, fault, [&](unsigned long long* first) { run(queue, first); });
}

/// Throws Error unless all integers are below 2^random_bits.
void CheckRange(const TensorView& random, int random_bits) {
  const std::uint32_t limit = 1U << random_bits;
  const auto must = [&] {
    return "random integers must be below 2^random_bits = " + std::to_string(limit);
  };
  CheckElements(random, must, "a greater one", [&](const Queue& queue, unsigned long long* first) {
    queue.first_above({random.size(), Merge(random), limit, first});
  });
}

template <class Must>
void CheckValues(const TensorView& x, const Format& format, bool negative, Must must) {
  CheckElements(x, must, "another", [&](const Queue& queue, unsigned long long* first) {
    queue.first_outside({x.size(), Merge(x), PlanOf(format), negative, first});
  });
}

std::string ShapeOf(const TensorView& x, const char* name) {
  std::string text = std::string(name) + " (";
  for (int d = 0; d < x.rank; ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(x.shape[static_cast<std::size_t>(d)]);
  }
  return text + ")";
}

std::string Shapes(const TensorView& a, const TensorView& b, const TensorView& out) {
  return "got " + ShapeOf(a, "a") + ", " + ShapeOf(b, "b") + ", " + ShapeOf(out, "out");
}

void CheckMatrixType(const TensorView& x, const char* name) {
  Check(x, name);
  if (!IsFloat(x.dtype) || x.dtype == DType::f64) {
    throw Error(std::string(name) + " must be fp32, bf16 or fp16, got " + ToString(x.dtype));
  }
}

/// Returns the extent of the dimension that is `from_end` before the last; 1 if x has no such
/// dimension.
std::int64_t Extent(const TensorView& x, int from_end) {
  return from_end < x.rank ? x.shape[static_cast<std::size_t>(x.rank - 1 - from_end)] : 1;
}

/// Returns whether x's dimensions broadcast to out's, except the last `first` dimensions.
bool Broadcasts(const TensorView& x, const TensorView& out, int first) {
  bool fits = x.rank <= out.rank;
  for (int d = first; d < x.rank; ++d) {
    fits = fits && (Extent(x, d) == 1 || Extent(x, d) == Extent(out, d));
  }
  return fits;
}

struct Bytes {
  const std::uint8_t* begin;
  const std::uint8_t* end;
};

/// Returns the range of memory from x's lowest element to the end of its highest.
Bytes BytesOf(const TensorView& x) {
  const auto size = static_cast<std::int64_t>(SizeOf(x.dtype));
  const auto* data = static_cast<const std::uint8_t*>(x.data);
  if (x.size() == 0) return {data, data};
  std::int64_t low = 0;
  std::int64_t high = size;
  for (std::size_t d = 0; d < static_cast<std::size_t>(x.rank); ++d) {
    const std::int64_t reach = (x.shape[d] - 1) * x.stride[d] * size;
    (reach < 0 ? low : high) += reach;
  }
  return {data + low, data + high};
}

void CheckApart(const TensorView& x, const TensorView& out, const char* name) {
  const Bytes input = BytesOf(x);
  const Bytes output = BytesOf(out);
  if (input.begin < output.end && output.begin < input.end) {
    throw Error("out must lie apart from " + std::string(name) + ", but their memory overlaps");
  }
}

void CheckOwnElements(const TensorView& out) {
  if (out.size() == 0) return;
  for (int d = 0; d < out.rank; ++d) {
    const auto at = static_cast<std::size_t>(d);
    if (out.shape[at] > 1 && out.stride[at] == 0) {
      throw Error("out's elements must lie apart, but its stride along dimension " +
                  std::to_string(d) + " is 0");
    }
  }
}

}  // namespace

void CheckRandom(const TensorView* random, const TensorView& x, const RoundingOptions& options,
                 const RandomKey& key) {
  Check(options);
  CheckKey(key, x);
  if (random == nullptr) return;
  CheckIntegers(*random, x, options);
  CheckSameShape(x, *random, "x and random");
  CheckRange(*random, options.random_bits);
}

void CheckKey(const RandomKey& key, const TensorView& x) { Check(key, !x.on_host()); }

void CheckDraws(const TensorView* random, const TensorView& out, std::int64_t draws,
                const RoundingOptions& options) {
  if (random == nullptr) return;
  CheckIntegers(*random, out, options);
  if (out.rank == TensorView::kMaxRank) {
    throw Error("a result with random integers must have at most " +
                std::to_string(TensorView::kMaxRank - 1) + " dimensions, got " +
                std::to_string(out.rank));
  }
  TensorView all = out;
  all.shape[all.rank++] = draws;
  CheckSameShape(all, *random, "out's shape with the number of draws, and random");
  CheckRange(*random, options.random_bits);
}

void CheckFloat(const TensorView& x, const char* name) {
  Check(x, name);
  if (!IsFloat(x.dtype)) {
    throw Error(std::string(name) + " must be fp32, fp64, bf16 or fp16, got " + ToString(x.dtype));
  }
}

std::string PlaceOf(const TensorView& x) { return "on " + (x.on_host() ? "the CPU" : NameOf(x)); }

void Check(OnCpuAlone operation, const TensorView& x) {
  if (x.on_host()) return;
  constexpr std::array kNames = {
      "casts for products in bf16", "convolutions", "flags", "random integers by themselves",
      "quotients and square roots of fp64 and formats wider than binary32"};
  throw Error(std::string(kNames.at(static_cast<std::size_t>(operation))) +
              " are for tensors on the CPU, got one " + PlaceOf(x) + ": copy it to the CPU");
}

bool IsTogether(const TensorView& x, const TensorView& y) {
  return x.device == y.device && (x.on_host() || x.device_index == y.device_index);
}

void CheckSameDevice(const TensorView& a, const TensorView& b) {
  if (IsTogether(a, b)) return;
  throw Error("all tensors must be on one device, got one " + PlaceOf(a) + ", one " + PlaceOf(b));
}

void CheckOperands(const Operands& in) {
  CheckFloat(in.x, "x");
  const auto check = [&](const TensorView* other, const char* name, const char* both) {
    if (other == nullptr) return;
    CheckFloat(*other, name);
    CheckSameShape(in.x, *other, both);
    CheckSameDevice(in.x, *other);
  };
  check(in.y, "y", "x and y");
  check(in.z, "z", "x and z");
}

void CheckProduct(const TensorView& a, const TensorView& b, const TensorView& out,
                  const TensorView* c) {
  CheckMatrixType(a, "a");
  CheckMatrixType(b, "b");
  CheckMatrixType(out, "out");
  if (c != nullptr) CheckMatrixType(*c, "c");
  if (a.rank < 2 || b.rank < 2 || out.rank < 2) {
    throw Error("matrices have at least two dimensions, " + Shapes(a, b, out));
  }
  if (Extent(a, 0) != Extent(b, 1) || Extent(a, 1) != Extent(out, 1) ||
      Extent(b, 0) != Extent(out, 0)) {
    throw Error("a must be … x M x K, b … x K x N and out … x M x N, " + Shapes(a, b, out));
  }
  const bool a_fits = Broadcasts(a, out, 2);
  const bool b_fits = Broadcasts(b, out, 2);
  if (!a_fits || !b_fits) {
    throw Error("the dimensions of a and b before the last two must broadcast to out's, " +
                Shapes(a, b, out));
  }
  if (c != nullptr && !Broadcasts(*c, out, 0)) {
    throw Error("c must broadcast to out, got " + ShapeOf(*c, "c") + " and " + ShapeOf(out, "out"));
  }
  CheckSameDevice(a, b);
  CheckSameDevice(a, out);
  if (c != nullptr) CheckSameDevice(a, *c);
  CheckOwnElements(out);
  CheckApart(a, out, "a");
  CheckApart(b, out, "b");
  if (c != nullptr) CheckApart(*c, out, "c");
}

void CheckNumbers(const Accumulator& accumulator, const TensorView& out, std::int64_t depth,
                  const RandomKey& key, const TensorView* random, std::int64_t draws) {
  CheckKey(key, out);
  CheckDraws(random, out, draws, accumulator.rounding);
  if (accumulator.rounding.mode != Rounding::stochastic) return;
  if (out.size() > std::int64_t{1} << 40) {
    throw Error("stochastic rounding numbers at most 2^40 elements, got " +
                std::to_string(out.size()));
  }
  // Block numbers of Philox have 24 bits, so an element has a limited number of random integers. A
  // value of k takes up to six: five for a product, and one more at the end of a chunk.
  const auto per_block = static_cast<std::int64_t>(first_draw(accumulator.rounding));
  const std::int64_t most = ((std::int64_t{1} << 24) - 2) * per_block / 6;
  if (depth > most) {
    throw Error("a stochastic product takes at most " + std::to_string(most) +
                " values of k with these options, got " + std::to_string(depth));
  }
}

Outside FindOutside(const TensorView& x, const Format& format) {
  if (Explains() || x.size() == 0 || format == kFp32) return {};
  unsigned long long first = kNoFault;
  Queue(x).first_outside({x.size(), Merge(x), PlanOf(format), true, &first});
  if (first == kNoFault) return {};
  const auto element = static_cast<std::int64_t>(first);
  return {element, *Reader<float>(x).Read(element, 1)};
}

void ThrowOutside(const Outside& found, const Format& format, const char* name) {
  throw Error(std::string(name) + " must hold values of " + ToString(format) + ", got " +
              std::to_string(found.value) + " at element " + std::to_string(found.element));
}

void CheckUnitOperand(const TensorView& x, const Format& format, const char* name) {
  if (format == kFp32) return;
  CheckValues(x, format, true,
              [&] { return std::string(name) + " must hold values of " + ToString(format); });
}

void CheckScales(const TensorView& x, const Format& format, const char* name) {
  CheckValues(x, format, false, [&] {
    return std::string(name) + " must be numbers of " + ToString(format) + ", none negative";
  });
}

void CheckGrid(const TensorView& x, const TensorView& out, const char* name,
               const std::array<std::int64_t, 2>& shape, bool broadcasts) {
  Check(x, name);
  if (x.dtype != DType::f32) {
    throw Error(std::string(name) + " must be fp32, got " + ToString(x.dtype));
  }
  bool fits = (broadcasts || x.rank >= 2) && Broadcasts(x, out, 2);
  for (int d = 0; d < 2; ++d) {
    const std::int64_t extent = Extent(x, 1 - d);
    fits = fits && (extent == shape[static_cast<std::size_t>(d)] || (broadcasts && extent == 1));
  }
  if (!fits) {
    throw Error(std::string(name) + (broadcasts ? " must broadcast to … x " : " must be … x ") +
                std::to_string(shape[0]) + " x " + std::to_string(shape[1]) + ", got " +
                ShapeOf(x, name) + " and " + ShapeOf(out, "out"));
  }
  CheckSameDevice(x, out);
  CheckApart(x, out, name);
}

}  // namespace cpd
