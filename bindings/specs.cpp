// SPDX-License-Identifier: Apache-2.0
//
// Specs of arithmetic as Python sees them: formats, rounding options, accumulators. Each is the one
// native object, checked where it is made.
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
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "cpd/base/guarded.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/reduce.h"
#include "cpd/spec/accumulator_arguments.h"
#include "cpd/spec/block_fma.h"
#include "cpd/spec/cast_spec.h"
#include "cpd/spec/error.h"
#include "cpd/spec/fixed_point.h"
#include "cpd/spec/hadamard.h"
#include "cpd/spec/names.h"
#include "cpd/spec/presets.h"
#include "cpd/spec/scaled.h"
#include "cpd/spec/wide_format.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {
namespace {

// ---- formats --------------------------------------------------------------------------------

/// The distinct finite values, ascending, of formats of binary32 values.
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
      .def_property_readonly("max", &max_of)
      .def_property_readonly("lowest",
                             [](const Format& f) {
                               if (!f.is_signed) return magnitude_of(f, 0);
                               return -magnitude_of(f, lowest_code_of(f));
                             })
      .def_property_readonly("min_normal", &min_normal_of)
      .def_property_readonly("min_subnormal", &min_subnormal_of)
      .def_property_readonly("epsilon", &Format::epsilon)
      .def_property_readonly("num_values", &num_values_of)
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
  m.attr("ROUNDINGS") = Tuple(RoundingNames());
  m.attr("OVERFLOWS") = Tuple(OverflowNames());
  m.attr("VARIANTS") = Tuple(VariantNames());
  m.attr("MAX_RANDOM_BITS") = kMaxRandomBits;
}

void BindCastSpec(py::module_& m) {
  py::class_<CastSpec> made(m, "CastSpec");
  made.def(py::init([](const std::string& format, const std::string& rounding,
                       const std::string& overflow, int random_bits, const std::string& variant) {
             return CastSpec{ParseFormat(format),
                             MakeOptions(rounding, overflow, 0, 0, random_bits, variant)};
           }),
           py::arg("format"), py::arg("rounding"), py::arg("overflow"), py::arg("random_bits"),
           py::arg("variant"))
      .def_static("parse", &ParseCastSpec, py::arg("text"))
      .def_readonly("format", &CastSpec::format)
      .def_property_readonly("text", [](const CastSpec& c) { return ToString(c); });
  BindRounding(made);
}

// ---- Hadamard transforms --------------------------------------------------------------------

/// The mask as an int of Python, whatever its length.
py::int_ SignsOf(const Hadamard& transform) {
  py::object signs = py::int_(0);
  for (std::size_t i = transform.signs.size(); i-- > 0;) {
    signs = (signs << py::int_(32)) | py::int_(transform.signs[i]);
  }
  return py::int_(signs);
}

void BindHadamard(py::module_& m) {
  py::class_<Hadamard>(m, "Hadamard")
      .def(py::init(&MakeHadamard), py::arg("size"), py::arg("signs"), py::arg("bf16"))
      .def_static("parse", &ParseHadamard, py::arg("text"))
      .def_readonly("size", &Hadamard::size)
      .def_property_readonly("signs", &SignsOf)
      .def_readonly("bf16", &Hadamard::to_bf16)
      .def_property_readonly("text", [](const Hadamard& h) { return ToString(h); });
}

// ---- scaled formats -------------------------------------------------------------------------

Scaled MakeScaled(const std::string& element, const std::string& block, const std::string& scale,
                  const std::optional<std::string>& rule,
                  const std::optional<std::string>& tensor_scale, const std::string& arithmetic,
                  const std::string& outer, int margin,
                  const std::optional<std::string>& non_finite, const std::string& choose,
                  std::optional<double> scale_max, const std::optional<std::string>& transform) {
  Scaled scaled{.element = ParseFormat(element),
                .block = ParseBlockShape(block),
                .scale = ParseFormat(scale),
                .arithmetic = ParseArithmetic(arithmetic),
                .margin = margin,
                .choose = ParseScaleChoice(choose)};
  scaled.rule = rule ? ParseScaleRule(*rule) : DefaultRule(scaled.scale);
  if (tensor_scale) scaled.tensor_scale = ParseFormat(*tensor_scale);
  const BlockShape cells = ParseBlockShape(outer);
  if (cells.kind == BlockShape::Kind::tile) {
    throw Error("outer must be tensor or row, got '" + outer + "'");
  }
  scaled.outer = cells.kind;
  scaled.non_finite =
      non_finite ? ParseNonFinite(*non_finite) : DefaultNonFinite(scaled.arithmetic);
  scaled.scale_max = static_cast<float>(scale_max.value_or(0));
  if (scale_max && !(scaled.scale_max > 0)) throw Error("scale_max must be positive");
  if (transform) scaled.transform = ParseHadamard(*transform);
  Check(scaled);
  return scaled;
}

