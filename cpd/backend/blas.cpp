// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/blas.h"

#include "cpd/spec/error.h"

#ifdef CPD_BLAS_LIBRARY

#include <cblas.h>
#include <dlfcn.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <vector>

#include "cpd/base/parallel.h"
#include "cpd/numeric/lanes/environment.h"

namespace cpd::blas {
namespace {

/// The order in which the library reads a matrix: row by row, or column by column (transposed).
struct Layout {
  bool is_usable = false;
  bool transposed = false;
  std::int64_t leading = 1;
};

Layout LayoutOf(const Matrix& x) {
  const bool one_row = x.rows <= 1;
  const bool one_column = x.columns <= 1;
  const std::int64_t rows = std::max<std::int64_t>(x.rows, 1);
  const std::int64_t columns = std::max<std::int64_t>(x.columns, 1);
  if ((x.column_stride == 1 || one_column) && (x.row_stride >= columns || one_row)) {
    return {true, false, one_row ? columns : x.row_stride};
  }
  if ((x.row_stride == 1 || one_row) && (x.column_stride >= rows || one_column)) {
    return {true, true, one_column ? rows : x.column_stride};
  }
  return {};
}

Matrix Transposed(const Matrix& x) {
  return {x.data, x.columns, x.rows, x.column_stride, x.row_stride};
}

void Copy(const Matrix& from, const Matrix& to) {
  for (std::int64_t i = 0; i < to.rows; ++i) {
    for (std::int64_t j = 0; j < to.columns; ++j) {
      to.data[i * to.row_stride + j * to.column_stride] =
          from.data[i * from.row_stride + j * from.column_stride];
    }
  }
}

/// Returns x itself if the BLAS can read x's strides. Otherwise returns a row-major matrix of x's
/// shape in new memory, with x's values if `filled` is true.
class Readable {
 public:
  Readable(const Matrix& x, bool filled) : matrix_(x) {
    if (LayoutOf(x).is_usable) return;
    values_.resize(static_cast<std::size_t>(x.rows * x.columns));
    matrix_ = {values_.data(), x.rows, x.columns, x.columns, 1};
    if (filled) Copy(x, matrix_);
  }
  [[nodiscard]] const Matrix& matrix() const { return matrix_; }
  [[nodiscard]] bool is_copy() const { return !values_.empty(); }

 private:
  std::vector<float> values_;
  Matrix matrix_;
};

blasint Narrow(std::int64_t x, const char* what) {
  constexpr std::int64_t most = std::numeric_limits<blasint>::max();
  if (x > most) {
    throw Error(std::string("this BLAS takes ") + what + " up to " + std::to_string(most) +
                ", got " + std::to_string(x));
  }
  return static_cast<blasint>(x);
}

template <class Function>
Function* As(void* symbol) {
  return reinterpret_cast<Function*>(symbol);
}

/// Sets the library's number of threads to MaxThreads() while the object exists. The number holds
/// for the whole process, so calls that change it run one after the other.
class Threads {
 public:
  Threads(void* get, void* set) : set_(set) {
    if (get == nullptr || set == nullptr) return;
    const int wanted = MaxThreads();
    lock_.lock();
    before_ = As<decltype(openblas_get_num_threads)>(get)();
    if (before_ == wanted) {
      before_ = 0;
      lock_.unlock();
    } else {
      As<decltype(openblas_set_num_threads)>(set_)(wanted);
    }
  }
  ~Threads() {
    if (before_ != 0) As<decltype(openblas_set_num_threads)>(set_)(before_);
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  static std::mutex& Mutex() {
    static std::mutex mutex;
    return mutex;
  }
  std::unique_lock<std::mutex> lock_{Mutex(), std::defer_lock};
  void* set_;
  int before_ = 0;
};

/// Returns the name and version of OpenBLAS, the first two words of a description such as
/// `OpenBLAS 0.3.21 NO_LAPACKE …`. Returns `file` for any other library.
std::string NameOf(void* library, const std::string& file) {
  const auto config = As<decltype(openblas_get_config)>(dlsym(library, "openblas_get_config"));
  if (config == nullptr) return file;
  const std::string text = config();
  return text.substr(0, text.find(' ', text.find(' ') + 1));
}

}  // namespace

Library::Library(const std::string& file) {
  const Environment environment;  // inherited by the threads that the library starts
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    throw MachineError("the BLAS cannot be loaded (OpenBLAS; Debian: libopenblas0): " +
                       std::string(why == nullptr ? file : why));
  }
  sgemm_ = dlsym(library, "cblas_sgemm");
  if (sgemm_ == nullptr) throw MachineError(file + " is not a BLAS: it has no cblas_sgemm");
  get_threads_ = dlsym(library, "openblas_get_num_threads");
  set_threads_ = dlsym(library, "openblas_set_num_threads");
  name_ = NameOf(library, file);
}

void Library::MultiplyInPlace(const Matrix& a, const Matrix& b, const Matrix& out,
                              bool adds) const {
  const Layout layout = LayoutOf(out);
  if (layout.transposed) {  // then out's transpose is b's times a's
    return MultiplyInPlace(Transposed(b), Transposed(a), Transposed(out), adds);
  }
  const Layout of_a = LayoutOf(a);
  const Layout of_b = LayoutOf(b);
  const auto rows = Narrow(out.rows, "rows");
  const auto columns = Narrow(out.columns, "columns");
  const auto depth = Narrow(a.columns, "terms");
  const auto a_leading = Narrow(of_a.leading, "strides");
  const auto b_leading = Narrow(of_b.leading, "strides");
  const auto out_leading = Narrow(layout.leading, "strides");
  const Environment environment;
  const Threads threads(get_threads_, set_threads_);
  As<decltype(cblas_sgemm)>(sgemm_)(CblasRowMajor, of_a.transposed ? CblasTrans : CblasNoTrans,
                                    of_b.transposed ? CblasTrans : CblasNoTrans, rows, columns,
                                    depth, 1.0F, a.data, a_leading, b.data, b_leading,
                                    adds ? 1.0F : 0.0F, out.data, out_leading);
}

void Library::Multiply(const Matrix& a, const Matrix& b, const Matrix& out, bool adds) const {
  if (out.rows == 0 || out.columns == 0) return;
  const Readable from_a(a, true);
  const Readable from_b(b, true);
  const Readable to(out, adds);
  MultiplyInPlace(from_a.matrix(), from_b.matrix(), to.matrix(), adds);
  if (to.is_copy()) Copy(to.matrix(), out);
}

const Library& Cpu() {
  static const Library library(CPD_BLAS_LIBRARY);  // tried again at the next call if it throws
  return library;
}

}  // namespace cpd::blas

#else

namespace cpd::blas {
namespace {

[[noreturn]] void Fail() {
  throw MachineError("CPD was built without a CPU BLAS (OpenBLAS; Debian: libopenblas-dev)");
}

}  // namespace

Library::Library(const std::string&) { Fail(); }
void Library::Multiply(const Matrix&, const Matrix&, const Matrix&, bool) const { Fail(); }
const Library& Cpu() { Fail(); }

}  // namespace cpd::blas

#endif
