// SPDX-License-Identifier: Apache-2.0
//
// Binds the operations on NumPy arrays, and the backends. Views are made while the GIL is held;
// kernels run without the GIL.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cpd/backend/device_memory.h"
#include "cpd/backend/roster.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/exact.h"
#include "cpd/ops/flagged.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/hadamard.h"
#include "cpd/ops/reduce.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/error.h"
#include "gil.h"
#include "optional_view.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {
namespace {

// ---- NumPy arrays as TensorView -------------------------------------------------------------

constexpr int kNumpyHalf = 23;  // NPY_HALF, fixed by NumPy's ABI

DType DTypeOf(const py::array& x) {
  switch (x.dtype().num()) {
    case py::detail::npy_api::NPY_FLOAT_:
      return DType::f32;
    case py::detail::npy_api::NPY_DOUBLE_:
      return DType::f64;
    case py::detail::npy_api::NPY_UBYTE_:
      return DType::u8;
    case py::detail::npy_api::NPY_UINT_:
      return DType::u32;
    case kNumpyHalf:
      return DType::f16;
    default:
      break;
  }
  const auto name = x.dtype().attr("name").cast<std::string>();
  if (name == "bfloat16") return DType::bf16;  // of ml_dtypes, whose number is not fixed
  throw Error("arrays must be of float32, float64, bfloat16, float16, uint8 or uint32, got " +
              name);
}

}  // namespace

TensorView ViewOf(const py::array& x) {
  if (x.ndim() > TensorView::kMaxRank) {
    throw Error("arrays must have at most " + std::to_string(TensorView::kMaxRank) +
                " dimensions, got " + std::to_string(x.ndim()));
  }
  TensorView view;
  view.dtype = DTypeOf(x);
  view.data = const_cast<void*>(x.data());  // python/cpd checks that outputs are writable
  view.rank = static_cast<int>(x.ndim());
  const auto size = static_cast<py::ssize_t>(SizeOf(view.dtype));
  for (int d = 0; d < view.rank; ++d) {
    view.shape[d] = x.shape(d);
    view.stride[d] = x.strides(d) / size;
    if (x.shape(d) > 1 && x.strides(d) % size != 0) {
      throw Error("strides must be whole elements of " + std::to_string(size) + " bytes, got " +
                  std::to_string(x.strides(d)));
    }
  }
  return view;
}

