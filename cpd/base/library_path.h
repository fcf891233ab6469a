// SPDX-License-Identifier: Apache-2.0
//
// Loads libraries from libcpd's folder when they are first needed.
#pragma once

#include <string>

namespace cpd {

/// Opens the library `file` in the folder of libcpd by dlopen with `mode`, and returns dlopen's
/// handle. Throws MachineError with the text of `needs` ("X needs …, which cannot be loaded") and
/// the loader's reason.
void* LoadBeside(const std::string& file, int mode, const std::string& needs);

}  // namespace cpd
