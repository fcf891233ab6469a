// SPDX-License-Identifier: Apache-2.0
//
// Implements one call of an operator torch.ops.cpd.*: reads the arguments from torch's stack, runs
// the kernel and stores the results on the stack. Also defines the rows of the table of operators.
//
// Formats, roundings and accumulators are passed as one canonical text, which is parsed once: the
// text of an accumulator or, for element-wise operators, of a cast ("e4m3 rounding=stochastic").
// A text has the same meaning in every process, so programs may be exported. seed and stream are
// one-element int64 tensors that hold the 64 bits of an unsigned number; a missing tensor means 0.
// So a compiled program can take a new stream without being compiled again. If the tensors are on
// x's GPU, kernels read them when they run.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpd/backend/device_memory.h"
#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/ops/codec.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/cast_spec.h"
#include "cpd/spec/random_key.h"
#include "torch_tensors.h"

namespace cpd {

// ---- arguments ------------------------------------------------------------------------------

/// A string argument. Takes torch's copy of the string and deletes it. (torch's own conversion to
/// std::string never frees that copy.)
class Text {
 public:
  explicit Text(StringHandle handle) : handle_(handle) {}
  Text(Text&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Text& operator=(Text&&) = delete;
  ~Text() {
    if (handle_ != nullptr) torch_delete_string(handle_);
  }

  [[nodiscard]] std::string_view view() const {
    const char* data = nullptr;
    std::size_t length = 0;
    STABLE_TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle_, &data));
    STABLE_TORCH_ERROR_CODE_CHECK(torch_string_length(handle_, &length));
    return {data, length};
  }

 private:
  StringHandle handle_;
};

/// Returns the result of Parse(text) from a cache. Each thread has a cache of its own, of bounded
/// size, so that no lock is needed. Returns a copy, because a Python handler that runs within the
/// call may parse further texts and so evict the entry.
template <auto Parse>
auto Parsed(const Text& text) {
  using Spec = decltype(Parse(text.view()));
  constexpr std::size_t kMost = 256;
  thread_local std::map<std::string, Spec, std::less<>> known;
  const std::string_view key = text.view();
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const Spec parsed = Parse(key);
  if (known.size() >= kMost) known.clear();
  return known.emplace(key, parsed).first->second;
}

/// A cast to a format without scales: the format and the rounding options.
struct PlainCast {
  Format format;
  RoundingOptions rounding;
};

/// Parses a cast. Throws Error for a scaled format.
inline PlainCast ParsePlainCast(std::string_view text) {
  const CastSpec cast = ParseCastSpec(text);
  if (const Format* const format = std::get_if<Format>(&cast.format)) {
    return {*format, cast.rounding};
  }
  throw Error(ToString(cast) + " has scales; here a format without scales is needed");
}

/// Reads a seed or a stream: the number itself if the tensor is on the CPU, or its address if the
/// tensor is on x's GPU.
inline void TakeNumber(const OptionalTensor& given, const char* what, const Tensor& x,
                       std::uint64_t& number, const std::uint64_t*& on_device) {
  if (!given) return;
  if (given->numel() != 1 || given->scalar_type() != ScalarType::Long) {
    throw Error(std::string(what) + " must be an int64 tensor of one element");
  }
  if (Explains()) return;
  const void* data = given->const_data_ptr();
  if (given->is_cpu()) {
    number = static_cast<std::uint64_t>(*static_cast<const std::int64_t*>(data));
    return;
  }
  if (!given->is_cuda() || !x.is_cuda() || given->get_device_index() != x.get_device_index()) {
    throw Error(std::string(what) + " must be on the CPU or on x's device");
  }
  on_device = static_cast<const std::uint64_t*>(data);
}

/// Lists C++ types: the types of the stack entries that one argument of an operator has on torch's
/// stack, or the types of all arguments of a function.
template <class... All>
struct Types {};

/// The numbers that determine a call's random bits: the seed, and the number of the random stream.
struct Numbers {
  using Entries = Types<OptionalTensor, OptionalTensor>;
  static constexpr const char* kSchema = "Tensor? seed, Tensor? stream";

