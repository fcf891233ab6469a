// SPDX-License-Identifier: Apache-2.0
//
// The operators of scaled formats. `scaled` is the canonical text of the format; `how` is the cast
// of its elements, in the form that torch.ops.cpd.cast takes ("e2m1 overflow=saturate"). Each text
// is parsed once.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cpd/ops/codec.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/error.h"
#include "cpd/spec/scaled.h"
#include "torch_call.h"

namespace cpd {
namespace {

int Axis(std::int64_t axis) {
  if (!std::in_range<int>(axis)) {
    throw Error("axis must fit in 32 bits, got " + std::to_string(axis));
  }
  return static_cast<int>(axis);
}

/// Returns the view of an optional tensor, which must be on x's device.
OptionalView Beside(const Tensor& x, const OptionalTensor& given, const char* name) {
  if (given &&
      (given->is_cuda() != x.is_cuda() || given->get_device_index() != x.get_device_index())) {
    throw Error(std::string(name) + " must be on x's device");
  }
  return Input(given);
}

/// The destination of a cast: the scaled format, its axis, and the rounding of the elements.
struct To {
  using Entries = Types<Text, std::int64_t, Text>;
  static constexpr const char* kSchema = "str scaled, int axis, str how";

  Text scaled;
  std::int64_t axis;
  Text how;
};

/// The caller's scales, or the magnitudes from which scales are computed.
struct GivenTensors {
  using Entries = Types<OptionalTensor, OptionalTensor, OptionalTensor>;
  static constexpr const char* kSchema = "Tensor? scales, Tensor? tensor_scales, Tensor? amax";

  OptionalTensor scales, tensor_scales, amax;
};

/// The arguments of Cast and Encode (ops/scaled.h) in addition to the tensor x and the results.
struct ScaledCall {
  ScaledCall(const Tensor& x, const Text& format, std::int64_t along, const Text& elements,
             const Numbers& numbers, const GivenTensors& tensors = {},
             const OptionalTensor& integers = {})
      : scaled(Parsed<ParseScaled>(format)),
        axis(Axis(along)),
        blocks(Beside(x, tensors.scales, "scales")),
        tensor(Beside(x, tensors.tensor_scales, "tensor scales")),
        largest(Beside(x, tensors.amax, "amax")),
        random(Input(integers)) {
    const PlainCast cast = Parsed<ParsePlainCast>(elements);
    if (cast.format != scaled.element) {
      throw Error("elements of " + ToString(scaled) + " are not cast to " + ToString(cast.format));
    }
    rounding = cast.rounding;
    key = numbers.KeyOf(rounding, x);
  }
  ScaledCall(const Tensor& x, const To& to, const Numbers& numbers,
             const GivenTensors& tensors = {}, const OptionalTensor& integers = {})
      : ScaledCall(x, to.scaled, to.axis, to.how, numbers, tensors, integers) {}

  [[nodiscard]] GivenScales given() const { return {blocks, tensor, largest}; }
  void CastInto(const Tensor& x, const Tensor& out) const {
    Cast(Input(x), scaled, axis, rounding, Output(out), given(), key, random);
  }

