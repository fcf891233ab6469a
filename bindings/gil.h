// SPDX-License-Identifier: Apache-2.0
//
// Classes that release and acquire the GIL around calls of the library, and handle signals and the
// interpreter's end.
//
// A thread that waits for the GIL while the interpreter ends never gets it. CPython before 3.14
// ends such a thread by pthread_exit, which unwinds C++ frames and ends the whole process at the
// first noexcept function. Here such a thread waits forever instead, as in CPython 3.14 and later.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <optional>

#include "cpd/base/interrupt.h"

namespace cpd {

/// Calls run(), which may wait for the GIL. Does not return if the interpreter has ended.
template <class Run>
decltype(auto) OrStay(const Run& run) {
  try {
    return run();
  } catch (abi::__forced_unwind&) {
    while (true) pause();
  }
}

/// Releases the GIL for the duration of a library call (RunningCall). The thread must hold the GIL
/// before, and holds it again afterwards.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) { call_.emplace(); }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;
  ~ReleaseGil() {
    call_.reset();
    OrStay([&] { PyEval_RestoreThread(state_); });
  }

 private:
  PyThreadState* state_;
  std::optional<RunningCall> call_;
};

using NoGil = pybind11::call_guard<ReleaseGil>;

template <class Run>
void WithoutGil(Run run) {
  const ReleaseGil release;
  run();
}

/// Holds the GIL while the object lives, whether or not the thread already held it.
class AcquireGil {
 public:
  AcquireGil() {
    OrStay([&] { gil_.emplace(); });
  }

 private:
  std::optional<pybind11::gil_scoped_acquire> gil_;
};

/// A Python exception that leaves a library call: KeyboardInterrupt, or another exception that a
/// signal's handler raised. pybind11, also torch's copy of it, passes the exception to Python
/// unchanged.
class PythonInterrupt final : public pybind11::error_already_set, public Interrupted {
 public:
  /// Takes the Python exception that is currently set. The thread must hold the GIL.
  PythonInterrupt() = default;
  explicit PythonInterrupt(const pybind11::error_already_set& error) : error_already_set(error) {}
};

/// Makes library calls on Python's main thread check for signals, and ends the calls of other
/// threads at exit.
void BindInterrupt(pybind11::module_& m);

}  // namespace cpd
