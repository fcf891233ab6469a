// SPDX-License-Identifier: Apache-2.0
//
// Binds the oracle, which computes exact reference results. One call computes many test lines
// (operations on their operands). Operands and results are arrays of codes.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cpd/base/parallel.h"
#include "cpd/oracle/oracle.h"
#include "cpd/oracle/random_lines.h"
#include "cpd/oracle/text_lines.h"
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
using Signals = py::array_t<std::uint64_t, py::array::c_style>;

void CheckLength(const char* name, std::int64_t given, std::int64_t lines) {
  if (given == lines) return;
  throw Error(std::string(name) + " must have " + std::to_string(lines) + " lines, got " +
              std::to_string(given));
}

/// The exact oracle of an element-wise operation, and random test inputs for the operation. In
/// Python: _core.ElementOracle.
class Elements {
 public:
  Elements(const std::string& operation, const std::vector<Format>& formats, const Format& result,
           const RoundingOptions& rounding, const std::string& tininess)
      : rule_(RuleOf(operation, formats, result, rounding, tininess)),
        oracle_(MakeElementOracle(rule_)) {}

  /// Returns the arrays (codes of results, exception flags, corner-case flags), with one entry for
  /// each line (one operation on its operands).
  std::tuple<Codes, FlagArray, Corners> Results(const std::vector<Codes>& operands,
                                                const std::optional<Codes>& random) {
    if (operands.size() != Operands()) {
      throw Error(ToString(rule_.operation) + " takes " + std::to_string(Operands()) +
                  " operands' codes, got " + std::to_string(operands.size()));
    }
    ElementLines lines;
    lines.n = operands[0].size();
    for (std::size_t k = 0; k < operands.size(); ++k) {
      CheckLength("operands", operands[k].size(), lines.n);
      lines.operands[k] = operands[k].data();
    }
    if (random) {
      CheckLength("random", random->size(), lines.n);
      lines.random = random->data();
    }
    Codes codes(lines.n);
    FlagArray flags(lines.n);
    Corners corners(lines.n);
    lines.codes = codes.mutable_data();
    lines.flags = flags.mutable_data();
    lines.corners = corners.mutable_data();
    WithoutGil([&] { oracle_->Compute(lines); });
    return {codes, flags, corners};
  }

  /// Returns the inputs of n random test lines: the operands, the random integers (None if the
  /// rounding is not stochastic), and the number of random words that each line takes. `state` and
  /// `increment` define the stream of random words. Each is passed as two words, the high word
  /// first.
  std::tuple<std::vector<Codes>, std::optional<Codes>, int> Draw(
      const std::array<std::uint64_t, 2>& state, const std::array<std::uint64_t, 2>& increment,
      std::int64_t n) const {
    const auto whole = [](const std::array<std::uint64_t, 2>& words) {
      return RandomWords::State{words[0]} << 64 | words[1];
    };
    RandomLines lines;
    lines.n = n;
    std::vector<Codes> operands;
    for (std::size_t k = 0; k < Operands(); ++k) {
      operands.emplace_back(n);
      lines.operands[k] = operands[k].mutable_data();
    }
    std::optional<Codes> random;
    if (rule_.rounding.mode == Rounding::stochastic) {
      random.emplace(n);
      lines.random = random->mutable_data();
    }
    int words = 0;
    WithoutGil(
        [&] { words = DrawLines(rule_, RandomWords(whole(state), whole(increment)), lines); });
    return {std::move(operands), std::move(random), words};
  }

 private:
  static ElementRule RuleOf(const std::string& operation, const std::vector<Format>& formats,
                            const Format& result, const RoundingOptions& rounding,
                            const std::string& tininess) {
    ElementRule rule{
        soft::ParseOperation(operation), {}, result, rounding, soft::ParseTininess(tininess)};
    if (formats.size() != static_cast<std::size_t>(soft::operands_of(rule.operation))) {
      throw Error(ToString(rule.operation) + " takes " +
                  std::to_string(soft::operands_of(rule.operation)) + " operands' formats, got " +
                  std::to_string(formats.size()));
    }
    std::ranges::copy(formats, rule.operands.begin());
    return rule;
  }
  [[nodiscard]] std::size_t Operands() const {
    return static_cast<std::size_t>(soft::operands_of(rule_.operation));
  }

  ElementRule rule_;
  std::unique_ptr<ElementOracle> oracle_;
};

/// Returns table[codes], in the shape of `codes`.
py::array_t<float> LookUp(const py::array_t<float, py::array::c_style>& table, const Codes& codes) {
  const std::vector<py::ssize_t> shape(codes.shape(), codes.shape() + codes.ndim());
  py::array_t<float> values(shape);
  const float* from = table.data();
  const std::uint32_t* at = codes.data();
  const auto size = static_cast<std::uint64_t>(table.size());
  float* out = values.mutable_data();
  WithoutGil([&] {
    parallel_for(codes.size(), 1, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        if (at[i] >= size) {
          throw Error("a code must be below " + std::to_string(size) + ", got " +
                      std::to_string(at[i]));
        }
        out[i] = from[at[i]];
      }
    });
  });
  return values;
}

/// Returns a table that maps each byte to its bits as eight bytes, the lowest bit first.
constexpr std::array<std::uint64_t, 256> BitsAsBytes() {
  std::array<std::uint64_t, 256> spread{};
  for (std::size_t byte = 0; byte < spread.size(); ++byte) {
    for (std::size_t k = 0; k < 8; ++k) spread[byte] |= std::uint64_t{byte >> k & 1} << (8 * k);
  }
  return spread;
}

