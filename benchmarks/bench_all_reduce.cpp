// SPDX-License-Identifier: Apache-2.0
//
// Measures CPD's all-reduce over MPI against MPI_Allreduce of the same values in fp32, alternately
// in the same processes. Checks the bits first: rank 0's result must equal the virtual ranks' on
// some of the layers, and all ranks must have the same result. A time is the time of the slowest
// rank. benchmarks/all_reduce.py starts the program with mpirun. Rank 0 prints one JSON object on
// each line. The exit status is 1 if bits are wrong.
//
//   bench_all_reduce [--values N] [--repeats R] [--seed S] [--parts LIST] [--setting NAME]
//                    [--interface NAME] [--gbps RATE] [--chunk VALUES]
//
// --values: shrinks ResNet-50's layers to about that number of values. --parts: a list of formats,
// codecs, exchanges and figure11. --setting: the part of the rows' names after all_reduce/.
// --interface: the network interface whose counters are compared with the bytes that CPD counts;
// --gbps: the rate of that interface.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/all_reduce_model.h"
#include "benchmarks/all_reduce_ranks.h"
#include "benchmarks/resnet50.h"
#include "cpd/comm/all_reduce.h"
#include "cpd/comm/transport/fault.h"
#include "cpd/comm/transport/libraries.h"
#include "cpd/study/cost.h"

namespace all_reduce {
namespace {

// --- the two sides -------------------------------------------------------------------------------

/// One measured run of a Side (an all-reduce to time). Each field is the maximum over all ranks.
struct Sample {
  double seconds = 0, cpu = 0;
  double bytes = 0;  ///< in one direction, by the interface's counters
};

struct Side {
  std::string what;
  std::function<void()> run;
  std::vector<Sample> samples;

  [[nodiscard]] double Middle(double Sample::* field) const {
    std::vector<double> values(samples.size());
    std::transform(samples.begin(), samples.end(), values.begin(),
                   [&](const Sample& sample) { return sample.*field; });
    return Median(std::move(values));
  }
};

/// Times one run of an all-reduce on all ranks. Stores the bytes that this rank's network interface
/// sent and received meanwhile in `counters`.
Sample Turn(const Side& side, const Settings& settings, Counters& counters) {
  Barrier();
  const Counters before = ReadCounters(settings.interface);
  const double cpu = CpuSeconds();
  const double begin = Now();
  side.run();
  const double seconds = Now() - begin;
  const double used = CpuSeconds() - cpu;
  Barrier();
  const Counters after = ReadCounters(settings.interface);
  counters = {after.sent - before.sent, after.received - before.received};
  const auto most = Largest(std::array{seconds, used, counters.sent, counters.received});
  return {most[0], most[1], std::max(most[2], most[3])};
}
Sample Turn(const Side& side, const Settings& settings) {
  Counters counters;
  return Turn(side, settings, counters);
}

/// Runs CPD's all-reduce of a model.
class Reducer {
 public:
  Reducer(const Settings& settings, std::int64_t chunk)
      : settings_(settings),
        communicator_(cpd::MpiTransport(), cpd::CommOptions{.timeout = 60, .chunk = chunk}) {}