  /// Returns the random bits of a call on x, or an empty key if the rounding uses none.
  [[nodiscard]] RandomKey KeyOf(const RoundingOptions& rounding, const Tensor& x) const {
    RandomKey key;
    if (rounding.mode != Rounding::stochastic) return key;
    TakeNumber(seed, "seed", x, key.seed, key.device_seed);
    TakeNumber(stream, "stream", x, key.stream, key.device_stream);
    return key;
  }

  OptionalTensor seed, stream;
};

/// The cast of an operation's elements, and the seed and stream of its stochastic rounding.
struct ElementCast {
  using Entries = Types<Text, Numbers, OptionalTensor>;
  static constexpr const char* kSchema = "str how, Tensor? seed, Tensor? stream, Tensor? random";

  /// Returns the parsed cast and the random bits for a call on the tensor x.
  [[nodiscard]] std::pair<PlainCast, RandomKey> On(const Tensor& x) const {
    const PlainCast to = Parsed<ParsePlainCast>(how);
    return {to, numbers.KeyOf(to.rounding, x)};
  }

  Text how;
  Numbers numbers;
  OptionalTensor random;
};

/// The accumulator of a sum, and the seed and stream of its stochastic rounding.
struct SumBy {
  using Entries = Types<Text, Numbers>;
  static constexpr const char* kSchema = "str accumulator, Tensor? seed, Tensor? stream";

  /// Returns the parsed accumulator and the random bits for a call on the tensor x.
  [[nodiscard]] std::pair<Accumulator, RandomKey> On(const Tensor& x) const {
    const Accumulator how = Parsed<ParseAccumulator>(text);
    return {how, numbers.KeyOf(how.rounding, x)};
  }

  Text text;
  Numbers numbers;
};

// ---- the stack ------------------------------------------------------------------------------

/// Reads an argument from torch's stack. The argument takes kEntries entries of the stack.
template <class Argument>
struct OnStack {
  static constexpr std::size_t kEntries = 1;
  static Argument Take(const StableIValue* at) { return torch::stable::detail::to<Argument>(*at); }
};
template <>
struct OnStack<Text> {
  static constexpr std::size_t kEntries = 1;
  static Text Take(const StableIValue* at) { return Text(OnStack<StringHandle>::Take(at)); }
};

/// Reads several arguments, one after the other.
template <class List>
struct AllOnStack;
template <class... All>
struct AllOnStack<Types<All...>> {
  static constexpr std::size_t kEntries = (OnStack<All>::kEntries + ... + 0);

  /// Returns run(arguments...).
  template <class Run>
  static decltype(auto) Take(const StableIValue* stack, const Run& run) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) -> decltype(auto) {
      return run(OnStack<All>::Take(stack + kFirst[I])...);
    }(std::index_sequence_for<All...>());
  }

 private:
  /// The index of each argument's first entry on the stack.
  static constexpr auto kFirst = [] {
    std::array<std::size_t, sizeof...(All)> first{};
    std::size_t next = 0, i = 0;
    ((first[i++] = std::exchange(next, next + OnStack<All>::kEntries)), ...);
    return first;
  }();
};

template <class Argument>
  requires requires { typename Argument::Entries; }
struct OnStack<Argument> {
  using Entries = AllOnStack<typename Argument::Entries>;
  static constexpr std::size_t kEntries = Entries::kEntries;
  static Argument Take(const StableIValue* at) {
    return Entries::Take(
        at, [](auto&&... all) { return Argument{std::forward<decltype(all)>(all)...}; });
  }
};

/// Puts a kernel's results on torch's stack.
template <class Result>
void Put(StableIValue* stack, const Result& result) {
  stack[0] = torch::stable::detail::from(result);
}
template <class... Results>
void Put(StableIValue* stack, const std::tuple<Results...>& results) {
  std::apply([&](const auto&... one) { ((*stack++ = torch::stable::detail::from(one)), ...); },
             results);
}

/// The results of a function: their number and their types in an operator's schema.
struct Results {
  std::size_t count;
  const char* schema;
};
template <class Result>
inline constexpr Results kResults{1, "Tensor"};
template <>
inline constexpr Results kResults<void>{0, "()"};
template <>
inline constexpr Results kResults<bool>{1, "bool"};
template <>
inline constexpr Results kResults<std::tuple<Tensor, Tensor>>{2, "(Tensor, Tensor)"};
template <>
inline constexpr Results kResults<std::tuple<Tensor, Tensor, Tensor>>{3,
                                                                      "(Tensor, Tensor, Tensor)"};

