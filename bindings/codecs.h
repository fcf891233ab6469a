// SPDX-License-Identifier: Apache-2.0
//
// The Python object that holds a codec, shared by the source files of cpd._core.
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
