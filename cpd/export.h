// SPDX-License-Identifier: Apache-2.0
// Symbols of the shared libraries: hidden unless marked.
#pragma once

// CPD_API marks what a library exports: functions, and classes whose type information crosses a
// library (exceptions). It is the same when the library is built and when it is used.
#if defined(__GNUC__)
#define CPD_API __attribute__((visibility("default")))
#else
#define CPD_API
#endif
