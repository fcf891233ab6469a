// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/all_reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/comm/engine/arguments.h"
#include "cpd/comm/engine/counts.h"
#include "cpd/comm/engine/exchanges.h"
#include "cpd/comm/engine/handshake.h"
#include "cpd/comm/engine/layout.h"
#include "cpd/comm/engine/link.h"
#include "cpd/comm/engine/message_ops.h"
#include "cpd/comm/engine/staged.h"
#include "cpd/comm/engine/stream_order.h"
#include "cpd/comm/reduction.h"
#include "cpd/comm/transport/fault.h"
#include "cpd/ops/checks.h"

namespace cpd {
namespace {

constexpr std::size_t kDepth = 4;  // chunks under way at once

/// Thrown on a rank that cannot take part in a call, after the other ranks know that. `error`: the
/// error of its arguments or of its machine.
struct Refusal {
  std::exception_ptr error;
};

/// One collective call, on this rank.
class Collective {
 public:
  Collective(Link& link, const CommOptions& options, std::span<const TensorView> x,
             std::span<const TensorView> out, const cpd::Reduce& spec, const TensorOptions& layers)
      : link_(link), options_(options), x_(x), out_(out), spec_(spec), layers_(layers) {
    for (const TensorView& layer : x) sizes_.push_back(layer.size());
  }

  ReduceReport Reduce(Delivery delivery, int root, bool counts) {
    delivery_ = delivery;
    root_ = root;
    constexpr std::array<std::string_view, 3> kNames{"all_reduce", "reduce", "reduce_scatter"};
    Intent intent = IntentOf(std::string(kNames.at(static_cast<std::size_t>(delivery))), spec_,
                             layers_.seed, layers_.step);
    intent.emplace_back("root", std::to_string(root));
    intent.emplace_back("counts", counts ? "on" : "off");
    Agree(std::move(intent), [&] { CheckReduce(); });

    ReduceReport report;
    report.layers.resize(x_.size());
    const MessageOps ops = MakeOps();
    for (std::size_t l = 0; l < x_.size(); ++l) report.layers[l].shift = shifts_[l];
    std::vector<std::int64_t> own;
    if (counts) own = CountContributions(ops, MakeLayers());
    Exchanges exchanges(link_, ops, delivery, root);
    Drive(exchanges.Slices(), [&](std::int64_t chunk, std::vector<Part> parts) {
      return exchanges.Run(chunk, std::move(parts));
    });
    if (counts) CountAll(std::move(own), report);
    if (copies_) ReturnResults(report);
    for (CodecState* state : states_) state->Commit();
    for (CodecState* state : result_states_) state->Commit();
    link_.traffic().steps = exchanges.steps();
    report.traffic = link_.traffic();
    return report;
  }

  Traffic AllGather() {
    Agree(IntentOf("all_gather", spec_, layers_.seed, layers_.step), [&] { CheckOut(size()); });
    std::vector<std::vector<std::int64_t>> offsets(static_cast<std::size_t>(size()));
    for (std::int64_t r = 0; r < size(); ++r) {
      for (const std::int64_t n : sizes_) offsets[static_cast<std::size_t>(r)].push_back(r * n);
    }
    const MessageOps ops = MakeOps();
    Exchanges exchanges(link_, ops, Delivery::to_all, 0);
    Drive(1, [&](std::int64_t chunk, std::vector<Part> parts) {
      return exchanges.AllGather(chunk, std::move(parts[0]), offsets);
    });
    link_.traffic().steps = exchanges.steps();
    return link_.traffic();
  }

 private:
  [[nodiscard]] int rank() const { return link_.transport().rank(); }
  [[nodiscard]] int size() const { return link_.transport().size(); }

  /// Checks this rank's arguments and that all ranks are about to make the same call. Then agrees
  /// with the other ranks on the layers' scales.
  void Agree(Intent intent, const std::function<void()>& check) {
    intent.emplace_back("tensors' numbers", NumbersText(layers_.numbers));
    if (spec_.wire != nullptr && spec_.wire->by_rows()) {
      intent.emplace_back("tensors' rows", NumbersText(layers_.rows));
    }
    intent.emplace_back("chunk", std::to_string(options_.chunk));
    const std::string refusal = Prepare(check);
    Enter(Phase::handshake, 0, link_.transport());
    Handshake(link_, intent, sizes_, refusal, layers_.numbers, layers_.shapes);
    if (!refusal.empty()) throw Refusal{refusal_};
    AgreeOnScales();
  }

