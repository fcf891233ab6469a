// SPDX-License-Identifier: Apache-2.0
//
// Parts that the files of cpd._core share.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "cpd/base/tensor.h"

namespace cpd {

/// The view of a NumPy array of any layout; its strides must be whole elements. Throws Error.
TensorView ViewOf(const pybind11::array& x);

/// float32 values in a GPU's memory, row-major, and the stream on which they become ready.
struct CudaValues {
  TensorView view;
};

/// The view of a NumPy array or of CudaValues.
TensorView LayerView(const pybind11::object& x);

/// The Python exception for NoDeviceMemory.
void BindErrors();
/// Formats, rounding options, accumulators.
void BindSpecs(pybind11::module_& m);
/// Streams of random bits.
void BindStreams(pybind11::module_& m);
/// Casts of operands; recipes. Wants BindSpecs and BindStreams before.
void BindRecipes(pybind11::module_& m);
/// Codecs and their states. Wants RoundingOptions bound before, and is wanted by Reduce.
void BindCodecs(pybind11::module_& m);
/// Wants BindCodecs before.
void BindReduceSpec(pybind11::module_& m);
/// Operations over arrays; backends. Wants BindSpecs before.
void BindOperations(pybind11::module_& m);
/// Virtual ranks, round-off, cost.
void BindStudies(pybind11::module_& m);
/// The oracle in bulk. Wants BindSpecs before.
void BindVectors(pybind11::module_& m);
/// Communicators over real ranks; wants Reduce, TensorReport and RoundingOptions bound before.
void BindComm(pybind11::module_& m);
/// Explanations of calls. Wants BindReduceSpec before.
void BindExplanations(pybind11::module_& m);
/// A codec for tests.
void BindPythonCodec(pybind11::module_& m);

}  // namespace cpd
