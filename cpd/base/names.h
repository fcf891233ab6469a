// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "cpd/numeric/error.h"

namespace cpd {

/// The enumerator of E that stands at `name`'s place among names; Error lists them.
template <class E>
E ParseName(const char* what, std::span<const std::string_view> names, std::string_view name) {
  std::string allowed;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<E>(i);
    allowed += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + std::string(names[i]);
  }
  throw Error(std::string(what) + " must be " + allowed + ", got '" + std::string(name) + "'");
}

/// Throws Error unless `value` is an enumerator of E, of which names has one each.
template <class E>
void CheckName(const char* what, std::span<const std::string_view> names, E value) {
  if (static_cast<std::size_t>(value) < names.size()) return;
  throw Error(std::string(what) + " must be one of the " + std::to_string(names.size()) +
              " that its type names, got number " + std::to_string(static_cast<int>(value)));
}

}  // namespace cpd
