// SPDX-License-Identifier: Apache-2.0
//
// The operations on NumPy arrays, and the backends. Views are made with the GIL, kernels run
// without it.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
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

// ---- operations -----------------------------------------------------------------------------

using OptionalArray = std::optional<py::array>;

/// A call's seed and stream.
using SeedAndStream = std::pair<std::uint64_t, std::uint64_t>;
RandomKey KeyOf(const SeedAndStream& key) { return {.seed = key.first, .stream = key.second}; }

std::optional<TensorView> OptionalViewOf(const OptionalArray& x) {
  return x ? std::optional(ViewOf(*x)) : std::nullopt;
}

void CastArray(const py::array& x, const Format& format, const RoundingOptions& options,
               const py::array& out, const SeedAndStream& key, const OptionalArray& random) {
  const auto r = OptionalViewOf(random);
  WithoutGil([&, x = ViewOf(x), out = ViewOf(out)] {
    Cast(x, format, options, out, KeyOf(key), r ? &*r : nullptr);
  });
}

void EncodeArray(const py::array& x, const Format& format, const RoundingOptions& options,
                 const py::array& packed, const SeedAndStream& key, const OptionalArray& random) {
  const auto r = OptionalViewOf(random);
  WithoutGil([&, x = ViewOf(x), packed = ViewOf(packed)] {
    Encode(x, format, options, packed, KeyOf(key), r ? &*r : nullptr);
  });
}

void DecodeArray(const py::array& packed, const Format& format, const py::array& out) {
  WithoutGil([&, packed = ViewOf(packed), out = ViewOf(out)] { Decode(packed, format, out); });
}

template <auto Operation>
void BinaryArrays(const py::array& x, const py::array& y, const Format& format,
                  const RoundingOptions& options, const py::array& out, const SeedAndStream& key,
                  const OptionalArray& random) {
  const auto r = OptionalViewOf(random);
  WithoutGil([&, x = ViewOf(x), y = ViewOf(y), out = ViewOf(out)] {
    Operation(x, y, format, options, out, KeyOf(key), r ? &*r : nullptr);
  });
}

void FmaArrays(const py::array& x, const py::array& y, const py::array& z, const Format& format,
               const RoundingOptions& options, const py::array& out, const SeedAndStream& key,
               const OptionalArray& random) {
  const auto r = OptionalViewOf(random);
  WithoutGil([&, x = ViewOf(x), y = ViewOf(y), z = ViewOf(z), out = ViewOf(out)] {
    Fma(x, y, z, format, options, out, KeyOf(key), r ? &*r : nullptr);
  });
}

void SqrtArray(const py::array& x, const Format& format, const RoundingOptions& options,
               const py::array& out, const SeedAndStream& key, const OptionalArray& random) {
  const auto r = OptionalViewOf(random);
  WithoutGil([&, x = ViewOf(x), out = ViewOf(out)] {
    Sqrt(x, format, options, out, KeyOf(key), r ? &*r : nullptr);
  });
}

void FlagsArrays(const std::string& operation, const std::vector<py::array>& operands,
                 const Format& format, const RoundingOptions& options, const std::string& tininess,
                 const py::array& flags, const SeedAndStream& key, const OptionalArray& random) {
  std::vector<TensorView> views;
  for (const py::array& x : operands) views.push_back(ViewOf(x));
  if (views.empty()) throw Error("an operation needs operands, got none");
  const Operands in{views[0], views.size() > 1 ? &views[1] : nullptr,
                    views.size() > 2 ? &views[2] : nullptr};
  const auto r = OptionalViewOf(random);
  WithoutGil([&, flags = ViewOf(flags)] {
    Flags(soft::ParseOperation(operation), in, format, options, soft::ParseTininess(tininess),
          flags, KeyOf(key), r ? &*r : nullptr);
  });
}

void SumArray(const py::array& x, int dim, const Accumulator& accumulator, const py::array& out,
              const SeedAndStream& key, const OptionalArray& random) {
  const auto r = OptionalViewOf(random);
  WithoutGil([&, x = ViewOf(x), out = ViewOf(out)] {
    Sum(x, dim, accumulator, out, KeyOf(key), r ? &*r : nullptr);
  });
}

void GemmArrays(const py::array& a, const py::array& b, const Accumulator& accumulator,
                const py::array& out, const OptionalArray& c, const SeedAndStream& key,
                const OptionalArray& random) {
  const auto addend = OptionalViewOf(c);
  const auto r = OptionalViewOf(random);
  WithoutGil([&, a = ViewOf(a), b = ViewOf(b), out = ViewOf(out)] {
    Gemm(a, b, accumulator, out, addend ? &*addend : nullptr, KeyOf(key), r ? &*r : nullptr);
  });
}