  [[nodiscard]] cpd::Traffic Run(Model& model, const Reduce& spec,
                                 const cpd::TensorOptions& layers = {}) {
    return communicator_.AllReduce(model.x_views, model.out_views, spec, false, layers).traffic;
  }
  /// Reduces all but the last `exempt` tensors by the codec, and then the last `exempt` in fp32.
  /// Returns the bytes that this rank sends.
  [[nodiscard]] std::int64_t RunExempt(Model& model, const Reduce& spec, std::size_t exempt,
                                       const cpd::TensorOptions& layers) {
    const std::size_t rest = model.sizes.size() - exempt;
    const std::span<const TensorView> x(model.x_views), out(model.out_views);
    cpd::TensorOptions of_rest = layers;
    of_rest.rows = layers.rows.first(rest);
    return communicator_.AllReduce(x.first(rest), out.first(rest), spec, false, of_rest)
               .traffic.bytes_sent +
           communicator_.AllReduce(x.last(exempt), out.last(exempt), {}).traffic.bytes_sent;
  }
  [[nodiscard]] Side SideOf(Model& model, const Reduce& spec) {
    return {cpd::ToString(spec.format), [this, &model, spec] { (void)Run(model, spec); }, {}};
  }
  /// Returns how well the bytes that CPD counts agree with the bytes that the network interface
  /// counts: the smaller count divided by the larger one. Returns the least such quotient over all
  /// ranks and both directions, or 0 without an interface. The interface also counts the headers of
  /// Ethernet, IP and TCP, once for each segment of up to 64 KiB that the kernel passes to it.
  double AgreementOf(Model& model, const Reduce& spec, Counters& counters) {
    if (settings_.interface.empty()) return 0;
    cpd::Traffic traffic;
    (void)Turn({"", [&] { traffic = Run(model, spec); }, {}}, settings_, counters);
    const double extra = static_cast<double>(traffic.header_bytes);
    const double sent = (static_cast<double>(traffic.bytes_sent) + extra) / counters.sent;
    const double received =
        (static_cast<double>(traffic.bytes_received) + extra) / counters.received;
    return -Largest(-std::min({sent, received, 1 / sent, 1 / received}));
  }

 private:
  const Settings& settings_;
  cpd::Communicator communicator_;
};

constexpr std::array<const char*, 7> kAlgorithms{
    "default", "linear",         "nonoverlapping", "recursive_doubling",
    "ring",    "segmented_ring", "rabenseifner"};

/// Returns a communicator whose MPI_Allreduce uses one of Open MPI's algorithms
/// (coll_tuned_allreduce_algorithm, which needs coll_tuned_use_dynamic_rules). Returns
/// MPI_COMM_NULL if this MPI has no such setting.
MPI_Comm CommunicatorWith(int algorithm) {
  int index = 0;
  int count = 0;
  MPI_T_cvar_handle handle{};
  if (MPI_T_cvar_get_index("coll_tuned_allreduce_algorithm", &index) != MPI_SUCCESS ||
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS) {
    return MPI_COMM_NULL;
  }
  MPI_Comm with = MPI_COMM_NULL;
  int usual = 0;
  if (MPI_T_cvar_read(handle, &usual) == MPI_SUCCESS &&
      MPI_T_cvar_write(handle, &algorithm) == MPI_SUCCESS) {
    MPI_Comm_dup(MPI_COMM_WORLD, &with);
    MPI_T_cvar_write(handle, &usual);
  }
  MPI_T_cvar_handle_free(&handle);
  return with;
}

/// Times MPI_Allreduce in fp32 by each of Open MPI's algorithms. One call reduces all layers, which
/// are contiguous in memory.
class Mpi {
 public:
  Mpi(const Settings& settings, const Model& model)
      : settings_(settings), model_(model), out_(model.x.size()) {
    int level = 0;
    MPI_T_init_thread(MPI_THREAD_MULTIPLE, &level);  // Open MPI takes it for the whole process
    for (std::size_t a = 0; a < kAlgorithms.size(); ++a) {
      const MPI_Comm with = CommunicatorWith(static_cast<int>(a));
      if (with != MPI_COMM_NULL) sides_.push_back(SideWith(kAlgorithms.at(a), with));
    }
    if (sides_.empty()) sides_.push_back(SideWith(kAlgorithms[0], MPI_COMM_WORLD));
  }

  /// Measures two turns of each algorithm, alternately, after one turn that warms up. The default
  /// algorithm comes first. Later calls return the first call's measurements.
  const std::vector<Side>& Race() {
    if (!sides_.front().samples.empty()) return sides_;
    for (int turn = -1; turn < 2; ++turn) {
      for (Side& side : sides_) {
        const Sample sample = Turn(side, settings_);
        if (turn >= 0) side.samples.push_back(sample);
      }
    }
    return sides_;
  }

 private:
  Side SideWith(const char* name, MPI_Comm with) {
    return {name,
            [this, with] {
              MPI_Allreduce(model_.x.data(), out_.data(), static_cast<int>(model_.x.size()),
                            MPI_FLOAT, MPI_SUM, with);
            },
            {}};
  }

