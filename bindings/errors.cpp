// SPDX-License-Identifier: Apache-2.0
//
// Converts NoDeviceMemory to torch's own error for a GPU without free memory.
#include <exception>

#include "cpd/backend/device_memory.h"
#include "gil.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {
namespace {

/// Returns torch.OutOfMemoryError, or RuntimeError if torch is not imported. The thread must hold
/// the GIL.
py::object NoDeviceMemoryType() {
  const py::dict modules = py::module_::import("sys").attr("modules");
  const auto error = py::reinterpret_borrow<py::object>(PyExc_RuntimeError);
  if (!modules.contains("torch")) return error;
  return py::getattr(modules["torch"], "OutOfMemoryError", error);
}

void Raise(const char* message) { PyErr_SetString(NoDeviceMemoryType().ptr(), message); }

/// Throws the Python error that Raise sets, as pybind11's error_already_set. libcpd_torch passes an
/// error_already_set to Python unchanged.
void Throw(const char* message) {
  const AcquireGil gil;
  Raise(message);
  throw py::error_already_set();
}

}  // namespace

void BindErrors() {
  SetThrower(&Throw);
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const NoDeviceMemory& error) {
      Raise(error.what());
    }
  });
}

}  // namespace cpd
