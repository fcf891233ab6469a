// SPDX-License-Identifier: Apache-2.0
#include "torch_distributed.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gil.h"

namespace py = pybind11;

namespace cpd {
namespace {

/// Rethrows a Python exception that was just caught. An exception with `ranks` becomes RankLost and
/// other exceptions become TransportError. An object that is not a subclass of Exception, such as
/// KeyboardInterrupt, is thrown unchanged. The thread must hold the GIL.
[[noreturn]] void Rethrow(const py::error_already_set& error) {
  if (!error.matches(PyExc_Exception)) throw PythonInterrupt(error);
  const py::object peer = py::getattr(error.value(), "peer", py::none());
  const py::object ranks = py::getattr(error.value(), "ranks", py::none());
  const std::string what = py::str(error.value());
  if (py::isinstance<py::list>(ranks)) throw RankLost(what, ranks.cast<std::vector<int>>());
  throw TransportError(what.empty() ? error.what() : what,
                       py::isinstance<py::int_>(peer) ? peer.cast<int>() : -1);
}

/// Holds a Python object that may be released on any thread.
class Held {
 public:
  explicit Held(py::object object) : object_(std::move(object)) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {  // NOLINT(bugprone-exception-escape): only if pybind11 is broken
    const AcquireGil gil;
    OrStay([&] { object_ = py::object(); });
  }

  /// Calls a method of the Python object `object_`, and converts the result to T before the GIL is
  /// released.
  template <class T, class... Args>
  T Call(const char* method, Args&&... args) const {
    const AcquireGil gil;
    try {
      return OrStay(
          [&] { return object_.attr(method)(std::forward<Args>(args)...).template cast<T>(); });
    } catch (const py::error_already_set& error) {
      Rethrow(error);
    }
  }

  /// Calls a method of the Python object `object_` from a function that must not throw. If Ctrl-C
  /// interrupts the method, calls it once more; the program gets the interrupt later.
  template <class... Args>  // NOLINTNEXTLINE(bugprone-exception-escape): as above
  void CallQuietly(const char* method, const Args&... args) const noexcept {
    const AcquireGil gil;
    if (!TryQuietly(method, args...)) return;
    TryQuietly(method, args...);
    PyErr_SetInterrupt();
  }

  [[nodiscard]] const py::object& object() const { return object_; }

 private:
  /// Returns true if KeyboardInterrupt ended the method.
  template <class... Args>  // NOLINTNEXTLINE(bugprone-exception-escape): as above
  bool TryQuietly(const char* method, const Args&... args) const noexcept {
    try {
      OrStay([&] { object_.attr(method)(args...); });
    } catch (py::error_already_set& error) {
      if (error.matches(PyExc_KeyboardInterrupt)) return true;
      error.discard_as_unraisable(method);
    }
    return false;
  }

  py::object object_;
};

class PyTransfer final : public Transfer {
 public:
  explicit PyTransfer(py::object transfer) : transfer_(std::move(transfer)) {}
  PyTransfer(const PyTransfer&) = delete;
  PyTransfer& operator=(const PyTransfer&) = delete;
  ~PyTransfer() override {
    if (!done_) transfer_.CallQuietly("abandon");
  }

  bool Poll() override {
    if (!done_) done_ = transfer_.Call<bool>("poll");
    return done_;
  }
  [[nodiscard]] std::vector<int> Waiting() const override {
    return done_ ? std::vector<int>() : transfer_.Call<std::vector<int>>("waiting");
  }

 private:
  Held transfer_;
  bool done_ = false;
};

using Message = std::tuple<int, std::uintptr_t, std::int64_t>;

template <class Messages>
std::vector<Message> Listed(const Messages& messages) {
  std::vector<Message> listed;
  listed.reserve(messages.size());
  for (const auto& m : messages) {
    listed.emplace_back(m.peer, reinterpret_cast<std::uintptr_t>(m.data), m.bytes);
  }
  return listed;
}

class PyTransport final : public Transport {
 public:
  explicit PyTransport(const py::object& implementation)
      : python_(implementation),
        name_(implementation.attr("name").cast<std::string>()),
        rank_(implementation.attr("rank").cast<int>()),
        size_(implementation.attr("size").cast<int>()),
        ranks_on_host_(implementation.attr("ranks_on_host").cast<int>()),
        device_index_(implementation.attr("device_index").cast<int>()),
        alarm_keeper_(implementation.attr("alarm_keeper").cast<int>()) {}
  PyTransport(const PyTransport&) = delete;
  PyTransport& operator=(const PyTransport&) = delete;
  ~PyTransport() override { python_.CallQuietly("close"); }

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] int ranks_on_host() const override { return ranks_on_host_; }
  [[nodiscard]] Device memory() const override {
    return device_index_ < 0 ? Device::cpu : Device::cuda;
  }
  [[nodiscard]] int device_index() const override { return device_index_; }

  std::unique_ptr<Transfer> Start(std::span<const Outgoing> out, std::span<const Incoming> in,
                                  int tag) override {
    const AcquireGil gil;
    try {
      return OrStay([&] {
        return std::make_unique<PyTransfer>(
            python_.object().attr("start")(Listed(out), Listed(in), tag));
      });
    } catch (const py::error_already_set& error) {
      Rethrow(error);
    }
  }

  void RaiseAlarm() noexcept override { python_.CallQuietly("raise_alarm"); }
  [[nodiscard]] std::vector<bool> Alarms() override {
    return python_.Call<std::vector<bool>>("alarms");
  }
  [[nodiscard]] int alarm_keeper() const override { return alarm_keeper_; }

  std::unique_ptr<Transport> Subgroup(std::span<const int> ranks, double timeout) override {
    const AcquireGil gil;
    try {
      return OrStay([&] {
        const std::vector<int> chosen(ranks.begin(), ranks.end());
        return PythonTransport(python_.object().attr("subgroup")(chosen, timeout));
      });
    } catch (const py::error_already_set& error) {
      Rethrow(error);
    }
  }

  [[noreturn]] void Abort(const std::string& reason) noexcept override {
    python_.CallQuietly("abort", reason);
    std::abort();  // `abort` does not return
  }

 private:
  Held python_;
  std::string name_;
  int rank_;
  int size_;
  int ranks_on_host_;
  int device_index_;
  int alarm_keeper_;
};

}  // namespace

std::unique_ptr<Transport> PythonTransport(const py::object& implementation) {
  return std::make_unique<PyTransport>(implementation);
}

}  // namespace cpd
