// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/transport.h"

namespace cpd {

Transfer::~Transfer() = default;
Transport::~Transport() = default;

}  // namespace cpd
