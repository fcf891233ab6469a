// SPDX-License-Identifier: Apache-2.0
//
// Explains a call: records what it would run, without running it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cpd/base/explaining.h"
#include "cpd/base/paths.h"

namespace cpd {

/// Calls `call`. Its operations check their arguments, throw as in a real call, record what they
/// would run, and compute nothing: no kernel is called, and no tensor is read or written, so
/// tensors need no memory. Conditions on values are not checked. gpu: the device of tensors without
/// memory; -1: the CPU.
CPD_API std::vector<Explanation> Explain(const std::function<void()>& call, int gpu = -1);

/// Begins the explanation of an operation of this thread, which explains.
void NotePath(const char* function, const Path& path);
/// Completes it with a kernel of the CPU's table.
void NoteKernel(const char* kernel, std::vector<std::int64_t> tile = {});

}  // namespace cpd
