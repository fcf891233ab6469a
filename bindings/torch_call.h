// SPDX-License-Identifier: Apache-2.0
//
// One call of an operator torch.ops.cpd.*: its arguments, which arrive on torch's stack, its kernel
// and its results; and the rows of the operators' table.
//
// Formats, roundings and accumulators arrive as one canonical text a call, parsed once: an
// accumulator's or, for operators of elements, a cast's ("e4m3 rounding=stochastic"). A text means
// the same in every process, so programs may be exported. seed and stream are one-element int64
// tensors (a missing one is 0) that hold the 64 bits of the unsigned number, so that a compiled
// program takes a new stream without being compiled again. Kernels read those on x's GPU when they
// run.
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

/// A string argument: torch's copy of it, which is deleted here. (torch's own conversion to
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

/// The meaning of a text, parsed once by `Parse`. Every thread has its own, of bounded size: no
/// lock. A copy, since a handler of Python's that runs within the call may parse any number of
/// texts.
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

/// A cast to a format without scales.
struct PlainCast {
  Format format;
  RoundingOptions rounding;
};

/// Throws Error for a scaled format.
inline PlainCast ParsePlainCast(std::string_view text) {
  const CastSpec cast = ParseCastSpec(text);
  if (const Format* const format = std::get_if<Format>(&cast.format)) {
    return {*format, cast.rounding};
  }
  throw Error(ToString(cast) + " has scales; here a format without scales is needed");
}

/// Takes a seed or stream: from the CPU its number, on x's GPU the place where it lies.
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

/// The types of an argument's entries on torch's stack, or of a function's arguments.
template <class... All>
struct Types {};

/// The seed and stream of a call.
struct Numbers {
  using Entries = Types<OptionalTensor, OptionalTensor>;
  static constexpr const char* kSchema = "Tensor? seed, Tensor? stream";

  /// The random bits of a call on x, where the rounding uses some.
  [[nodiscard]] RandomKey KeyOf(const RoundingOptions& rounding, const Tensor& x) const {
    RandomKey key;
    if (rounding.mode != Rounding::stochastic) return key;
    TakeNumber(seed, "seed", x, key.seed, key.device_seed);
    TakeNumber(stream, "stream", x, key.stream, key.device_stream);
    return key;
  }

  OptionalTensor seed, stream;
};

/// The cast of an operation's elements and the integers of its stochastic rounding.
struct ElementCast {
  using Entries = Types<Text, Numbers, OptionalTensor>;
  static constexpr const char* kSchema = "str how, Tensor? seed, Tensor? stream, Tensor? random";

  /// The parsed text, and the random bits of a call on x.
  [[nodiscard]] std::pair<PlainCast, RandomKey> On(const Tensor& x) const {
    const PlainCast to = Parsed<ParsePlainCast>(how);
    return {to, numbers.KeyOf(to.rounding, x)};
  }

  Text how;
  Numbers numbers;
  OptionalTensor random;
};

/// The accumulator of a sum.
struct SumBy {
  using Entries = Types<Text, Numbers>;
  static constexpr const char* kSchema = "str accumulator, Tensor? seed, Tensor? stream";

  /// The parsed text, and the random bits of a call on x.
  [[nodiscard]] std::pair<Accumulator, RandomKey> On(const Tensor& x) const {
    const Accumulator how = Parsed<ParseAccumulator>(text);
    return {how, numbers.KeyOf(how.rounding, x)};
  }

  Text text;
  Numbers numbers;
};

// ---- the stack ------------------------------------------------------------------------------

/// Takes an argument from torch's stack, where it has kEntries entries.
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

/// Takes several arguments, one after the other.
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
  /// The index of each argument's first entry.
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

/// Puts a kernel's results on the stack.
template <class Result>
void Put(StableIValue* stack, const Result& result) {
  stack[0] = torch::stable::detail::from(result);
}
template <class... Results>
void Put(StableIValue* stack, const std::tuple<Results...>& results) {
  std::apply([&](const auto&... one) { ((*stack++ = torch::stable::detail::from(one)), ...); },
             results);
}

/// The results of a function: their number and their types in a schema.
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

/// A kernel as torch calls it.
using BoxedKernel = void (*)(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);

/// A function as a kernel: a call of the library (RunningCall) on torch's threads; torch has
/// released the GIL. Where a GPU has no memory left, the error is the front end's.
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

/// A tensor for packed codes.
inline Tensor EmptyCodes(const Tensor& x, const Format& format, std::int64_t count) {
  const std::int64_t bytes = PackedBytes(format, count);
  return Empty(x, {&bytes, 1}, ScalarType::Byte);
}

// ---- shapes of a call -----------------------------------------------------------------------

/// An operation of one or more operands of one shape, each of its results rounded once. `Others`: a
/// Tensor for each operand after x; `Result` makes a tensor for the results.
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

/// A row of the table: an operator, by its schema and its kernel.
struct TorchOperator {
  std::string name, schema;
  BoxedKernel kernel;
  /// True if there is <name>_plain as well: the same kernel, without the derivatives, transforms
  /// and batching rules that python/cpd/_torch gives <name>. Compiled programs call it, and Python
  /// where nothing is to be differentiated.
  bool has_plain = false;
  bool on_cuda = true;
};
using TorchOperators = std::vector<TorchOperator>;

/// Further facts on an operator: it has derivatives; it is one of the CPU alone.
enum class Has { nothing, derivatives, cpu_only };

/// The row of a function. One without results writes into `out`, its last argument.
template <auto Function>
TorchOperator Row(const std::string& name, const std::string& arguments, Has has = Has::nothing) {
  constexpr bool kWrites = Boxed<Function>::kMade.count == 0;
  return {name,
          "(" + arguments + (kWrites ? ", *, Tensor(a!) out" : "") + ") -> " +
              Boxed<Function>::kMade.schema,
          Boxed<Function>::Run, kWrites || has == Has::derivatives, has != Has::cpu_only};
}

/// The rows of an operator of elements, which makes its result, and of <name>_out.
template <auto New, auto Into>
TorchOperators MadeAndWritten(const std::string& name, const std::string& arguments) {
  return {Row<New>(name, arguments, Has::derivatives), Row<Into>(name + "_out", arguments)};
}

// The rows of other files.
TorchOperators ScaledOperators();
TorchOperators ConvolutionOperators();

}  // namespace cpd
