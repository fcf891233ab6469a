// SPDX-License-Identifier: Apache-2.0
//
// Rounds a transposed LibTorch tensor to E4M3. CPD accepts views with any strides.
#include <ATen/ATen.h>
#include <cpd/cpd.h>

#include <cstdio>
#include <cstdlib>

namespace {

cpd::TensorView View(const at::Tensor& t) {
  TORCH_CHECK(t.scalar_type() == at::kFloat && t.is_cpu() && t.dim() <= cpd::TensorView::kMaxRank);
  cpd::TensorView view;
  view.data = t.data_ptr();
  view.dtype = cpd::DType::f32;
  view.rank = static_cast<int>(t.dim());
  for (int d = 0; d < view.rank; ++d) {
    view.shape[d] = t.size(d);
    view.stride[d] = t.stride(d);
  }
  return view;
}

}  // namespace

int main() {
  const at::Tensor x = at::linspace(-2.0, 2.0, 12).reshape({3, 4}).t();
  const at::Tensor y = at::empty(x.sizes());
  cpd::Cast(View(x), cpd::ParseFormat("e4m3"), {}, View(y));

  const at::Tensor error = (x - y).abs().max();
  std::printf("shape %lld x %lld, largest error %g\n", static_cast<long long>(y.size(0)),
              static_cast<long long>(y.size(1)), error.item<double>());
  // The distance of E4M3 numbers just above 1 is 1/8, so the error is at most 1/16.
  return error.item<double>() <= 1.0 / 16 ? EXIT_SUCCESS : EXIT_FAILURE;
}