/// Returns, for each bit of an Integer, how many of the `numbers` have that bit set.
template <class Integer>
std::vector<std::int64_t> BitCounts(const py::array_t<Integer, py::array::c_style>& numbers) {
  static constexpr std::array<std::uint64_t, 256> spread = BitsAsBytes();
  constexpr py::ssize_t most = 255;  // that a byte counts
  std::vector<std::int64_t> counts(8 * sizeof(Integer));
  const Integer* x = numbers.data();
  for (py::ssize_t begin = 0; begin < numbers.size(); begin += most) {
    std::array<std::uint64_t, sizeof(Integer)> sums{};
    const py::ssize_t end = std::min(begin + most, numbers.size());
    for (py::ssize_t i = begin; i < end; ++i) {
      for (std::size_t k = 0; k < sums.size(); ++k) sums[k] += spread[x[i] >> (8 * k) & 0xFF];
    }
    for (std::size_t k = 0; k < counts.size(); ++k) {
      counts[k] += static_cast<std::int64_t>(sums[k / 8] >> (k % 8 * 8) & 0xFF);
    }
  }
  return counts;
}

/// Returns n lines of text. A column describes one field of every line: the text before the field's
/// digits, an array with one row of unsigned integers for each line, and the number of bits of each
/// integer. Each line ends with the text `last`.
py::bytes TextOf(const std::vector<std::tuple<py::bytes, py::array, int>>& columns,
                 const py::bytes& last) {
  std::vector<TextField> fields;
  const std::string end = last;
  const py::ssize_t n = columns.empty() ? 0 : std::get<1>(columns[0]).shape(0);
  for (const auto& [before, numbers, width] : columns) {
    const bool is_whole = numbers.flags() & py::array::c_style;
    if (!is_whole || numbers.dtype().kind() != 'u' || numbers.shape(0) != n) {
      throw Error("a column must be a C-contiguous array of unsigned integers for " +
                  std::to_string(n) + " lines, got " +
                  numbers.dtype().attr("name").cast<std::string>() + " for " +
                  std::to_string(numbers.shape(0)) + (is_whole ? "" : ", not contiguous"));
    }
    fields.push_back({before, numbers.data(), static_cast<int>(numbers.itemsize()),
                      static_cast<int>(numbers.size() / std::max<py::ssize_t>(n, 1)), width});
  }
  const std::size_t size = static_cast<std::size_t>(n) * LineSize(fields, end);
  const auto text = py::reinterpret_steal<py::bytes>(
      PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(size)));
  if (!text) throw py::error_already_set();
  char* out = PyBytes_AS_STRING(text.ptr());
  WithoutGil([&] { WriteLines(fields, end, n, out); });
  return text;
}

SumRule SumRuleOf(const Accumulator& accumulator, const std::vector<Format>& formats,
                  std::int64_t length, const std::string& tininess) {
  const std::size_t of_product = accumulator.fixed ? 2 : 3;
  if (formats.size() != 1 && formats.size() != of_product) {
    throw Error("formats must be that of a sum's terms, or " + std::to_string(of_product) +
                (accumulator.fixed ? " of a and b" : " of a, b and c") + ", got " +
                std::to_string(formats.size()));
  }
  SumRule rule{
      accumulator, formats[0], {}, {}, length, formats.size() == 1, soft::ParseTininess(tininess)};
  if (!rule.is_sum) {
    rule.b = formats[1];
    if (!accumulator.fixed) rule.c = formats[2];
  }
  return rule;
}

/// Returns the data of an array of `size` numbers, or null if there is no array and `size` is 0.
/// Throws Error for any other number of elements.
template <class Integer>
const Integer* DataOf(const std::optional<py::array_t<Integer, py::array::c_style>>& codes,
                      std::int64_t size, const char* name) {
  if (!codes && size == 0) return nullptr;
  if (!codes || codes->size() != size) {
    throw Error(std::string(name) + " must have " + std::to_string(size) + " numbers, got " +
                std::to_string(codes ? codes->size() : 0));
  }
  return codes->data();
}

/// Returns the arrays (codes of results, exception flags, corner-case flags, intermediate results),
/// with one entry for each line (one sum of a test).
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
  lines.a = DataOf(std::optional(a), n * rule.length, "a");
  lines.b = DataOf(b, is_product ? n * rule.length : 0, "b");
  const bool is_integer = rule.accumulator.fixed.has_value();
  lines.c = DataOf(c, is_product && !is_integer ? n : 0, "c");
  lines.c_units = DataOf(c_units, is_product && is_integer ? n : 0, "c_units");
  lines.a_scales = DataOf(a_scales, n * blocks, "a_scale");
  lines.b_scales = DataOf(b_scales, n * blocks, "b_scale");
  lines.random = DataOf(random, n * DrawsOf(rule), "random");
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
  py::class_<Elements>(m, "ElementOracle")
      .def(py::init<const std::string&, const std::vector<Format>&, const Format&,
                    const RoundingOptions&, const std::string&>(),
           py::arg("operation"), py::arg("formats"), py::arg("result"), py::arg("rounding"),
           py::arg("tininess"))
      .def("results", &Elements::Results, py::arg("operands"), py::arg("random") = none)
      .def("draw", &Elements::Draw, py::arg("state"), py::arg("increment"), py::arg("n"));
  m.def("look_up", &LookUp, py::arg("table"), py::arg("codes"));
  m.def("bit_counts", &BitCounts<std::uint8_t>, py::arg("numbers").noconvert());
  m.def("bit_counts", &BitCounts<std::uint16_t>, py::arg("numbers").noconvert());
  m.def("text_lines", &TextOf, py::arg("columns"), py::arg("end"));
}

}  // namespace cpd
