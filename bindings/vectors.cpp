// SPDX-License-Identifier: Apache-2.0
//
// The oracle in bulk, over arrays of codes.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "cpd/oracle/oracle.h"
#include "cpd/oracle/trace.h"
#include "cpd/spec/error.h"
#include "gil.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {
namespace {

using Codes = py::array_t<std::uint32_t, py::array::c_style>;
using FlagArray = py::array_t<std::uint8_t>;
using Corners = py::array_t<std::uint16_t>;
using Signals = py::array_t<std::uint64_t>;

/// (codes, flags, corners) of each line.
std::tuple<Codes, FlagArray, Corners> OracleArrays(
    const std::string& operation, const std::vector<Format>& formats, const Format& result,
    const RoundingOptions& rounding, const std::string& tininess,
    const std::vector<Codes>& operands, const std::optional<Codes>& random) {
  if (formats.size() != operands.size() || operands.empty() || operands.size() > 3) {
    throw Error("the oracle takes a format for each of one to three operands");
  }
  ElementRule rule{
      soft::ParseOperation(operation), {}, result, rounding, soft::ParseTininess(tininess)};
  ElementLines lines;
  lines.n = operands[0].size();
  for (std::size_t k = 0; k < operands.size(); ++k) {
    if (operands[k].size() != lines.n) throw Error("operands must be of one length");
    rule.operands[k] = formats[k];
    lines.operands[k] = operands[k].data();
  }
  if (random) {
    if (random->size() != lines.n) throw Error("random must have the operands' length");
    lines.random = random->data();
  }
  Codes codes(lines.n);
  FlagArray flags(lines.n);
  Corners corners(lines.n);
  lines.codes = codes.mutable_data();
  lines.flags = flags.mutable_data();
  lines.corners = corners.mutable_data();
  WithoutGil([&] { OracleElements(rule, lines); });
  return {codes, flags, corners};
}

SumRule SumRuleOf(const Accumulator& accumulator, const std::vector<Format>& formats,
                  std::int64_t length, const std::string& tininess) {
  const std::size_t of_product = accumulator.fixed ? 2 : 3;
  if (formats.size() != 1 && formats.size() != of_product) {
    throw Error(
        "a sum takes the format of its terms, a product those of a, b and c, which an "
        "integer's has not");
  }
  SumRule rule{
      accumulator, formats[0], {}, {}, length, formats.size() == 1, soft::ParseTininess(tininess)};
  if (!rule.is_sum) {
    rule.b = formats[1];
    if (!accumulator.fixed) rule.c = formats[2];
  }
  return rule;
}

/// The data of an array of so many codes, or null.
const std::uint32_t* DataOf(const std::optional<Codes>& codes, std::int64_t size,
                            const char* name) {
  if (!codes && size == 0) return nullptr;
  if (!codes || codes->size() != size) {
    throw Error(std::string(name) + " must have " + std::to_string(size) + " numbers, got " +
                std::to_string(codes ? codes->size() : 0));
  }
  return codes->data();
}

/// (codes, flags, corners, signals) of each line.
std::tuple<Codes, FlagArray, Corners, Signals> SumArrays(
    const SumRule& rule, std::int64_t n, const Codes& a, const std::optional<Codes>& b,
    const std::optional<Codes>& c, const std::optional<Codes>& a_scales,
    const std::optional<Codes>& b_scales, const std::optional<Codes>& random,
    const std::optional<Signals>& c_units) {
  SumLines lines;
  lines.n = n;
  const bool is_product = !rule.is_sum;
  const auto& unit = rule.accumulator.unit;
  const bool scaled = unit && unit->scale;
  const std::int64_t blocks =
      scaled ? (rule.length + unit->scale_block - 1) / unit->scale_block : 0;
  lines.a = DataOf(a, n * rule.length, "a");
  lines.b = DataOf(b, is_product ? n * rule.length : 0, "b");
  const bool is_integer = rule.accumulator.fixed.has_value();
  lines.c = DataOf(c, is_product && !is_integer ? n : 0, "c");
  if (is_product && is_integer) {
    if (!c_units || c_units->size() != n) throw Error("c_units must have a number of each line");
    lines.c_units = c_units->data();
  }
  lines.a_scales = DataOf(a_scales, n * blocks, "a_scale");
  lines.b_scales = DataOf(b_scales, n * blocks, "b_scale");
  lines.random = DataOf(random, n * DrawsOf(rule), "r");
  std::int64_t width = 0;
  for (const Signal& signal : SignalsOf(rule)) width += signal.count;
  Codes codes(n);
  FlagArray flags(n);
  Corners corners(n);
  Signals signals({n, width});
  lines.codes = codes.mutable_data();
  lines.flags = flags.mutable_data();
  lines.corners = corners.mutable_data();
  lines.signals = signals.mutable_data();
  WithoutGil([&] { OracleSums(rule, lines); });
  return {codes, flags, corners, signals};
}

}  // namespace

void BindVectors(py::module_& m) {
  py::class_<Signal>(m, "Signal")
      .def_readonly("name", &Signal::name)
      .def_readonly("bits", &Signal::bits)
      .def_readonly("count", &Signal::count)
      .def_readonly("signed", &Signal::is_signed);
  py::class_<SumRule>(m, "SumRule")
      .def(py::init(&SumRuleOf), py::arg("accumulator"), py::arg("formats"), py::arg("length"),
           py::arg("tininess"))
      .def("signals", &SignalsOf)
      .def("has_trace", &HasTrace)
      .def("draws", &DrawsOf);
  const auto none = py::none();
  m.def("oracle_sums", &SumArrays, py::arg("rule"), py::arg("n"), py::arg("a"), py::arg("b") = none,
        py::arg("c") = none, py::arg("a_scales") = none, py::arg("b_scales") = none,
        py::arg("random") = none, py::arg("c_units") = none);
  m.def("oracle_elements", &OracleArrays, py::arg("operation"), py::arg("formats"),
        py::arg("result"), py::arg("rounding"), py::arg("tininess"), py::arg("operands"),
        py::arg("random") = py::none());
}

}  // namespace cpd
