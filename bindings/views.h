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
/// Binds recipes: the accumulators of a layer's GEMMs, the casts of their operands, and the
/// rounding of results. Call BindSpecs and BindStreams first.
void BindRecipes(pybind11::module_& m);
/// Binds codecs and their states. Call BindSpecs first.
void BindCodecs(pybind11::module_& m);
/// Binds Reduce, the options of a reduction over ranks. Call BindCodecs first.
void BindReduceSpec(pybind11::module_& m);
/// Binds operations on arrays, and backends. Call BindSpecs first.
void BindOperations(pybind11::module_& m);
/// Binds virtual ranks, round-off measurements and the cost of an exchange.
void BindStudies(pybind11::module_& m);
/// Binds the oracle, which computes exact reference results for tests. Call BindSpecs first.
void BindVectors(pybind11::module_& m);
/// Binds communicators over real ranks. Call BindSpecs, BindReduceSpec and BindStudies first.
void BindComm(pybind11::module_& m);
/// Binds explanations of calls. Call BindReduceSpec first.
void BindExplanations(pybind11::module_& m);
/// Binds a codec for tests, which is implemented in Python.
void BindPythonCodec(pybind11::module_& m);

}  // namespace cpd