  const Settings& settings_;
  const Model& model_;
  std::vector<float> out_;
  std::vector<Side> sides_;
};

// --- sections ------------------------------------------------------------------------------------

using Extras = std::vector<std::pair<const char*, double>>;

class Benchmark {
 public:
  explicit Benchmark(const Settings& settings)
      : settings_(settings),
        prefix_("all_reduce/" + settings.setting + "/"),
        gradients_(settings.seed),
        model_(gradients_, Rank(), SizesFor(settings.values)),
        reducer_(settings, settings.chunk) {}

  /// Runs the parts that --parts selects (`formats`, `codecs`, …). Returns false if bits are wrong.
  bool Run() {
    if (Wants("formats")) Formats();
    if (Wants("codecs")) Codecs();
    if (Wants("exchanges") && World() > 2) ExchangesAgainstModel();
    if (Wants("figure11")) Figure11();
    return right_;
  }

 private:
  [[nodiscard]] bool Wants(const char* part) const {
    return settings_.parts.find(part) != std::string::npos;
  }

  /// Reduces the gradients once and checks the bits of the result.
  void Check(const std::string& name, const Reduce& spec, const cpd::TensorOptions& layers = {}) {
    std::fill(model_.out.begin(), model_.out.end(), 0.0F);
    (void)reducer_.Run(model_, spec, layers);
    const std::string wrong = CheckBits(model_, gradients_, spec, layers.rows);
    if (wrong.empty()) return;
    right_ = false;
    Line(prefix_ + name).Add("wrong", wrong).Print();
  }

  /// Returns the fraction of the link's rate (--gbps) that an all-reduce uses. The bytes are the
  /// counts of the network interface.
  [[nodiscard]] double ShareOf(const Side& side) const {
    return 8e-9 * side.Middle(&Sample::bytes) / side.Middle(&Sample::seconds) / settings_.gbps;
  }

  /// Prints a benchmark row. `ratio` is how many times as fast as the baseline the row is.
  void PrintPair(const std::string& name, const Side& row, const Side& baseline,
                 const std::string& against, const Extras& extras = {}) const {
    std::vector<double> ratios(row.samples.size());
    for (std::size_t i = 0; i < ratios.size(); ++i) {
      ratios[i] = baseline.samples[i].seconds / row.samples[i].seconds;
    }
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    Line line(prefix_ + name);
    line.Add("value", 1e3 * row.Middle(&Sample::seconds)).Add("unit", std::string("ms"));
    line.Add("against", against).Add("baseline", 1e3 * baseline.Middle(&Sample::seconds));
    line.Add("ratio", Median(ratios)).Add("least", *least).Add("most", *most);
    line.Add("cpu", 1e3 * row.Middle(&Sample::cpu));
    line.Add("baseline_cpu", 1e3 * baseline.Middle(&Sample::cpu));
    if (!settings_.interface.empty() && settings_.gbps > 0) {
      line.Add("link", ShareOf(row)).Add("baseline_link", ShareOf(baseline));
    }
    for (const auto& [key, number] : extras) line.Add(key, number);
    line.Print();
  }

  void Formats() {
    const std::vector<std::pair<const char*, cpd::Aps>> formats{{"e4m3", cpd::Aps::on},
                                                                {"e3m0", cpd::Aps::on},
                                                                {"bf16", cpd::Aps::off},
                                                                {"fp16", cpd::Aps::off}};
    std::vector<Side> sides;
    for (const auto& [format, aps] : formats) {
      const Reduce spec = SpecOf(format, aps);
      Check(format, spec);
      sides.push_back(reducer_.SideOf(model_, spec));
    }
    const std::string against = TimeAgainstBest(true, sides);
    for (std::size_t i = 0; i < formats.size(); ++i) {
      PrintPair(formats[i].first, sides[i], sides.back(), against);
    }
    PrintPair("e4m3-vs-bf16", sides[0], sides[2], "bf16 on the wire");
    PrintAgreement("bytes", SpecOf("e4m3", cpd::Aps::on));
  }

