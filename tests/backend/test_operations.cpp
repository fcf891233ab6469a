// SPDX-License-Identifier: Apache-2.0
//
// Tests every operation of the library on tensors of a device. The operation must give the bits of
// the scalar kernels, or refuse the tensors before it writes anything. Repeats this on a second
// device while the first device is current, and from two threads that use one device each. For each
// operation, prints a row of the table in kernels/cuda/README.md;
// tests/python/ops/test_operations_table.py compares the rows with the table.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cpd/backend/device_memory.h"
#include "cpd/backend/queue.h"
#include "cpd/comm/virtual.h"
#include "cpd/compress/codecs.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/convolve.h"
#include "cpd/ops/exact.h"
#include "cpd/ops/flagged.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/hadamard.h"
#include "cpd/ops/reduce.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/error.h"
#include "tests/testing/devices.h"
#include "tests/testing/formats.h"

namespace cpd {
namespace {

constexpr auto kTininess = soft::Tininess::after;
constexpr std::int64_t kSide = 16;
constexpr std::int64_t kCount = kSide * kSide;
constexpr std::array<std::int64_t, 2> kSquareShape{kSide, kSide};
constexpr std::array<std::int64_t, 3> kTable{kSide, kSide, 2 * kSide + 1};

/// Returns random integers below 8, at least as many as any operation in this file takes.
std::vector<std::uint32_t> Draws() {
  std::vector<std::uint32_t> draws(kCount * (2 * kSide + 1));
  for (std::size_t i = 0; i < draws.size(); ++i) draws[i] = i * 5 % 8;
  return draws;
}

/// The operands and results of the operations. The memory is on the host; views may refer to it or
/// to copies on a GPU.
struct Memory {
  Memory() {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(static_cast<int>(i * 37 % 31) - 15) / 4;
      x64[i] = x[i];
      integers[i] = static_cast<std::uint32_t>(i % 8);
      codes[i] = static_cast<std::uint8_t>(i * 11);
    }
  }
  std::vector<float> x = std::vector<float>(kCount);
  std::vector<double> x64 = std::vector<double>(kCount);
  std::vector<std::uint32_t> integers = std::vector<std::uint32_t>(kCount);
  std::vector<std::uint8_t> codes = std::vector<std::uint8_t>(kCount);
  std::vector<std::uint32_t> draws = Draws();
  std::vector<float> out = std::vector<float>(kCount, 7);
  std::vector<double> out64 = std::vector<double>(kCount, 7);
  std::vector<std::uint8_t> packed = std::vector<std::uint8_t>(kCount, 7);
  std::vector<std::uint8_t> flags = std::vector<std::uint8_t>(kCount, 7);
};

struct Views {
  TensorView x, x64, integers, codes, draws, out, out64, packed, flags, sums;
};

Views ViewsOf(Memory& memory) {
  const auto square = [](const auto& values, DType type) {
    return View(values.data(), type, kSquareShape);
  };
  return {square(memory.x, DType::f32),
          square(memory.x64, DType::f64),
          square(memory.integers, DType::u32),
          View(memory.codes.data(), DType::u8, kCount),
          View(memory.draws.data(), DType::u32, kTable),
          square(memory.out, DType::f32),
          square(memory.out64, DType::f64),
          View(memory.packed.data(), DType::u8, kCount),
          square(memory.flags, DType::u8),
          View(memory.out.data(), DType::f32, kSide)};
}

struct Operation {
  std::string name;
  std::function<void(const Views&)> call;
};

/// Returns a view with one dimension: the first n elements in the memory of `view`.
TensorView Part(TensorView view, std::int64_t n) {
  view.rank = 1;
  view.shape[0] = n;
  view.stride[0] = 1;
  return view;
}

void SimulateAllReduce(const Views& v, Aps aps = Aps::off, const std::string& codec = "") {
  constexpr int kRanks = 2;
  Reduce spec;
  spec.aps = aps;
  if (!codec.empty()) spec.wire = MakeCodec(codec);
  VirtualReduce reduce(spec, kRanks, {kCount});
  const TensorView x = Part(v.x, kCount);
  for (int r = 0; r < kRanks && reduce.wants_ranges(); ++r) reduce.Observe(0, x);
  for (int r = 0; r < kRanks; ++r) {
    reduce.Contribute(0, x);
    reduce.EndRank();
  }
  reduce.Result(0, Part(v.out, kCount));
}

RoundingOptions Stochastic() {
  RoundingOptions options;
  options.mode = Rounding::stochastic;
  options.random_bits = 3;
  return options;
}

Accumulator In(const std::string& text) { return ParseAccumulator(text); }

std::vector<Operation> AllOperations() {
  static const Format e4m3 = ParseFormat("e4m3");
  static const Format wide = ParseFormat("e9m40");
  static const RoundingOptions nearest;
  const auto reduces = [](const std::string& text) {
    return [text](const Views& v) { Sum(v.x, 0, In(text), v.sums); };
  };
  const auto multiplies = [](const std::string& text) {
    return [text](const Views& v) { Gemm(v.x, v.x, In(text), v.out); };
  };
  return {
      {"`cast`", [](const Views& v) { Cast(v.x, e4m3, nearest, v.out); }},
      {"`cast`, stochastic", [](const Views& v) { Cast(v.x, e4m3, Stochastic(), v.out); }},
      {"`cast`, `random=`",
       [](const Views& v) { Cast(v.x, e4m3, Stochastic(), v.out, {}, &v.integers); }},
      {"`cast` to more than binary32", [](const Views& v) { Cast(v.x64, wide, nearest, v.out64); }},
      {"`encode`", [](const Views& v) { Encode(v.x, e4m3, nearest, v.packed); }},
      {"`encode`, no code for NaN",
       [](const Views& v) {
         TensorView packed = v.packed;
         packed.shape[0] = kCount / 2;
         Encode(v.x, ParseFormat("e2m1"), nearest, packed);
       }},
      {"`decode`", [](const Views& v) { Decode(v.codes, e4m3, v.out); }},
      {"`add`, `mul`, `fma`",
       [](const Views& v) {
         Add(v.x, v.x, e4m3, nearest, v.out);
         Mul(v.out, v.x, e4m3, nearest, v.out);
         Fma(v.out, v.x, v.x, e4m3, nearest, v.out);
       }},
      {"`add`, `random=`",
       [](const Views& v) { Add(v.x, v.x, e4m3, Stochastic(), v.out, {}, &v.integers); }},
      {"`div`", [](const Views& v) { Div(v.x, v.x, e4m3, nearest, v.out); }},
      {"`sqrt`", [](const Views& v) { Sqrt(v.x, e4m3, nearest, v.out); }},
      {"`flags=` of an element",
       [](const Views& v) {
         Flags(soft::Operation::add, {v.x, &v.x}, e4m3, nearest, kTininess, v.flags);
       }},
      {"`sum`, sequential", reduces("e4m3 sequential")},
      {"`sum`, Kahan", reduces("e4m3 kahan")},
      {"`sum`, pairwise", reduces("e4m3 pairwise")},
      {"`sum`, chunked", reduces("fp32 chunked inner=e4m3 chunk=4")},
      {"`sum`, fixed point", reduces("int32")},
      {"`sum`, `random=`",
       [](const Views& v) {
         Sum(v.x, 0, In("e4m3 sequential rounding=stochastic random_bits=3"), v.sums, {},
             &v.integers);
       }},
      {"`sum`, `flags=`",
       [](const Views& v) {
         SumFlagged(v.x, 0, In("e4m3 sequential"), kTininess, v.sums, Part(v.flags, kSide));
       }},
      {"`gemm`, sequential", multiplies("e4m3 sequential")},
      {"`gemm`, stochastic", multiplies("e4m3 sequential rounding=stochastic")},
      {"`gemm`, Kahan", multiplies("e4m3 kahan")},
      {"`gemm`, pairwise", multiplies("e4m3 pairwise")},
      {"`gemm`, chunked", multiplies("fp32 chunked inner=e4m3 chunk=4")},
      {"`gemm`, fixed point", multiplies("int32")},
      {"`gemm`, `random=`",
       [](const Views& v) {
         Gemm(v.x, v.x, In("e4m3 sequential rounding=stochastic random_bits=3"), v.out, nullptr, {},
              &v.draws);
       }},
      {"`gemm`, `flags=`",
       [](const Views& v) {
         GemmFlagged(v.x, v.x, In("e4m3 sequential"), kTininess, v.out, v.flags);
       }},
      {"`gemm`, a matrix unit (`h100-fp16`)", multiplies("h100-fp16")},
      {"`gemm`, a unit with another adder (`cdna1-fp16`)", multiplies("cdna1-fp16")},
      {"`gemm` of scaled operands",
       [](const Views& v) {
         GemmScaled(v.x, {}, v.x, {}, In("e4m3 sequential"), ScalesAt::block, v.out);
       }},
      {"`gemm`, `blas=True`",
       [](const Views& v) { GemmByBlas(v.x, v.x, In("fp32 sequential"), v.out); }},
      {"`hadamard`",
       [](const Views& v) { Transform(v.x, Hadamard{16, {}, false}, 1, false, v.out); }},
      {"scaled `cast`",
       [](const Views& v) {
         for (const char* text :
              {"mxfp8", "nvfp4", "fp8-tensor", "int8 row", "mxfp8 transform=hadamard16"}) {
           Cast(v.x, ParseScaled(text), 1, nearest, v.out);
         }
       }},
      {"scaled `cast` along two axes",
       [](const Views& v) {
         TensorView other = v.out;
         other.data = v.out64.data;
         for (const char* text : {"e4m3fn 16 scale=e8m0", "nvfp4", "fp8-row"}) {
           CastBoth(v.x, ParseScaled(text), {1, 0}, nearest, v.out, other);
         }
       }},
      {"scaled `cast`, stochastic",
       [](const Views& v) { Cast(v.x, ParseScaled("mxfp8"), 1, Stochastic(), v.out); }},
      {"scaled `cast`, `random=`",
       [](const Views& v) {
         Cast(v.x, ParseScaled("mxfp8"), 1, Stochastic(), v.out, {}, {}, &v.integers);
       }},
      {"scaled `cast`, `scales=` as numbers, `amax=`",
       [](const Views& v) {
         const TensorView largest = Part(v.out, 1);
         Cast(v.x, ParseScaled("fp8-tensor"), 1, nearest, v.out, {.largest = &largest});
       }},
      {"scaled `encode`, `decode`",
       [](const Views& v) {
         const Scaled mxfp8 = ParseScaled("mxfp8");
         const TensorView scales = Part(v.flags, kSide);
         Encode(v.x, mxfp8, 1, nearest, v.packed, scales, nullptr);
         Decode(v.packed, mxfp8, 1, scales, nullptr, v.out);
       }},
      {"`simulate_all_reduce`", [](const Views& v) { SimulateAllReduce(v); }},
      {"`simulate_all_reduce`, APS", [](const Views& v) { SimulateAllReduce(v, Aps::on); }},
      {"`simulate_all_reduce`, a codec with kernels (`qsgd`)",
       [](const Views& v) { SimulateAllReduce(v, Aps::off, "qsgd bits=4 bucket=64"); }},
      {"`simulate_all_reduce`, a codec with kernels (`int4`)",
       [](const Views& v) { SimulateAllReduce(v, Aps::off, "int4"); }},
      {"`simulate_all_reduce`, a codec that keeps errors (`one_bit`)",
       [](const Views& v) { SimulateAllReduce(v, Aps::off, "one_bit bucket=64"); }},
      {"`simulate_all_reduce`, a codec with kernels (`top_k` without feedback)",
       [](const Views& v) { SimulateAllReduce(v, Aps::off, "top_k 0.25 feedback=off"); }},
      {"`simulate_all_reduce`, a codec of what `top_k` keeps (`int4`)",
       [](const Views& v) { SimulateAllReduce(v, Aps::off, "top_k 0.25 feedback=off int4"); }},
      {"`simulate_all_reduce`, a codec on the host (`uniform`)",
       [](const Views& v) { SimulateAllReduce(v, Aps::off, "uniform"); }},
  };
}

/// Returns how often the CUDA emulation (tests/testing/cuda_on_cpu) has made the host wait for a
/// stream; std::nullopt on a real GPU.
std::optional<int> Waits() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto* waits = reinterpret_cast<int (*)()>(dlsym(library, "cuda_on_cpu_waits"));
  if (waits == nullptr) return std::nullopt;
  return waits();
}