  Scaled scaled;
  int axis;
  OptionalView blocks, tensor, largest, random;
  RoundingOptions rounding;
  RandomKey key;
};

void CastScaledOut(const Tensor& x, const To& to, const GivenTensors& tensors,
                   const Numbers& numbers, const OptionalTensor& random, const Tensor& out) {
  const OnDeviceOf guard(x);
  ScaledCall(x, to, numbers, tensors, random).CastInto(x, out);
}

/// Returns an uninitialized tensor like x, of type `dtype` if one is given.
Tensor EmptyLikeOf(const Tensor& x, const std::optional<ScalarType>& dtype) {
  Tensor like = EmptyLike(x);
  if (!dtype || *dtype == x.scalar_type()) return like;
  const auto strides = like.strides();
  return Empty(x, SizesOf(x), {strides.data(), strides.size()}, *dtype);
}

Tensor CastScaledNew(const Tensor& x, const To& to, const GivenTensors& tensors,
                     const Numbers& numbers, const OptionalTensor& random,
                     const std::optional<ScalarType>& dtype) {
  const OnDeviceOf guard(x);
  const Tensor out = EmptyLikeOf(x, dtype);
  ScaledCall(x, to, numbers, tensors, random).CastInto(x, out);
  return out;
}

/// Casts a contiguous fp32 tensor. Returns bf16 if bf16 represents all results exactly, else fp32.
Tensor CastScaledNarrow(const Tensor& x, const To& to, const Numbers& numbers) {
  const ScaledCall call(x, to, numbers);
  const Tensor narrow = Empty(x, SizesOf(x), ScalarType::BFloat16);
  if (CastWhereHeld(Input(x), call.scaled, call.axis, call.rounding, Output(narrow), call.key))
    return narrow;
  const Tensor out = EmptyLike(x);
  call.CastInto(x, out);
  return out;
}

/// Casts x, but does not multiply the results by the outermost scales (the outer scales or, without
/// these, the scales of blocks). Returns two tensors: the values in `dtype`, and these scales
/// (float32), one for each cell (elements that share an outer scale) or block.
std::tuple<Tensor, Tensor> CastScaledApart(const Tensor& x, const To& to, const Numbers& numbers,
                                           ScalarType dtype) {
  const ScaledCall call(x, to, numbers);
  const bool two_levels = call.scaled.tensor_scale.has_value();
  const BlockShape block = two_levels ? BlockShape{.kind = call.scaled.outer} : call.scaled.block;
  const Tensor values = Empty(x, SizesOf(x), dtype);
  const Tensor scales = Empty(x, ScaleGrid(block, SizesOf(x), call.axis), ScalarType::Float);
  CastApart(Input(x), call.scaled, call.axis, call.rounding, Output(values), Output(scales),
            call.key);
  return {values, scales};
}

/// Returns the view of the part of `all` that has index i in the first dimension.
TensorView Part(const TensorView& all, std::int64_t i) {
  TensorView part = all;
  part.rank = all.rank - 1;
  std::shift_left(part.shape.begin(), part.shape.end(), 1);
  std::shift_left(part.stride.begin(), part.stride.end(), 1);
  const auto values = static_cast<std::size_t>(i * all.stride[0]);
  part.data = static_cast<std::uint8_t*>(all.data) + values * SizeOf(all.dtype);
  return part;
}

/// Casts x twice, with blocks along axes[0] and with blocks along axes[1]. Returns both casts in
/// one tensor, which has an additional first dimension of size 2.
Tensor CastScaledBoth(const Tensor& x, const Text& scaled, const std::vector<std::int64_t>& axes,
                      const Text& how, const std::optional<ScalarType>& dtype) {
  const OnDeviceOf guard(x);
  if (axes.size() != 2) throw Error("axes must be two, got " + std::to_string(axes.size()));
  const ScaledCall call(x, scaled, axes[0], how, {});
  std::vector<std::int64_t> sizes{2};
  for (const std::int64_t extent : SizesOf(x)) sizes.push_back(extent);
  const Tensor both = Empty(x, sizes, dtype.value_or(x.scalar_type()));
  const TensorView out = Output(both);
  CastBoth(Input(x), call.scaled, {call.axis, Axis(axes[1])}, call.rounding, Part(out, 0),
           Part(out, 1), call.key);
  return both;
}

/// Returns the codes of elements, the scales of blocks, and the outer scales (empty if the format
/// has none).
std::tuple<Tensor, Tensor, Tensor> EncodeScaledNew(const Tensor& x, const To& to,
                                                   const GivenTensors& tensors,
                                                   const Numbers& numbers,
                                                   const OptionalTensor& random) {
  const OnDeviceOf guard(x);
  const ScaledCall call(x, to, numbers, tensors, random);
  const ScaleCounts counts = CountScales(call.scaled, SizesOf(x), call.axis);
  const auto& outer = call.scaled.tensor_scale;
  const Tensor packed = EmptyCodes(x, call.scaled.element, x.numel());
  const Tensor of_blocks = EmptyCodes(x, call.scaled.scale, counts.blocks);
  const Tensor of_tensor = EmptyCodes(x, outer ? *outer : call.scaled.scale, counts.tensor);
  const OptionalView second = outer ? OptionalView(Output(of_tensor)) : OptionalView();
  Encode(Input(x), call.scaled, call.axis, call.rounding, Output(packed), Output(of_blocks), second,
         call.given(), call.key, call.random);
  return {packed, of_blocks, of_tensor};
}

void DecodeScaledInto(const Tensor& codes, const Text& scaled, std::int64_t axis,
                      const Tensor& scales, const OptionalTensor& tensor_scales,
                      const Tensor& out) {
  const OnDeviceOf guard(codes);
  const OptionalView blocks = Beside(codes, scales, "scales");
  Decode(Input(codes), Parsed<ParseScaled>(scaled), Axis(axis), *blocks,
         Beside(codes, tensor_scales, "tensor scales"), Output(out));
}

Tensor DecodeScaledNew(const Tensor& codes, const Text& scaled, std::int64_t axis,
                       const Tensor& scales, const OptionalTensor& tensor_scales,
                       const std::vector<std::int64_t>& shape, ScalarType dtype) {
  const Tensor out = Empty(codes, shape, dtype);
  DecodeScaledInto(codes, scaled, axis, scales, tensor_scales, out);
  return out;
}

}  // namespace

TorchOperators ScaledOperators() {
  using enum Has;
  const std::string to = std::string("Tensor x, ") + To::kSchema + ", ";
  const std::string numbers = Numbers::kSchema;
  const std::string given = to + GivenTensors::kSchema + ", " + numbers + ", Tensor? random";
  const std::string codes =
      "Tensor codes, str scaled, int axis, Tensor scales, Tensor? tensor_scales";
  return {
      Row<CastScaledNew>("cast_scaled", given + ", ScalarType? dtype", derivatives),
      Row<CastScaledOut>("cast_scaled_out", given),
      Row<CastScaledBoth>("cast_scaled_both",
                          "Tensor x, str scaled, int[] axes, str how, ScalarType? dtype",
                          derivatives),
      Row<CastScaledNarrow>("cast_scaled_narrow", to + numbers, cpu_only),
      Row<CastScaledApart>("cast_scaled_apart", to + numbers + ", ScalarType dtype", cpu_only),
      Row<EncodeScaledNew>("encode_scaled", given),
      Row<DecodeScaledNew>("decode_scaled", codes + ", SymInt[] shape, ScalarType dtype"),
      Row<DecodeScaledInto>("decode_scaled_out", codes),
  };
}

}  // namespace cpd
