// SPDX-License-Identifier: Apache-2.0
//
// The module cpd._core: formats, operations on NumPy arrays, virtual ranks and the other parts of
// the library. Converts Python objects to C++ objects, releases the GIL and calls the library.
// python/cpd names the arguments and checks their types; the library checks their values.
// cpd::Error becomes ValueError, cpd::MachineError becomes RuntimeError (NoDeviceMemory becomes
// torch's own error: errors.cpp), and std::bad_alloc becomes MemoryError.
#include <pybind11/pybind11.h>

#include "gil.h"
#include "views.h"

namespace cpd {
extern const char* const kVersion;  // parts.cpp, which CMake writes
extern const char* const kParts;
}  // namespace cpd

PYBIND11_MODULE(_core, m) {
  m.doc() = "CPD's core: see the package cpd, whose functions check their arguments.";
  m.attr("__version__") = cpd::kVersion;
  m.attr("PARTS") = cpd::kParts;
  cpd::BindErrors();
  cpd::BindInterrupt(m);
  cpd::BindSpecs(m);
  cpd::BindStreams(m);
  cpd::BindRecipes(m);
  cpd::BindCodecs(m);
  cpd::BindReduceSpec(m);
  cpd::BindOperations(m);
  cpd::BindStudies(m);
  cpd::BindVectors(m);
  cpd::BindComm(m);
  cpd::BindExplanations(m);
  cpd::BindPythonCodec(m);
}