template <class T>
bool HoldsTheBitsOf(const std::vector<T>& x, const std::vector<T>& y) {
  return std::memcmp(x.data(), y.data(), sizeof(T) * x.size()) == 0;
}

using testing::Accelerator;
using testing::Copies;

/// Makes a CUDA device current in this thread. Does nothing for other kinds of devices.
void Enter(const Accelerator& device) {
  if (device.kind() != Device::cuda) return;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto find = [&]<class Function>(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(driver, name));
  };
  int (*get)(int*, int) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*set_current)(void*) = nullptr;
  find("cuDeviceGet", get);
  find("cuDevicePrimaryCtxRetain", retain);
  find("cuCtxSetCurrent", set_current);
  int handle = 0;
  void* context = nullptr;
  ASSERT_EQ(get(&handle, device.device()), 0);
  ASSERT_EQ(retain(&context, handle), 0);
  ASSERT_EQ(set_current(context), 0);
}

class Operations : public testing::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped() || HasFatalFailure() || !s_expected.empty()) return;
    s_expected = OnScalar([] {
      const std::vector<Operation> operations = AllOperations();
      std::vector<Memory> memories(operations.size());
      for (std::size_t i = 0; i < memories.size(); ++i) operations[i].call(ViewsOf(memories[i]));
      return memories;
    });
  }

  /// Runs an operation on tensors that `there` copies to a device. Returns the operation's entries
  /// in the columns "CUDA" and "in a graph" of the table in kernels/cuda/README.md. If `current` is
  /// not null, that device is made current before the call.
  static std::string Columns(const Operation& operation, Memory& memory, Copies there,
                             const Accelerator* current) {
    Views views = ViewsOf(memory);
    const std::array all{&views.x,     &views.x64, &views.integers, &views.codes, &views.draws,
                         &views.out64, &views.out, &views.packed,   &views.flags, &views.sums};
    for (TensorView* view : all) *view = there(*view);
    if (current != nullptr) Enter(*current);
    const std::optional<int> before = Waits();
    std::string columns;
    try {
      operation.call(views);
      const bool waits = before && Waits() != before;
      columns = std::string("yes | ") + (waits ? "no: waits" : "yes");
    } catch (const Error& error) {
      columns = "no: " + std::string(error.what()) + " |";
    }
    const Views here = ViewsOf(memory);
    for (const TensorView& view : {here.out, here.out64, here.packed, here.flags}) there.Read(view);
    return columns;
  }

  /// Runs every operation. Returns the operations' rows of the table in kernels/cuda/README.md.
  static std::vector<std::string> RunAll(const Accelerator* there, const Accelerator* current) {
    CheckAtOnce(false);
    std::vector<std::string> rows;
    const Memory untouched;
    for (const Operation& operation : AllOperations()) {
      SCOPED_TRACE(operation.name);
      Memory memory;
      const std::string columns = Columns(operation, memory, Copies(there), current);
      const Memory& expected = columns.starts_with("yes") ? s_expected.at(rows.size()) : untouched;
      EXPECT_TRUE(HoldsTheBitsOf(memory.out, expected.out));
      EXPECT_TRUE(HoldsTheBitsOf(memory.out64, expected.out64));
      EXPECT_TRUE(HoldsTheBitsOf(memory.packed, expected.packed));
      EXPECT_TRUE(HoldsTheBitsOf(memory.flags, expected.flags));
      rows.push_back("| " + operation.name + " | " + columns + " |");
    }
    return rows;
  }

 private:
  static inline std::vector<Memory> s_expected;  // of the scalar kernels
};

