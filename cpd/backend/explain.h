// SPDX-License-Identifier: Apache-2.0
//
// Explains a call: records which kernels the call would run, and runs none of them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cpd/base/explaining.h"
#include "cpd/base/paths.h"

namespace cpd {

/// Calls `call` and returns what its operations would run. The operations check their arguments and
/// throw as in a real call, but compute nothing. No kernel is called and no tensor is read or
/// written, so tensors need no memory. Conditions on values are not checked. `gpu`: the index of
/// the GPU of tensors without memory; -1: such tensors are on the CPU.
CPD_API std::vector<Explanation> Explain(const std::function<void()>& call, int gpu = -1);

/// Begins the record of an operation. The thread must be explaining a call, that is, recording what
/// the call would run.
void NotePath(const char* function, const Path& path);
/// Completes the record that NotePath began, with the kernel of the CPU's table that would run.
void NoteKernel(const char* kernel, std::vector<std::int64_t> tile = {});

}  // namespace cpd
