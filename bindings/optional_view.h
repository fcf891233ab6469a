// SPDX-License-Identifier: Apache-2.0
//
// Optional tensor arguments, as the bindings of NumPy and of torch pass them to the library.
#pragma once

#include <optional>

#include "cpd/base/tensor.h"

namespace cpd {

/// The view of a tensor that a caller may leave out. The library takes it as a pointer, null where
/// there is no tensor; the pointer lives as long as this.
class OptionalView {
 public:
  OptionalView() = default;
  OptionalView(const TensorView& view) : view_(view) {}

  operator const TensorView*() const { return view_ ? &*view_ : nullptr; }

 private:
  std::optional<TensorView> view_;
};

}  // namespace cpd
