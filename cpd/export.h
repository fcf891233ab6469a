// SPDX-License-Identifier: Apache-2.0
// Defines CPD_API. The shared libraries are compiled with hidden symbols, and CPD_API exports a
// symbol.
#pragma once

// CPD_API marks the functions that a library exports, and the classes whose type information other
// libraries need (exceptions). The macro is the same when the library is built and when it is used.
#if defined(__GNUC__)
#define CPD_API __attribute__((visibility("default")))
#else
#define CPD_API
#endif
