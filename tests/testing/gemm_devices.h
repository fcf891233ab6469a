// SPDX-License-Identifier: Apache-2.0
//
// Compares matrix products on every device with the CPU's, and with the oracle's.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cpd/ops/gemm.h"
#include "tests/testing/devices.h"
#include "tests/testing/gemm.h"
#include "tests/testing/gemm_cases.h"

namespace cpd::testing {

using Product = std::function<void(const TensorView&, const TensorView&, const Accumulator&,
                                   const TensorView&, const TensorView*)>;

class GemmDevices : public WithTensors<OverDevices> {
 protected:
  /// Computes `product` on a device, and copies the result to `out`.
  static void Run(const OnBackendOrGpu& device, const Product& product, const GemmCase& g,
                  const Accumulator& accumulator, const Tensor& out) {
    Copies there = device.There();
    TensorView c;
    if (g.c != nullptr) c = g.c->view();
    product(there(g.a.view()), there(g.b.view()), accumulator, there(out.view()),
            g.c == nullptr ? nullptr : there(&c));
    there.Read(out.view());
  }

  /// Compares the product of each device with `expected`. Fails also if a device writes between the
  /// elements.
  static ::testing::AssertionResult Match(const GemmCase& g, const Accumulator& accumulator,
                                          const std::vector<float>& expected) {
    for (const std::string& name : devices()) {
      const Tensor got(out_shape(g), std::vector<float>(expected.size(), -7.0F), g.out_layout,
                       g.out_type);
      Run(OnBackendOrGpu(name), kGemm, g, accumulator, got);
      if (!got.gaps_untouched()) {
        return ::testing::AssertionFailure() << "wrote between out's elements on " << name;
      }
      const std::vector<float> y = got.read();
      const auto about = [&](std::size_t i) {
        return ", " + name + ", " + describe(accumulator) + ", a " + text_of(g.a.shape()) + ", b " +
               text_of(g.b.shape()) + ", element " + std::to_string(i);
      };
      auto equal = bits_equal(std::span<const float>(expected), std::span<const float>(y), about);
      if (!equal) return equal;
    }
    return ::testing::AssertionSuccess();
  }
  /// Succeeds if all devices give the product that this CPU's kernels with the widest vectors give.
  static ::testing::AssertionResult SameEverywhere(const GemmCase& g,
                                                   const Accumulator& accumulator) {
    const Shape shape = out_shape(g);
    const std::vector<float> nothing(static_cast<std::size_t>(count_of(shape)), -7.0F);
    const Tensor expected(shape, nothing, g.out_layout, g.out_type);
    TensorView addend;
    if (g.c != nullptr) addend = g.c->view();
    Gemm(g.a.view(), g.b.view(), accumulator, expected.view(), g.c != nullptr ? &addend : nullptr,
         kKey);
    return Match(g, accumulator, expected.read());
  }
  /// Succeeds if all devices give the oracle's product.
  template <class Arithmetic = WideArithmetic>
  static ::testing::AssertionResult OracleMatches(const GemmCase& g,
                                                  const Accumulator& accumulator) {
    return Match(g, accumulator, oracle_gemm<Arithmetic>(g.a, g.b, accumulator, out_shape(g), g.c));
  }
};

}  // namespace cpd::testing
