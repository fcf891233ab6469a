// SPDX-License-Identifier: Apache-2.0
//
// The kinds of device and their backends.
#pragma once

#include <string>

#include "cpd/backend/backend.h"
#include "cpd/base/tensor.h"

namespace cpd {

/// Returns the backend of a kind of device. Loads the library of Device::cuda, libcpd_cuda, at the
/// first call for it. Throws MachineError if that library is missing or belongs to another build,
/// or if nobody has added the kind.
CPD_API const Backend& BackendOf(Device device);

/// Returns a backend for cpd.explain, which records what calls would run. Only the members `name`
/// and `product_path` may be used. For CUDA this works even if libcpd_cuda is missing.
const Backend& Described(Device device);

/// Returns the name of a tensor's device, such as "cuda:0" or "cpu".
CPD_API std::string NameOf(const TensorView& x);

/// Adds a kind of device and returns its number, which tensors on such devices have. The backend
/// must live until the process ends. Throws std::logic_error for a table of another build, a table
/// that lacks an operation, or a ninth kind.
CPD_API Device AddBackend(const Backend& backend);

/// For tests: replaces the backend of a kind of device in all later calls, and returns the backend
/// that was set before by SetBackend or AddBackend. SetBackend with the returned backend undoes the
/// change. Null stands for the CPU's or CUDA's own backend. Throws std::logic_error if `backend` is
/// null and the kind was added by AddBackend.
CPD_API const Backend* SetBackend(Device device, const Backend* backend);

/// Makes kernels ask this allocator for the memory that they need, from now on; null: no allocator.
CPD_API void SetAllocator(const Allocator* allocator);

}  // namespace cpd
