// SPDX-License-Identifier: Apache-2.0
//
// Specs as Python sees them: formats, rounding options, accumulators, reductions. Each is the one
// native object, checked where it is made.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cpd/base/guarded.h"
#include "cpd/comm/spec.h"
#include "cpd/numeric/error.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/reduce.h"
#include "cpd/scale/aps.h"
#include "cpd/text/names.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {
namespace {

// ---- formats --------------------------------------------------------------------------------

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

// ---- options --------------------------------------------------------------------------------

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

// ---- accumulators ---------------------------------------------------------------------------

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

// ---- reductions -----------------------------------------------------------------------------

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

void BindReduceSpec(py::module_& m) {
  py::class_<ReduceSpec>(m, "ReduceSpec")
      .def(py::init(&MakeSpec), py::kw_only(), py::arg("format"), py::arg("rounding"),
           py::arg("accumulator"), py::arg("result"), py::arg("order"), py::arg("exchange"),
           py::arg("group_size"), py::arg("aps"), py::arg("loss_scale"), py::arg("average"),
           py::arg("step"));
  m.def(
      "check_world", [](const ReduceSpec& spec, int world) { Check(spec, world); }, py::arg("spec"),
      py::arg("world"));
  m.def("may_stall", &MayStall, py::arg("spec"), py::arg("world"));
}

}  // namespace

void BindSpecs(py::module_& m) {
  BindFormats(m);
  BindOptions(m);
  BindAccumulators(m);
  BindReduceSpec(m);
}

}  // namespace cpd