namespace {

// ---- arguments from Python ------------------------------------------------------------------

using OptionalArray = std::optional<py::array>;
/// The numbers that determine a call's random bits: the seed, and the number of the random stream.
using SeedAndStream = std::pair<std::uint64_t, std::uint64_t>;

OptionalView OptionalViewOf(const OptionalArray& x) {
  return x ? OptionalView(ViewOf(*x)) : OptionalView();
}

/// Describes how an argument is passed to a function of the library: the type that Python passes,
/// and an object that holds the argument during the call.
template <class Argument>
struct FromPython {
  using Type = Argument;
  static Argument Of(Argument x) { return x; }
};
template <>
struct FromPython<const TensorView&> {
  using Type = const py::array&;
  static TensorView Of(Type x) { return ViewOf(x); }
};
template <>
struct FromPython<const TensorView*> {
  using Type = const OptionalArray&;
  static OptionalView Of(Type x) { return OptionalViewOf(x); }
};
template <>
struct FromPython<const RandomKey&> {
  using Type = const SeedAndStream&;
  static RandomKey Of(Type key) { return {.seed = key.first, .stream = key.second}; }
};
template <>
struct FromPython<soft::Tininess> {
  using Type = const std::string&;
  static soft::Tininess Of(Type name) { return soft::ParseTininess(name); }
};
template <>
struct FromPython<soft::Operation> {
  using Type = const std::string&;
  static soft::Operation Of(Type name) { return soft::ParseOperation(name); }
};
template <>
struct FromPython<ScalesAt> {
  using Type = bool;
  static ScalesAt Of(bool epilogue) { return epilogue ? ScalesAt::epilogue : ScalesAt::block; }
};
template <>
struct FromPython<const Operands&> {
  using Type = const std::vector<py::array>&;
  struct Held {
    operator Operands() const { return {x, y, z}; }
    TensorView x;
    OptionalView y, z;
  };
  static Held Of(Type operands) {
    if (operands.empty()) throw Error("an operation needs operands, got none");
    const auto other = [&](std::size_t i) {
      return i < operands.size() ? OptionalView(ViewOf(operands[i])) : OptionalView();
    };
    return {ViewOf(operands[0]), other(1), other(2)};
  }
};
/// A scaled operand of a matrix product, as a tuple: the scales or None; the number of values along
/// k that share a scale; the number of lines (rows of a, columns of b) that share a scale; and the
/// factor (OperandScales) or None.
template <>
struct FromPython<const OperandScales&> {
  using Type = const std::tuple<OptionalArray, std::int64_t, std::int64_t, OptionalArray>&;
  struct Held {
    operator OperandScales() const { return {scales, block, lines, factor}; }
    OptionalView scales, factor;
    std::int64_t block, lines;
  };
  static Held Of(Type given) {
    const auto& [scales, block, lines, factor] = given;
    return {OptionalViewOf(scales), OptionalViewOf(factor), block, lines};
  }
};
/// The tensors that a caller may give for a cast to a scaled format: the scales of blocks, the
/// outer scales, and the largest magnitudes.
template <>
struct FromPython<const GivenScales&> {
  using Type = const std::array<OptionalArray, 3>&;
  struct Held {
    operator GivenScales() const { return {blocks, tensor, largest}; }
    OptionalView blocks, tensor, largest;
  };
  static Held Of(Type given) {
    return {OptionalViewOf(given[0]), OptionalViewOf(given[1]), OptionalViewOf(given[2])};
  }
};

/// Wraps a `function` of views as a function of arrays. Makes the views while the GIL is held, and
/// calls `function` without the GIL.
template <class... Arguments>
auto OnArrays(void (*function)(Arguments...)) {
  return [function](typename FromPython<Arguments>::Type... arguments) {
    const std::tuple<decltype(FromPython<Arguments>::Of(arguments))...> held{
        FromPython<Arguments>::Of(arguments)...};
    const ReleaseGil release;
    std::apply([&](const auto&... all) { function(all...); }, held);
  };
}

// Function types with which a cast to a function pointer selects one of several overloads.
using View = const TensorView&;
using MaybeView = const TensorView*;
template <class... Arguments>
using Overload = void (*)(Arguments...);
constexpr Overload<View, const Format&, const RoundingOptions&, View, const RandomKey&, MaybeView>
    kCast = &Cast,
    kEncode = &Encode;
constexpr Overload<View, const Format&, View> kDecode = &Decode;
constexpr Overload<View, const Scaled&, int, const RoundingOptions&, View, const GivenScales&,
                   const RandomKey&, MaybeView>
    kCastScaled = &Cast;
constexpr Overload<View, const Scaled&, int, const RoundingOptions&, View, View, MaybeView,
                   const GivenScales&, const RandomKey&, MaybeView>
    kEncodeScaled = &Encode;
constexpr Overload<View, const Scaled&, int, View, MaybeView, View> kDecodeScaled = &Decode;
constexpr Overload<View, View, const Accumulator&, View, MaybeView, const RandomKey&, MaybeView>
    kGemm = &Gemm;

// ---- operations and backends ----------------------------------------------------------------

const KernelTable& Named(const std::string& name) {
  std::string known;
  for (const KernelTable* table : AvailableKernels()) {
    if (name == table->name) return *table;
    known += (known.empty() ? "" : ", ") + std::string(table->name);
  }
  throw Error("backend must be one of " + known + ", got '" + name + "'");
}

DType DTypeNamed(const std::string& name) {
  if (name == "float32") return DType::f32;
  if (name == "float64") return DType::f64;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  throw Error("element type must be float32, float64, bfloat16 or float16, got '" + name + "'");
}

}  // namespace

