// SPDX-License-Identifier: Apache-2.0
//
// Binds the specs of arithmetic: formats, rounding options and accumulators. Python uses the C++
// objects, which are checked when they are made.
#include "specs.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cpd/backend/cpu/product_cost.h"
#include "cpd/base/guarded.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/reduce.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/cast_spec.h"
#include "cpd/spec/error.h"
#include "cpd/spec/fixed_point.h"
#include "cpd/spec/format_names.h"
#include "cpd/spec/hadamard.h"
#include "cpd/spec/names.h"
#include "cpd/spec/options.h"
#include "cpd/spec/presets.h"
#include "cpd/spec/scaled.h"
#include "cpd/spec/wide_format.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {
namespace {

// ---- formats --------------------------------------------------------------------------------

/// Returns the distinct finite values of a format in ascending order. All of them must be binary32
/// numbers.
py::array_t<float> Values(const Format& format) {
  Check(format);
  std::vector<float> positive;
  Guarded([&] {
    for (std::uint32_t code = format.has_zero() ? 1 : 0; code <= format.max_code(); ++code) {
      const double value = format.magnitude(code);
      if (value != 0) positive.push_back(static_cast<float>(value));
    }
  });
  const auto n = static_cast<py::ssize_t>(positive.size());
  const py::ssize_t least = format.lowest_code() - format.max_code();  // int_full's
  const py::ssize_t below = (format.is_signed ? least + n : 0) + (format.has_zero() ? 1 : 0);
  py::array_t<float> values(below + n);
  float* y = values.mutable_data();
  if (least > 0) y[0] = static_cast<float>(format.lowest());
  for (py::ssize_t i = 0; format.is_signed && i < n; ++i) y[least + i] = -positive[n - 1 - i];
  if (format.has_zero()) y[below - 1] = 0;
  for (py::ssize_t i = 0; i < n; ++i) y[below + i] = positive[i];
  return values;
}

void BindFormats(py::module_& m) {
  BindSpec<Format, FormatFields>(m, "Format")
      .def("values", &Values)
      .def("packed_bytes", &PackedBytes, py::arg("n"))
      .def_static("named", [] { return AsDict(NamedFormats()); });
}

// ---- options --------------------------------------------------------------------------------

RoundingOptions MakeOptions(const std::string& rounding, const std::string& overflow,
                            int random_bits, const std::string& variant) {
  RoundingOptions options;
  options.mode = ParseRounding(rounding);
  options.overflow = ParseOverflow(overflow);
  options.variant = ParseVariant(variant);
  options.random_bits = random_bits;
  Check(options);
  CheckDraws(options);
  return options;
}

/// Returns the rounding options of a codec: the given number of random bits, and default values for
/// all other options. Codecs that round without random bits ignore the number.
RoundingOptions OptionsOfCodec(int random_bits) {
  const RoundingOptions options{.random_bits = random_bits};
  Check(options);
  return options;
}

void BindOptions(py::module_& m) {
  py::class_<RoundingOptions>(m, "RoundingOptions")
      .def(py::init(&MakeOptions), py::arg("rounding"), py::arg("overflow"), py::arg("random_bits"),
           py::arg("variant"))
      .def_static("of_codec", &OptionsOfCodec, py::arg("random_bits"));
  m.attr("ROUNDINGS") = Tuple(NamesOf(Rounding{}));
  m.attr("OVERFLOWS") = Tuple(NamesOf(Overflow{}));
  m.attr("VARIANTS") = Tuple(NamesOf(Variant{}));
  m.attr("MAX_RANDOM_BITS") = kMaxRandomBits;
}

void BindCastSpec(py::module_& m) {
  BindSpec<CastSpec>(m, "CastSpec").def("is_whole", &IsWhole);
  m.attr("AMAX") = Tuple(NamesOf(CastSpec::Amax{}));
}

void BindHadamard(py::module_& m) {
  py::class_<Hadamard>(m, "Hadamard")
      .def_static("parse", &ParseHadamard, py::arg("text"))
      .def("fields", &FieldsAsDict<Hadamard>)
      .def_property_readonly("text", [](const Hadamard& h) { return ToString(h); });
}

// ---- scaled formats -------------------------------------------------------------------------

void BindScaled(py::module_& m) {
  BindSpec<Scaled>(m, "Scaled")
      .def("untransformed",
           [](Scaled s) {
             s.transform.reset();
             return s;
           })
      .def_static("named", [] { return AsDict(NamedScaledFormats()); })
      .def(
          "grid",
          [](const Scaled& s, const std::vector<std::int64_t>& shape, int axis) {
            return ScaleGrid(s.block, shape, axis);
          },
          py::arg("shape"), py::arg("axis"))
      .def(
          "outer_grid",
          [](const Scaled& s, const std::vector<std::int64_t>& shape, int axis) {
            return ScaleGrid({.kind = s.outer}, shape, axis);
          },
          py::arg("shape"), py::arg("axis"))
      .def(
          "bits_per_value",
          [](const Scaled& s, const std::vector<std::int64_t>& shape, int axis) {
            return BitsPerValue(s, shape, axis);
          },
          py::arg("shape"), py::arg("axis"));
  m.def("names_scaled", &NamesScaled, py::arg("text"));
  m.attr("E4M3_IS_AMBIGUOUS") = std::string(kE4m3IsAmbiguous);
}

// ---- accumulators ---------------------------------------------------------------------------

/// Returns the predefined matrix units by name, each with the bit pattern of its NaN.
NamedDict NamedUnits() {
  NamedDict all = AsDict(Presets());
  for (const auto& [name, unit] : all) unit["nan"] = PresetNan(name.cast<std::string>());
  return all;
}

/// Returns the accumulator that sums `terms` products of a and b in an integer without any
/// rounding.
Accumulator Exact(const Format& a, const Format& b, std::int64_t terms) {
  return {.scheme = Scheme::fixed, .fixed = Kulisch(a, b, terms)};
}

void BindAccumulators(py::module_& m) {
  BindSpec<Accumulator>(m, "Accumulator")
      .def_static("exact", &Exact, py::arg("a"), py::arg("b"), py::arg("terms"))
      .def_static("named", &NamedUnits)
      .def("swapped", &Swapped)
      .def("of_terms", &OfTerms)
      .def("sum_integers", &DrawsOfSum, py::arg("terms"))
      .def("gemm_integers", &DrawsOfGemm, py::arg("depth"))
      .def_property_readonly("slowdown", &SlowdownOf);
  m.attr("SCHEMES") = Tuple(SchemeNames());
  m.attr("SUM_SCHEMES") = Tuple(SumSchemeNames());
}

}  // namespace

NamedDict AsDict(const std::vector<NamedSpec>& specs) {
  NamedDict all;
  for (const NamedSpec& spec : specs) {
    pybind11::typing::Dict<py::str, py::str> one;
    one["summary"] = spec.summary;
    one["source"] = spec.source;
    one["evidence"] = spec.evidence;
    all[py::str(spec.name)] = one;
  }
  return all;
}

void BindSpecs(py::module_& m) {
  m.def("shortened", &Shortened, py::arg("text"), py::arg("most"));
  m.def("readable", &Readable, py::arg("message"));
  BindFormats(m);
  BindOptions(m);
  BindCastSpec(m);
  BindHadamard(m);
  BindScaled(m);
  BindAccumulators(m);
}

}  // namespace cpd
