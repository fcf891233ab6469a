// SPDX-License-Identifier: Apache-2.0
//
// Passes optional tensor arguments of the NumPy and torch bindings to the library.
#pragma once

#include <optional>

#include "cpd/base/tensor.h"

namespace cpd {

/// The view of a tensor that the caller may omit. The library takes the view as a pointer, which is
/// null if there is no tensor. The pointer is valid while this object lives.
class OptionalView {
 public:
  OptionalView() = default;
  OptionalView(const TensorView& view) : view_(view) {}

  operator const TensorView*() const { return view_ ? &*view_ : nullptr; }

 private:
  std::optional<TensorView> view_;
};

}  // namespace cpd