  /// Adds MPI's fastest algorithm to the all-reduces in `sides` and times them all alternately.
  /// Returns a description of that algorithm.
  std::string TimeAgainstBest(bool prints, std::vector<Side>& sides) {
    if (!mpi_) mpi_.emplace(settings_, model_);
    sides.push_back(BestOf(mpi_->Race(), prints));
    for (int turn = 0; turn < settings_.repeats; ++turn) {
      for (auto side = sides.rbegin(); side != sides.rend(); ++side) {
        side->samples.push_back(Turn(*side, settings_));
      }
    }
    return "fp32 MPI_Allreduce (" + sides.back().what + ")";
  }

  /// Measures compressors alternately with MPI. `bound`: the least number of bytes that an
  /// all-reduce in fp32 sends from a rank, divided by the bytes that the compressor sends.
  void Codecs() {
    struct Case {
      const char* name;
      const char* text;
      std::size_t exempt = 0;
      double bytes = 0;
      cpd::CodecStates states{};
    };
    std::array<Case, 5> cases{{{"qsgd4", "qsgd bits=4 bucket=512"},
                               {"terngrad", "terngrad"},
                               {"terngrad-but-last", "terngrad", resnet50::kLastLayer},
                               {"one_bit", "one_bit bucket=64"},
                               {"int8-rows", "int8_rows"}}};
    const std::vector<std::int64_t> rows = RowsFor(model_.sizes);
    std::vector<Side> sides;
    for (Case& one : cases) {
      const Reduce spec = SpecOfCodec(one.text);
      const cpd::TensorOptions layers{.states = &one.states, .rows = rows};
      Check(one.name, spec, layers);
      const auto run = [this, &one, spec, layers] {
        return one.exempt > 0 ? reducer_.RunExempt(model_, spec, one.exempt, layers)
                              : reducer_.Run(model_, spec, layers).bytes_sent;
      };
      one.bytes = Largest(static_cast<double>(run()));
      sides.push_back({one.text, [run] { (void)run(); }, {}});
    }
    const std::string against = TimeAgainstBest(false, sides);
    const double plain = 8.0 * static_cast<double>(model_.values()) * (World() - 1) / World();
    for (std::size_t i = 0; i < cases.size(); ++i) {
      PrintPair(cases.at(i).name, sides[i], sides.back(), against,
                {{"fewer_bytes", plain / cases.at(i).bytes}});
    }
  }

  [[nodiscard]] Side BestOf(const std::vector<Side>& algorithms, bool prints) const {
    for (std::size_t a = 0; prints && a < algorithms.size(); ++a) {
      PrintPair("mpi/" + algorithms[a].what, algorithms[a], algorithms.front(), "MPI's default",
                {{"algorithm", static_cast<double>(a)}});
    }
    const auto time = [](const Side& side) { return side.Middle(&Sample::seconds); };
    Side best = *std::min_element(algorithms.begin(), algorithms.end(),
                                  [&](const Side& a, const Side& b) { return time(a) < time(b); });
    best.samples.clear();
    return best;
  }

  /// Prints a row that compares the bytes that the network interface counts with the bytes that CPD
  /// counts.
  void PrintAgreement(const std::string& name, const Reduce& spec) {
    if (settings_.interface.empty()) return;
    Counters counters;
    const double ratio = reducer_.AgreementOf(model_, spec, counters);
    const cpd::Traffic traffic = reducer_.Run(model_, spec);
    Line line(prefix_ + name);
    line.Add("value", 1e-6 * counters.sent).Add("unit", std::string("MB"));
    line.Add("against", std::string("counted: packed values and headers"));
    line.Add("baseline", 1e-6 * static_cast<double>(traffic.bytes_sent + traffic.header_bytes));
    line.Add("ratio", ratio).Add("least", ratio).Add("most", ratio);
    line.Print();
  }