class OperationsOfTwo : public Operations {
 protected:
  void SetUp() override {
    Operations::SetUp();
    if (IsSkipped()) return;
    if (on_host() || Operations::second() == nullptr) GTEST_SKIP() << "one device, not two";
  }
  [[nodiscard]] const Accelerator& second() const { return *Operations::second(); }
};
INSTANTIATE_TEST_SUITE_P(Backends, Operations, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);
INSTANTIATE_TEST_SUITE_P(Backends, OperationsOfTwo, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

TEST_P(Operations, GiveTheScalarKernelsBitsOrRefuse) {
  const Accelerator* const device = on_host() ? nullptr : &driver();
  const std::vector<std::string> rows = RunAll(device, device);
  if (kind() != Device::cuda) return;
  for (const std::string& row : rows) std::printf("%s\n", row.c_str());
}

TEST_P(OperationsOfTwo, WorkWhereTheTensorsAre) { RunAll(&second(), &driver()); }

TEST_P(OperationsOfTwo, WorkInTwoThreadsWithADeviceEach) {
  std::thread other([&] { RunAll(&second(), &driver()); });
  RunAll(&driver(), &second());
  other.join();
}

/// A call on the first device does not raise a fault that a call on the second device has recorded.
TEST_P(OperationsOfTwo, ChecksumsAndFaultsAreTheSecondOnes) {
  Memory memory;
  memory.x[5] = std::numeric_limits<float>::quiet_NaN();
  const Views here = ViewsOf(memory);
  const testing::OnGpuView x(second(), here.x), out(second(), here.out);
  const testing::OnGpuView integers(second(), here.integers), first(driver(), here.x);
  const testing::OnGpuView packed(second(), here.packed);
  Enter(driver());
  const ByteRange bytes{static_cast<const std::uint8_t*>(x.view().data), 4 * kCount};
  EXPECT_EQ(Queue(kind(), 1).Checksums({&bytes, 1}),
            std::vector{Crc32c(0, bytes.count, memory.x.data())});
  const auto cast = [&](const testing::OnGpuView& from, const TensorView* random) {
    RoundingOptions options = Stochastic();
    options.random_bits = 2;  // the integers are greater
    Cast(from.view(), ParseFormat("e4m3"), options, (random != nullptr ? out : from).view(), {},
         random);
  };
  const TensorView random = integers.view();
  CheckAtOnce(true);
  EXPECT_THROW(cast(x, &random), Error);
  EXPECT_NO_THROW(cast(x, nullptr));
  // The operation that finds a NaN without a code is the last of its call, so only the call's end
  // can raise the fault at once.
  EXPECT_THROW(Encode(x.view(), MakeFormat(4, 3, Encoding::finite), {}, packed.view()), Error);
  EXPECT_NO_THROW(cast(x, nullptr));
  CheckAtOnce(false);
  EXPECT_NO_THROW(cast(x, &random));
  ReleaseUnusedMemory(kind(), 1);  // waits for the device's work
  EXPECT_NO_THROW(cast(first, nullptr));
  EXPECT_NO_THROW(CheckDevice(kind(), 0));
  EXPECT_THROW(CheckDevice(kind(), 1), Error);
}

/// An operation refuses operands on two different devices before it writes anything.
TEST_P(OperationsOfTwo, RefuseOperandsOfBoth) {
  Memory memory;
  const Views here = ViewsOf(memory);
  const testing::OnGpuView x(driver(), here.x), y(driver(), here.out), out(second(), here.out);
  const testing::OnGpuView sums(second(), here.sums), packed(second(), here.packed);
  const testing::OnGpuView integers(second(), here.integers);
  const Format format = ParseFormat("e4m3");
  const auto refuses = [&](const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
      const std::string text =
          std::string("must be on one device, got one on ") + BackendOf(kind()).name + ":";
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  refuses([&] { Cast(x.view(), format, {}, out.view()); });
  refuses([&] {
    const TensorView random = integers.view();
    Cast(x.view(), format, Stochastic(), x.view(), {}, &random);
  });
  refuses([&] { Encode(x.view(), format, {}, packed.view()); });
  refuses([&] { Decode(packed.view(), format, x.view()); });
  refuses([&] { Add(x.view(), out.view(), format, {}, x.view()); });
  refuses([&] { Sum(x.view(), 0, In("e4m3 sequential"), sums.view()); });
  refuses([&] { Gemm(x.view(), x.view(), In("e4m3 sequential"), out.view()); });
  refuses([&] { Gemm(x.view(), out.view(), In("h100-fp16"), y.view()); });
  refuses([&] { Transform(x.view(), Hadamard{16, {}, false}, 1, false, out.view()); });
  refuses([&] { Cast(x.view(), ParseScaled("mxfp8"), 1, {}, out.view()); });
  refuses([&] {
    const TensorView largest = Part(out.view(), 1);
    Cast(x.view(), ParseScaled("fp8-tensor"), 1, {}, x.view(), {.largest = &largest});
  });
  refuses([&] {
    const TensorView factor = Part(out.view(), 1);
    GemmScaled(x.view(), {.factor = &factor}, x.view(), {}, In("e4m3 sequential"), ScalesAt::block,
               y.view());
  });
  VirtualReduce reduce({}, 1, {kCount, kCount});
  reduce.Contribute(0, Part(x.view(), kCount));
  refuses([&] { reduce.Contribute(1, Part(out.view(), kCount)); });
  out.Read();
  EXPECT_EQ(memory.out, std::vector<float>(kCount, 7));
}

}  // namespace
}  // namespace cpd
