// SPDX-License-Identifier: Apache-2.0
//
// Runs the library's operations on vectors, and computes the oracle's results for them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpd/base/tensor.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "cpd/oracle/reference.h"
#include "tests/testing/formats.h"

namespace cpd::testing {

template <class T>
TensorView view_of(const std::vector<T>& x, DType dtype) {
  return View(x.data(), dtype, static_cast<std::int64_t>(x.size()));
}
inline TensorView view_of(const std::vector<float>& x) { return view_of(x, DType::f32); }
inline TensorView view_of(const std::vector<double>& x) { return view_of(x, DType::f64); }
inline TensorView view_of(const std::vector<std::uint32_t>& x) { return view_of(x, DType::u32); }
inline TensorView view_of(const std::vector<std::uint8_t>& x) { return view_of(x, DType::u8); }

template <class T>
std::vector<T> run_cast(const std::vector<T>& x, const Format& format, const RoundingOptions& o,
                        const std::vector<std::uint32_t>* random = nullptr,
                        const RandomKey& key = kKey) {
  std::vector<T> y(x.size());
  TensorView integers;
  if (random != nullptr) integers = view_of(*random);
  Cast(view_of(x), format, o, view_of(y), key, random != nullptr ? &integers : nullptr);
  return y;
}

inline std::vector<std::uint32_t> run_random_integers(const RoundingOptions& o, std::size_t n,
                                                      std::uint64_t first = 0,
                                                      const RandomKey& key = kKey) {
  std::vector<std::uint32_t> random(n);
  RandomIntegers(o, first, view_of(random), key);
  return random;
}

inline std::vector<std::uint8_t> run_encode(const std::vector<float>& x, const Format& format,
                                            const RoundingOptions& o = {},
                                            const RandomKey& key = kKey) {
  std::vector<std::uint8_t> packed(
      static_cast<std::size_t>(PackedBytes(format, static_cast<std::int64_t>(x.size()))));
  Encode(view_of(x), format, o, view_of(packed), key);
  return packed;
}

inline std::vector<float> run_decode(const std::vector<std::uint8_t>& packed, const Format& format,
                                     std::size_t n) {
  std::vector<float> x(n);
  Decode(view_of(packed), format, view_of(x));
  return x;
}

/// Returns the oracle's cast of each element. `random` holds the integers of a stochastic mode.
template <class T>
std::vector<T> oracle_cast(const std::vector<T>& x, const Format& format, const RoundingOptions& o,
                           const std::vector<std::uint32_t>* random = nullptr) {
  const reference::Spec spec = reference::spec_of(format);
  std::vector<T> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint32_t r = random != nullptr ? (*random)[i] : 0;
    y[i] = static_cast<T>(reference::cast(spec, x[i], oracle_options(o, r)));
  }
  return y;
}

}  // namespace cpd::testing
