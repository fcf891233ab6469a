// SPDX-License-Identifier: Apache-2.0
//
// Libraries that lie beside libcpd and are loaded when they are first needed.
#pragma once

#include <string>

namespace cpd {

/// dlopen (with its `mode`) of `file` in the folder of libcpd. Throws MachineError: `needs` ("X
/// needs …, which cannot be loaded"), then the loader's reason.
void* LoadBeside(const std::string& file, int mode, const std::string& needs);

}  // namespace cpd
