// SPDX-License-Identifier: Apache-2.0
//
// The CPU BLAS behind GemmByBlas, a separate library that is loaded at first use. libcpd loads
// without this library. The library's symbols are local, because torch and NumPy bring BLAS
// libraries, too.
#pragma once

#include <cstdint>
#include <string>

#include "cpd/export.h"

namespace cpd::blas {

/// A matrix of rows x columns binary32 values, with any strides.
struct Matrix {
  float* data = nullptr;
  std::int64_t rows = 0, columns = 0;
  std::int64_t row_stride = 0, column_stride = 0;
};

/// A loaded library with the C interface to BLAS.
class Library {
 public:
  /// Loads `file`, which is a path or a name that the loader finds. Throws MachineError if loading
  /// fails.
  CPD_API explicit Library(const std::string& file);

  /// Returns the name and version of OpenBLAS, e.g. `OpenBLAS 0.3.21`. For any other library,
  /// returns the name of its file.
  [[nodiscard]] const std::string& name() const { return name_; }

  /// Computes out = a * b, or out += a * b if `adds` is set. Copies a matrix (a, b or out) if
  /// neither its rows nor its columns are contiguous, or if its elements overlap. Uses MaxThreads()
  /// threads. Throws Error for sizes or strides of 2^31 or more if the library's integers have 32
  /// bits.
  CPD_API void Multiply(const Matrix& a, const Matrix& b, const Matrix& out, bool adds) const;

 private:
  void MultiplyInPlace(const Matrix& a, const Matrix& b, const Matrix& out, bool adds) const;

  std::string name_;
  void* sgemm_ = nullptr;
  void* get_threads_ = nullptr;  ///< these two are OpenBLAS's own and may be missing
  void* set_threads_ = nullptr;
};

/// Returns the library that CPD was configured with. Throws MachineError if there is none.
CPD_API const Library& Cpu();

}  // namespace cpd::blas
