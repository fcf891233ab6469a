// SPDX-License-Identifier: Apache-2.0
//
// The GIL around calls of the library, signals in them, and the interpreter's end.
//
// A thread that waits for the GIL while the interpreter ends never gets it. CPython before 3.14
// ends such a thread by pthread_exit, which unwinds C++'s frames and ends the process at the first
// one that is noexcept. Here it stays where it is, as from 3.14 on.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <optional>

#include "cpd/base/interrupt.h"

namespace cpd {

/// run(), which may wait for the GIL; does not return where the interpreter has ended.
template <class Run>
decltype(auto) OrStay(const Run& run) {
  try {
    return run();
  } catch (abi::__forced_unwind&) {
    while (true) pause();
  }
}

/// A call without the GIL (RunningCall). The thread has it before and after.
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

/// The GIL for a while, whether the thread has it already or not.
class AcquireGil {
 public:
  AcquireGil() {
    OrStay([&] { gil_.emplace(); });
  }

 private:
  std::optional<pybind11::gil_scoped_acquire> gil_;
};

/// A Python exception that leaves a call: KeyboardInterrupt, or what else a signal's handler
/// raised. pybind11, torch's own too, hands it to Python as it is.
class PythonInterrupt final : public pybind11::error_already_set, public Interrupted {
 public:
  /// Takes the one that is set. Wants the GIL.
  PythonInterrupt() = default;
  explicit PythonInterrupt(const pybind11::error_already_set& error) : error_already_set(error) {}
};

/// Makes calls on Python's main thread look for signals, and ends other threads' at exit.
void BindInterrupt(pybind11::module_& m);

}  // namespace cpd
