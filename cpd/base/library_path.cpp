// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/library_path.h"

#include <dlfcn.h>

#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// Returns the folder of the library that contains this code, with a slash at its end.
std::string Folder() {
  static const char here = 0;
  Dl_info info{};
  std::string path = dladdr(&here, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
  const std::size_t slash = path.rfind('/');
  path.resize(slash == std::string::npos ? 0 : slash + 1);
  return path;
}

}  // namespace

void* LoadBeside(const std::string& file, int mode, const std::string& needs) {
  const std::string path = Folder() + file;
  void* library = dlopen(path.c_str(), mode);
  if (library == nullptr) {
    const char* why = dlerror();
    throw MachineError(needs + ": " + (why == nullptr ? path : why));
  }
  return library;
}

}  // namespace cpd