void BindOperations(py::module_& m) {
  const auto key = py::arg("key") = SeedAndStream();
  const auto no_array = py::arg("random") = py::none();
  const auto given = py::arg("given") = py::make_tuple(py::none(), py::none(), py::none());
  m.def("cast", OnArrays(kCast), py::arg("x"), py::arg("format"), py::arg("options"),
        py::arg("out"), key, no_array);
  m.def("encode", OnArrays(kEncode), py::arg("x"), py::arg("format"), py::arg("options"),
        py::arg("packed"), key, no_array);
  m.def("decode", OnArrays(kDecode), py::arg("packed"), py::arg("format"), py::arg("out"));
  m.def("cast_scaled", OnArrays(kCastScaled), py::arg("x"), py::arg("scaled"), py::arg("axis"),
        py::arg("options"), py::arg("out"), given, key, no_array);
  m.def("encode_scaled", OnArrays(kEncodeScaled), py::arg("x"), py::arg("scaled"), py::arg("axis"),
        py::arg("options"), py::arg("packed"), py::arg("scales_out"), py::arg("tensor_scales_out"),
        given, key, no_array);
  m.def("decode_scaled", OnArrays(kDecodeScaled), py::arg("packed"), py::arg("scaled"),
        py::arg("axis"), py::arg("scales"), py::arg("tensor_scales"), py::arg("out"));
  m.def("add", OnArrays(&Add), py::arg("x"), py::arg("y"), py::arg("format"), py::arg("options"),
        py::arg("out"), key, no_array);
  m.def("mul", OnArrays(&Mul), py::arg("x"), py::arg("y"), py::arg("format"), py::arg("options"),
        py::arg("out"), key, no_array);
  m.def("fma", OnArrays(&Fma), py::arg("x"), py::arg("y"), py::arg("z"), py::arg("format"),
        py::arg("options"), py::arg("out"), key, no_array);
  m.def("div", OnArrays(&Div), py::arg("x"), py::arg("y"), py::arg("format"), py::arg("options"),
        py::arg("out"), key, no_array);
  m.def("sqrt", OnArrays(&Sqrt), py::arg("x"), py::arg("format"), py::arg("options"),
        py::arg("out"), key, no_array);
  m.def("flags", OnArrays(&Flags), py::arg("operation"), py::arg("operands"), py::arg("format"),
        py::arg("options"), py::arg("tininess"), py::arg("flags"), key, no_array);
  m.def("sum", OnArrays(&Sum), py::arg("x"), py::arg("dim"), py::arg("accumulator"), py::arg("out"),
        key, no_array);
  m.def("gemm", OnArrays(kGemm), py::arg("a"), py::arg("b"), py::arg("accumulator"), py::arg("out"),
        py::arg("c"), key, no_array);
  m.def("sum_flagged", OnArrays(&SumFlagged), py::arg("x"), py::arg("dim"), py::arg("accumulator"),
        py::arg("tininess"), py::arg("out"), py::arg("flags"), key, no_array);
  m.def("gemm_flagged", OnArrays(&GemmFlagged), py::arg("a"), py::arg("b"), py::arg("accumulator"),
        py::arg("tininess"), py::arg("out"), py::arg("flags"), py::arg("c"), key, no_array);
  m.def("gemm_scaled", OnArrays(&GemmScaled), py::arg("a"), py::arg("a_scales"), py::arg("b"),
        py::arg("b_scales"), py::arg("accumulator"), py::arg("epilogue"), py::arg("out"),
        py::arg("c") = py::none(), key, no_array);
  m.def("gemm_by_blas", OnArrays(&GemmByBlas), py::arg("a"), py::arg("b"), py::arg("accumulator"),
        py::arg("out"), py::arg("c"));
  m.def("hadamard", OnArrays(&Transform), py::arg("x"), py::arg("transform"), py::arg("axis"),
        py::arg("inverse"), py::arg("out"));
  m.def("cpu_blas", [] { return std::string(CpuBlas()); });
  m.def("random_integers", OnArrays(&RandomIntegers), py::arg("options"), py::arg("first"),
        py::arg("out"), key);
  m.attr("MAX_RANK") = TensorView::kMaxRank;
  m.def(
      "check_storage",
      [](const std::string& name, const Format& format) { CheckStorage(DTypeNamed(name), format); },
      py::arg("dtype"), py::arg("format"));

  m.def(
      "backend", [] { return std::string(Kernels().name); },
      "The CPU kernels now in use: scalar, avx2, avx512 or neon. CPD_BACKEND chooses them.");
  m.def("backends", [] {
    std::vector<std::string> names;
    for (const KernelTable* table : AvailableKernels()) names.emplace_back(table->name);
    return names;
  });
  m.def("force_backend", [](const std::string& name) { ForceKernels(name); }, py::arg("name"));
  m.def(
      "release_cuda_memory", [](int device) { ReleaseUnusedMemory(Device::cuda, device); },
      py::arg("device"), py::call_guard<py::gil_scoped_release>());
  m.def("check_cuda", [](int device) { CheckDevice(Device::cuda, device); }, py::arg("device"));
  m.def(
      "kernel_calls", [](const std::string& name) { return Named(name).calls(); }, py::arg("name"));
}

}  // namespace cpd