void SumFlaggedArray(const py::array& x, int dim, const Accumulator& accumulator,
                     const std::string& tininess, const py::array& out, const py::array& flags,
                     const SeedAndStream& key, const OptionalArray& random) {
  const auto r = OptionalViewOf(random);
  const soft::Tininess when = soft::ParseTininess(tininess);
  WithoutGil([&, x = ViewOf(x), out = ViewOf(out), flags = ViewOf(flags)] {
    SumFlagged(x, dim, accumulator, when, out, flags, KeyOf(key), r ? &*r : nullptr);
  });
}

void GemmFlaggedArrays(const py::array& a, const py::array& b, const Accumulator& accumulator,
                       const std::string& tininess, const py::array& out, const py::array& flags,
                       const OptionalArray& c, const SeedAndStream& key,
                       const OptionalArray& random) {
  const auto addend = OptionalViewOf(c);
  const auto r = OptionalViewOf(random);
  const soft::Tininess when = soft::ParseTininess(tininess);
  WithoutGil([&, a = ViewOf(a), b = ViewOf(b), out = ViewOf(out), flags = ViewOf(flags)] {
    GemmFlagged(a, b, accumulator, when, out, flags, addend ? &*addend : nullptr, KeyOf(key),
                r ? &*r : nullptr);
  });
}

/// An operand's scales and factor, or None, its block and its lines.
struct OperandArrays {
  OperandArrays(const OptionalArray& scale_values, std::int64_t block, std::int64_t lines,
                const OptionalArray& factor_values)
      : scales(OptionalViewOf(scale_values)), factor(OptionalViewOf(factor_values)) {
    given.scales = scales ? &*scales : nullptr;
    given.factor = factor ? &*factor : nullptr;
    given.block = block;
    given.lines = lines;
  }
  OperandArrays(const OperandArrays&) = delete;
  OperandArrays& operator=(const OperandArrays&) = delete;

  std::optional<TensorView> scales, factor;
  OperandScales given;
};
using OperandTuple = std::tuple<OptionalArray, std::int64_t, std::int64_t, OptionalArray>;

void GemmScaledArrays(const py::array& a, const OperandTuple& a_scales, const py::array& b,
                      const OperandTuple& b_scales, const Accumulator& accumulator, bool epilogue,
                      const py::array& out, const OptionalArray& c, const SeedAndStream& key,
                      const OptionalArray& random) {
  const auto scales = [](const OperandTuple& x) { return std::make_from_tuple<OperandArrays>(x); };
  const OperandArrays of_a = scales(a_scales);
  const OperandArrays of_b = scales(b_scales);
  const auto addend = OptionalViewOf(c);
  const auto r = OptionalViewOf(random);
  WithoutGil([&, a = ViewOf(a), b = ViewOf(b), out = ViewOf(out)] {
    GemmScaled(a, of_a.given, b, of_b.given, accumulator,
               epilogue ? ScalesAt::epilogue : ScalesAt::block, out, addend ? &*addend : nullptr,
               KeyOf(key), r ? &*r : nullptr);
  });
}

void GemmArraysByBlas(const py::array& a, const py::array& b, const Accumulator& accumulator,
                      const py::array& out, const OptionalArray& c) {
  const auto addend = OptionalViewOf(c);
  WithoutGil([&, a = ViewOf(a), b = ViewOf(b), out = ViewOf(out)] {
    GemmByBlas(a, b, accumulator, out, addend ? &*addend : nullptr);
  });
}

void TransformArray(const py::array& x, const Hadamard& transform, int axis, bool inverse,
                    const py::array& out) {
  WithoutGil(
      [&, x = ViewOf(x), out = ViewOf(out)] { Transform(x, transform, axis, inverse, out); });
}

/// Scales from elsewhere, as arrays.
struct GivenArrays {
  std::optional<TensorView> blocks, tensor, largest;
  [[nodiscard]] GivenScales views() const {
    const auto of = [](const auto& view) { return view ? &*view : nullptr; };
    return {of(blocks), of(tensor), of(largest)};
  }
};

void CastScaledArray(const py::array& x, const Scaled& scaled, int axis,
                     const RoundingOptions& options, const py::array& out,
                     const OptionalArray& blocks, const OptionalArray& tensor,
                     const OptionalArray& largest, const SeedAndStream& key,
                     const OptionalArray& random) {
  const GivenArrays given{OptionalViewOf(blocks), OptionalViewOf(tensor), OptionalViewOf(largest)};
  const auto r = OptionalViewOf(random);
  WithoutGil([&, x = ViewOf(x), out = ViewOf(out)] {
    Cast(x, scaled, axis, options, out, given.views(), KeyOf(key), r ? &*r : nullptr);
  });
}

void EncodeScaledArray(const py::array& x, const Scaled& scaled, int axis,
                       const RoundingOptions& options, const py::array& packed,
                       const py::array& scales, const OptionalArray& tensor_scales,
                       const OptionalArray& blocks, const OptionalArray& tensor,
                       const OptionalArray& largest, const SeedAndStream& key,
                       const OptionalArray& random) {
  const GivenArrays given{OptionalViewOf(blocks), OptionalViewOf(tensor), OptionalViewOf(largest)};
  const auto outer = OptionalViewOf(tensor_scales);
  const auto r = OptionalViewOf(random);
  WithoutGil([&, x = ViewOf(x), packed = ViewOf(packed), scales = ViewOf(scales)] {
    Encode(x, scaled, axis, options, packed, scales, outer ? &*outer : nullptr, given.views(),
           KeyOf(key), r ? &*r : nullptr);
  });
}

