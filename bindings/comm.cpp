// SPDX-License-Identifier: Apache-2.0
//
// Binds the communicators of cpd._core. Layers are passed as contiguous float32 arrays or as
// CudaValues (python/cpd/comm/layers.py). Calls run without the GIL. C++ errors become the
// exceptions of python/cpd/comm/errors.py.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codecs.h"
#include "cpd/comm/all_reduce.h"
#include "cpd/comm/explain.h"
#include "cpd/comm/transport/fault.h"
#include "cpd/comm/transport/libraries.h"
#include "cpd/comm/transport/local.h"
#include "gil.h"
#include "torch_distributed.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {
namespace {

/// Holds a Communicator. Its destructor, which ends threads and the transport, runs without the
/// GIL.
class Bound {
 public:
  explicit Bound(Communicator&& comm) : comm_(std::make_unique<Communicator>(std::move(comm))) {}
  Bound(Bound&&) = default;
  Bound& operator=(Bound&&) = default;
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;
  ~Bound() { Close(); }  // NOLINT(bugprone-exception-escape): only if pybind11 is broken

  void Close() {
    if (comm_ == nullptr) return;
    const ReleaseGil release;
    comm_.reset();
  }
  [[nodiscard]] bool closed() const { return comm_ == nullptr; }
  [[nodiscard]] Communicator& get() const {
    if (comm_ == nullptr) throw Error("the communicator is closed");
    return *comm_;
  }

