// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/errors.h"

namespace cpd {

std::string NameRanks(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace cpd