void DecodeScaledArray(const py::array& packed, const Scaled& scaled, int axis,
                       const py::array& scales, const OptionalArray& tensor_scales,
                       const py::array& out) {
  const auto outer = OptionalViewOf(tensor_scales);
  WithoutGil([&, packed = ViewOf(packed), scales = ViewOf(scales), out = ViewOf(out)] {
    Decode(packed, scaled, axis, scales, outer ? &*outer : nullptr, out);
  });
}

void RandomIntegersArray(const RoundingOptions& options, std::uint64_t first, const py::array& out,
                         const SeedAndStream& key) {
  WithoutGil([&, out = ViewOf(out)] { RandomIntegers(options, first, out, KeyOf(key)); });
}

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
  m.def("cast", &CastArray, py::arg("x"), py::arg("format"), py::arg("options"), py::arg("out"),
        key, no_array);
  m.def("encode", &EncodeArray, py::arg("x"), py::arg("format"), py::arg("options"),
        py::arg("packed"), key, no_array);
  m.def("decode", &DecodeArray, py::arg("packed"), py::arg("format"), py::arg("out"));
  m.def("cast_scaled", &CastScaledArray, py::arg("x"), py::arg("scaled"), py::arg("axis"),
        py::arg("options"), py::arg("out"), py::arg("scales") = py::none(),
        py::arg("tensor_scales") = py::none(), py::arg("amax") = py::none(), key, no_array);
  m.def("encode_scaled", &EncodeScaledArray, py::arg("x"), py::arg("scaled"), py::arg("axis"),
        py::arg("options"), py::arg("packed"), py::arg("scales_out"), py::arg("tensor_scales_out"),
        py::arg("scales") = py::none(), py::arg("tensor_scales") = py::none(),
        py::arg("amax") = py::none(), key, no_array);
  m.def("decode_scaled", &DecodeScaledArray, py::arg("packed"), py::arg("scaled"), py::arg("axis"),
        py::arg("scales"), py::arg("tensor_scales"), py::arg("out"));
  m.def("add", &BinaryArrays<Add>, py::arg("x"), py::arg("y"), py::arg("format"),
        py::arg("options"), py::arg("out"), key, no_array);
  m.def("mul", &BinaryArrays<Mul>, py::arg("x"), py::arg("y"), py::arg("format"),
        py::arg("options"), py::arg("out"), key, no_array);
  m.def("fma", &FmaArrays, py::arg("x"), py::arg("y"), py::arg("z"), py::arg("format"),
        py::arg("options"), py::arg("out"), key, no_array);
  m.def("div", &BinaryArrays<Div>, py::arg("x"), py::arg("y"), py::arg("format"),
        py::arg("options"), py::arg("out"), key, no_array);
  m.def("sqrt", &SqrtArray, py::arg("x"), py::arg("format"), py::arg("options"), py::arg("out"),
        key, no_array);
  m.def("flags", &FlagsArrays, py::arg("operation"), py::arg("operands"), py::arg("format"),
        py::arg("options"), py::arg("tininess"), py::arg("flags"), key, no_array);
  m.def("sum", &SumArray, py::arg("x"), py::arg("dim"), py::arg("accumulator"), py::arg("out"), key,
        no_array);
  m.def("gemm", &GemmArrays, py::arg("a"), py::arg("b"), py::arg("accumulator"), py::arg("out"),
        py::arg("c"), key, no_array);
  m.def("sum_flagged", &SumFlaggedArray, py::arg("x"), py::arg("dim"), py::arg("accumulator"),
        py::arg("tininess"), py::arg("out"), py::arg("flags"), key, no_array);
  m.def("gemm_flagged", &GemmFlaggedArrays, py::arg("a"), py::arg("b"), py::arg("accumulator"),
        py::arg("tininess"), py::arg("out"), py::arg("flags"), py::arg("c"), key, no_array);
  m.def("gemm_scaled", &GemmScaledArrays, py::arg("a"), py::arg("a_scales"), py::arg("b"),
        py::arg("b_scales"), py::arg("accumulator"), py::arg("epilogue"), py::arg("out"),
        py::arg("c") = py::none(), key, no_array);
  m.def("gemm_by_blas", &GemmArraysByBlas, py::arg("a"), py::arg("b"), py::arg("accumulator"),
        py::arg("out"), py::arg("c"));
  m.def("hadamard", &TransformArray, py::arg("x"), py::arg("transform"), py::arg("axis"),
        py::arg("inverse"), py::arg("out"));
  m.def("cpu_blas", [] { return std::string(CpuBlas()); });
  m.def("random_integers", &RandomIntegersArray, py::arg("options"), py::arg("first"),
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