 private:
  std::unique_ptr<Communicator> comm_;
};

Bound Made(std::unique_ptr<Transport> transport, double timeout, std::int64_t chunk,
           bool breakable) {
  if (breakable) transport = Breakable(std::move(transport));
  return Bound(Communicator(std::move(transport), {timeout, chunk}));
}

Bound MakeMpi(double timeout, std::int64_t chunk, bool breakable) {
  const ReleaseGil release;
  return Made(MpiTransport(timeout), timeout, chunk, breakable);
}

/// Converts an address that Python got from torch to a pointer.
void* Pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

Bound MakeNccl(const py::bytes& id, int rank, int size, int device_index, std::uintptr_t stream,
               double timeout, std::int64_t chunk, bool breakable) {
  const auto text = static_cast<std::string>(id);
  NcclId made{};
  if (text.size() != made.size()) {
    throw Error("an NCCL id has " + std::to_string(made.size()) + " bytes, got " +
                std::to_string(text.size()));
  }
  std::copy(text.begin(), text.end(), made.begin());
  const ReleaseGil release;
  return Made(NcclTransport(made, rank, size, device_index, Pointer(stream), timeout), timeout,
              chunk, breakable);
}

Bound MakePython(const py::object& implementation, double timeout, std::int64_t chunk,
                 bool breakable) {
  return Made(PythonTransport(implementation), timeout, chunk, breakable);
}

std::vector<Bound> MakeLocal(int size, double timeout, std::int64_t chunk, bool breakable) {
  std::vector<Bound> all;
  for (auto& transport : LocalTransports(size)) {
    all.push_back(Made(std::move(transport), timeout, chunk, breakable));
  }
  return all;
}

CudaValues MakeCudaValues(std::uintptr_t address, std::int64_t size, int device_index,
                          std::uintptr_t stream) {
  CudaValues made{View(Pointer(address), DType::f32, size)};
  made.view.device = Device::cuda;
  made.view.device_index = device_index;
  made.view.stream = Pointer(stream);
  return made;
}

/// One number for each layer, for random streams or rows (TensorOptions). Empty: the default of
/// TensorOptions.
using Numbers = std::vector<std::int64_t>;

TensorOptions OptionsOf(std::uint64_t seed, std::uint64_t step, const Numbers& numbers,
                        GivenStates states, const Numbers& rows, const Numbers& shapes) {
  return {.seed = seed,
          .step = step,
          .numbers = numbers,
          .states = states.value_or(nullptr),
          .rows = rows,
          .shapes = shapes};
}

/// The layers of a call: NumPy arrays and CudaValues.
using Arrays = std::vector<py::object>;

std::vector<TensorView> ViewsOf(const Arrays& arrays) {
  std::vector<TensorView> views;
  views.reserve(arrays.size());
  for (const py::object& one : arrays) views.push_back(LayerView(one));
  return views;
}

ReduceReport AllReduceArrays(const Bound& comm, const Arrays& x, const Arrays& out,
                             const Reduce& spec, bool counts, std::uint64_t seed,
                             std::uint64_t step, const Numbers& numbers, GivenStates states,
                             const Numbers& rows, const Numbers& shapes) {
  const auto from = ViewsOf(x);
  const auto to = ViewsOf(out);
  const ReleaseGil release;
  return comm.get().AllReduce(from, to, spec, counts,
                              OptionsOf(seed, step, numbers, states, rows, shapes));
}

ReduceReport ReduceArrays(const Bound& comm, const Arrays& x, const Arrays& out, const Reduce& spec,
                          int root, bool counts, std::uint64_t seed, std::uint64_t step,
                          const Numbers& numbers, GivenStates states, const Numbers& rows,
                          const Numbers& shapes) {
  const auto from = ViewsOf(x);
  const auto to = ViewsOf(out);
  const ReleaseGil release;
  return comm.get().Reduce(from, to, spec, root, counts,
                           OptionsOf(seed, step, numbers, states, rows, shapes));
}

ReduceReport ReduceScatterArrays(const Bound& comm, const Arrays& x, const Arrays& out,
                                 const Reduce& spec, bool counts, std::uint64_t seed,
                                 std::uint64_t step, const Numbers& numbers, GivenStates states,
                                 const Numbers& rows, const Numbers& shapes) {
  const auto from = ViewsOf(x);
  const auto to = ViewsOf(out);
  const ReleaseGil release;
  return comm.get().ReduceScatter(from, to, spec, counts,
                                  OptionsOf(seed, step, numbers, states, rows, shapes));
}

Traffic AllGatherArrays(const Bound& comm, const Arrays& x, const Arrays& out, const Format& format,
                        const RoundingOptions& rounding, std::uint64_t seed, std::uint64_t step,
                        const Numbers& shapes) {
  const auto from = ViewsOf(x);
  const auto to = ViewsOf(out);
  const ReleaseGil release;
  return comm.get().AllGather(from, to, format, rounding,
                              {.seed = seed, .step = step, .shapes = shapes});
}

std::vector<py::bytes> AllGatherBytes(const Bound& comm, const py::bytes& own) {
  const std::string_view text = own;
  std::vector<std::vector<std::uint8_t>> gathered;
  {
    const ReleaseGil release;
    gathered = comm.get().AllGatherBytes(
        {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  }
  std::vector<py::bytes> all;
  all.reserve(gathered.size());
  for (const auto& one : gathered) {
    all.emplace_back(reinterpret_cast<const char*>(one.data()), one.size());
  }
  return all;
}

void BindCommunicator(py::module_& m) {
  m.def(
      "note_reduction",
      [](const Reduce& spec, int world, const std::vector<std::int64_t>& sizes,
         const std::vector<std::int64_t>& numbers, const std::vector<std::int64_t>& rows, int gpu) {
        TensorView like;
        if (gpu >= 0) like.device = Device::cuda;
        like.device_index = gpu;
        NoteReduction(spec, world, sizes, {.numbers = numbers, .rows = rows}, like);
      },
      py::arg("spec"), py::arg("world"), py::arg("sizes"), py::arg("numbers"), py::arg("rows"),
      py::arg("gpu") = -1);
  const auto seed = py::arg("seed") = 0;
  const auto step = py::arg("step") = 0;
  const auto numbers = py::arg("numbers") = Numbers();
  const auto states = py::arg("states") = py::none();
  const auto rows = py::arg("rows") = Numbers();
  const auto shapes = py::arg("shapes") = Numbers();
  py::class_<Traffic>(m, "Traffic")
      .def_readonly("steps", &Traffic::steps)
      .def_readonly("messages", &Traffic::messages)
      .def_readonly("bytes_sent", &Traffic::bytes_sent)
      .def_readonly("bytes_received", &Traffic::bytes_received)
      .def_readonly("header_bytes", &Traffic::header_bytes);
  py::class_<ReduceReport>(m, "ReduceReport")
      .def_readonly("layers", &ReduceReport::layers)
      .def_readonly("traffic", &ReduceReport::traffic);
  py::class_<CudaValues>(m, "CudaValues")
      .def(py::init(&MakeCudaValues), py::arg("address"), py::arg("size"), py::arg("device_index"),
           py::arg("stream"));
  py::class_<Bound>(m, "Communicator")
      .def_property_readonly("rank", [](const Bound& c) { return c.get().rank(); })
      .def_property_readonly("size", [](const Bound& c) { return c.get().size(); })
      .def_property_readonly("name", [](const Bound& c) { return c.get().transport().name(); })
      .def_property_readonly("broken", [](const Bound& c) { return c.get().broken(); })
      .def_property_readonly("closed", &Bound::closed)
      .def("all_reduce", &AllReduceArrays, py::arg("x"), py::arg("out"), py::arg("spec"),
           py::arg("counts"), seed, step, numbers, states, rows, shapes)
      .def("reduce", &ReduceArrays, py::arg("x"), py::arg("out"), py::arg("spec"), py::arg("root"),
           py::arg("counts"), seed, step, numbers, states, rows, shapes)
      .def("reduce_scatter", &ReduceScatterArrays, py::arg("x"), py::arg("out"), py::arg("spec"),
           py::arg("counts"), seed, step, numbers, states, rows, shapes)
      .def("all_gather", &AllGatherArrays, py::arg("x"), py::arg("out"), py::arg("format"),
           py::arg("rounding"), seed, step, shapes)
      .def("all_gather_bytes", &AllGatherBytes, py::arg("data"))
      .def(
          "barrier", [](const Bound& c) { c.get().Barrier(); }, NoGil())
      .def(
          "refuse", [](const Bound& c, const std::string& why) { c.get().Refuse(why); },
          py::arg("why"), NoGil())
      .def(
          "subgroup",
          [](const Bound& c, const std::vector<int>& ranks) {
            const ReleaseGil release;
            return Bound(c.get().Subgroup(ranks));
          },
          py::arg("ranks"))
      .def(
          "give_up", [](const Bound& c) { c.get().transport().RaiseAlarm(); }, NoGil())
      .def("close", &Bound::Close);
}

void BindTransports(py::module_& m) {
  const CommOptions defaults;
  m.attr("DEFAULT_TIMEOUT") = defaults.timeout;
  m.attr("DEFAULT_CHUNK") = defaults.chunk;
  const auto breakable = py::arg("breakable") = false;
  m.def("mpi_communicator", &MakeMpi, py::arg("timeout"), py::arg("chunk"), breakable);
  m.def("nccl_communicator", &MakeNccl, py::arg("id"), py::arg("rank"), py::arg("size"),
        py::arg("device_index"), py::arg("stream"), py::arg("timeout"), py::arg("chunk"),
        breakable);
  m.def("make_nccl_id", [] {
    const NcclId id = MakeNcclId();
    return py::bytes(reinterpret_cast<const char*>(id.data()), id.size());
  });
  m.def("python_communicator", &MakePython, py::arg("implementation"), py::arg("timeout"),
        py::arg("chunk"), breakable);
  m.def("local_communicators", &MakeLocal, py::arg("size"), py::arg("timeout"), py::arg("chunk"),
        breakable);
}

// ---- faults, for tests ----------------------------------------------------------------------

using Drop = py::typing::Callable<void()>;
using PythonHook = std::function<void(const std::string&, std::int64_t, int, Drop)>;

void HookFaults(const std::optional<PythonHook>& hook) {
  if (!hook) {
    const ReleaseGil release;
    return SetFaultHook({});
  }
  // The hook is never destroyed, because the library may keep it until after Python has ended.
  const auto* kept = new PythonHook(*hook);
  const ReleaseGil release;
  SetFaultHook([kept](Phase phase, std::int64_t chunk, Transport& transport) {
    const AcquireGil gil;
    const Drop drop(py::cpp_function([&transport] { Break(transport); }));
    OrStay([&] { (*kept)(ToString(phase), chunk, transport.rank(), drop); });
  });
}

// ---- errors ---------------------------------------------------------------------------------

/// Raises the exception `name` of cpd.comm.errors. If a signal's handler raises an exception while
/// Python constructs that exception, raises the handler's exception instead.
template <class... Args>
void Raise(const char* name, const char* what, Args&&... args) {
  try {
    const py::object type = py::module_::import("cpd.comm.errors").attr(name);
    PyErr_SetObject(type.ptr(), type(what, std::forward<Args>(args)...).ptr());
  } catch (py::error_already_set& interrupt) {
    interrupt.restore();
  }
}

void TranslateErrors(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(std::move(error));
  } catch (const RankLost& e) {
    Raise("RankLost", e.what(), e.ranks);
  } catch (const Mismatch& e) {
    Raise("Mismatch", e.what());
  } catch (const Corrupt& e) {
    Raise("TransportError", e.what());
  } catch (const TransportError& e) {
    Raise("TransportError", e.what(), e.peer);
  }
}

}  // namespace

TensorView LayerView(const py::object& x) {
  if (py::isinstance<CudaValues>(x)) return x.cast<const CudaValues&>().view;
  return ViewOf(x.cast<py::array>());
}

void BindComm(py::module_& m) {
  py::register_local_exception_translator(&TranslateErrors);
  BindCommunicator(m);
  BindTransports(m);
  m.def("set_fault_hook", &HookFaults, py::arg("hook"));
}

}  // namespace cpd