  /// Prepares the call. Returns the error of this rank's arguments or of its machine as a text;
  /// empty if there is no error.
  std::string Prepare(const std::function<void()>& check) {
    try {
      CheckPlace();
      reduction_ = std::make_unique<const Reduction>(spec_, size(), sizes_, layers_,
                                                     delivery_ == Delivery::to_all);
      check();
      CheckOverlap(x_, out_);
      UseLayers();
      DivideFirst();
      FindStates();
      if (reduction_->wants_largest()) Measure();
    } catch (const Error& error) {
      refusal_ = std::current_exception();
      return error.what();
    } catch (const MachineError& error) {
      refusal_ = std::current_exception();
      return error.what();
    }
    return {};
  }

  void CheckPlace() const {
    const TensorView first = FirstLayer(x_);
    CheckLayers("x", x_, first);
    CheckLayers("out", out_, first);
    const Transport& transport = link_.transport();
    TensorView message;
    message.device = transport.memory();
    message.device_index = transport.device_index();
    if (message.on_host() || first.size() == 0 || IsTogether(first, message)) return;
    throw Error("transport " + transport.name() + " takes tensors " + PlaceOf(message) +
                ", got them " + PlaceOf(first));
  }

  /// Sets queue_, on which everything is computed. Copies a device's layers to the host if the
  /// codec has no kernels that encode.
  void UseLayers() {
    const TensorView first = FirstLayer(x_);
    queue_ = link_.UseLayersOn(first.device, first.device_index);
    order_.emplace(queue_, x_, out_);
    if (first.on_host() || reduction_->encodes_on_devices()) return;
    HostCopies& copies = copies_.emplace(queue_);
    const auto on_host = [&](TensorView layer, std::shared_ptr<float> memory) {
      layer.data = host_memory_.emplace_back(std::move(memory)).get();
      layer.device = Device::cpu;
      layer.stream = nullptr;
      return layer;
    };
    for (std::size_t l = 0; l < x_.size(); ++l) {
      const auto* values = static_cast<const float*>(x_[l].data);
      host_x_.push_back(on_host(x_[l], copies.Fetch(l, values, sizes_[l])));
    }
    for (const TensorView& layer : out_) {
      host_out_.push_back(on_host(layer, copies.Allocate(layer.size())));
    }
    on_device_ = std::exchange(out_, host_out_);
    x_ = host_x_;
    queue_ = HostQueue();
  }

  void ReturnResults(ReduceReport& report) {
    for (std::size_t l = 0; l < out_.size(); ++l) {
      copies_->Copy(l, on_device_[l].data, out_[l].data, out_[l].size());
    }
    for (std::size_t l = 0; l < x_.size(); ++l) report.layers[l].staged_bytes = copies_->bytes(l);
  }

  /// If contributions are divided (Divide::before), replaces x by the quotients.
  void DivideFirst() {
    const float divisor = reduction_->first_divisor();
    if (divisor == 1) return;
    quotients_ = Quotients(queue_, x_, divisor);
    divided_.assign(x_.begin(), x_.end());
    for (std::size_t l = 0; l < divided_.size(); ++l) divided_[l].data = quotients_[l].get();
    x_ = divided_;
  }

  /// Returns the values of a layer that this rank owns, that is, for which it computes the results.
  [[nodiscard]] Segment Owned(std::size_t layer) const {
    const auto index = static_cast<std::int64_t>(layer);
    const auto slice = static_cast<int>((rank() + size() - reduction_->turn(index)) % size());
    const std::int64_t begin = BeginOf(layer, slice);
    return {static_cast<int>(layer), begin, BeginOf(layer, slice + 1) - begin};
  }
  /// Returns the index of the first value of a layer's slice.
  [[nodiscard]] std::int64_t BeginOf(std::size_t layer, int slice) const {
    const std::vector<std::int64_t>& buckets = reduction_->buckets();
    return SliceBegin(sizes_[layer], size(), slice, buckets.empty() ? 1 : buckets[layer]);
  }

