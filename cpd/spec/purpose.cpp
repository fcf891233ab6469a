// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/purpose.h"

#include "cpd/spec/names.h"

namespace cpd {

Purpose ParsePurpose(std::string_view name) {
  std::string allowed;
  for (const auto& [known, purpose] : kPurposes) {
    if (known == name) return purpose;
    allowed += (allowed.empty() ? "" : ", ") + std::string(known);
  }
  throw Error("purpose must be one of " + allowed + ", got " + Quoted(name));
}

std::string ToString(Purpose purpose) {
  return std::string(kPurposes.at(static_cast<std::size_t>(purpose)).first);
}

}  // namespace cpd