void BindScaled(py::module_& m) {
  py::class_<Scaled>(m, "Scaled")
      .def(py::init(&MakeScaled), py::arg("element"), py::arg("block"), py::arg("scale"),
           py::arg("rule"), py::arg("tensor_scale"), py::arg("arithmetic"), py::arg("outer"),
           py::arg("margin"), py::arg("non_finite"), py::arg("choose"), py::arg("scale_max"),
           py::arg("transform"))
      .def_static("parse", &ParseScaled, py::arg("text"))
      .def_readonly("element", &Scaled::element)
      .def_property_readonly("block", [](const Scaled& s) { return ToString(s.block); })
      .def_readonly("scale", &Scaled::scale)
      .def_property_readonly("rule", [](const Scaled& s) { return ToString(s.rule); })
      .def_readonly("tensor_scale", &Scaled::tensor_scale)
      .def_property_readonly("arithmetic", [](const Scaled& s) { return ToString(s.arithmetic); })
      .def_property_readonly("outer",
                             [](const Scaled& s) { return ToString(BlockShape{.kind = s.outer}); })
      .def_readonly("margin", &Scaled::margin)
      .def_property_readonly("non_finite", [](const Scaled& s) { return ToString(s.non_finite); })
      .def_property_readonly("choose", [](const Scaled& s) { return ToString(s.choose); })
      .def_property_readonly("scale_max",
                             [](const Scaled& s) {
                               return s.scale_max > 0 ? std::optional<double>(s.scale_max)
                                                      : std::nullopt;
                             })
      .def_readonly("transform", &Scaled::transform)
      .def("untransformed",
           [](Scaled s) {
             s.transform.reset();
             return s;
           })
      .def_property_readonly("text", [](const Scaled& s) { return ToString(s); })
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
}

// ---- accumulators ---------------------------------------------------------------------------

BlockFma MakeBlockFma(const std::string& a, const std::string& b, int block, int fraction_bits,
                      bool aligns_addend, int min_exponent, const std::string& sum,
                      const std::string& rounding, std::int64_t promote,
                      const std::optional<std::string>& scale, int scale_block, int dot,
                      const std::string& adder, int group, int stride, int take) {
  BlockFma made{ParseFormat(a),   ParseFormat(b),          block,
                fraction_bits,    aligns_addend,           min_exponent,
                ParseFormat(sum), ParseRounding(rounding), promote};
  if (scale) made.scale = ParseFormat(*scale);
  made.scale_block = scale_block;
  made.dot = dot;
  made.adder = ParseAdder(adder);
  made.group = group;
  made.stride = stride;
  made.take = take;
  Check(made);
  return made;
}

void BindBlockFma(py::module_& m) {
  py::class_<BlockFma>(m, "BlockFma")
      .def(py::init(&MakeBlockFma), py::arg("a"), py::arg("b"), py::arg("block"),
           py::arg("fraction_bits"), py::arg("aligns_addend"), py::arg("min_exponent"),
           py::arg("sum"), py::arg("rounding"), py::arg("promote"), py::arg("scale"),
           py::arg("scale_block"), py::arg("dot"), py::arg("adder"), py::arg("group"),
           py::arg("stride"), py::arg("take"))
      .def_readonly("a", &BlockFma::a)
      .def_readonly("b", &BlockFma::b)
      .def_readonly("block", &BlockFma::block)
      .def_readonly("fraction_bits", &BlockFma::fraction_bits)
      .def_readonly("aligns_addend", &BlockFma::aligns_addend)
      .def_readonly("min_exponent", &BlockFma::min_exponent)
      .def_readonly("sum", &BlockFma::sum)
      .def_property_readonly("rounding", [](const BlockFma& u) { return ToString(u.rounding); })
      .def_readonly("promote", &BlockFma::promote)
      .def_readonly("scale", &BlockFma::scale)
      .def_readonly("scale_block", &BlockFma::scale_block)
      .def_readonly("dot", &BlockFma::dot)
      .def_property_readonly("adder", [](const BlockFma& u) { return ToString(u.adder); })
      .def_readonly("group", &BlockFma::group)
      .def_readonly("stride", &BlockFma::stride)
      .def_readonly("take", &BlockFma::take)
      .def_property_readonly("text", [](const BlockFma& u) { return ToString(u); });
}

FixedPoint MakeFixedPoint(int width, int fraction, const std::string& rounding) {
  const FixedPoint made{width, fraction, ParseRounding(rounding)};
  Check(made);
  return made;
}

