// SPDX-License-Identifier: Apache-2.0
//
// Explains what a call would run, without running it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cpd/base/explaining.h"
#include "cpd/base/paths.h"

namespace cpd {

/// Calls `call`, whose operations check their arguments, throw what they would throw for them, note
/// what they would run, and compute nothing: no kernel is called, no tensor is read or written, so
/// that tensors need no memory. What depends on values is not checked. gpu: the device of tensors
/// without memory; -1: the CPU.
CPD_API std::vector<Explanation> Explain(const std::function<void()>& call, int gpu = -1);

/// Begins the explanation of an operation of this thread, which explains.
void NotePath(const char* function, const Path& path);
/// Completes it with a kernel of the CPU's table.
void NoteKernel(const char* kernel, std::vector<std::int64_t> tile = {});

}  // namespace cpd
