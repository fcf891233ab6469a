// SPDX-License-Identifier: Apache-2.0
//
// The operators of scaled formats: torch.ops.cpd.cast_scaled, cast_scaled_both (along two axes),
// encode_scaled and decode_scaled.
// `scaled` is the format's canonical text, `how` the cast of its elements as torch.ops.cpd.cast
// takes it ("e2m1 overflow=saturate"); each is parsed once.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cpd/ops/codec.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/error.h"
#include "cpd/spec/scaled.h"
#include "torch_tensors.h"

namespace cpd {
namespace {

int Axis(std::int64_t axis) {
  if (!std::in_range<int>(axis)) {
    throw Error("axis must fit in 32 bits, got " + std::to_string(axis));
  }
  return static_cast<int>(axis);
}

/// A tensor on x's device, or none.
std::optional<TensorView> Beside(const Tensor& x, const OptionalTensor& given, const char* name) {
  if (given &&
      (given->is_cuda() != x.is_cuda() || given->get_device_index() != x.get_device_index())) {
    throw Error(std::string(name) + " must be on x's device");
  }
  return Input(given);
}

const TensorView* Pointer(const std::optional<TensorView>& view) { return view ? &*view : nullptr; }

/// What Cast and Encode take in addition to x and what they write.
struct How {
  How(const Tensor& x, const Text& format, std::int64_t along, const Text& elements,
      const OptionalTensor& scales, const OptionalTensor& tensor_scales, const OptionalTensor& amax,
      const OptionalTensor& seed, const OptionalTensor& stream, const OptionalTensor& given_random)
      : scaled(Parsed<ParseScaled>(format.view())),
        axis(Axis(along)),
        blocks(Beside(x, scales, "scales")),
        tensor(Beside(x, tensor_scales, "tensor scales")),
        largest(Beside(x, amax, "amax")),
        random(Input(given_random)) {
    const PlainCast& cast = Parsed<ParsePlainCast>(elements.view());
    if (cast.format != scaled.element) {
      throw Error("elements of " + ToString(scaled) + " are not cast to " + ToString(cast.format));
    }
    rounding = cast.rounding;
    key = KeyOf(rounding, seed, stream, x);
  }
  [[nodiscard]] GivenScales given() const {
    return {Pointer(blocks), Pointer(tensor), Pointer(largest)};
  }

