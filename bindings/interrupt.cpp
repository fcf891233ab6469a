// SPDX-License-Identifier: Apache-2.0
//
// Lets signals and the process's end interrupt calls of the library (cpd/base/interrupt.h).
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "gil.h"

namespace py = pybind11;

namespace cpd {
namespace {

std::atomic<unsigned long> g_main_thread{0};  // as threading.get_ident() gives it

/// A switch that ends library calls of several threads. After set(), the calls of all threads that
/// have called enter() end with KeyboardInterrupt. Python: _core.Stop.
class Stop {
 public:
  /// Makes this thread's later library calls end once Set() has been called on this object.
  void Enter() const { t_entered_ = set_; }
  void Set() const { *set_ = true; }
  static bool IsSet() { return t_entered_ != nullptr && *t_entered_; }

 private:
  using Flag = std::shared_ptr<std::atomic<bool>>;
  static thread_local Flag t_entered_;
  Flag set_ = std::make_shared<std::atomic<bool>>(false);
};
thread_local Stop::Flag Stop::t_entered_;

unsigned long ThisThread() { return static_cast<unsigned long>(pthread_self()); }

/// Runs the handlers of signals that have arrived, as Python does between two instructions.
void AskPython() {
  const bool is_stopped = Stop::IsSet();
  if (!is_stopped && ThisThread() != g_main_thread) return;
  const AcquireGil gil;
  if (is_stopped) PyErr_SetNone(PyExc_KeyboardInterrupt);
  if (is_stopped || OrStay([] { return PyErr_CheckSignals(); }) != 0) throw PythonInterrupt();
}

/// In a forked child process, the thread that called fork is CPython's main thread.
void TakeOver() { g_main_thread = ThisThread(); }

bool HasOtherThreads() {
  PyThreadState* first = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  return PyThreadState_Next(first) != nullptr;
}

/// Ends the running calls of other threads at exit. Waits until all of them have ended, at most
/// `seconds`, and returns whether they have. Then sleeps for 50 ms without the GIL. In this time,
/// threads that have left a call can get the GIL and reach their next call, from which they never
/// return.
bool EndCalls(double seconds) {
  if (!HasOtherThreads()) return true;
  const ReleaseGil release;
  const bool ended = EndOtherCalls(seconds);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return ended && EndOtherCalls(seconds);
}

/// Makes a Python thread raise KeyboardInterrupt when it executes its next instruction.
bool InterruptThread(unsigned long ident) {
  return PyThreadState_SetAsyncExc(ident, PyExc_KeyboardInterrupt) != 0;
}

}  // namespace

void BindInterrupt(py::module_& m) {
  constexpr double patience = 5;  // seconds at exit
  py::class_<Stop>(m, "Stop").def(py::init<>()).def("enter", &Stop::Enter).def("set", &Stop::Set);
  m.def("interrupt_thread", &InterruptThread, py::arg("ident"));
  m.def("end_other_calls", &EndCalls, py::arg("seconds") = patience);
  const py::object main = py::module_::import("threading").attr("main_thread")();
  g_main_thread = main.attr("ident").cast<unsigned long>();
  pthread_atfork(nullptr, nullptr, &TakeOver);
  SetInterruptCheck(&AskPython);
  py::module_::import("atexit").attr("register")(m.attr("end_other_calls"));
}

}  // namespace cpd
