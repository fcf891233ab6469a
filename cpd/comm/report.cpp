// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/report.h"

#include <array>
#include <string_view>

namespace cpd {

std::string ToString(Phase phase) {
  constexpr std::array<std::string_view, 5> kNames{"handshake", "exponents", "exchange", "fold",
                                                   "gather"};
  return std::string(kNames.at(static_cast<std::size_t>(phase)));
}

}  // namespace cpd
