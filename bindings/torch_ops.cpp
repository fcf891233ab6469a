// SPDX-License-Identifier: Apache-2.0
//
// libcpd_torch: the operators torch.ops.cpd.*, on torch's stable ABI (TORCH_TARGET_VERSION 2.11),
// so that one library serves CPU and CUDA builds of torch from 2.11 on. No arithmetic: tensors
// become TensorViews and the library does the rest. Fake and autograd registrations are in
// python/cpd/_torch. A cpd::Error is a std::invalid_argument and arrives as ValueError, a
// cpd::MachineError as RuntimeError, cpd::NoMemory as MemoryError.
//
// Formats, roundings and accumulators arrive as one canonical text a call, parsed once: an
// accumulator's or, for operators of elements, a cast's ("e4m3 rounding=stochastic"). A text means
// the same in every process, so programs may be exported. seed and stream are one-element int64
// tensors (a missing one is 0) that hold the 64 bits of the unsigned number, so that a compiled
// program takes a new stream without being compiled again. cast, encode and gemm leave those on x's
// GPU there: the kernel reads them when it runs.
#include <cstdint>
#include <functional>
#include <span>
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
#include "torch_tensors.h"

namespace cpd {
namespace {

// ---- operators ------------------------------------------------------------------------------
// Most have a form that makes the result and one that writes into `out`. `<name>_plain` is `<name>`
// without derivatives, transforms and batching rules: compiled programs call it, and Python where
// nothing asks for them.

void CastInto(const Tensor& x, const Text& how, const OptionalTensor& seed,
              const OptionalTensor& stream, const OptionalTensor& random, const Tensor& out) {
  const OnDeviceOf guard(x);
  const PlainCast& to = Parsed<ParsePlainCast>(how.view());
  const RandomKey key = KeyOf(to.rounding, seed, stream, x);
  const auto integers = Input(random);
  Cast(Input(x), to.format, to.rounding, Output(out), key, integers ? &*integers : nullptr);
}

void CastOut(const Tensor& x, StringHandle how, const OptionalTensor& seed,
             const OptionalTensor& stream, const OptionalTensor& random, const Tensor& out) {
  CastInto(x, Text(how), seed, stream, random, out);
}

Tensor CastNew(const Tensor& x, StringHandle how, const OptionalTensor& seed,
               const OptionalTensor& stream, const OptionalTensor& random) {
  const Text text(how);
  const Tensor out = EmptyLike(x);
  CastInto(x, text, seed, stream, random, out);
  return out;
}

template <auto Operation>
void BinaryInto(const Tensor& x, const Tensor& y, const Text& how, const OptionalTensor& seed,
                const OptionalTensor& stream, const OptionalTensor& random, const Tensor& out) {
  const OnDeviceOf guard(x);
  const PlainCast& to = Parsed<ParsePlainCast>(how.view());
  const RandomKey key = KeyOf(to.rounding, seed, stream, x);
  const auto integers = Input(random);
  Operation(Input(x), Input(y), to.format, to.rounding, Output(out), key,
            integers ? &*integers : nullptr);
}

template <auto Operation>
void BinaryOut(const Tensor& x, const Tensor& y, StringHandle how, const OptionalTensor& seed,
               const OptionalTensor& stream, const OptionalTensor& random, const Tensor& out) {
  BinaryInto<Operation>(x, y, Text(how), seed, stream, random, out);
}

template <auto Operation>
Tensor BinaryNew(const Tensor& x, const Tensor& y, StringHandle how, const OptionalTensor& seed,
                 const OptionalTensor& stream, const OptionalTensor& random) {
  const Text text(how);
  const Tensor out = Empty(x, SizesOf(x), x.scalar_type());
  BinaryInto<Operation>(x, y, text, seed, stream, random, out);
  return out;
}

void FmaInto(const Tensor& x, const Tensor& y, const Tensor& z, const Text& how,
             const OptionalTensor& seed, const OptionalTensor& stream, const OptionalTensor& random,
             const Tensor& out) {
  const OnDeviceOf guard(x);
  const PlainCast& to = Parsed<ParsePlainCast>(how.view());
  const RandomKey key = KeyOf(to.rounding, seed, stream, x);
  const auto integers = Input(random);
  Fma(Input(x), Input(y), Input(z), to.format, to.rounding, Output(out), key,
      integers ? &*integers : nullptr);
}

void FmaOut(const Tensor& x, const Tensor& y, const Tensor& z, StringHandle how,
            const OptionalTensor& seed, const OptionalTensor& stream, const OptionalTensor& random,
            const Tensor& out) {
  FmaInto(x, y, z, Text(how), seed, stream, random, out);
}

Tensor FmaNew(const Tensor& x, const Tensor& y, const Tensor& z, StringHandle how,
              const OptionalTensor& seed, const OptionalTensor& stream,
              const OptionalTensor& random) {
  const Text text(how);
  const Tensor out = Empty(x, SizesOf(x), x.scalar_type());
  FmaInto(x, y, z, text, seed, stream, random, out);
  return out;
}

void SqrtInto(const Tensor& x, const Text& how, const OptionalTensor& seed,
              const OptionalTensor& stream, const OptionalTensor& random, const Tensor& out) {
  const OnDeviceOf guard(x);
  const PlainCast& to = Parsed<ParsePlainCast>(how.view());
  const RandomKey key = KeyOf(to.rounding, seed, stream, x);
  const auto integers = Input(random);
  Sqrt(Input(x), to.format, to.rounding, Output(out), key, integers ? &*integers : nullptr);
}

void SqrtOut(const Tensor& x, StringHandle how, const OptionalTensor& seed,
             const OptionalTensor& stream, const OptionalTensor& random, const Tensor& out) {
  SqrtInto(x, Text(how), seed, stream, random, out);
}

Tensor SqrtNew(const Tensor& x, StringHandle how, const OptionalTensor& seed,
               const OptionalTensor& stream, const OptionalTensor& random) {
  const Text text(how);
  const Tensor out = Empty(x, SizesOf(x), x.scalar_type());
  SqrtInto(x, text, seed, stream, random, out);
  return out;
}

/// The exceptions of an operation, whose value another operator gives.
Tensor FlagsNew(const Tensor& x, const OptionalTensor& y, const OptionalTensor& z,
                StringHandle operation, StringHandle how, const OptionalTensor& seed,
                const OptionalTensor& stream, const OptionalTensor& random, StringHandle tininess) {
  const Text name(operation), text(how), when(tininess);
  const OnDeviceOf guard(x);
  const PlainCast& to = Parsed<ParsePlainCast>(text.view());
  const RandomKey key = KeyOf(to.rounding, seed, stream, x);
  const TensorView first = Input(x);
  const auto second = Input(y), third = Input(z), integers = Input(random);
  const auto pointer = [](const auto& view) { return view ? &*view : nullptr; };
  const Tensor flags = Empty(x, SizesOf(x), ScalarType::Byte);
  Flags(soft::ParseOperation(name.view()), {first, pointer(second), pointer(third)}, to.format,
        to.rounding, soft::ParseTininess(when.view()), Output(flags), key, pointer(integers));
  return flags;
}

/// x's shape without `dim`.
std::vector<std::int64_t> SumShape(const Tensor& x, std::int64_t dim) {
  if (dim < 0 || dim >= x.dim()) {
    throw Error("dim must be 0…" + std::to_string(x.dim() - 1) + ", got " + std::to_string(dim));
  }
  std::vector<std::int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.erase(shape.begin() + dim);
  return shape;
}

Tensor SumNew(const Tensor& x, std::int64_t dim, StringHandle accumulator,
              const OptionalTensor& seed, const OptionalTensor& stream,
              const OptionalTensor& random) {
  const Text text(accumulator);
  const auto shape = SumShape(x, dim);
  const OnDeviceOf guard(x);
  const Tensor out = Empty(x, shape, x.scalar_type());
  const auto integers = Input(random);
  const Accumulator& how = Parsed<ParseAccumulator>(text.view());
  Sum(Input(x), static_cast<int>(dim), how, Output(out), KeyOf(how.rounding, seed, stream, x),
      integers ? &*integers : nullptr);
  return out;
}

/// The exceptions of SumNew's roundings.
Tensor SumFlagsNew(const Tensor& x, std::int64_t dim, StringHandle accumulator,
                   const OptionalTensor& seed, const OptionalTensor& stream,
                   const OptionalTensor& random, StringHandle tininess) {
  const Text text(accumulator), when(tininess);
  const auto shape = SumShape(x, dim);
  const OnDeviceOf guard(x);
  const Tensor out = Empty(x, shape, x.scalar_type());
  const Tensor flags = Empty(x, shape, ScalarType::Byte);
  const auto integers = Input(random);
  const Accumulator& how = Parsed<ParseAccumulator>(text.view());
  SumFlagged(Input(x), static_cast<int>(dim), how, soft::ParseTininess(when.view()), Output(out),
             Output(flags), KeyOf(how.rounding, seed, stream, x), integers ? &*integers : nullptr);
  return flags;
}

/// … × M × K by … × K × N: the dimensions before the last two broadcast. What does not fit is left
/// to Gemm, which says so.
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

Tensor GemmNew(const Tensor& a, const Tensor& b, const OptionalTensor& c, StringHandle accumulator,
               const OptionalTensor& seed, const OptionalTensor& stream, ScalarType dtype,
               bool blas, const OptionalTensor& random) {
  const Text text(accumulator);
  const OnDeviceOf guard(a);
  const Accumulator& how = Parsed<ParseAccumulator>(text.view());
  const RandomKey key = KeyOf(how.rounding, seed, stream, a);
  const auto shape = ProductShape(a, b);
  const Tensor out = Empty(a, shape, dtype);
  const auto addend = Input(c);
  const TensorView* from = addend ? &*addend : nullptr;
  if (blas) {
    if (random) throw Error("a BLAS takes no random integers");
    GemmByBlas(Input(a), Input(b), how, Output(out), from);
  } else {
    const auto integers = Input(random);
    Gemm(Input(a), Input(b), how, Output(out), from, key, integers ? &*integers : nullptr);
  }
  return out;
}

/// A part of a larger product (GemmPart).
Tensor GemmPartNew(const Tensor& a, const Tensor& b, const OptionalTensor& c,
                   StringHandle accumulator, const OptionalTensor& seed,
                   const OptionalTensor& stream, ScalarType dtype, std::int64_t element,
                   std::int64_t product) {
  const Text text(accumulator);
  const OnDeviceOf guard(a);
  const Accumulator& how = Parsed<ParseAccumulator>(text.view());
  const RandomKey key = KeyOf(how.rounding, seed, stream, a);
  const auto shape = ProductShape(a, b);
  const Tensor out = Empty(a, shape, dtype);
  const auto addend = Input(c);
  Gemm(Input(a), Input(b), how, Output(out), addend ? &*addend : nullptr,
       GemmPart{element, product}, key);
  return out;
}

/// ProductOfBf16: whether `out` has the product.
bool ProductOfBf16Into(const Tensor& a, const Tensor& b, const OptionalTensor& first,
                       const OptionalTensor& second, const OptionalTensor& bias,
                       const Tensor& out) {
  const auto pointer = [](const auto& view) { return view ? &*view : nullptr; };
  const auto of_rows = Input(first), of_columns = Input(second), added = Input(bias);
  return ProductOfBf16(Input(a), Input(b), Output(out),
                       {pointer(of_rows), pointer(of_columns), pointer(added)});
}

/// The exceptions of GemmNew's roundings.
Tensor GemmFlagsNew(const Tensor& a, const Tensor& b, const OptionalTensor& c,
                    StringHandle accumulator, const OptionalTensor& seed,
                    const OptionalTensor& stream, ScalarType dtype, const OptionalTensor& random,
                    StringHandle tininess) {
  const Text text(accumulator), when(tininess);
  const OnDeviceOf guard(a);
  const auto shape = ProductShape(a, b);
  const Tensor out = Empty(a, shape, dtype);
  const Tensor flags = Empty(a, shape, ScalarType::Byte);
  const auto addend = Input(c), integers = Input(random);
  const auto pointer = [](const auto& view) { return view ? &*view : nullptr; };
  const Accumulator& how = Parsed<ParseAccumulator>(text.view());
  GemmFlagged(Input(a), Input(b), how, soft::ParseTininess(when.view()), Output(out), Output(flags),
              pointer(addend), KeyOf(how.rounding, seed, stream, a), pointer(integers));
  return flags;
}

/// The elements' product below scales and factors (ops/gemm.h): block and lines say how many values
/// share a scale, 0 all.
Tensor GemmScaledNew(const Tensor& a, const OptionalTensor& a_scales, std::int64_t a_block,
                     std::int64_t a_lines, const OptionalTensor& a_factor, const Tensor& b,
                     const OptionalTensor& b_scales, std::int64_t b_block, std::int64_t b_lines,
                     const OptionalTensor& b_factor, const OptionalTensor& c,
                     StringHandle accumulator, bool epilogue, const OptionalTensor& seed,
                     const OptionalTensor& stream, const OptionalTensor& random) {
  const Text text(accumulator);
  const OnDeviceOf guard(a);
  const Accumulator& how = Parsed<ParseAccumulator>(text.view());
  const RandomKey key = KeyOf(how.rounding, seed, stream, a);
  const Tensor out = Empty(a, ProductShape(a, b), ScalarType::Float);
  const auto pointer = [](const auto& view) { return view ? &*view : nullptr; };
  const auto of_a = Input(a_scales), of_b = Input(b_scales);
  const auto above_a = Input(a_factor), above_b = Input(b_factor);
  const auto addend = Input(c), integers = Input(random);
  GemmScaled(Input(a), {pointer(of_a), a_block, a_lines, pointer(above_a)}, Input(b),
             {pointer(of_b), b_block, b_lines, pointer(above_b)}, how,
             epilogue ? ScalesAt::epilogue : ScalesAt::block, Output(out), pointer(addend), key,
             pointer(integers));
  return out;
}

Tensor EncodeNew(const Tensor& x, StringHandle how, const OptionalTensor& seed,
                 const OptionalTensor& stream, const OptionalTensor& random) {
  const Text text(how);
  const OnDeviceOf guard(x);
  const PlainCast& to = Parsed<ParsePlainCast>(text.view());
  const RandomKey key = KeyOf(to.rounding, seed, stream, x);
  const std::int64_t bytes = PackedBytes(to.format, x.numel());
  const Tensor packed = Empty(x, {&bytes, 1}, ScalarType::Byte);
  const auto integers = Input(random);
  Encode(Input(x), to.format, to.rounding, Output(packed), key, integers ? &*integers : nullptr);
  return packed;
}

void DecodeInto(const Tensor& codes, const Text& format, const Tensor& out) {
  const OnDeviceOf guard(codes);
  Decode(Input(codes), Parsed<ParsePlainCast>(format.view()).format, Output(out));
}

void DecodeOut(const Tensor& codes, StringHandle format, const Tensor& out) {
  DecodeInto(codes, Text(format), out);
}

Tensor DecodeNew(const Tensor& codes, StringHandle format, const std::vector<std::int64_t>& shape,
                 ScalarType dtype) {
  const Text text(format);
  const Tensor out = Empty(codes, shape, dtype);
  DecodeInto(codes, text, out);
  return out;
}

void HadamardInto(const Tensor& x, const Text& transform, std::int64_t axis, bool inverse,
                  const Tensor& out) {
  const OnDeviceOf guard(x);
  if (axis < 0 || axis >= x.dim()) {
    throw Error("axis must be 0…" + std::to_string(x.dim() - 1) + ", got " + std::to_string(axis));
  }
  Transform(Input(x), Parsed<ParseHadamard>(transform.view()), static_cast<int>(axis), inverse,
            Output(out));
}

void HadamardOut(const Tensor& x, StringHandle transform, std::int64_t axis, bool inverse,
                 const Tensor& out) {
  HadamardInto(x, Text(transform), axis, inverse, out);
}

Tensor HadamardNew(const Tensor& x, StringHandle transform, std::int64_t axis, bool inverse) {
  const Text text(transform);
  const Tensor out = EmptyLike(x);
  HadamardInto(x, text, axis, inverse, out);
  return out;
}

// No defaults: torch leaves default arguments out where it traces, and fake kernels would miss
// them.
constexpr const char* kHow = "str how, Tensor? seed, Tensor? stream, Tensor? random";
constexpr const char* kSum = "str accumulator, Tensor? seed, Tensor? stream";
constexpr const char* kHadamard = "(Tensor x, str transform, int axis, bool inverse";

STABLE_TORCH_LIBRARY(cpd, m) {
  const auto define = [&](const std::string& schema) { m.def(schema.c_str()); };
  const auto elementwise = [&](const std::string& name, const std::string& operands) {
    define(name + "(" + operands + ", " + kHow + ") -> Tensor");
    define(name + "_plain(" + operands + ", " + kHow + ") -> Tensor");
    define(name + "_out(" + operands + ", " + kHow + ", *, Tensor(a!) out) -> ()");
    define(name + "_out_plain(" + operands + ", " + kHow + ", *, Tensor(a!) out) -> ()");
  };
  elementwise("cast", "Tensor x");
  elementwise("add", "Tensor x, Tensor y");
  elementwise("mul", "Tensor x, Tensor y");
  elementwise("fma", "Tensor x, Tensor y, Tensor z");
  elementwise("div", "Tensor x, Tensor y");
  elementwise("sqrt", "Tensor x");
  define(std::string("flags(Tensor x, Tensor? y, Tensor? z, str operation, ") + kHow +
         ", str tininess) -> Tensor");
  for (const std::string name : {"sum", "sum_plain"}) {
    define(std::string(name)
               .append("(Tensor x, int dim, ")
               .append(kSum)
               .append(", Tensor? random) -> Tensor"));
  }
  define(std::string("sum_flags(Tensor x, int dim, ") + kSum +
         ", Tensor? random, str tininess) -> Tensor");
  define(std::string("gemm_flags(Tensor a, Tensor b, Tensor? c, ") + kSum +
         ", ScalarType dtype, Tensor? random, str tininess) -> Tensor");
  for (const std::string name : {"gemm", "gemm_plain"}) {
    define(std::string(name)
               .append("(Tensor a, Tensor b, Tensor? c, ")
               .append(kSum)
               .append(", ScalarType dtype, bool blas, Tensor? random) -> Tensor"));
  }
  define(std::string("gemm_part(Tensor a, Tensor b, Tensor? c, ") + kSum +
         ", ScalarType dtype, int element, int product) -> Tensor");
  define(
      "gemm_scaled(Tensor a, Tensor? a_scales, int a_block, int a_lines, Tensor? a_factor, "
      "Tensor b, Tensor? b_scales, int b_block, int b_lines, Tensor? b_factor, Tensor? c, "
      "str accumulator, bool epilogue, Tensor? seed, Tensor? stream, Tensor? random) -> Tensor");
  define(
      "product_of_bf16(Tensor a, Tensor b, Tensor? first, Tensor? second, Tensor? bias, "
      "Tensor(a!) out) -> bool");
  define(std::string("encode(Tensor x, ") + kHow + ") -> Tensor");
  define("decode(Tensor codes, str format, SymInt[] shape, ScalarType dtype) -> Tensor");
  for (const std::string name : {"hadamard", "hadamard_plain"}) {
    define(name + kHadamard + ") -> Tensor");
  }
  for (const std::string name : {"hadamard_out", "hadamard_out_plain"}) {
    define(name + kHadamard + ", *, Tensor(a!) out) -> ()");
  }
  for (const std::string name : {"decode_out", "decode_out_plain"}) {
    define(name + "(Tensor codes, str format, *, Tensor(a!) out) -> ()");
  }
}

void Implement(torch::stable::detail::StableLibrary& m) {
  m.impl("cast", TORCH_BOX(&Entered<&CastNew>::Run));
  m.impl("cast_plain", TORCH_BOX(&Entered<&CastNew>::Run));
  m.impl("cast_out", TORCH_BOX(&Entered<&CastOut>::Run));
  m.impl("cast_out_plain", TORCH_BOX(&Entered<&CastOut>::Run));
  m.impl("add", TORCH_BOX(&Entered<&BinaryNew<Add>>::Run));
  m.impl("add_plain", TORCH_BOX(&Entered<&BinaryNew<Add>>::Run));
  m.impl("add_out", TORCH_BOX(&Entered<&BinaryOut<Add>>::Run));
  m.impl("add_out_plain", TORCH_BOX(&Entered<&BinaryOut<Add>>::Run));
  m.impl("mul", TORCH_BOX(&Entered<&BinaryNew<Mul>>::Run));
  m.impl("mul_plain", TORCH_BOX(&Entered<&BinaryNew<Mul>>::Run));
  m.impl("mul_out", TORCH_BOX(&Entered<&BinaryOut<Mul>>::Run));
  m.impl("mul_out_plain", TORCH_BOX(&Entered<&BinaryOut<Mul>>::Run));
  m.impl("fma", TORCH_BOX(&Entered<&FmaNew>::Run));
  m.impl("fma_plain", TORCH_BOX(&Entered<&FmaNew>::Run));
  m.impl("fma_out", TORCH_BOX(&Entered<&FmaOut>::Run));
  m.impl("fma_out_plain", TORCH_BOX(&Entered<&FmaOut>::Run));
  m.impl("div", TORCH_BOX(&Entered<&BinaryNew<Div>>::Run));
  m.impl("div_plain", TORCH_BOX(&Entered<&BinaryNew<Div>>::Run));
  m.impl("div_out", TORCH_BOX(&Entered<&BinaryOut<Div>>::Run));
  m.impl("div_out_plain", TORCH_BOX(&Entered<&BinaryOut<Div>>::Run));
  m.impl("sqrt", TORCH_BOX(&Entered<&SqrtNew>::Run));
  m.impl("sqrt_plain", TORCH_BOX(&Entered<&SqrtNew>::Run));
  m.impl("sqrt_out", TORCH_BOX(&Entered<&SqrtOut>::Run));
  m.impl("sqrt_out_plain", TORCH_BOX(&Entered<&SqrtOut>::Run));
  m.impl("flags", TORCH_BOX(&Entered<&FlagsNew>::Run));
  m.impl("sum", TORCH_BOX(&Entered<&SumNew>::Run));
  m.impl("sum_plain", TORCH_BOX(&Entered<&SumNew>::Run));
  m.impl("sum_flags", TORCH_BOX(&Entered<&SumFlagsNew>::Run));
  m.impl("gemm_flags", TORCH_BOX(&Entered<&GemmFlagsNew>::Run));
  m.impl("gemm", TORCH_BOX(&Entered<&GemmNew>::Run));
  m.impl("gemm_plain", TORCH_BOX(&Entered<&GemmNew>::Run));
  m.impl("gemm_part", TORCH_BOX(&Entered<&GemmPartNew>::Run));
  m.impl("gemm_scaled", TORCH_BOX(&Entered<&GemmScaledNew>::Run));
  m.impl("encode", TORCH_BOX(&Entered<&EncodeNew>::Run));
  m.impl("hadamard", TORCH_BOX(&Entered<&HadamardNew>::Run));
  m.impl("hadamard_plain", TORCH_BOX(&Entered<&HadamardNew>::Run));
  m.impl("hadamard_out", TORCH_BOX(&Entered<&HadamardOut>::Run));
  m.impl("hadamard_out_plain", TORCH_BOX(&Entered<&HadamardOut>::Run));
  m.impl("decode", TORCH_BOX(&Entered<&DecodeNew>::Run));
  m.impl("decode_out", TORCH_BOX(&Entered<&DecodeOut>::Run));
  m.impl("decode_out_plain", TORCH_BOX(&Entered<&DecodeOut>::Run));
}

STABLE_TORCH_LIBRARY_IMPL(cpd, CPU, m) {
  Implement(m);
  m.impl("product_of_bf16", TORCH_BOX(&Entered<&ProductOfBf16Into>::Run));
}
STABLE_TORCH_LIBRARY_IMPL(cpd, CUDA, m) { Implement(m); }

}  // namespace
}  // namespace cpd