  /// Sets states_ and result_states_: a codec's state (such as residuals) for each layer's
  /// contribution, and for the slice of each layer whose result this rank computes. The lists
  /// remain empty if the codec has no states.
  void FindStates() {
    CodecStates& states = layers_.states == nullptr ? own_states_ : *layers_.states;
    if (reduction_->spec().wire != nullptr) states.Claim({size(), rank()});
    for (std::size_t l = 0; l < x_.size(); ++l) {
      const auto layer = static_cast<std::int64_t>(l);
      const std::int64_t number = reduction_->number(layer);
      const auto of = [&](const Codec& codec, Stage stage, const Segment& part,
                          std::int64_t unrotated, std::vector<CodecState*>& found) {
        CodecState* state = states.Of(codec, {rank(), number, stage}, part.count,
                                      {.now = part.begin, .unrotated = unrotated});
        if (state != nullptr) found.push_back(state);
      };
      of(*reduction_->wire(layer), Stage::contribution, {.count = sizes_[l]}, 0, states_);
      const SharedCodec& results = reduction_->results(layer);
      if (results == nullptr) continue;
      of(*results, Stage::result, Owned(l), BeginOf(l, rank()), result_states_);
    }
  }

  /// Tells the codec's states that a call begins (CodecState::BeginOn), for each layer and its
  /// results. Then measures each layer's scale if the codec needs one.
  void BeginLayers() {
    const Reduction& reduction = *reduction_;
    for (std::size_t l = 0; l < x_.size(); ++l) {
      const auto layer = static_cast<std::int64_t>(l);
      const auto* x = static_cast<const float*>(x_[l].data);
      const Piece whole = reduction.PieceOf(layer, rank(), shifts_[l]);
      CodecState* state = states_.empty() ? nullptr : states_[l];
      if (state != nullptr) state->BeginOn(queue_, whole, x);
      if (reduction.measured() != Measured::nothing) {
        scales_.push_back(reduction.wire(layer)->MeasureOn(*queue_, whole, state, x));
      }
      if (result_states_.empty()) continue;
      const Segment own = Owned(l);
      result_states_[l]->BeginOn(queue_, reduction.ResultPiece(layer, own.begin, own.count),
                                 nullptr);
    }
    if (reduction.measured() != Measured::shared) return;
    Enter(Phase::exponents, 0, link_.transport());
    link_.Max(Phase::exponents, std::span<float>(scales_));
  }

  void CheckReduce() const {
    if (delivery_ != Delivery::to_all && spec_.exchange != Exchange::owner) {
      throw Error("only all_reduce takes exchange " + ToString(spec_.exchange) +
                  "; owner serves all");
    }
    if (root_ < 0 || root_ >= size()) {
      throw Error("root must be 0…" + std::to_string(size() - 1) + ", got " +
                  std::to_string(root_));
    }
    if (delivery_ == Delivery::to_root && rank() != root_) {
      if (!out_.empty()) {
        throw Error("out must be empty on ranks other than the root, " + std::to_string(root_) +
                    ", got " + std::to_string(out_.size()) + " tensors on rank " +
                    std::to_string(rank()));
      }
      return;
    }
    CheckOut(1);
  }

  void CheckOut(std::int64_t copies) const {
    if (out_.size() != x_.size()) {
      throw Error("out must have " + std::to_string(x_.size()) + " tensors as x has, got " +
                  std::to_string(out_.size()));
    }
    for (std::size_t l = 0; l < x_.size(); ++l) {
      std::int64_t expected = sizes_[l] * copies;
      if (delivery_ == Delivery::scattered) {
        expected =
            SliceBegin(sizes_[l], size(), rank() + 1) - SliceBegin(sizes_[l], size(), rank());
      }
      if (out_[l].size() == expected) continue;
      throw Error("out[" + std::to_string(l) + "] must have " + std::to_string(expected) +
                  " values, got " + std::to_string(out_[l].size()));
    }
  }

