// SPDX-License-Identifier: Apache-2.0
//
// Declarations that the source files of cpd._core share.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "cpd/base/tensor.h"

namespace cpd {

/// Returns the view of a NumPy array of any layout. Throws Error unless all strides are multiples
/// of the element size.
TensorView ViewOf(const pybind11::array& x);

/// float32 values in a GPU's memory in row-major order, and the stream on which they become ready.
struct CudaValues {
  TensorView view;
};

/// Returns the view of x, which must be a NumPy array or CudaValues.
TensorView LayerView(const pybind11::object& x);

/// Binds the Python exception for NoDeviceMemory.
void BindErrors();
/// Binds formats, rounding options and accumulators.
void BindSpecs(pybind11::module_& m);
/// Binds streams of random bits.
void BindStreams(pybind11::module_& m);
/// Binds casts of operands and recipes. Call BindSpecs and BindStreams first.
void BindRecipes(pybind11::module_& m);
/// Binds codecs and their states. Bind RoundingOptions first, and Reduce afterwards.
void BindCodecs(pybind11::module_& m);
/// Wants BindCodecs before.
void BindReduceSpec(pybind11::module_& m);
/// Binds operations on arrays, and backends. Call BindSpecs first.
void BindOperations(pybind11::module_& m);
/// Binds virtual ranks, round-off and cost.
void BindStudies(pybind11::module_& m);
/// Binds the oracle for vectors. Call BindSpecs first.
void BindVectors(pybind11::module_& m);
/// Binds communicators over real ranks. Bind Reduce, TensorReport and RoundingOptions first.
void BindComm(pybind11::module_& m);
/// Binds explanations of calls. Call BindReduceSpec first.
void BindExplanations(pybind11::module_& m);
/// Binds a codec for tests, which is implemented in Python.
void BindPythonCodec(pybind11::module_& m);

}  // namespace cpd