/// The type of a kernel as torch calls it, with arguments and results on a stack.
using BoxedKernel = void (*)(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);

/// Wraps a function as a kernel for torch. The kernel is a call of the library (RunningCall) that
/// runs on torch's threads, after torch has released the GIL. If a GPU runs out of memory, throws
/// the error of the front end (torch).
template <auto Function>
struct Boxed;
template <class Result, class... Arguments, Result (*Function)(Arguments...)>
struct Boxed<Function> {
  static constexpr Results kMade = kResults<Result>;

  static void Run(StableIValue* stack, std::uint64_t arguments, std::uint64_t results) {
    using Taken = AllOnStack<Types<std::remove_cvref_t<Arguments>...>>;
    if (arguments != Taken::kEntries || results != kMade.count) {
      throw std::logic_error("an operator's schema is not that of its kernel");
    }
    const RunningCall call;
    const OpenMpThreads threads;
    try {
      if constexpr (std::is_void_v<Result>) {
        Taken::Take(stack, Function);
      } else {
        Put(stack, Taken::Take(stack, Function));
      }
    } catch (const NoDeviceMemory& error) {
      ThrowAsFrontEnds(error);
    }
  }
};

/// Returns a new uint8 tensor for `count` packed codes.
inline Tensor EmptyCodes(const Tensor& x, const Format& format, std::int64_t count) {
  const std::int64_t bytes = PackedBytes(format, count);
  return Empty(x, {&bytes, 1}, ScalarType::Byte);
}

// ---- shapes of a call -----------------------------------------------------------------------

/// An operation on one or more operands of the same shape that rounds each result once. `Others`
/// has a Tensor for each operand after x. `Result` makes the tensor for the results.
template <auto Operation, auto Result, std::same_as<Tensor>... Others>
struct Elementwise {
  static void Into(const Tensor& x, const Others&... others, const ElementCast& cast,
                   const Tensor& out) {
    const OnDeviceOf guard(x);
    const auto [to, key] = cast.On(x);
    Operation(Input(x), Input(others)..., to.format, to.rounding, Output(out), key,
              Input(cast.random));
  }

  static Tensor New(const Tensor& x, const Others&... others, const ElementCast& cast) {
    const Tensor out = Result(x);
    Into(x, others..., cast, out);
    return out;
  }
};

// ---- the table ------------------------------------------------------------------------------

/// A row of the table of operators: an operator's schema and its kernel.
struct TorchOperator {
  std::string name, schema;
  BoxedKernel kernel;
  /// True if the operator <name>_plain exists too. It has the same kernel, but not the derivatives,
  /// transforms and batching rules that python/cpd/_torch adds to <name>. Compiled programs call
  /// <name>_plain, and so does Python if no derivative is needed.
  bool has_plain = false;
  bool on_cuda = true;
};
using TorchOperators = std::vector<TorchOperator>;

/// Further properties of an operator: it has derivatives, or it supports only the CPU.
enum class Has { nothing, derivatives, cpu_only };

/// Returns the row of the table of operators for the C++ function `Function`. If that function
/// returns nothing, it writes its result into its last argument, `out`.
template <auto Function>
TorchOperator Row(const std::string& name, const std::string& arguments, Has has = Has::nothing) {
  constexpr bool kWrites = Boxed<Function>::kMade.count == 0;
  return {name,
          "(" + arguments + (kWrites ? ", *, Tensor(a!) out" : "") + ") -> " +
              Boxed<Function>::kMade.schema,
          Boxed<Function>::Run, kWrites || has == Has::derivatives, has != Has::cpu_only};
}

/// Returns the two rows of an element-wise operator in the table of operators: <name>, which
/// returns a new tensor, and <name>_out, which writes into `out`.
template <auto New, auto Into>
TorchOperators MadeAndWritten(const std::string& name, const std::string& arguments) {
  return {Row<New>(name, arguments, Has::derivatives), Row<Into>(name + "_out", arguments)};
}

// Returns the rows of the table of operators that are defined in other source files.
TorchOperators ScaledOperators();
TorchOperators ConvolutionOperators();

}  // namespace cpd