  const Scaled& scaled;
  int axis;
  std::optional<TensorView> blocks, tensor, largest, random;
  RoundingOptions rounding;
  RandomKey key;
};

void CastInto(const Tensor& x, const How& how, const Tensor& out) {
  Cast(Input(x), how.scaled, how.axis, how.rounding, Output(out), how.given(), how.key,
       Pointer(how.random));
}

void CastScaledOut(const Tensor& x, StringHandle scaled, std::int64_t axis, StringHandle how,
                   const OptionalTensor& scales, const OptionalTensor& tensor_scales,
                   const OptionalTensor& amax, const OptionalTensor& seed,
                   const OptionalTensor& stream, const OptionalTensor& random, const Tensor& out) {
  const Text format(scaled), elements(how);
  const OnDeviceOf guard(x);
  CastInto(x, {x, format, axis, elements, scales, tensor_scales, amax, seed, stream, random}, out);
}

/// An uninitialized tensor like x, of another type if one is given.
Tensor EmptyLikeOf(const Tensor& x, const std::optional<ScalarType>& dtype) {
  Tensor like = EmptyLike(x);
  if (!dtype || *dtype == x.scalar_type()) return like;
  const auto strides = like.strides();
  return Empty(x, SizesOf(x), {strides.data(), strides.size()}, *dtype);
}

Tensor CastScaledNew(const Tensor& x, StringHandle scaled, std::int64_t axis, StringHandle how,
                     const OptionalTensor& scales, const OptionalTensor& tensor_scales,
                     const OptionalTensor& amax, const OptionalTensor& seed,
                     const OptionalTensor& stream, const OptionalTensor& random,
                     const std::optional<ScalarType>& dtype) {
  const Text format(scaled), elements(how);
  const OnDeviceOf guard(x);
  const Tensor out = EmptyLikeOf(x, dtype);
  CastInto(x, {x, format, axis, elements, scales, tensor_scales, amax, seed, stream, random}, out);
  return out;
}

/// The cast of a contiguous fp32 tensor as bf16 where that holds all values, else as fp32.
Tensor CastScaledNarrow(const Tensor& x, StringHandle scaled, std::int64_t axis, StringHandle how,
                        const OptionalTensor& seed, const OptionalTensor& stream) {
  const Text format(scaled), elements(how);
  const How to(x, format, axis, elements, {}, {}, {}, seed, stream, {});
  const Tensor narrow = Empty(x, SizesOf(x), ScalarType::BFloat16);
  if (CastWhereHeld(Input(x), to.scaled, to.axis, to.rounding, Output(narrow), to.key))
    return narrow;
  const Tensor out = EmptyLike(x);
  CastInto(x, to, out);
  return out;
}

/// The cast in `dtype` without the outermost level's scales, and these in the shape of their grid.
std::tuple<Tensor, Tensor> CastScaledApart(const Tensor& x, StringHandle scaled, std::int64_t axis,
                                           StringHandle how, const OptionalTensor& seed,
                                           const OptionalTensor& stream, ScalarType dtype) {
  const Text format(scaled), elements(how);
  const How to(x, format, axis, elements, {}, {}, {}, seed, stream, {});
  const bool two_levels = to.scaled.tensor_scale.has_value();
  const BlockShape block = two_levels ? BlockShape{.kind = to.scaled.outer} : to.scaled.block;
  const Tensor values = Empty(x, SizesOf(x), dtype);
  const Tensor scales = Empty(x, ScaleGrid(block, SizesOf(x), to.axis), ScalarType::Float);
  CastApart(Input(x), to.scaled, to.axis, to.rounding, Output(values), Output(scales), to.key);
  return {values, scales};
}

/// Element i of the first dimension.
TensorView Part(const TensorView& all, std::int64_t i) {
  TensorView part = all;
  part.rank = all.rank - 1;
  std::shift_left(part.shape.begin(), part.shape.end(), 1);
  std::shift_left(part.stride.begin(), part.stride.end(), 1);
  const auto values = static_cast<std::size_t>(i * all.stride[0]);
  part.data = static_cast<std::uint8_t*>(all.data) + values * SizeOf(all.dtype);
  return part;
}

/// The casts along both axes, in front of which the result has a dimension of 2.
Tensor CastScaledBoth(const Tensor& x, StringHandle scaled, const std::vector<std::int64_t>& axes,
                      StringHandle how, const std::optional<ScalarType>& dtype) {
  const Text format(scaled), elements(how);
  const OnDeviceOf guard(x);
  if (axes.size() != 2) throw Error("axes must be two, got " + std::to_string(axes.size()));
  const How to(x, format, axes[0], elements, {}, {}, {}, {}, {}, {});
  std::vector<std::int64_t> sizes{2};
  for (const std::int64_t extent : SizesOf(x)) sizes.push_back(extent);
  const Tensor both = Empty(x, sizes, dtype.value_or(x.scalar_type()));
  const TensorView out = Output(both);
  CastBoth(Input(x), to.scaled, {to.axis, Axis(axes[1])}, to.rounding, Part(out, 0), Part(out, 1),
           to.key);
  return both;
}

/// Bytes for so many codes.
Tensor Packed(const Tensor& x, const Format& format, std::int64_t count) {
  const std::int64_t bytes = PackedBytes(format, count);
  return Empty(x, {&bytes, 1}, ScalarType::Byte);
}

/// Elements' codes, blocks' scales and the second level's, of which there are none at one level.
std::tuple<Tensor, Tensor, Tensor> EncodeScaledNew(
    const Tensor& x, StringHandle scaled, std::int64_t axis, StringHandle how,
    const OptionalTensor& scales, const OptionalTensor& tensor_scales, const OptionalTensor& amax,
    const OptionalTensor& seed, const OptionalTensor& stream, const OptionalTensor& random) {
  const Text format(scaled), elements(how);
  const OnDeviceOf guard(x);
  const How to(x, format, axis, elements, scales, tensor_scales, amax, seed, stream, random);
  const ScaleCounts counts = CountScales(to.scaled, SizesOf(x), to.axis);
  const auto& outer = to.scaled.tensor_scale;
  const Tensor packed = Packed(x, to.scaled.element, x.numel());
  const Tensor of_blocks = Packed(x, to.scaled.scale, counts.blocks);
  const Tensor of_tensor = Packed(x, outer ? *outer : to.scaled.scale, counts.tensor);
  const TensorView second = Output(of_tensor);
  Encode(Input(x), to.scaled, to.axis, to.rounding, Output(packed), Output(of_blocks),
         outer ? &second : nullptr, to.given(), to.key, Pointer(to.random));
  return {packed, of_blocks, of_tensor};
}

void DecodeScaledInto(const Tensor& codes, const Text& scaled, std::int64_t axis,
                      const Tensor& scales, const OptionalTensor& tensor_scales,
                      const Tensor& out) {
  const OnDeviceOf guard(codes);
  const auto blocks = Beside(codes, scales, "scales");
  const auto tensor = Beside(codes, tensor_scales, "tensor scales");
  Decode(Input(codes), Parsed<ParseScaled>(scaled.view()), Axis(axis), *blocks, Pointer(tensor),
         Output(out));
}

void DecodeScaledOut(const Tensor& codes, StringHandle scaled, std::int64_t axis,
                     const Tensor& scales, const OptionalTensor& tensor_scales, const Tensor& out) {
  DecodeScaledInto(codes, Text(scaled), axis, scales, tensor_scales, out);
}

Tensor DecodeScaledNew(const Tensor& codes, StringHandle scaled, std::int64_t axis,
                       const Tensor& scales, const OptionalTensor& tensor_scales,
                       const std::vector<std::int64_t>& shape, ScalarType dtype) {
  const Text format(scaled);
  const Tensor out = Empty(codes, shape, dtype);
  DecodeScaledInto(codes, format, axis, scales, tensor_scales, out);
  return out;
}

constexpr const char* kOf =
    "(Tensor x, str scaled, int axis, str how, Tensor? scales, Tensor? tensor_scales, "
    "Tensor? amax, Tensor? seed, Tensor? stream, Tensor? random";
constexpr const char* kFrom =
    "(Tensor codes, str scaled, int axis, Tensor scales, Tensor? tensor_scales, ";

STABLE_TORCH_LIBRARY_FRAGMENT(cpd, m) {
  const auto define = [&](const std::string& schema) { m.def(schema.c_str()); };
  for (const std::string form : {"", "_plain"}) {
    define("cast_scaled" + form + kOf + ", ScalarType? dtype) -> Tensor");
    define("cast_scaled_out" + form + kOf + ", *, Tensor(a!) out) -> ()");
    define("cast_scaled_both" + form +
           "(Tensor x, str scaled, int[] axes, str how, ScalarType? dtype) -> Tensor");
    define("decode_scaled_out" + form + kFrom + "*, Tensor(a!) out) -> ()");
  }
  define(
      "cast_scaled_narrow(Tensor x, str scaled, int axis, str how, Tensor? seed, Tensor? stream) "
      "-> Tensor");
  define(
      "cast_scaled_apart(Tensor x, str scaled, int axis, str how, Tensor? seed, Tensor? stream, "
      "ScalarType dtype) -> (Tensor, Tensor)");
  define(std::string("encode_scaled") + kOf + ") -> (Tensor, Tensor, Tensor)");
  define(std::string("decode_scaled") + kFrom + "SymInt[] shape, ScalarType dtype) -> Tensor");
}

void Implement(torch::stable::detail::StableLibrary& m) {
  m.impl("cast_scaled", TORCH_BOX(&Entered<&CastScaledNew>::Run));
  m.impl("cast_scaled_plain", TORCH_BOX(&Entered<&CastScaledNew>::Run));
  m.impl("cast_scaled_out", TORCH_BOX(&Entered<&CastScaledOut>::Run));
  m.impl("cast_scaled_out_plain", TORCH_BOX(&Entered<&CastScaledOut>::Run));
  m.impl("cast_scaled_both", TORCH_BOX(&Entered<&CastScaledBoth>::Run));
  m.impl("cast_scaled_both_plain", TORCH_BOX(&Entered<&CastScaledBoth>::Run));
  m.impl("encode_scaled", TORCH_BOX(&Entered<&EncodeScaledNew>::Run));
  m.impl("decode_scaled", TORCH_BOX(&Entered<&DecodeScaledNew>::Run));
  m.impl("decode_scaled_out", TORCH_BOX(&Entered<&DecodeScaledOut>::Run));
  m.impl("decode_scaled_out_plain", TORCH_BOX(&Entered<&DecodeScaledOut>::Run));
}

STABLE_TORCH_LIBRARY_IMPL(cpd, CPU, m) {
  Implement(m);
  m.impl("cast_scaled_narrow", TORCH_BOX(&Entered<&CastScaledNarrow>::Run));
  m.impl("cast_scaled_apart", TORCH_BOX(&Entered<&CastScaledApart>::Run));
}
STABLE_TORCH_LIBRARY_IMPL(cpd, CUDA, m) { Implement(m); }

}  // namespace
}  // namespace cpd
