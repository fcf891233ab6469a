// SPDX-License-Identifier: Apache-2.0
//
// Includes every header that a program needs to use CPD, a library for customized-precision
// floating point.
#pragma once

#include "cpd/backend/roster.h"
#include "cpd/base/parallel.h"
#include "cpd/base/tensor.h"
#include "cpd/comm/all_reduce.h"
#include "cpd/comm/transport/libraries.h"
#include "cpd/comm/transport/local.h"
#include "cpd/comm/virtual.h"
#include "cpd/compress/codec.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/stream.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/exact.h"
#include "cpd/ops/hadamard.h"
#include "cpd/ops/reduce.h"
#include "cpd/ops/scaled.h"
#include "cpd/scale/aps.h"
#include "cpd/spec/error.h"
#include "cpd/spec/format.h"
#include "cpd/spec/presets.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"
#include "cpd/study/cost.h"
#include "cpd/study/roundoff.h"