void BindFixedPoint(py::module_& m) {
  py::class_<FixedPoint>(m, "FixedPoint")
      .def(py::init(&MakeFixedPoint), py::arg("width"), py::arg("fraction"), py::arg("rounding"))
      .def_static("kulisch", &Kulisch, py::arg("a"), py::arg("b"), py::arg("terms"))
      .def_readonly("width", &FixedPoint::width)
      .def_readonly("fraction", &FixedPoint::fraction)
      .def_property_readonly("rounding", [](const FixedPoint& p) { return ToString(p.rounding); })
      .def_property_readonly("text", [](const FixedPoint& p) { return ToString(p); });
}

Accumulator AccumulatorFrom(const std::optional<std::string>& format,
                            const std::optional<std::string>& scheme,
                            const std::optional<std::string>& product,
                            const std::optional<std::string>& inner, std::int64_t chunk,
                            const std::optional<std::string>& preset,
                            const std::optional<std::string>& unit,
                            const std::optional<std::pair<std::string, std::string>>& operands,
                            const std::optional<std::string>& fixed, const std::string& rounding,
                            const std::string& overflow, int random_bits,
                            const std::string& variant) {
  AccumulatorArguments given{format, scheme, product, inner, chunk, preset};
  if (unit) given.unit = ParseBlockFma(*unit);
  given.operands = operands;
  if (fixed) given.fixed = ParseFixedPoint(*fixed);
  given.rounding = MakeOptions(rounding, overflow, 0, 0, random_bits, variant);
  return MakeAccumulator(given);
}

/// The format of products, or "exact".
py::object ProductOf(const Accumulator& a) {
  if (a.exact_products || a.unit || a.fixed) return py::str("exact");
  return py::cast(a.product.value_or(a.format));
}

void BindAccumulators(py::module_& m) {
  constexpr AccumulatorArguments usual;
  py::class_<Accumulator> made(m, "Accumulator");
  made.def(py::init(&AccumulatorFrom), py::arg("format") = py::none(),
           py::arg("scheme") = py::none(), py::arg("product") = py::none(),
           py::arg("inner") = py::none(), py::arg("chunk") = usual.chunk,
           py::arg("preset") = py::none(), py::arg("unit") = py::none(),
           py::arg("operands") = py::none(), py::arg("fixed") = py::none(),
           py::arg("rounding") = ToString(usual.rounding.mode),
           py::arg("overflow") = ToString(usual.rounding.overflow),
           py::arg("random_bits") = usual.rounding.random_bits,
           py::arg("variant") = ToString(usual.rounding.variant))
      .def_readonly("format", &Accumulator::format)
      .def_property_readonly("scheme", [](const Accumulator& a) { return ToString(a.scheme); })
      .def_property_readonly("product", &ProductOf)
      .def_property_readonly("inner",
                             [](const Accumulator& a) { return a.inner.value_or(a.format); })
      .def_readonly("chunk", &Accumulator::chunk)
      .def_readonly("unit", &Accumulator::unit)
      .def_readonly("fixed", &Accumulator::fixed)
      .def_property_readonly("text", [](const Accumulator& a) { return ToString(a); })
      .def(
          "with_numbers",
          [](Accumulator a, std::uint64_t seed, std::uint64_t stream) {
            a.rounding.seed = seed;
            a.rounding.stream = stream;
            return a;
          },
          py::arg("seed"), py::arg("stream"))
      .def("swapped", &Swapped)
      .def("of_terms", &OfTerms)
      .def("sum_draws", &DrawsOfSum, py::arg("terms"))
      .def("gemm_draws", &DrawsOfGemm, py::arg("depth"))
      .def_property_readonly("slowdown", &SlowdownOf);
  BindRounding(made);
  m.attr("SCHEMES") = Tuple(SchemeNames());
  m.attr("SUM_SCHEMES") = Tuple(SumSchemeNames());
  m.attr("SCHEME_CHUNK") = usual.chunk;
  m.def("presets", [] {
    std::vector<std::tuple<std::string, std::string, std::string, std::string>> all;
    for (const PresetInfo& one : Presets()) {
      all.emplace_back(one.name, one.evidence, one.source, PresetNan(one.name));
    }
    return all;
  });
}

}  // namespace

void BindSpecs(py::module_& m) {
  m.def("shortened", &Shortened, py::arg("text"), py::arg("most"));
  m.def("readable", &Readable, py::arg("message"));
  BindFormats(m);
  BindOptions(m);
  BindCastSpec(m);
  BindHadamard(m);
  BindScaled(m);
  BindBlockFma(m);
  BindFixedPoint(m);
  BindAccumulators(m);
}

}  // namespace cpd
