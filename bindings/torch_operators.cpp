// SPDX-License-Identifier: Apache-2.0
//
// libcpd_torch: registers the operators torch.ops.cpd.*, one for each row of the table. Uses
// torch's stable ABI (TORCH_TARGET_VERSION 2.11), so that one library supports CPU and CUDA builds
// of torch from 2.11 on. Converts tensors to TensorViews and calls the library; contains no
// arithmetic. Fake kernels, derivatives and batching rules are in python/cpd/_torch/table.py. In
// Python, cpd::Error (a std::invalid_argument) becomes ValueError, cpd::MachineError RuntimeError,
// and cpd::NoMemory MemoryError.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cpd/backend/cpu/product_bf16.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/exact.h"
#include "cpd/ops/flagged.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/hadamard.h"
#include "cpd/spec/error.h"
#include "torch_call.h"

namespace cpd {
namespace {

// ---- elements ----

constexpr auto kCast =
    static_cast<void (*)(const TensorView&, const Format&, const RoundingOptions&,
                         const TensorView&, const RandomKey&, const TensorView*)>(&Cast);

/// Returns an uninitialized tensor of x's shape and type in row-major order.
Tensor EmptyRowMajor(const Tensor& x) { return Empty(x, SizesOf(x), x.scalar_type()); }

/// Returns the exception flags of an operation. A separate operator returns the operation's values.
Tensor FlagsNew(const Tensor& x, const OptionalTensor& y, const OptionalTensor& z,
                const Text& operation, const ElementCast& cast, const Text& tininess) {
  const OnDeviceOf guard(x);
  const auto [to, key] = cast.On(x);
  const OptionalView second = Input(y), third = Input(z);
  const Tensor flags = Empty(x, SizesOf(x), ScalarType::Byte);
  Flags(soft::ParseOperation(operation.view()), {Input(x), second, third}, to.format, to.rounding,
        soft::ParseTininess(tininess.view()), Output(flags), key, Input(cast.random));
  return flags;
}

Tensor EncodeNew(const Tensor& x, const ElementCast& cast) {
  const OnDeviceOf guard(x);
  const auto [to, key] = cast.On(x);
  const Tensor packed = EmptyCodes(x, to.format, x.numel());
  Encode(Input(x), to.format, to.rounding, Output(packed), key, Input(cast.random));
  return packed;
}

void DecodeInto(const Tensor& codes, const Text& format, const Tensor& out) {
  const OnDeviceOf guard(codes);
  Decode(Input(codes), Parsed<ParsePlainCast>(format).format, Output(out));
}

Tensor DecodeNew(const Tensor& codes, const Text& format, const std::vector<std::int64_t>& shape,
                 ScalarType dtype) {
  const Tensor out = Empty(codes, shape, dtype);
  DecodeInto(codes, format, out);
  return out;
}

void HadamardInto(const Tensor& x, const Text& transform, std::int64_t axis, bool inverse,
                  const Tensor& out) {
  const OnDeviceOf guard(x);
  if (axis < 0 || axis >= x.dim()) {
    throw Error("axis must be 0…" + std::to_string(x.dim() - 1) + ", got " + std::to_string(axis));
  }
  Transform(Input(x), Parsed<ParseHadamard>(transform), static_cast<int>(axis), inverse,
            Output(out));
}

Tensor HadamardNew(const Tensor& x, const Text& transform, std::int64_t axis, bool inverse) {
  const Tensor out = EmptyLike(x);
  HadamardInto(x, transform, axis, inverse, out);
  return out;
}

// ---- sums and products ----

/// Returns x's shape without dimension `dim`.
std::vector<std::int64_t> SumShape(const Tensor& x, std::int64_t dim) {
  if (dim < 0 || dim >= x.dim()) {
    throw Error("dim must be 0…" + std::to_string(x.dim() - 1) + ", got " + std::to_string(dim));
  }
  std::vector<std::int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.erase(shape.begin() + dim);
  return shape;
}

Tensor SumNew(const Tensor& x, std::int64_t dim, const SumBy& by, const OptionalTensor& random) {
  const auto shape = SumShape(x, dim);
  const OnDeviceOf guard(x);
  const Tensor out = Empty(x, shape, x.scalar_type());
  const auto [how, key] = by.On(x);
  Sum(Input(x), static_cast<int>(dim), how, Output(out), key, Input(random));
  return out;
}

/// Returns, for each sum that SumNew computes, the exception flags of its roundings in one byte.
Tensor SumFlagsNew(const Tensor& x, std::int64_t dim, const SumBy& by, const OptionalTensor& random,
                   const Text& tininess) {
  const auto shape = SumShape(x, dim);
  const OnDeviceOf guard(x);
  const Tensor out = Empty(x, shape, x.scalar_type());
  const Tensor flags = Empty(x, shape, ScalarType::Byte);
  const auto [how, key] = by.On(x);
  SumFlagged(Input(x), static_cast<int>(dim), how, soft::ParseTininess(tininess.view()),
             Output(out), Output(flags), key, Input(random));
  return flags;
}

/// Returns the shape of the product of a (… x M x K) and b (… x K x N). The dimensions before the
/// last two are broadcast. Shapes that do not match are left to Gemm, which throws the error.
std::vector<std::int64_t> ProductShape(const Tensor& a, const Tensor& b) {
  if (a.dim() < 2 || b.dim() < 2) {
    throw Error("a and b must have at least two dimensions, got " + std::to_string(a.dim()) +
                " and " + std::to_string(b.dim()));
  }
  std::vector<std::int64_t> shape(static_cast<std::size_t>(std::max(a.dim(), b.dim())));
  const auto rank = static_cast<std::int64_t>(shape.size());
  for (std::int64_t d = 1; d <= rank - 2; ++d) {  // counted from the last one before the matrices
    const std::int64_t of_a = d <= a.dim() - 2 ? a.size(a.dim() - 2 - d) : 1;
    const std::int64_t of_b = d <= b.dim() - 2 ? b.size(b.dim() - 2 - d) : 1;
    shape[static_cast<std::size_t>(rank - 2 - d)] = of_a == 1 ? of_b : of_a;
  }
  shape[static_cast<std::size_t>(rank - 2)] = a.size(a.dim() - 2);
  shape[static_cast<std::size_t>(rank - 1)] = b.size(b.dim() - 1);
  return shape;
}

/// The factors of a product, its accumulator and its random bits.
struct Factors {
  TensorView a, b;
  const Accumulator& by;
  RandomKey key;
};

/// Returns a new product of a and b, which `compute` writes.
template <class Compute>
Tensor Product(const Tensor& a, const Tensor& b, const SumBy& by, ScalarType dtype,
               const Compute& compute) {
  const OnDeviceOf guard(a);
  const auto [how, key] = by.On(a);
  const Tensor out = Empty(a, ProductShape(a, b), dtype);
  compute(Factors{Input(a), Input(b), how, key}, Output(out));
  return out;
}

Tensor GemmNew(const Tensor& a, const Tensor& b, const OptionalTensor& c, const SumBy& by,
               ScalarType dtype, bool blas, const OptionalTensor& random) {
  if (blas && random) throw Error("a BLAS takes no random integers");
  return Product(a, b, by, dtype, [&](const Factors& of, const TensorView& out) {
    if (blas) {
      GemmByBlas(of.a, of.b, of.by, out, Input(c));
    } else {
      Gemm(of.a, of.b, of.by, out, Input(c), of.key, Input(random));
    }
  });
}

/// Computes a part (GemmPart) of a larger matrix product, with the same bits as in the larger
/// product.
Tensor GemmPartNew(const Tensor& a, const Tensor& b, const OptionalTensor& c, const SumBy& by,
                   ScalarType dtype, std::int64_t element, std::int64_t product) {
  return Product(a, b, by, dtype, [&](const Factors& of, const TensorView& out) {
    Gemm(of.a, of.b, of.by, out, Input(c), GemmPart{element, product}, of.key);
  });
}

/// Returns, for each element of the matrix product that GemmNew computes, the exception flags of
/// its roundings in one byte.
Tensor GemmFlagsNew(const Tensor& a, const Tensor& b, const OptionalTensor& c, const SumBy& by,
                    ScalarType dtype, const OptionalTensor& random, const Text& tininess) {
  const Tensor flags = Empty(a, ProductShape(a, b), ScalarType::Byte);
  Product(a, b, by, dtype, [&](const Factors& of, const TensorView& out) {
    GemmFlagged(of.a, of.b, of.by, soft::ParseTininess(tininess.view()), out, Output(flags),
                Input(c), of.key, Input(random));
  });
  return flags;
}

/// Returns the product of scaled operands (ops/gemm.h). `block` is the number of values along k
/// that share a scale, and `lines` the number of rows of a (or columns of b). 0 means all.
Tensor GemmScaledNew(const Tensor& a, const OptionalTensor& a_scales, std::int64_t a_block,
                     std::int64_t a_lines, const OptionalTensor& a_factor, const Tensor& b,
                     const OptionalTensor& b_scales, std::int64_t b_block, std::int64_t b_lines,
                     const OptionalTensor& b_factor, const OptionalTensor& c,
                     const Text& accumulator, bool epilogue, const Numbers& numbers,
                     const OptionalTensor& random) {
  const OnDeviceOf guard(a);
  const Accumulator how = Parsed<ParseAccumulator>(accumulator);
  const RandomKey key = numbers.KeyOf(how.rounding, a);
  const Tensor out = Empty(a, ProductShape(a, b), ScalarType::Float);
  const OptionalView of_a = Input(a_scales), of_b = Input(b_scales);
  const OptionalView above_a = Input(a_factor), above_b = Input(b_factor);
  GemmScaled(
      Input(a), {of_a, a_block, a_lines, above_a}, Input(b), {of_b, b_block, b_lines, above_b}, how,
      epilogue ? ScalesAt::epilogue : ScalesAt::block, Output(out), Input(c), key, Input(random));
  return out;
}

/// Calls ProductOfBf16. Returns whether `out` contains the product.
bool ProductOfBf16Into(const Tensor& a, const Tensor& b, const OptionalTensor& first,
                       const OptionalTensor& second, const OptionalTensor& bias,
                       const Tensor& out) {
  const OptionalView of_rows = Input(first), of_columns = Input(second), added = Input(bias);
  return ProductOfBf16(Input(a), Input(b), Output(out), {of_rows, of_columns, added});
}

// ---- the table ----

template <auto Operation, auto Result, class... Others>
TorchOperators Rounded(const std::string& name, const std::string& operands) {
  using Calls = Elementwise<Operation, Result, Others...>;
  return MadeAndWritten<&Calls::New, &Calls::Into>(name, operands + ", " + ElementCast::kSchema);
}

std::vector<TorchOperators> Table() {
  using enum Has;
  const std::string cast = ElementCast::kSchema, by = SumBy::kSchema;
  const std::string sum = "Tensor x, int dim, " + by + ", Tensor? random";
  const std::string product = "Tensor a, Tensor b, Tensor? c, " + by + ", ScalarType dtype, ";
  const std::string of_a = "Tensor a, Tensor? a_scales, int a_block, int a_lines, Tensor? a_factor";
  const std::string of_b = "Tensor b, Tensor? b_scales, int b_block, int b_lines, Tensor? b_factor";
  return {
      Rounded<kCast, EmptyLike>("cast", "Tensor x"),
      Rounded<Add, EmptyRowMajor, Tensor>("add", "Tensor x, Tensor y"),
      Rounded<Mul, EmptyRowMajor, Tensor>("mul", "Tensor x, Tensor y"),
      Rounded<Fma, EmptyRowMajor, Tensor, Tensor>("fma", "Tensor x, Tensor y, Tensor z"),
      Rounded<Div, EmptyRowMajor, Tensor>("div", "Tensor x, Tensor y"),
      Rounded<Sqrt, EmptyRowMajor>("sqrt", "Tensor x"),
      MadeAndWritten<HadamardNew, HadamardInto>("hadamard",
                                                "Tensor x, str transform, int axis, bool inverse"),
      {
          Row<FlagsNew>(
              "flags", "Tensor x, Tensor? y, Tensor? z, str operation, " + cast + ", str tininess"),
          Row<EncodeNew>("encode", "Tensor x, " + cast),
          Row<DecodeNew>("decode", "Tensor codes, str format, SymInt[] shape, ScalarType dtype"),
          Row<DecodeInto>("decode_out", "Tensor codes, str format"),
          Row<SumNew>("sum", sum, derivatives),
          Row<SumFlagsNew>("sum_flags", sum + ", str tininess"),
          Row<GemmNew>("gemm", product + "bool blas, Tensor? random", derivatives),
          Row<GemmPartNew>("gemm_part", product + "int element, int product"),
          Row<GemmFlagsNew>("gemm_flags", product + "Tensor? random, str tininess"),
          Row<GemmScaledNew>("gemm_scaled", of_a + ", " + of_b +
                                                ", Tensor? c, str accumulator, bool epilogue, " +
                                                Numbers::kSchema + ", Tensor? random"),
          Row<ProductOfBf16Into>("product_of_bf16",
                                 "Tensor a, Tensor b, Tensor? first, Tensor? second, "
                                 "Tensor? bias, Tensor(a!) out",
                                 cpu_only),
      },
      ScaledOperators(),
      ConvolutionOperators(),
  };
}

/// Calls act(name, row) for each operator, and also for <name>_plain if it exists.
template <class Act>
void ForEach(const Act& act) {
  for (const TorchOperators& rows : Table()) {
    for (const TorchOperator& row : rows) {
      act(row.name, row);
      if (row.has_plain) act(row.name + "_plain", row);
    }
  }
}

// Schemas have no default values. torch omits arguments with default values when it traces, and
// fake kernels would not receive them.
STABLE_TORCH_LIBRARY(cpd, m) {
  ForEach([&](const std::string& name, const TorchOperator& row) {
    m.def((name + row.schema).c_str());
  });
}
STABLE_TORCH_LIBRARY_IMPL(cpd, CPU, m) {
  ForEach(
      [&](const std::string& name, const TorchOperator& row) { m.impl(name.c_str(), row.kernel); });
}
STABLE_TORCH_LIBRARY_IMPL(cpd, CUDA, m) {
  ForEach([&](const std::string& name, const TorchOperator& row) {
    if (row.on_cuda) m.impl(name.c_str(), row.kernel);
  });
}

}  // namespace
}  // namespace cpd
