// SPDX-License-Identifier: Apache-2.0
//
// Matrix products on a GPU against the CPU's, and against the oracle's.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cpd/ops/gemm.h"
#include "tests/testing/cuda_memory.h"
#include "tests/testing/gemm.h"
#include "tests/testing/gemm_cases.h"

namespace cpd::testing {

using Product = std::function<void(const TensorView&, const TensorView&, const Accumulator&,
                                   const TensorView&, const TensorView*)>;

class GemmGpu : public WithTensors<GpuTest> {
 protected:
  /// out by `product` on the GPU.
  void Run(const Product& product, const GemmCase& g, const Accumulator& accumulator,
           const Tensor& out) const {
    const OnGpuView a(driver(), g.a.view());
    const OnGpuView b(driver(), g.b.view());
    const OnGpuView to(driver(), out.view());
    if (g.c == nullptr) {
      product(a.view(), b.view(), accumulator, to.view(), nullptr);
    } else {
      const OnGpuView c(driver(), g.c->view());
      const TensorView addend = c.view();
      product(a.view(), b.view(), accumulator, to.view(), &addend);
    }
    to.Read();
  }

  /// Compares the GPU's product with `expected`; fails where it wrote between its elements.
  ::testing::AssertionResult Matches(const GemmCase& g, const Accumulator& accumulator,
                                     const std::vector<float>& expected) const {
    const Tensor got(out_shape(g), std::vector<float>(expected.size(), -7.0F), g.out_layout,
                     g.out_type);
    Run(kGemm, g, accumulator, got);
    if (!got.gaps_untouched()) {
      return ::testing::AssertionFailure() << "wrote between out's elements";
    }
    const std::vector<float> y = got.read();
    return bits_equal(std::span<const float>(expected), std::span<const float>(y),
                      [&](std::size_t i) {
                        return ", " + describe(accumulator) + ", a " + text_of(g.a.shape()) +
                               ", b " + text_of(g.b.shape()) + ", element " + std::to_string(i);
                      });
  }
  /// The GPU's product is the CPU's.
  ::testing::AssertionResult GpuMatches(const GemmCase& g, const Accumulator& accumulator) const {
    const Shape shape = out_shape(g);
    const std::vector<float> nothing(static_cast<std::size_t>(count_of(shape)), -7.0F);
    const Tensor expected(shape, nothing, g.out_layout, g.out_type);
    TensorView addend;
    if (g.c != nullptr) addend = g.c->view();
    Gemm(g.a.view(), g.b.view(), accumulator, expected.view(), g.c != nullptr ? &addend : nullptr,
         kKey);
    return Matches(g, accumulator, expected.read());
  }
  /// The GPU's product is the oracle's.
  template <class Arithmetic = WideArithmetic>
  ::testing::AssertionResult OracleMatches(const GemmCase& g,
                                           const Accumulator& accumulator) const {
    return Matches(g, accumulator,
                   oracle_gemm<Arithmetic>(g.a, g.b, accumulator, out_shape(g), g.c));
  }
};

}  // namespace cpd::testing
