// SPDX-License-Identifier: Apache-2.0
//
// A codec whose bytes a Python object encodes and decodes. With this codec, tests send messages of
// any size over transports that can be used only from Python.
#include <pybind11/numpy.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpd/comm/spec.h"
#include "cpd/compress/packed.h"
#include "cpd/spec/error.h"
#include "gil.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {
namespace {

/// First rounds values to a format, as the codec Packed does. Then the Python object's method
/// encode(array) returns the bytes, at most `value_bytes` for each value. The object's method
/// decode(bytes) returns the array, or raises ValueError.
class PythonCodec final : public Codec {
 public:
  PythonCodec(const Format& format, const RoundingOptions& rounding, const py::object& codec)
      : cast_(std::make_shared<Packed>(format, rounding)),
        codec_(new py::object(codec)),  // never destroyed: the interpreter may be gone
        name_(py::str(codec.attr("name"))),
        value_bytes_(codec.attr("value_bytes").cast<std::int64_t>()) {}

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string text() const override { return name_ + " of " + cast_->text(); }
  [[nodiscard]] const Format& format() const override { return cast_->format(); }
  [[nodiscard]] bool may_hop() const override { return true; }
  [[nodiscard]] bool is_fixed() const override { return false; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t /*before*/) const override {
    return n * value_bytes_;
  }

  std::int64_t EncodeOn(const Queue& /*queue*/, const Piece& piece, CodecState* /*state*/,
                        const float* x, std::uint8_t* to) const override {
    std::vector<float> values(static_cast<std::size_t>(piece.n));
    cast_->Round(piece, nullptr, x, values.data());
    const AcquireGil gil;
    return OrStay([&] {
      const py::array_t<float> array(piece.n, values.data());
      const std::string bytes = codec_->attr("encode")(array).cast<std::string>();
      if (static_cast<std::int64_t>(bytes.size()) > MostBytes(piece.n, 0)) {
        throw Error(name_ + " made more than its most bytes");
      }
      std::ranges::copy(bytes, to);
      return static_cast<std::int64_t>(bytes.size());
    });
  }

  void DecodeOn(const Queue& /*queue*/, std::span<const std::uint8_t> bytes, std::int64_t n,
                int shift, float divisor, float* y, std::int64_t /*before*/) const override {
    const AcquireGil gil;
    OrStay([&] {
      try {
        const py::bytes given(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        const auto values = codec_->attr("decode")(given).cast<py::array_t<float>>();
        if (values.size() != n) throw DamagedBytes("another number of values");
        std::memcpy(y, values.data(), static_cast<std::size_t>(n) * sizeof(float));
      } catch (const py::error_already_set& error) {
        if (!error.matches(PyExc_ValueError)) throw;
        throw DamagedBytes(py::str(error.value()));
      }
    });
    Unscale(shift, divisor, n, y, y);
  }

  [[nodiscard]] SharedCodec ForSums(const Format& format) const override {
    const AcquireGil gil;
    return std::make_shared<PythonCodec>(format, RoundingOptions{}, *codec_);
  }

 private:
  SharedCodec cast_;
  const py::object* codec_;
  std::string name_;
  std::int64_t value_bytes_;
};

}  // namespace

void BindPythonCodec(py::module_& m) {
  m.def(
      "with_codec",
      [](Reduce spec, const py::object& codec) {
        spec.wire = std::make_shared<PythonCodec>(spec.format, spec.rounding, codec);
        return spec;
      },
      py::arg("spec"), py::arg("codec"));
}

}  // namespace cpd
