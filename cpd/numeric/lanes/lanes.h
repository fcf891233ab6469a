// SPDX-License-Identifier: Apache-2.0
//
// Lanes: the number types that the kernels are written over, and their primitives. One source
// serves a CPU register of 1, 4, 8 or 16 lanes and a CUDA thread: generic.h says what each
// primitive is, the instruction set's file specialises those whose instruction a compiler does not
// find. The tests hold both equal. Intrinsics stand in these files and nowhere else.
#pragma once

#include "cpd/numeric/lanes/avx2.h"
#include "cpd/numeric/lanes/avx512.h"
#include "cpd/numeric/lanes/cuda.h"
#include "cpd/numeric/lanes/generic.h"
#include "cpd/numeric/lanes/neon.h"
