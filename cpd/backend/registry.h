// SPDX-License-Identifier: Apache-2.0
//
// The kinds of device and their backends.
#pragma once

#include <string>

#include "cpd/backend/backend.h"
#include "cpd/base/tensor.h"

namespace cpd {

/// The backend of a kind of device. The library of Device::cuda, libcpd_cuda, is loaded for the
/// first call. Throws MachineError where it is missing or belongs to another build, and for a kind
/// that nobody has added.
CPD_API const Backend& BackendOf(Device device);

/// A kind of device's name and product_path, all that a thread which explains asks for: of CUDA
/// without its library.
const Backend& Described(Device device);

/// The name of a tensor's device: "cuda:0", "cpu".
CPD_API std::string NameOf(const TensorView& x);

/// Adds a kind of device and returns its number, which tensors on it have. The backend must live as
/// long as the process. Throws std::logic_error for a table of another build, one without some
/// operation, or a ninth kind.
CPD_API Device AddBackend(const Backend& backend);

/// For tests: replaces a kind of device's backend in all later calls, and returns the backend that
/// SetBackend or AddBackend set before; a second call with it undoes the first. Null means the
/// CPU's or CUDA's own. Throws std::logic_error for null and a kind that was added.
CPD_API const Backend* SetBackend(Device device, const Backend* backend);

/// Has kernels ask this allocator for their own memory from now on; null: none.
CPD_API void SetAllocator(const Allocator* allocator);

}  // namespace cpd