  /// Returns the largest magnitude of the values that the codec will encode for a layer, such as
  /// the layer plus its residual (Codec::LargestOn). None: the layer's own values are encoded.
  [[nodiscard]] std::optional<float> LargestOf(std::size_t l) const {
    if (states_.empty()) return std::nullopt;
    const auto layer = static_cast<std::int64_t>(l);
    states_[l]->BeginOn(queue_, reduction_->PieceOf(layer, rank(), 0),
                        static_cast<const float*>(x_[l].data));
    return reduction_->wire(layer)->LargestOn(*queue_, *states_[l]);
  }

  /// Sets largest_: the bits of each layer's largest magnitude, and as the last entry 1 if any
  /// value is NaN or infinite.
  void Measure() {
    largest_.assign(x_.size() + 1, 0);
    const std::vector<LayerRange> ranges = MeasureRanges(*queue_, x_);
    for (std::size_t l = 0; l < x_.size(); ++l) {
      const LayerRange& range = ranges[l];
      largest_[l] = std::bit_cast<std::uint32_t>(LargestOf(l).value_or(range.max_abs));
      if (range.non_finite > 0) largest_.back() = 1;
    }
  }

  void AgreeOnScales() {
    const Reduction& reduction = *reduction_;
    std::vector<float> largest(x_.size());
    if (reduction.wants_largest()) {
      Enter(Phase::exponents, 0, link_.transport());
      link_.Max(Phase::exponents, largest_);
      for (std::size_t l = 0; l < x_.size(); ++l) largest[l] = std::bit_cast<float>(largest_[l]);
    }
    for (const float magnitude : largest) shifts_.push_back(reduction.ShiftOf(magnitude));
    in_fp32_ = reduction.LacksNan() && (largest_.back() != 0 || reduction.MayMeetNan(largest));
    BeginLayers();
  }

  [[nodiscard]] MessageOps MakeOps() {
    return {*reduction_, rank(), MakeLayers(), in_fp32_, queue_, [this] { Progress(); }};
  }

  [[nodiscard]] Layers MakeLayers() const {
    Layers layers;
    layers.sizes = sizes_;
    layers.shifts = shifts_;
    layers.scales = scales_;
    layers.states = states_;
    layers.results = result_states_;
    for (const TensorView& layer : x_) layers.x.push_back(static_cast<const float*>(layer.data));
    for (const TensorView& layer : out_) layers.out.push_back(static_cast<float*>(layer.data));
    for (const std::int64_t n : sizes_) {
      layers.out_begin.push_back(delivery_ == Delivery::scattered ? SliceBegin(n, size(), rank())
                                                                  : 0);
    }
    return layers;
  }

  /// Exchanges all chunks, up to kDepth at once. Waits for each chunk in turn, in the same order on
  /// all ranks.
  void Drive(int slices, const std::function<Task(std::int64_t, std::vector<Part>)>& make) {
    std::vector<std::int64_t> turns;
    for (std::size_t l = 0; l < x_.size(); ++l) {
      turns.push_back(reduction_->turn(static_cast<std::int64_t>(l)));
    }
    Layout layout(sizes_, slices, options_.chunk, Buckets(), turns);
    for (std::int64_t chunk = 0; !layout.done() || !active_.empty();) {
      if (active_.size() < kDepth && !layout.done()) {
        active_.push_back(make(chunk++, layout.Next()));
        active_.back().Resume();
        if (active_.back().done()) active_.pop_back();  // nothing to wait for
        continue;
      }
      link_.Wait(*active_.front().waiting());
      active_.front().Resume();
      if (!active_.front().done()) active_.push_back(std::move(active_.front()));
      active_.pop_front();
    }
  }

  /// Returns the codec's bucket lengths. Layers are cut into chunks only at multiples of a bucket's
  /// length. Otherwise a result could overwrite a bucket's values before another chunk has read
  /// them. Returns an empty list for a reduce-scatter of several ranks, which cuts layers where its
  /// slices of the results begin.
  [[nodiscard]] std::span<const std::int64_t> Buckets() const {
    if (delivery_ == Delivery::scattered && size() > 1) return {};
    return reduction_->buckets();
  }

