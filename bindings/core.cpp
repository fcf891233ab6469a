// SPDX-License-Identifier: Apache-2.0
//
// cpd._core: formats, operations on NumPy arrays, virtual ranks. It turns Python objects into the
// C++ ones, lets go of the GIL and calls the library; arguments are named and checked for type in
// python/cpd, for value by the library, whose cpd::Error arrives as ValueError, cpd::MachineError
// as RuntimeError and std::bad_alloc as MemoryError.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cpd/backend/roster.h"
#include "cpd/base/guarded.h"
#include "cpd/comm/virtual.h"
#include "cpd/numeric/error.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/reduce.h"
#include "cpd/scale/aps.h"
#include "cpd/study/cost.h"
#include "cpd/study/roundoff.h"
#include "cpd/text/names.h"
#include "gil.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {
namespace {

// ---- NumPy arrays as TensorView ---------------------------------------------------------------

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
  throw Error("no such array element type: " + name);
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

// ---- operations: views are made with the GIL, kernels run without it
// -----------------------------

template <class Run>
void WithoutGil(Run run) {
  const ReleaseGil release;
  run();
}

using OptionalArray = std::optional<py::array>;

std::optional<TensorView> OptionalViewOf(const OptionalArray& x) {
  return x ? std::optional(ViewOf(*x)) : std::nullopt;
}

void CastArray(const py::array& x, const Format& format, const RoundingOptions& options,
               const py::array& out, const OptionalArray& random) {
  const auto r = OptionalViewOf(random);
  WithoutGil(
      [&, x = ViewOf(x), out = ViewOf(out)] { Cast(x, format, options, out, r ? &*r : nullptr); });
}

void EncodeArray(const py::array& x, const Format& format, const RoundingOptions& options,
                 const py::array& packed, const OptionalArray& random) {
  const auto r = OptionalViewOf(random);
  WithoutGil([&, x = ViewOf(x), packed = ViewOf(packed)] {
    Encode(x, format, options, packed, r ? &*r : nullptr);
  });
}

void DecodeArray(const py::array& packed, const Format& format, const py::array& out) {
  WithoutGil([&, packed = ViewOf(packed), out = ViewOf(out)] { Decode(packed, format, out); });
}

template <auto Operation>
void BinaryArrays(const py::array& x, const py::array& y, const Format& format,
                  const RoundingOptions& options, const py::array& out,
                  const OptionalArray& random) {
  const auto r = OptionalViewOf(random);
  WithoutGil([&, x = ViewOf(x), y = ViewOf(y), out = ViewOf(out)] {
    Operation(x, y, format, options, out, r ? &*r : nullptr);
  });
}

void FmaArrays(const py::array& x, const py::array& y, const py::array& z, const Format& format,
               const RoundingOptions& options, const py::array& out, const OptionalArray& random) {
  const auto r = OptionalViewOf(random);
  WithoutGil([&, x = ViewOf(x), y = ViewOf(y), z = ViewOf(z), out = ViewOf(out)] {
    Fma(x, y, z, format, options, out, r ? &*r : nullptr);
  });
}

void SumArray(const py::array& x, int dim, const Accumulator& accumulator, const py::array& out,
              const OptionalArray& random) {
  const auto r = OptionalViewOf(random);
  WithoutGil(
      [&, x = ViewOf(x), out = ViewOf(out)] { Sum(x, dim, accumulator, out, r ? &*r : nullptr); });
}

void GemmArrays(const py::array& a, const py::array& b, const Accumulator& accumulator,
                const py::array& out, const OptionalArray& c, const OptionalArray& random) {
  const auto addend = OptionalViewOf(c);
  const auto r = OptionalViewOf(random);
  WithoutGil([&, a = ViewOf(a), b = ViewOf(b), out = ViewOf(out)] {
    Gemm(a, b, accumulator, out, addend ? &*addend : nullptr, r ? &*r : nullptr);
  });
}

void GemmArraysByBlas(const py::array& a, const py::array& b, const Accumulator& accumulator,
                      const py::array& out, const OptionalArray& c) {
  const auto addend = OptionalViewOf(c);
  WithoutGil([&, a = ViewOf(a), b = ViewOf(b), out = ViewOf(out)] {
    GemmByBlas(a, b, accumulator, out, addend ? &*addend : nullptr);
  });
}

void RandomIntegersArray(const RoundingOptions& options, std::uint64_t first,
                         const py::array& out) {
  WithoutGil([&, out = ViewOf(out)] { RandomIntegers(options, first, out); });
}

Roundoff RoundoffArrays(const py::array& reference, const py::array& value) {
  const TensorView h = ViewOf(reference);
  const TensorView l = ViewOf(value);
  const ReleaseGil release;
  return MeasureRoundoff(h, l);
}

// ---- formats ---------------------------------------------------------------------------------

/// The distinct finite values, ascending. Every format's values are binary32 values.
py::array_t<float> Values(const Format& format) {
  std::vector<float> positive;
  Guarded([&] {
    for (std::uint32_t code = format.has_zero() ? 1 : 0; code <= format.max_code(); ++code) {
      const double value = format.magnitude(code);
      if (value != 0) positive.push_back(static_cast<float>(value));
    }
  });
  const auto n = static_cast<py::ssize_t>(positive.size());
  const py::ssize_t below = (format.is_signed ? n : 0) + (format.has_zero() ? 1 : 0);
  py::array_t<float> values(below + n);
  float* y = values.mutable_data();
  for (py::ssize_t i = 0; format.is_signed && i < n; ++i) y[i] = -positive[n - 1 - i];
  if (format.has_zero()) y[below - 1] = 0;
  for (py::ssize_t i = 0; i < n; ++i) y[below + i] = positive[i];
  return values;
}

void BindFormats(py::module_& m) {
  py::class_<Format>(m, "Format")
      .def(py::init([](int exp, int man, const std::string& encoding, std::optional<int> bias,
                       bool is_signed, bool subnormals) {
             return MakeFormat(exp, man, ParseEncoding(encoding), bias, is_signed, subnormals);
           }),
           py::arg("exp"), py::arg("man"), py::arg("encoding"), py::arg("bias"), py::arg("signed"),
           py::arg("subnormals"))
      .def_readonly("exp", &Format::exp)
      .def_readonly("man", &Format::man)
      .def_readonly("bias", &Format::bias)
      .def_readonly("signed", &Format::is_signed)
      .def_readonly("subnormals", &Format::subnormals)
      .def_property_readonly("encoding", [](const Format& f) { return ToString(f.encoding); })
      .def_property_readonly("name", [](const Format& f) { return ToString(f); })
      .def_property_readonly("bits", &Format::bits)
      .def_property_readonly("max", &Format::max)
      .def_property_readonly("min_normal", &Format::min_normal)
      .def_property_readonly("min_subnormal", &Format::min_subnormal)
      .def_property_readonly("epsilon", &Format::epsilon)
      .def_property_readonly("num_values", &Format::num_values)
      .def("values", &Values)
      .def("packed_bytes", &PackedBytes, py::arg("n"));
  m.def("parse_format", &ParseFormat, py::arg("name"));
}

// ---- options ---------------------------------------------------------------------------------

RoundingOptions MakeOptions(const std::string& rounding, const std::string& overflow,
                            std::uint64_t seed, std::uint64_t stream, int random_bits,
                            const std::string& variant) {
  RoundingOptions options;
  options.mode = ParseRounding(rounding);
  options.overflow = ParseOverflow(overflow);
  options.variant = ParseVariant(variant);
  options.random_bits = random_bits;
  options.seed = seed;
  options.stream = stream;
  Check(options);
  return options;
}

void BindOptions(py::module_& m) {
  py::class_<RoundingOptions>(m, "RoundingOptions")
      .def(py::init(&MakeOptions), py::arg("rounding"), py::arg("overflow"), py::arg("seed"),
           py::arg("stream"), py::arg("random_bits"), py::arg("variant"));
}

// ---- accumulators ----------------------------------------------------------------------------

Accumulator MakeAccumulator(const Format& format, const std::string& scheme,
                            const RoundingOptions& rounding, std::optional<Format> product,
                            bool exact_products, std::optional<Format> inner, std::int64_t chunk,
                            std::optional<BlockFma> unit) {
  Accumulator made{format, ParseScheme(scheme), rounding};
  made.product = product;
  made.exact_products = exact_products;
  made.inner = inner;
  made.chunk = chunk;
  made.unit = unit;
  Check(made);
  return made;
}

BlockFma MakeBlockFma(const Format& a, const Format& b, int block, int fraction_bits,
                      bool aligns_addend, int min_exponent, const Format& sum,
                      const std::string& rounding, std::int64_t promote) {
  return {
      a,      b, block, fraction_bits, aligns_addend, min_exponent, sum, ParseRounding(rounding),
      promote};
}

void BindAccumulators(py::module_& m) {
  py::class_<BlockFma>(m, "BlockFma")
      .def(py::init(&MakeBlockFma), py::arg("a"), py::arg("b"), py::arg("block"),
           py::arg("fraction_bits"), py::arg("aligns_addend"), py::arg("min_exponent"),
           py::arg("sum"), py::arg("rounding"), py::arg("promote"))
      .def_readonly("a", &BlockFma::a)
      .def_readonly("b", &BlockFma::b)
      .def_readonly("block", &BlockFma::block)
      .def_readonly("fraction_bits", &BlockFma::fraction_bits)
      .def_readonly("aligns_addend", &BlockFma::aligns_addend)
      .def_readonly("min_exponent", &BlockFma::min_exponent)
      .def_readonly("sum", &BlockFma::sum)
      .def_property_readonly("rounding", [](const BlockFma& u) { return ToString(u.rounding); })
      .def_readonly("promote", &BlockFma::promote);
  py::class_<Accumulator>(m, "Accumulator")
      .def(py::init(&MakeAccumulator), py::arg("format"), py::arg("scheme"), py::arg("rounding"),
           py::arg("product"), py::arg("exact_products"), py::arg("inner"), py::arg("chunk"),
           py::arg("unit"))
      .def_readonly("format", &Accumulator::format)
      .def_property_readonly("scheme", [](const Accumulator& a) { return ToString(a.scheme); })
      .def_readonly("product", &Accumulator::product)
      .def_readonly("exact_products", &Accumulator::exact_products)
      .def_readonly("inner", &Accumulator::inner)
      .def_readonly("chunk", &Accumulator::chunk)
      .def_readonly("unit", &Accumulator::unit)
      .def_property_readonly("rounding",
                             [](const Accumulator& a) { return ToString(a.rounding.mode); })
      .def_property_readonly("overflow",
                             [](const Accumulator& a) { return ToString(a.rounding.overflow); })
      .def_property_readonly("random_bits",
                             [](const Accumulator& a) { return a.rounding.random_bits; })
      .def_property_readonly("variant",
                             [](const Accumulator& a) { return ToString(a.rounding.variant); })
      .def_property_readonly("text", [](const Accumulator& a) { return ToString(a); })
      .def("sum_draws", &DrawsOfSum, py::arg("terms"))
      .def("gemm_draws", &DrawsOfGemm, py::arg("depth"));
  m.def(
      "parse_accumulator",
      [](const std::string& text, std::uint64_t seed, std::uint64_t stream) {
        Accumulator parsed = ParseAccumulator(text);
        parsed.rounding.seed = seed;
        parsed.rounding.stream = stream;
        return parsed;
      },
      py::arg("text"), py::arg("seed"), py::arg("stream"));
  m.def(
      "preset", [](const std::string& name, const Format& output) { return Preset(name, output); },
      py::arg("name"), py::arg("output"));
  m.def("names_preset", &NamesPreset, py::arg("word"));
  m.def("presets", [] {
    std::vector<std::tuple<std::string, std::string, std::string>> all;
    for (const PresetInfo& one : Presets()) all.emplace_back(one.name, one.evidence, one.source);
    return all;
  });
}

// ---- operations and backends -----------------------------------------------------------------

const KernelTable& Named(const std::string& name) {
  std::string known;
  for (const KernelTable* table : AvailableKernels()) {
    if (name == table->name) return *table;
    known += (known.empty() ? "" : ", ") + std::string(table->name);
  }
  throw Error("backend must be one of " + known + ", got '" + name + "'");
}

DType CarrierNamed(const std::string& name) {
  if (name == "float32") return DType::f32;
  if (name == "float64") return DType::f64;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  throw Error("element type must be float32, float64, bfloat16 or float16, got '" + name + "'");
}

void BindOperations(py::module_& m) {
  const auto no_array = py::arg("random") = py::none();
  m.def("cast", &CastArray, py::arg("x"), py::arg("format"), py::arg("options"), py::arg("out"),
        no_array);
  m.def("encode", &EncodeArray, py::arg("x"), py::arg("format"), py::arg("options"),
        py::arg("packed"), no_array);
  m.def("decode", &DecodeArray, py::arg("packed"), py::arg("format"), py::arg("out"));
  m.def("add", &BinaryArrays<Add>, py::arg("x"), py::arg("y"), py::arg("format"),
        py::arg("options"), py::arg("out"), no_array);
  m.def("mul", &BinaryArrays<Mul>, py::arg("x"), py::arg("y"), py::arg("format"),
        py::arg("options"), py::arg("out"), no_array);
  m.def("fma", &FmaArrays, py::arg("x"), py::arg("y"), py::arg("z"), py::arg("format"),
        py::arg("options"), py::arg("out"), no_array);
  m.def("sum", &SumArray, py::arg("x"), py::arg("dim"), py::arg("accumulator"), py::arg("out"),
        no_array);
  m.def("gemm", &GemmArrays, py::arg("a"), py::arg("b"), py::arg("accumulator"), py::arg("out"),
        py::arg("c"), no_array);
  m.def("gemm_by_blas", &GemmArraysByBlas, py::arg("a"), py::arg("b"), py::arg("accumulator"),
        py::arg("out"), py::arg("c"));
  m.def("cpu_blas", [] { return std::string(CpuBlas()); });
  m.def("random_integers", &RandomIntegersArray, py::arg("options"), py::arg("first"),
        py::arg("out"));
  m.def(
      "check_carrier",
      [](const std::string& name, const Format& format) {
        CheckCarrier(CarrierNamed(name), format);
      },
      py::arg("dtype"), py::arg("format"));

  m.def(
      "backend", [] { return std::string(Kernels().name); },
      "The CPU kernels now in use: scalar, avx2 or avx512. CPD_BACKEND chooses them.");
  m.def("backends", [] {
    std::vector<std::string> names;
    for (const KernelTable* table : AvailableKernels()) names.emplace_back(table->name);
    return names;
  });
  m.def("force_backend", [](const std::string& name) { ForceKernels(name); }, py::arg("name"));
  m.def(
      "kernel_calls", [](const std::string& name) { return Named(name).calls(); }, py::arg("name"));
}

// ---- virtual ranks ---------------------------------------------------------------------------

Aps ApsNamed(const std::string& name) {
  if (name == "off") return Aps::off;
  if (name == "on") return Aps::on;
  if (name == "paper") return Aps::paper;
  throw Error("aps must be False, True or 'paper', got '" + name + "'");
}

ReduceSpec MakeSpec(const Format& format, const RoundingOptions& rounding,
                    const Accumulator& accumulator, const Format& result, const std::string& order,
                    const std::string& exchange, int group_size, const std::string& aps,
                    double loss_scale, bool average, std::uint64_t step) {
  ReduceSpec spec;
  spec.format = format;
  spec.rounding = rounding;
  spec.accumulator = accumulator;
  spec.result = result;
  spec.order = ParseOrder(order);
  spec.exchange = ParseExchange(exchange);
  spec.group_size = group_size;
  spec.aps = ApsNamed(aps);
  spec.loss_scale = loss_scale;
  spec.average = average;
  spec.step = step;
  Check(spec);
  return spec;
}

void BindReduce(py::module_& m) {
  py::class_<ReduceSpec>(m, "ReduceSpec")
      .def(py::init(&MakeSpec), py::kw_only(), py::arg("format"), py::arg("rounding"),
           py::arg("accumulator"), py::arg("result"), py::arg("order"), py::arg("exchange"),
           py::arg("group_size"), py::arg("aps"), py::arg("loss_scale"), py::arg("average"),
           py::arg("step"));
  m.def(
      "check_world", [](const ReduceSpec& spec, int world) { Check(spec, world); }, py::arg("spec"),
      py::arg("world"));
  m.def("may_stall", &MayStall, py::arg("spec"), py::arg("world"));
  py::class_<LayerReport>(m, "LayerReport")
      .def_readonly("shift", &LayerReport::shift)
      .def_readonly("non_finite", &LayerReport::non_finite)
      .def_readonly("overflowed", &LayerReport::overflowed)
      .def_readonly("underflowed", &LayerReport::underflowed);
  py::class_<VirtualReduce>(m, "VirtualReduce")
      .def(py::init<const ReduceSpec&, int, std::vector<std::int64_t>>(), py::arg("spec"),
           py::arg("world"), py::arg("sizes"))
      .def("wants_ranges", &VirtualReduce::wants_ranges)
      .def("schedule", &VirtualReduce::schedule)
      .def("end_rank", &VirtualReduce::EndRank, NoGil())
      .def("report", &VirtualReduce::report, py::arg("layer"))
      .def(
          "observe",
          [](VirtualReduce& reduce, int layer, const py::array& x) {
            WithoutGil([&, x = ViewOf(x)] { reduce.Observe(layer, x); });
          },
          py::arg("layer"), py::arg("x"))
      .def(
          "contribute",
          [](VirtualReduce& reduce, int layer, const py::array& x) {
            WithoutGil([&, x = ViewOf(x)] { reduce.Contribute(layer, x); });
          },
          py::arg("layer"), py::arg("x"))
      .def(
          "result",
          [](VirtualReduce& reduce, int layer, const py::array& out) {
            WithoutGil([&, out = ViewOf(out)] { reduce.Result(layer, out); });
          },
          py::arg("layer"), py::arg("out"));
}

using Sizes = std::vector<std::int64_t>;

Cost CostOfSizes(const ReduceSpec& spec, int world, int rank, const Sizes& sizes,
                 std::int64_t chunk) {
  return CostOf(spec, world, rank, sizes, chunk);
}

double TimeOfSizes(const ReduceSpec& spec, int world, const Sizes& sizes, double alpha,
                   double beta) {
  return TimeOf(spec, world, sizes, alpha, beta);
}

void BindStudy(py::module_& m) {
  py::class_<Roundoff>(m, "Roundoff")
      .def_readonly("error", &Roundoff::error)
      .def_readonly("relative_rms", &Roundoff::relative_rms)
      .def_readonly("count", &Roundoff::count)
      .def_readonly("zero_references", &Roundoff::zero_references)
      .def_readonly("non_finite", &Roundoff::non_finite)
      .def_readonly("error_squares", &Roundoff::error_squares)
      .def_readonly("reference_squares", &Roundoff::reference_squares);
  m.def("roundoff", &RoundoffArrays, py::arg("reference"), py::arg("value"));
  m.def(
      "add_to_reference",
      [](const py::array& x, const py::array& sum) {
        WithoutGil([&, x = ViewOf(x), sum = ViewOf(sum)] { AddToReference(x, sum); });
      },
      py::arg("x"), py::arg("sum"));
  m.def(
      "divide_reference",
      [](const py::array& sum, double divisor) {
        WithoutGil([&, sum = ViewOf(sum)] { DivideReference(sum, divisor); });
      },
      py::arg("sum"), py::arg("divisor"));
  py::class_<Cost>(m, "Cost")
      .def_readonly("steps", &Cost::steps)
      .def_readonly("bytes_sent", &Cost::bytes_sent)
      .def_readonly("bytes_received", &Cost::bytes_received);
  m.def("cost", &CostOfSizes, py::arg("spec"), py::arg("world"), py::arg("rank"), py::arg("sizes"),
        py::arg("chunk"));
  m.def("time", &TimeOfSizes, py::arg("spec"), py::arg("world"), py::arg("sizes"), py::arg("alpha"),
        py::arg("beta"));
}

}  // namespace
}  // namespace cpd

PYBIND11_MODULE(_core, m) {
  m.doc() = "CPD's core: see the package cpd, whose functions check their arguments.";
  m.attr("__version__") = CPD_VERSION;
  m.attr("PARTS") = CPD_PARTS;
  cpd::BindInterrupt(m);
  cpd::BindFormats(m);
  cpd::BindOptions(m);
  cpd::BindAccumulators(m);
  cpd::BindOperations(m);
  cpd::BindReduce(m);
  cpd::BindComm(m);
  cpd::BindStudy(m);
}
