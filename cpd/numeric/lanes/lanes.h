// SPDX-License-Identifier: Apache-2.0
//
// Lanes: the number types over which the kernels are written, and the primitives of these types.
// One kernel source serves a CPU register of 1, 4, 8 or 16 lanes and a CUDA thread. generic.h
// defines each primitive. An instruction set's file specializes the primitives for which a compiler
// does not find the right instruction. Tests compare the generic and the specialized primitives bit
// by bit. Intrinsics appear only in these files.
#pragma once

#include "cpd/numeric/lanes/avx2.h"
#include "cpd/numeric/lanes/avx512.h"
#include "cpd/numeric/lanes/cuda.h"
#include "cpd/numeric/lanes/generic.h"
#include "cpd/numeric/lanes/neon.h"