  void Progress() {
    for (const Task& task : active_) {
      if (task.waiting() != nullptr) link_.Progress(*task.waiting());
    }
  }

  /// Sets the report's counts to sums over all ranks. `own`: this rank's counts.
  void CountAll(std::vector<std::int64_t> own, ReduceReport& report) {
    if (x_.empty()) return;
    const bool counts_results = delivery_ != Delivery::to_all || rank() == 0;
    std::vector<LayerRange> results =
        MeasureRanges(*queue_, counts_results ? out_ : std::span<const TensorView>{});
    results.resize(x_.size());
    for (std::size_t l = 0; l < x_.size(); ++l) {
      own[kCounts * l + kCountOfResults] = results[l].non_finite;
    }
    const std::vector<std::uint8_t> all = link_.AllGather(
        Phase::gather, {reinterpret_cast<const std::uint8_t*>(own.data()), own.size() * 8});
    SumCounts(all, sizes_, report.layers);
  }

  Link& link_;
  const CommOptions& options_;
  std::span<const TensorView> x_, out_;
  const cpd::Reduce& spec_;
  const TensorOptions& layers_;
  Delivery delivery_ = Delivery::to_all;
  int root_ = 0;
  std::vector<std::int64_t> sizes_;
  std::unique_ptr<const Reduction> reduction_;
  std::vector<std::shared_ptr<float>> quotients_;  // the quotients of DivideFirst
  std::vector<TensorView> divided_;
  std::vector<std::uint32_t> largest_;
  std::exception_ptr refusal_;
  std::vector<int> shifts_;
  bool in_fp32_ = false;
  SharedQueue queue_;
  std::optional<StreamOrder> order_;
  std::optional<HostCopies> copies_;  // for codecs without kernels on the layers' device
  std::vector<std::shared_ptr<float>> host_memory_;
  std::vector<TensorView> host_x_, host_out_;
  std::span<const TensorView> on_device_;   // the results
  std::vector<float> scales_;               // empty where nothing is measured
  std::vector<CodecState*> states_;         // of the layers; empty if the codec has no state
  std::vector<CodecState*> result_states_;  // of the results that this rank owns
  CodecStates own_states_;                  // if the caller has none
  std::deque<Task> active_;
};

}  // namespace

struct Communicator::Impl {
  std::unique_ptr<Transport> transport;
  CommOptions options;
  Link link;

  Impl(std::unique_ptr<Transport> given, const CommOptions& chosen)
      : transport(std::move(given)), options(chosen), link(*transport, chosen.timeout) {}

  /// Runs a call. If the call fails and not all ranks know why, breaks the communicator and raises
  /// the alarm.
  template <class Body>
  auto Guarded(const Body& body) {
    if (const std::string why = Broken(); !why.empty()) {
      throw RankLost("this group of ranks is broken: " + why, {});
    }
    const SharedHost shared(transport->ranks_on_host());
    link.traffic() = {};
    try {
      link.CheckAlarms(Phase::handshake);
      return body();
    } catch (const Mismatch&) {
      throw;
    } catch (const Refusal& refusal) {
      std::rethrow_exception(refusal.error);
    } catch (const Interrupted&) {
      Break("a call was interrupted");
      link.GiveUp();
      throw;
    } catch (const std::exception& error) {
      Break(error.what());
      link.GiveUp();
      throw;
    }
  }

  /// Returns why the communicator is broken. Another thread may call this function during a call.
  [[nodiscard]] std::string Broken() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return broken_;
  }

 private:
  void Break(const char* why) {
    const std::lock_guard<std::mutex> lock(mutex_);
    broken_ = why;
  }

  std::mutex mutex_;  // guards broken_
  std::string broken_;
};

