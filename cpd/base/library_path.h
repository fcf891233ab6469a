// SPDX-License-Identifier: Apache-2.0
//
// Loads libraries in libcpd's folder, when they are first needed.
#pragma once

#include <string>

namespace cpd {

/// dlopen (with its `mode`) of `file` in the folder of libcpd. Throws MachineError with the text of
/// `needs` ("X needs …, which cannot be loaded") and the loader's reason.
void* LoadBeside(const std::string& file, int mode, const std::string& needs);

}  // namespace cpd