  /// Returns the seconds that a message of one byte takes to a neighboring rank.
  static double Latency() {
    constexpr int kMessages = 200;
    std::uint8_t byte = 0;
    Barrier();
    const double begin = Now();
    for (int i = 0; i < kMessages && Rank() < 2; ++i) {
      for (const int from : {0, 1}) {
        if (Rank() == from) {
          MPI_Send(&byte, 1, MPI_BYTE, 1 - from, 0, MPI_COMM_WORLD);
        } else {
          MPI_Recv(&byte, 1, MPI_BYTE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
      }
    }
    const double each = (Now() - begin) / (2 * kMessages);
    return Largest(Rank() < 2 ? each : 0);
  }

  /// Times the all-reduce of ResNet-50's gradients in e4m3 by each exchange. Prints the time that
  /// the alpha-beta model predicts next to the measured time.
  void ExchangesAgainstModel() {
    const double alpha = Latency();
    const double beta = 8e-9 / settings_.gbps;
    Reduce owner = SpecOf("e4m3", cpd::Aps::on);
    Reduce gather = owner;
    gather.exchange = cpd::Exchange::gather;
    Reduce ring = owner;
    ring.order = cpd::Order::ring;
    ring.exchange = cpd::Exchange::ring;
    Reduce hierarchical = ring;
    hierarchical.exchange = cpd::Exchange::hierarchical;
    hierarchical.group_size = 2;
    for (const Reduce& spec : {owner, gather, ring, hierarchical}) {
      PrintExchange(spec, alpha, beta);
    }
  }

  void PrintExchange(const Reduce& spec, double alpha, double beta) {
    const std::string name =
        "exchange/" + cpd::ToString(spec.exchange) +
        (spec.group_size > 0 ? std::to_string(spec.group_size) : std::string());
    Check(name, spec);
    Side side = reducer_.SideOf(model_, spec);
    for (int turn = 0; turn < settings_.repeats; ++turn) {
      side.samples.push_back(Turn(side, settings_));
    }
    const cpd::Traffic traffic = reducer_.Run(model_, spec);
    const cpd::Cost cost = cpd::CostOf(spec, World(), Rank(), model_.sizes, settings_.chunk);
    const bool agrees = AllSay(cost.bytes_sent == traffic.bytes_sent &&
                               cost.bytes_received == traffic.bytes_received);
    const double model = cpd::TimeOf(spec, World(), model_.sizes, alpha, beta);
    std::vector<double> ratios(side.samples.size());
    std::transform(side.samples.begin(), side.samples.end(), ratios.begin(),
                   [&](const Sample& sample) { return model / sample.seconds; });
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    const auto counted = Largest(
        std::array{static_cast<double>(traffic.steps), static_cast<double>(traffic.bytes_sent)});
    Line line(prefix_ + name);
    line.Add("value", 1e3 * side.Middle(&Sample::seconds)).Add("unit", std::string("ms"));
    line.Add("against", std::string("alpha-beta model"));
    line.Add("baseline", 1e3 * model).Add("ratio", Median(ratios));
    line.Add("least", *least).Add("most", *most);
    line.Add("steps", counted[0], 0).Add("bytes", counted[1], 0).Add("alpha", 1e6 * alpha);
    if (!agrees) {
      right_ = false;
      line.Add("wrong", std::string("bytes differ from the cost model's"));
    }
    line.Print();
  }

  void Figure11();
  void PrintFigure11(const std::string& name, std::vector<Model>& models, Reducer& one_chunk);

  const Settings& settings_;
  std::string prefix_;
  Gradients gradients_;
  Model model_;
  Reducer reducer_;
  std::optional<Mpi> mpi_;
  bool right_ = true;
};

// --- Figure 11 -----------------------------------------------------------------------------------

/// Measures the seconds that this rank spends in each phase of one call. The call must use one
/// chunk, so that its phases follow one another.
class PhaseClock {
 public:
  PhaseClock() {
    cpd::SetFaultHook([this](cpd::Phase phase, std::int64_t, cpd::Transport&) {
      entered_.at(static_cast<std::size_t>(phase)) = Now();
    });
  }
  PhaseClock(const PhaseClock&) = delete;
  PhaseClock& operator=(const PhaseClock&) = delete;
  ~PhaseClock() { cpd::SetFaultHook({}); }

  /// Returns the seconds of four phases: handshake, exponents (with the pass over the values before
  /// the handshake), exchange (packing, messages in both directions, unpacking), and the ordered
  /// sum.
  std::array<double, 4> Time(const std::function<void()>& call) {
    const double begin = Now();
    call();
    const double end = Now();
    const auto& [handshake, exponents, exchange, fold, gather] = entered_;
    return {exponents - handshake, handshake - begin + exchange - exponents,
            fold - exchange + end - gather, gather - fold};
  }

 private:
  std::array<double, 5> entered_{};
};

/// Measures Figure 11 of the APS paper: all-reduces of its three layers, one by one and in one
/// call. Compares e4m3 with APS (a scale for each layer) to a ring in fp16 without scales.
void Benchmark::Figure11() {
  const std::vector<std::pair<std::string, std::int64_t>> layers{
      {"2048x512", 2048 * 512}, {"512x512x3x3", 512 * 512 * 9}, {"512x2048", 512 * 2048}};
  Reducer one_chunk(settings_, std::int64_t{1} << 24);
  std::vector<std::int64_t> all;
  std::vector<Model> apart;
  for (const auto& [name, n] : layers) {
    const double share = std::min(1.0, static_cast<double>(settings_.values) / resnet50::kValues);
    all.push_back(std::max<std::int64_t>(1, std::llround(share * static_cast<double>(n))));
    std::vector<Model> one;
    one.emplace_back(gradients_, Rank(), std::vector{all.back()});
    PrintFigure11(name, one, one_chunk);
    apart.push_back(std::move(one.front()));
  }
  PrintFigure11("apart", apart, one_chunk);
  std::vector<Model> merged;
  merged.emplace_back(gradients_, Rank(), all);
  PrintFigure11("merged", merged, one_chunk);
}

void Benchmark::PrintFigure11(const std::string& name, std::vector<Model>& models,
                              Reducer& one_chunk) {
  const Reduce aps = SpecOf("e4m3", cpd::Aps::on);
  Reduce ring = SpecOf("fp16", cpd::Aps::off);
  ring.order = cpd::Order::ring;
  ring.exchange = cpd::Exchange::ring;
  const auto calls = [&](Reducer& reducer, const Reduce& spec) {
    return [&] {
      for (Model& model : models) (void)reducer.Run(model, spec);
    };
  };
  Side with_aps{"", calls(reducer_, aps), {}};
  Side fp16_ring{"", calls(reducer_, ring), {}};
  std::array<std::vector<double>, 4> phases;
  for (int turn = -1; turn < settings_.repeats; ++turn) {
    const Sample baseline = Turn(fp16_ring, settings_);
    const Sample sample = Turn(with_aps, settings_);
    std::array<double, 4> sums{};
    for (Model& model : models) {
      Barrier();
      PhaseClock clock;
      const auto times = Largest(clock.Time([&] { (void)one_chunk.Run(model, aps); }));
      for (std::size_t p = 0; p < sums.size(); ++p) sums.at(p) += times.at(p);
    }
    if (turn < 0) continue;  // connections are made
    fp16_ring.samples.push_back(baseline);
    with_aps.samples.push_back(sample);
    for (std::size_t p = 0; p < sums.size(); ++p) phases.at(p).push_back(sums.at(p));
  }
  PrintPair("fig11/" + name, with_aps, fp16_ring, "fp16 ring, no APS",
            {{"handshake", 1e3 * Median(phases[0])},
             {"max_exponent", 1e3 * Median(phases[1])},
             {"exchange", 1e3 * Median(phases[2])},
             {"fold", 1e3 * Median(phases[3])}});
}

int RunAll(int argc, char** argv) {
  const Settings settings = Parse(argc, argv);
  Benchmark benchmark(settings);
  return AllSay(benchmark.Run()) ? 0 : 1;
}

}  // namespace
}  // namespace all_reduce

int main(int argc, char** argv) {
  setenv("CPD_NUM_THREADS", "1", 0);  // ranks share the cores of one machine
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  int status = 2;
  try {
    status = all_reduce::RunAll(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_all_reduce, rank %d: %s\n", all_reduce::Rank(), error.what());
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  MPI_Finalize();
  return status;
}
