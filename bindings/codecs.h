// SPDX-License-Identifier: Apache-2.0
//
// A codec as the files of cpd._core hand it around.
#pragma once

#include <optional>

#include "cpd/compress/codec.h"

namespace cpd {

struct BoundCodec {
  SharedCodec codec;
};

/// `states` or None.
using GivenStates = std::optional<CodecStates*>;

}  // namespace cpd
