// SPDX-License-Identifier: Apache-2.0
//
// Computes products by cuBLAS, which is loaded when it is first needed. Uses the library that the
// process has already loaded (for example torch's), else the library that the loader finds, else
// the one that CMake found. Four functions of cuBLAS's C interface are declared here; they have not
// changed since version 4.
#include <dlfcn.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "kernels/cuda/device.cuh"

namespace cpd::cuda {
namespace {

using Handle = void*;
constexpr int kNoTranspose = 0;
constexpr int kTranspose = 1;
constexpr int kPedanticMath = 2;  ///< binary32 operations: no TF32, no splitting

struct Functions {
  int (*create)(Handle*) = nullptr;
  int (*set_stream)(Handle, cudaStream_t) = nullptr;
  int (*set_math_mode)(Handle, int mode) = nullptr;
  int (*multiply)(Handle, int op_a, int op_b, int m, int n, int k, const float* alpha,
                  const float* a, int lda, long long stride_a, const float* b, int ldb,
                  long long stride_b, const float* beta, float* c, int ldc, long long stride_c,
                  int batch) = nullptr;
};

void* open_library() {
  const std::string name = "libcublas.so." + std::to_string(CUDART_VERSION / 1000);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
#ifdef CPD_CUBLAS_LIBRARY
  if (library == nullptr) library = dlopen(CPD_CUBLAS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
#endif
  return library;
}

/// Returns cuBLAS's functions. The pointers are null if there is no cuBLAS.
Functions load_functions() {
  Functions functions;
  void* library = open_library();
  if (library == nullptr) return functions;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  const bool all = find("cublasCreate_v2", functions.create) &&
                   find("cublasSetStream_v2", functions.set_stream) &&
                   find("cublasSetMathMode", functions.set_math_mode) &&
                   find("cublasSgemmStridedBatched", functions.multiply);
  return all ? functions : Functions{};
}

/// The arguments that describe a matrix in memory to cuBLAS. is_usable is false if cuBLAS cannot
/// read this memory without a copy.
struct Layout {
  bool is_usable = false;
  int op = kNoTranspose;
  std::int64_t leading = 1;
};

/// Returns the arguments for matrix x of rows x columns. cuBLAS expects column-major matrices, so a
/// row-major x is described as the column-major transpose of x.
Layout layout_of(const ProductOperand& x, std::int64_t rows, std::int64_t columns) {
  rows = std::max<std::int64_t>(rows, 1);
  columns = std::max<std::int64_t>(columns, 1);
  if ((x.column_stride == 1 || columns == 1) && (x.row_stride >= columns || rows == 1)) {
    return {true, kNoTranspose, rows == 1 ? columns : x.row_stride};
  }
  if ((x.row_stride == 1 || rows == 1) && (x.column_stride >= rows || columns == 1)) {
    return {true, kTranspose, columns == 1 ? rows : x.column_stride};
  }
  return {};
}

/// Copies all matrices of a batch, of rows x columns each, from `from` to `to`. Stores +0 in all
/// elements of `to` if `from.data` is null.
__global__ void __launch_bounds__(kThreads)
    copy_matrices(const __grid_constant__ MatrixProduct product, const ProductOperand from,
                  const ProductOperand to, std::int64_t rows, std::int64_t columns) {
  const std::int64_t n = product.batch() * rows * columns;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    const std::int64_t column = i % columns;
    const std::int64_t row = i / columns % rows;
    const std::int64_t index = i / columns / rows;
    const auto at = [&](const ProductOperand& x) {
      return product.offset_of(x, index) + row * x.row_stride + column * x.column_stride;
    };
    static_cast<float*>(to.data)[at(to)] =
        from.data != nullptr ? static_cast<const float*>(from.data)[at(from)] : 0.0F;
  }
}

/// One operand in a layout that cuBLAS reads: the operand itself, or a row-major copy made on the
/// stream.
class Readable {
 public:
  Readable(const Launch& launch, const MatrixProduct& product, const ProductOperand& x,
           std::int64_t rows, std::int64_t columns)
      : operand_(x) {
    if (layout_of(x, rows, columns).is_usable) return;
    copy_.emplace(launch, product.batch() * rows * columns);
    operand_ = {copy_->data(), DType::f32, columns, 1, {}};
    std::int64_t stride = rows * columns;
    for (int d = product.batch_rank - 1; d >= 0; --d) {
      operand_.batch_stride[d] = stride;
      stride *= product.batch_shape[d];
    }
  }
  [[nodiscard]] cudaError_t status() const { return copy_ ? copy_->status() : cudaSuccess; }
  [[nodiscard]] bool is_copy() const { return copy_.has_value(); }
  [[nodiscard]] const ProductOperand& operand() const { return operand_; }

