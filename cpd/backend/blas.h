// SPDX-License-Identifier: Apache-2.0
//
// The CPU BLAS behind GemmByBlas: a separate library, loaded on first use, whose symbols are local
// (torch and NumPy bring BLAS libraries too). libcpd loads without it.
#pragma once

#include <cstdint>
#include <string>

#include "cpd/export.h"

namespace cpd::blas {

/// rows x columns binary32 values; any strides.
struct Matrix {
  float* data = nullptr;
  std::int64_t rows = 0, columns = 0;
  std::int64_t row_stride = 0, column_stride = 0;
};

/// A library with the C interface to BLAS.
class Library {
 public:
  /// Loads `file`, a path or a name that the loader finds. Throws MachineError where that
  /// fails.
  CPD_API explicit Library(const std::string& file);

  /// Name and version, e.g. `OpenBLAS 0.3.21`; for others the file.
  [[nodiscard]] const std::string& name() const { return name_; }

  /// out = a * b, or out += a * b if `adds`. Operands that are contiguous along neither rows nor
  /// columns (or overlap themselves) are copied whole, and so is such an out. Uses MaxThreads()
  /// threads. Throws Error for sizes or strides from 2^31 on where the library's integers have 32
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
