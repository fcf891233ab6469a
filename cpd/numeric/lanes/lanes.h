// SPDX-License-Identifier: Apache-2.0
//
// Lanes: the number types that the kernels are written over, and their primitives. One source
// serves a CPU register of 1, 4, 8 or 16 lanes and a CUDA thread: generic.h defines each primitive,
// an instruction set's file specializes those for which a compiler does not find the instruction
// (README.md lists them). Tests compare both bit by bit. Intrinsics are in these files alone.
#pragma once

#include "cpd/numeric/lanes/avx2.h"
#include "cpd/numeric/lanes/avx512.h"
#include "cpd/numeric/lanes/cuda.h"
#include "cpd/numeric/lanes/generic.h"
#include "cpd/numeric/lanes/neon.h"