 private:
  ProductOperand operand_;
  std::optional<Array<float>> copy_;
};

cudaError_t copy(cudaStream_t stream, const MatrixProduct& product, const ProductOperand& from,
                 const ProductOperand& to, std::int64_t rows, std::int64_t columns) {
  const std::int64_t n = product.batch() * rows * columns;
  if (n == 0) return cudaSuccess;
  start_kernel(copy_matrices, blocks_for((n + kThreads - 1) / kThreads), kThreads, stream, product,
               from, to, rows, columns);
  return cudaGetLastError();
}

/// A cuBLAS context for each stream, created at its first use. If two streams that run concurrently
/// shared a workspace, cuBLAS would not guarantee equal bits in each run. A caller must hold
/// `mutex` while it uses a context.
class Contexts {
 public:
  /// Returns the stream's context, or null if cuBLAS fails.
  Handle get(const Functions& functions, const Launch& launch) {
    Handle& handle = handles_[{launch.device, launch.stream}];
    if (handle != nullptr) return handle;
    const MayAllocate may;
    const auto stream = static_cast<cudaStream_t>(launch.stream);
    if (functions.create(&handle) != 0 || functions.set_math_mode(handle, kPedanticMath) != 0 ||
        functions.set_stream(handle, stream) != 0) {
      handle = nullptr;
    }
    return handle;
  }
  std::mutex mutex;

 private:
  /// While an object of this class lives, memory may be allocated although a stream of this thread
  /// is being captured in a CUDA graph.
  class MayAllocate {
   public:
    MayAllocate() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    ~MayAllocate() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    MayAllocate(const MayAllocate&) = delete;
    MayAllocate& operator=(const MayAllocate&) = delete;

   private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  };

  std::map<std::pair<int, void*>, Handle> handles_;
};

bool fits(std::int64_t x) { return x <= std::numeric_limits<int>::max(); }

/// Computes the products of a batch. One call of cuBLAS computes all products along the batch's
/// last dimension. The operands must have a layout that cuBLAS reads. cuBLAS sees each row-major
/// matrix as a transposed column-major one, so it computes out' = b' a'.
const char* multiply(const Functions& functions, Handle handle, const MatrixProduct& p) {
  const Layout a = layout_of(p.a, p.rows, p.depth);
  const Layout b = layout_of(p.b, p.depth, p.columns);
  const Layout out = layout_of(p.out, p.rows, p.columns);
  const bool flipped = out.op == kTranspose;  // out' is row-major: out = a b instead
  const int last = p.batch_rank - 1;
  const std::int64_t together = last >= 0 ? p.batch_shape[last] : 1;
  for (const std::int64_t x :
       {p.rows, p.columns, p.depth, together, a.leading, b.leading, out.leading}) {
    if (!fits(x)) return "cuBLAS: sizes and strides must be below 2^31";
  }
  const auto stride = [&](const ProductOperand& x) { return last >= 0 ? x.batch_stride[last] : 0; };
  const float one = 1.0F;
  const auto integer = [](std::int64_t x) { return static_cast<int>(x); };
  for (std::int64_t i = 0, n = p.batch(); i < n; i += together) {
    const auto at = [&](const ProductOperand& x) {
      return static_cast<float*>(x.data) + p.offset_of(x, i);
    };
    const int status =
        flipped
            ? functions.multiply(handle, 1 - a.op, 1 - b.op, integer(p.rows), integer(p.columns),
                                 integer(p.depth), &one, at(p.a), integer(a.leading), stride(p.a),
                                 at(p.b), integer(b.leading), stride(p.b), &one, at(p.out),
                                 integer(out.leading), stride(p.out), integer(together))
            : functions.multiply(handle, b.op, a.op, integer(p.columns), integer(p.rows),
                                 integer(p.depth), &one, at(p.b), integer(b.leading), stride(p.b),
                                 at(p.a), integer(a.leading), stride(p.a), &one, at(p.out),
                                 integer(out.leading), stride(p.out), integer(together));
    if (status != 0) return "cuBLAS: cublasSgemmStridedBatched failed";
  }
  return nullptr;
}

}  // namespace

int blas(const Launch& launch, const BlasCall& call) {
  const MatrixProduct& given = call.product;
  const char** const error = call.error;
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  static Contexts contexts;
  const std::lock_guard<std::mutex> lock(contexts.mutex);
  static Functions functions;
  if (functions.create == nullptr) functions = load_functions();  // tried again after a failure
  if (functions.create == nullptr) {
    *error = "cuBLAS: libcublas was not found (a part of the CUDA toolkit; PyPI: nvidia-cublas)";
    return cudaSuccess;
  }
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  MatrixProduct product = given;
  const Readable a(launch, given, given.a, given.rows, given.depth);
  const Readable b(launch, given, given.b, given.depth, given.columns);
  const Readable out(launch, given, given.out, given.rows, given.columns);
  for (const Readable* x : {&a, &b, &out}) {
    if (x->status() != cudaSuccess) return x->status();
  }
  product.a = a.operand();
  product.b = b.operand();
  product.out = out.operand();
  cudaError_t status = cudaSuccess;
  if (a.is_copy()) status = copy(stream, given, given.a, product.a, given.rows, given.depth);
  if (status == cudaSuccess && b.is_copy()) {
    status = copy(stream, given, given.b, product.b, given.depth, given.columns);
  }
  // Every sum starts from `out`, which is initialized with c, or with +0 without c.
  if (status == cudaSuccess) {
    status = copy(stream, given, given.c, product.out, given.rows, given.columns);
  }
  if (status != cudaSuccess) return status;
  if (product.depth > 0) {
    const Handle handle = contexts.get(functions, launch);
    if (handle == nullptr) {
      *error = "cuBLAS: no context could be made";
      return cudaSuccess;
    }
    *error = multiply(functions, handle, product);
    if (*error != nullptr) return cudaSuccess;
  }
  return out.is_copy() ? copy(stream, given, product.out, given.out, given.rows, given.columns)
                       : cudaSuccess;
}

}  // namespace cpd::cuda