Communicator::Communicator(std::unique_ptr<Transport> transport, const CommOptions& options) {
  if (transport == nullptr) throw Error("a communicator needs a transport");
  if (!(options.timeout > 0) || !(options.timeout <= 1e6)) {
    throw Error("timeout must be above 0 and at most 10^6 seconds, got " +
                std::to_string(options.timeout));
  }
  if (options.chunk < 1) {
    throw Error("chunk must be at least 1, got " + std::to_string(options.chunk));
  }
  impl_ = std::make_unique<Impl>(std::move(transport), options);
}
Communicator::~Communicator() = default;
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;

Transport& Communicator::transport() const { return *impl_->transport; }
int Communicator::rank() const { return impl_->transport->rank(); }
int Communicator::size() const { return impl_->transport->size(); }
std::string Communicator::broken() const { return impl_->Broken(); }

ReduceReport Communicator::AllReduce(std::span<const TensorView> x, std::span<const TensorView> out,
                                     const cpd::Reduce& spec, bool counts,
                                     const TensorOptions& layers) {
  return impl_->Guarded([&] {
    return Collective(impl_->link, impl_->options, x, out, spec, layers)
        .Reduce(Delivery::to_all, 0, counts);
  });
}

ReduceReport Communicator::Reduce(std::span<const TensorView> x, std::span<const TensorView> out,
                                  const cpd::Reduce& spec, int root, bool counts,
                                  const TensorOptions& layers) {
  return impl_->Guarded([&] {
    return Collective(impl_->link, impl_->options, x, out, spec, layers)
        .Reduce(Delivery::to_root, root, counts);
  });
}

ReduceReport Communicator::ReduceScatter(std::span<const TensorView> x,
                                         std::span<const TensorView> out, const cpd::Reduce& spec,
                                         bool counts, const TensorOptions& layers) {
  return impl_->Guarded([&] {
    return Collective(impl_->link, impl_->options, x, out, spec, layers)
        .Reduce(Delivery::scattered, 0, counts);
  });
}

Traffic Communicator::AllGather(std::span<const TensorView> x, std::span<const TensorView> out,
                                const Format& format, const RoundingOptions& rounding,
                                const TensorOptions& layers) {
  cpd::Reduce spec;
  spec.format = format;
  spec.rounding = rounding;
  return impl_->Guarded(
      [&] { return Collective(impl_->link, impl_->options, x, out, spec, layers).AllGather(); });
}

std::vector<std::vector<std::uint8_t>> Communicator::AllGatherBytes(
    std::span<const std::uint8_t> own) {
  return impl_->Guarded([&] {
    Link& link = impl_->link;
    Enter(Phase::handshake, 0, *impl_->transport);
    Handshake(link, {{"operation", "all_gather_bytes"}}, {}, {});
    Enter(Phase::gather, 0, *impl_->transport);
    const auto length = static_cast<std::int64_t>(own.size());
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(size()));
    const std::vector<std::uint8_t> announced = link.AllGather(
        Phase::gather, {reinterpret_cast<const std::uint8_t*>(&length), sizeof(length)});
    std::memcpy(lengths.data(), announced.data(), announced.size());
    const std::vector<std::uint8_t> all = link.AllGather(Phase::gather, own, lengths);
    std::vector<std::vector<std::uint8_t>> gathered;
    auto begin = all.begin();
    for (const std::int64_t bytes : lengths) {
      gathered.emplace_back(begin, begin + bytes);
      begin += bytes;
    }
    return gathered;
  });
}

void Communicator::Barrier() {
  impl_->Guarded([&] {
    Enter(Phase::handshake, 0, *impl_->transport);
    Handshake(impl_->link, {{"operation", "barrier"}}, {}, {});
  });
}

void Communicator::Refuse(const std::string& why) {
  const std::string refusal = why.empty() ? "no reason was given" : why;
  impl_->Guarded([&] {
    Enter(Phase::handshake, 0, *impl_->transport);
    Handshake(impl_->link, {{"operation", "refused"}}, {}, refusal);
  });
}

Communicator Communicator::Subgroup(std::span<const int> ranks) const {
  CheckSubgroup(*impl_->transport, ranks);
  return {impl_->transport->Subgroup(ranks, impl_->options.timeout), impl_->options};
}

}  // namespace cpd
