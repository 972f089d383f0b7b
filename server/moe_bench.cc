// moe-bench: the engine against the roofline, without weights or network.
//
// A cell is a weight format and a number of tokens: one layer, shaped by flags
// or like one of a checkpoint, with random weights, uniformly random routing
// and cold weights (more experts than the caches hold). Time can't be less than
// max(weight bytes touched / read bandwidth, FLOPs / peak FMA rate), both
// measured between the batches that are held against them.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "experts/base/check.h"
#include "experts/base/cpu.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/checkpoint.h"
#include "experts/executor.h"
#include "experts/expert_workspace.h"
#include "experts/kernels/kernels.h"
#include "experts/kernels/machine_rates.h"
#include "experts/local_expert_shard.h"
#include "experts/matmul_onednn.h"
#include "experts/onednn_expert_shard.h"
#include "nlohmann/json.hpp"
#include "router/models/model_spec.h"
#include "server/common/flags.h"
#include "server/common/json_file.h"
#include "server/common/logging.h"
#include "server/common/standard_streams.h"

constexpr int kAnyLayer = -1;

ABSL_FLAG(int64_t, d_model, 0,
          "Width of the hidden states; 0 = the checkpoint's, or 2048 without "
          "one.");
ABSL_FLAG(int64_t, d_ff, 0,
          "Inner width of an expert; 0 = the checkpoint's, or 1024.");
ABSL_FLAG(int64_t, num_experts, 0,
          "Experts of the layer; 0 = the checkpoint's, or 64.");
ABSL_FLAG(int64_t, top_k, 0, "Experts per token; 0 = the checkpoint's, or 8.");
ABSL_FLAG(int, layer, kAnyLayer,
          "Layer of the checkpoint, of the encoder if there is one; -1 = the "
          "first routed one, or the first.");
ABSL_FLAG(std::vector<std::string>, weight_formats,
          (std::vector<std::string>{"f32", "bf16", "int8", "int4", "f16", "fp8",
                                    "mxfp4"}),
          "Weight formats to measure.");
ABSL_FLAG(std::vector<std::string>, tokens,
          (std::vector<std::string>{"1", "4", "16", "64", "256", "1024"}),
          "Tokens of a batch.");
ABSL_FLAG(int, num_compute_threads, 0,
          "Threads that compute; 0 = what CPU affinity and cgroup quota "
          "allow.");
ABSL_FLAG(bool, numa, true,
          "Place weights and threads by NUMA node, if there are several.");
ABSL_FLAG(std::string, isa, "",
          "Kernels to measure, as AVX2; empty = the best for this CPU.");
ABSL_FLAG(absl::Duration, cell_time, absl::Seconds(2),
          "How long to measure each cell.");
ABSL_FLAG(int64_t, cold_bytes, int64_t{1} << 30,
          "Weights to go through before any is read again, at least.");
ABSL_FLAG(bool, compare, false,
          "Run the same f32 and bf16 work as plain oneDNN products per expert, "
          "too.");
ABSL_FLAG(std::string, json, "", "File to write the result to.");

namespace moe {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

template <typename T>
T Median(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<float> Gaussian(int64_t size, float deviation, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) value = normal(engine);
  return values;
}

// One expert with Gaussian weights that keep the size of their input.
class RandomExpert {
 public:
  explicit RandomExpert(const ExpertSpec& spec) {
    for (size_t p = 0; p < kNumProjections; ++p) {
      const auto projection = static_cast<Projection>(p);
      if (projection == Projection::kGate && !spec.gated) continue;
      const bool down = projection == Projection::kDown;
      StoredMatrix& matrix = stored_.weights[p];
      matrix.rows = down ? spec.d_model : spec.d_ff;
      matrix.cols = down ? spec.d_ff : spec.d_model;
      matrix.row_stride = matrix.cols;
      weights_[p] =
          Gaussian(matrix.rows * matrix.cols,
                   1.0F / std::sqrt(static_cast<float>(matrix.cols)), p);
      matrix.data = reinterpret_cast<const uint8_t*>(weights_[p].data());
    }
  }
  const StoredExpert& stored() const { return stored_; }

 private:
  std::vector<float> weights_[kNumProjections];
  StoredExpert stored_;
};

// Each token chooses top_k distinct experts at random.
struct RandomBatch {
  std::vector<int32_t> offsets{0};
  std::vector<int32_t> rows;
  int64_t touched = 0;  // experts with rows

  RandomBatch(int64_t tokens, int64_t num_experts, int64_t top_k,
              std::mt19937_64& engine) {
    std::vector<std::vector<int32_t>> of_expert(
        static_cast<size_t>(num_experts));
    std::vector<size_t> ids(of_expert.size());
    std::iota(ids.begin(), ids.end(), size_t{0});
    for (int64_t token = 0; token < tokens; ++token) {
      for (size_t i = 0; i < static_cast<size_t>(top_k); ++i) {
        std::swap(ids[i], ids[i + engine() % (ids.size() - i)]);
        of_expert[ids[i]].push_back(static_cast<int32_t>(token));
      }
    }
    for (const auto& list : of_expert) {
      rows.insert(rows.end(), list.begin(), list.end());
      offsets.push_back(static_cast<int32_t>(rows.size()));
      if (!list.empty()) ++touched;
    }
  }

  ExpertBatch View(ConstMatrix hidden_states) const {
    return {.hidden_states = hidden_states,
            .offsets = offsets,
            .rows = rows,
            .input_scales = {}};
  }
};

struct Options {
  ExpertSpec spec;
  int64_t num_experts = 0;
  int64_t top_k = 0;
  std::vector<WeightFormat> formats;
  std::vector<int64_t> tokens;
  int num_threads = 1;
  const Kernels* kernels = &BestKernels();
  double cell_seconds = 0;
  int64_t cold_bytes = 0;
};

// A flag's value, or `otherwise` if it is 0.
absl::StatusOr<int64_t> PositiveOr(const absl::Flag<int64_t>& flag,
                                   int64_t otherwise) {
  const int64_t value = absl::GetFlag(flag);
  if (value >= 0) return value > 0 ? value : otherwise;
  return absl::InvalidArgumentError(
      absl::StrCat("--", absl::GetFlagReflectionHandle(flag).Name(),
                   ": want at least 1, or 0 = default, got ", value));
}

// The layer of a checkpoint that --layer asks for.
absl::StatusOr<LayerSpec> LayerOf(const std::string& folder) {
  MOE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  MOE_ASSIGN_OR_RETURN(const std::vector<ModelSpec> models,
                       DescribeModels(checkpoint));
  std::vector<const LayerSpec*> layers;
  std::set<int> numbers;  // an encoder and a decoder share some
  for (const ModelSpec& model : models) {
    for (const LayerSpec& layer : model.layers) {
      layers.push_back(&layer);
      numbers.insert(layer.index);
    }
  }
  const int wanted = absl::GetFlag(FLAGS_layer);
  const auto found =
      std::find_if(layers.begin(), layers.end(), [&](const LayerSpec* layer) {
        return wanted == kAnyLayer ? layer->rule.has_value()
                                   : layer->index == wanted;
      });
  if (found != layers.end()) return **found;
  if (wanted == kAnyLayer && !layers.empty()) return *layers.front();
  return absl::NotFoundError(
      absl::StrCat("--layer: want one of ", absl::StrJoin(numbers, ", "),
                   " (those with an FFN), got ", wanted));
}

absl::StatusOr<std::vector<WeightFormat>> FormatsFromFlag() {
  std::vector<WeightFormat> formats;
  for (const std::string& name : absl::GetFlag(FLAGS_weight_formats)) {
    MOE_ASSIGN_OR_RETURN(const WeightFormat format, ParseWeightFormat(name));
    if (format == WeightFormat::kAuto) {
      return absl::InvalidArgumentError(
          "--weight_formats: want formats by name, got auto");
    }
    formats.push_back(format);
  }
  return formats;
}

absl::StatusOr<std::vector<int64_t>> TokensFromFlag() {
  std::vector<int64_t> all;
  for (const std::string& text : absl::GetFlag(FLAGS_tokens)) {
    int64_t tokens = 0;
    if (!absl::SimpleAtoi(text, &tokens) || tokens < 1 || tokens > 65536) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--tokens: want numbers from 1 to 65536, got \"", text, "\""));
    }
    all.push_back(tokens);
  }
  return all;
}

absl::StatusOr<const Kernels*> KernelsFromFlag() {
  const std::string isa = absl::GetFlag(FLAGS_isa);
  if (isa.empty()) return &BestKernels();
  std::vector<std::string> names;
  for (const Kernels* kernels : AllKernels()) {
    if (kernels->isa == isa) return kernels;
    names.emplace_back(kernels->isa);
  }
  return absl::InvalidArgumentError(absl::StrCat("--isa: want one of ",
                                                 absl::StrJoin(names, ", "),
                                                 ", got \"", isa, "\""));
}

// folder: of the checkpoint whose shapes to take; empty = none.
absl::StatusOr<Options> OptionsFromFlags(const std::string& folder) {
  Options options;
  options.spec.d_model = 2048;
  options.spec.d_ff = 1024;
  options.num_experts = 64;
  options.top_k = 8;
  if (!folder.empty()) {
    MOE_ASSIGN_OR_RETURN(const LayerSpec layer, LayerOf(folder));
    options.spec = layer.experts.expert;
    // They take no time that could be measured.
    options.spec.has_bias = false;
    options.num_experts = layer.experts.num_experts;
    options.top_k = layer.rule.has_value() ? layer.rule->top_k : 1;
  } else if (absl::GetFlag(FLAGS_layer) != kAnyLayer) {
    return absl::InvalidArgumentError(
        "--layer: want a checkpoint that has it, got none");
  }
  options.cold_bytes = absl::GetFlag(FLAGS_cold_bytes);
  options.cell_seconds = absl::ToDoubleSeconds(absl::GetFlag(FLAGS_cell_time));
  MOE_ASSIGN_OR_RETURN(options.spec.d_model,
                       PositiveOr(FLAGS_d_model, options.spec.d_model));
  MOE_ASSIGN_OR_RETURN(options.spec.d_ff,
                       PositiveOr(FLAGS_d_ff, options.spec.d_ff));
  MOE_ASSIGN_OR_RETURN(options.num_experts,
                       PositiveOr(FLAGS_num_experts, options.num_experts));
  MOE_ASSIGN_OR_RETURN(options.top_k, PositiveOr(FLAGS_top_k, options.top_k));
  if (options.top_k > options.num_experts) {
    return absl::InvalidArgumentError(
        absl::StrCat("--top_k: want at most ", options.num_experts,
                     " (--num_experts), got ", options.top_k));
  }
  MOE_ASSIGN_OR_RETURN(options.formats, FormatsFromFlag());
  MOE_ASSIGN_OR_RETURN(options.tokens, TokensFromFlag());
  MOE_ASSIGN_OR_RETURN(options.kernels, KernelsFromFlag());
  const int threads = absl::GetFlag(FLAGS_num_compute_threads);
  options.num_threads = threads > 0 ? threads : DetectCpuLimits().threads();
  return options;
}

struct Cell {
  WeightFormat format;
  int64_t tokens;
  double seconds;  // median
  double gflop_per_s;
  double gb_per_s;
  MachineRates machine;      // meanwhile; medians
  double roofline_fraction;  // median
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        executor_(options.num_threads,
                  absl::GetFlag(FLAGS_numa) ? DetectNumaNodes() : NumaNodes{}),
        workspace_(&executor_, *options.kernels),
        expert_(options.spec) {}

  // The rates of the best moments.
  const MachineRates& rates() const { return best_; }

  // The layers of one format, of `cold_bytes` together.
  std::vector<std::unique_ptr<LocalExpertShard>> MakeLayers(
      WeightFormat format) {
    const std::vector<StoredExpert> experts(
        static_cast<size_t>(options_.num_experts), expert_.stored());
    std::vector<std::unique_ptr<LocalExpertShard>> layers;
    int64_t bytes = 0;
    do {
      layers.push_back(
          LocalExpertShard::Load(options_.spec, experts, format, executor_));
      bytes += layers.back()->weights_bytes();
    } while (bytes < options_.cold_bytes);
    return layers;
  }

  Cell Measure(WeightFormat format, int64_t tokens,
               absl::Span<const std::unique_ptr<LocalExpertShard>> layers) {
    size_t next = 0;
    const double expert_bytes =
        static_cast<double>(layers.front()->weights_bytes()) /
        static_cast<double>(options_.num_experts);
    return MeasureCell(
        format, tokens, expert_bytes,
        [&]() -> const LocalExpertShard& {
          return *layers[next % layers.size()];
        },
        [&](const ExpertBatch& batch, Matrix out) {
          RunOnce(*layers[next++ % layers.size()], batch, out);
        });
  }

  // A layer of plain oneDNN products; null where oneDNN has none for a format.
  std::unique_ptr<ExpertShard> MakeOneDnn(WeightFormat format,
                                          int64_t num_experts) {
    const std::vector<StoredExpert> experts(static_cast<size_t>(num_experts),
                                            expert_.stored());
    if (format == WeightFormat::kF32) {
      return OneDnnExpertShard::Load(options_.spec, experts, executor_);
    }
    if (format == WeightFormat::kBF16 && OneDnnMultipliesBF16()) {
      return OneDnnBF16ExpertShard::Load(options_.spec, experts, executor_);
    }
    return nullptr;
  }

  // onednn: of MakeOneDnn
  // layers: of the same format; their memory is what the bandwidth is measured
  //         with
  Cell MeasureOneDnn(
      WeightFormat format, int64_t tokens, const ExpertShard& onednn,
      absl::Span<const std::unique_ptr<LocalExpertShard>> layers) {
    const double expert_bytes = static_cast<double>(onednn.weights().total()) /
                                static_cast<double>(options_.num_experts);
    return MeasureCell(
        format, tokens, expert_bytes,
        [&]() -> const LocalExpertShard& { return *layers.front(); },
        [&](const ExpertBatch& batch, Matrix out) {
          RunOnce(onednn, batch, out);
        });
  }

  // Error of one expert's output in `format` against f32, relative to the RMS
  // of the output: {RMS, largest}. By plain oneDNN products if `onednn`: there
  // must be some.
  std::pair<double, double> MeasureError(WeightFormat format, bool onednn) {
    constexpr int64_t kRows = 64;
    const int64_t d_model = options_.spec.d_model;
    const std::vector<float> x = Gaussian(kRows * d_model, 1.0F, 7);
    const auto run = [&](const ExpertShard& shard) {
      std::vector<int32_t> rows(kRows);
      std::iota(rows.begin(), rows.end(), 0);
      const std::vector<int32_t> offsets = {0, kRows};
      std::vector<float> out(x.size());
      RunOnce(shard,
              {.hidden_states = ConstMatrix(x.data(), kRows, d_model),
               .offsets = offsets,
               .rows = rows,
               .input_scales = {}},
              Matrix(out.data(), kRows, d_model));
      return out;
    };
    const auto load = [&](WeightFormat f) {
      return LocalExpertShard::Load(options_.spec, {expert_.stored()}, f,
                                    executor_);
    };
    const std::vector<float> want = run(*load(WeightFormat::kF32));
    const std::vector<float> got =
        onednn ? run(*MakeOneDnn(format, /*num_experts=*/1))
               : run(*load(format));
    double squares = 0;
    double error_squares = 0;
    double largest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const double error = static_cast<double>(got[i]) - want[i];
      squares += static_cast<double>(want[i]) * want[i];
      error_squares += error * error;
      largest = std::max(largest, std::fabs(error));
    }
    const auto size = static_cast<double>(want.size());
    const double rms = std::sqrt(squares / size);
    return {std::sqrt(error_squares / size) / rms, largest / rms};
  }

 private:
  void RunOnce(const ExpertShard& shard, const ExpertBatch& batch, Matrix out) {
    ExpertFailures failures;
    MOE_CHECK(shard.Forward(batch, workspace_, out, failures).ok());
    MOE_CHECK(failures.empty());
  }

  // What the machine can do at this moment, reading the weights themselves:
  // bandwidth depends on where memory lies, and both rates on the moment where
  // clocks change or a host is shared.
  MachineRates MeasureMachineNow(const LocalExpertShard& weights) {
    constexpr int kRounds = 16;
    std::vector<absl::Span<const uint8_t>> shares;
    size_t node = 0;
    for (const auto& memory : weights.packed()) {
      const auto of_node =
          SharesOf({memory.data(), static_cast<size_t>(memory.size())},
                   executor_.node_threads()[node++]);
      shares.insert(shares.end(), of_node.begin(), of_node.end());
    }
    const MachineRates now = MeasureMachine(
        *options_.kernels, shares,
        [this](auto ends, auto fn) { executor_.ParallelFor(ends, fn); },
        kRounds);
    best_.read_gb_per_s = std::max(best_.read_gb_per_s, now.read_gb_per_s);
    best_.peak_gflop_per_s =
        std::max(best_.peak_gflop_per_s, now.peak_gflop_per_s);
    return now;
  }

  // weights() gives those to measure the bandwidth with.
  template <typename Weights, typename Run>
  Cell MeasureCell(WeightFormat format, int64_t tokens, double expert_bytes,
                   const Weights& weights, const Run& run) {
    const ExpertSpec& spec = options_.spec;
    const std::vector<float> x = Gaussian(tokens * spec.d_model, 1.0F, 11);
    const ConstMatrix hidden_states(x.data(), tokens, spec.d_model);
    const int64_t assignments = tokens * options_.top_k;
    AlignedBuffer<float> out(assignments * spec.d_model);
    const double flops =
        static_cast<double>(assignments * spec.flops_per_row());
    std::vector<double> seconds;
    std::vector<double> bytes;
    std::vector<double> fractions;
    std::vector<double> reads;
    std::vector<double> peaks;
    // Between batches, often enough to follow the machine.
    constexpr double kSecondsBetweenMeasurements = 0.2;
    double next_measurement = 0;
    const auto begin = Clock::now();
    for (int i = 0; i < 8 || SecondsSince(begin) < options_.cell_seconds; ++i) {
      if (SecondsSince(begin) >= next_measurement) {
        const MachineRates now = MeasureMachineNow(weights());
        reads.push_back(now.read_gb_per_s);
        peaks.push_back(now.peak_gflop_per_s);
        next_measurement = SecondsSince(begin) + kSecondsBetweenMeasurements;
      }
      const RandomBatch batch(tokens, options_.num_experts, options_.top_k,
                              engine_);
      const auto start = Clock::now();
      run(batch.View(hidden_states),
          Matrix(out.data(), assignments, spec.d_model));
      const double time = SecondsSince(start);
      if (i == 0) continue;  // warms up
      const double touched = static_cast<double>(batch.touched) * expert_bytes;
      seconds.push_back(time);
      bytes.push_back(touched / time);
      fractions.push_back(std::max(touched / (reads.back() * 1e9),
                                   flops / (peaks.back() * 1e9)) /
                          time);
    }
    const double median = Median(seconds);
    return {.format = format,
            .tokens = tokens,
            .seconds = median,
            .gflop_per_s = flops / median * 1e-9,
            .gb_per_s = Median(bytes) * 1e-9,
            .machine = {.read_gb_per_s = Median(reads),
                        .peak_gflop_per_s = Median(peaks)},
            .roofline_fraction = Median(fractions)};
  }

  const Options options_;
  Executor executor_;
  ExpertWorkspace workspace_;
  const RandomExpert expert_;
  MachineRates best_;
  std::mt19937_64 engine_{1};
};

void Print(const Cell& cell, absl::string_view what) {
  absl::PrintF("%-7s %6d %10.3f ms %10.0f %9.1f %11.1f %8.2f %8.1f %9.2f\n",
               what, cell.tokens, cell.seconds * 1e3,
               static_cast<double>(cell.tokens) / cell.seconds,
               cell.gflop_per_s, cell.machine.peak_gflop_per_s, cell.gb_per_s,
               cell.machine.read_gb_per_s, cell.roofline_fraction);
  std::fflush(stdout);
}

// Roofline fractions of all cells.
struct Fractions {
  double geomean = 0;
  double least = 1e9;
};

Fractions FractionsOf(const std::vector<Cell>& cells) {
  Fractions fractions;
  double log_sum = 0;
  for (const Cell& cell : cells) {
    log_sum += std::log(cell.roofline_fraction);
    fractions.least = std::min(fractions.least, cell.roofline_fraction);
  }
  fractions.geomean = std::exp(
      log_sum / std::max<double>(1, static_cast<double>(cells.size())));
  return fractions;
}

nlohmann::ordered_json ToJson(const Cell& cell) {
  return {{"weight_format", std::string(WeightFormatName(cell.format))},
          {"tokens", cell.tokens},
          {"seconds", cell.seconds},
          {"gflop_per_s", cell.gflop_per_s},
          {"gb_per_s", cell.gb_per_s},
          {"machine_read_gb_per_s", cell.machine.read_gb_per_s},
          {"machine_gflop_per_s", cell.machine.peak_gflop_per_s},
          {"roofline_fraction", cell.roofline_fraction}};
}

absl::Status WriteJson(const std::string& path, const Options& options,
                       const MachineRates& rates,
                       const std::vector<Cell>& cells,
                       const Fractions& fractions) {
  nlohmann::ordered_json json = {{"machine",
                                  {{"read_gb_per_s", rates.read_gb_per_s},
                                   {"peak_gflop_per_s", rates.peak_gflop_per_s},
                                   {"threads", options.num_threads},
                                   {"isa", std::string(options.kernels->isa)}}},
                                 {"cells", nlohmann::ordered_json::array()},
                                 {"geomean", fractions.geomean},
                                 {"min", fractions.least}};
  for (const Cell& cell : cells) json["cells"].push_back(ToJson(cell));
  return WriteJsonFile("--json", path, json);
}

void PrintHead(const Options& options) {
  absl::PrintF(
      "layer: d_model %d, d_ff %d, %s%s, %d experts, top-%d, random routing, "
      "cold weights; %d threads, isa %s\n\n%-7s %6s %13s %10s %9s %11s %8s %8s "
      "%9s\n",
      options.spec.d_model, options.spec.d_ff,
      options.spec.gated ? "gated " : "",
      ActivationName(options.spec.activation.activation), options.num_experts,
      options.top_k, options.num_threads, options.kernels->isa, "weights",
      "tokens", "median time", "tokens/s", "GFLOP/s", "of GFLOP/s", "GB/s",
      "of GB/s", "roofline");
}

// The cells of one format, printed as they come; with those of plain oneDNN
// products, which are not returned, beside them if `compare`.
std::vector<Cell> MeasureFormat(const Options& options, WeightFormat format,
                                bool compare, Bench& bench) {
  const auto layers = bench.MakeLayers(format);
  const auto onednn =
      compare ? bench.MakeOneDnn(format, options.num_experts) : nullptr;
  if (compare && format == WeightFormat::kBF16 && onednn == nullptr) {
    absl::PrintF("oneDNN %s does not multiply bf16 on this CPU\n",
                 OneDnnVersion());
  }
  std::vector<Cell> cells;
  for (const int64_t tokens : options.tokens) {
    cells.push_back(bench.Measure(format, tokens, layers));
    Print(cells.back(), WeightFormatName(format));
    if (onednn == nullptr) continue;
    const Cell plain = bench.MeasureOneDnn(format, tokens, *onednn, layers);
    Print(plain, "oneDNN");
    absl::PrintF("%-7s %6d %9.2f x as fast as plain oneDNN products\n", "",
                 tokens, plain.seconds / cells.back().seconds);
  }
  return cells;
}

void PrintErrors(const Options& options, bool compare, Bench& bench) {
  absl::PrintF("\nerror against f32, relative to the RMS of the output:\n");
  for (const WeightFormat format : options.formats) {
    const auto print = [&](bool onednn) {
      const auto [rms, largest] = bench.MeasureError(format, onednn);
      absl::PrintF("%-7s RMS %.2e, largest %.2e%s\n", WeightFormatName(format),
                   rms, largest, onednn ? " by plain oneDNN products" : "");
    };
    print(/*onednn=*/false);
    // Where the oneDNN of MakeOneDnn rounds activations, too.
    if (compare && format == WeightFormat::kBF16 && OneDnnMultipliesBF16()) {
      print(/*onednn=*/true);
    }
  }
}

absl::Status Run(const Options& options) {
  Bench bench(options);
  const bool compare = absl::GetFlag(FLAGS_compare);
  PrintHead(options);
  std::vector<Cell> cells;
  for (const WeightFormat format : options.formats) {
    for (const Cell& cell : MeasureFormat(options, format, compare, bench)) {
      cells.push_back(cell);
    }
  }
  const Fractions fractions = FractionsOf(cells);
  absl::PrintF(
      "\nmachine at its best: %.1f GB/s read, %.1f GFLOP/s\n"
      "roofline fraction: geometric mean %.2f, least %.2f\n",
      bench.rates().read_gb_per_s, bench.rates().peak_gflop_per_s,
      fractions.geomean, fractions.least);
  PrintErrors(options, compare, bench);
  absl::PrintF(
      "\nkernels: %s, same bytes in any batch%s; oneDNN %s is not used but by "
      "--compare\n",
      options.kernels->isa,
      options.kernels->same_bytes_everywhere ? " and on every CPU with FMA"
                                             : "",
      OneDnnVersion());
  if (absl::GetFlag(FLAGS_json).empty()) return absl::OkStatus();
  return WriteJson(absl::GetFlag(FLAGS_json), options, bench.rates(), cells,
                   fractions);
}

int Main(int argc, char** argv) {
  const std::vector<std::string> positional = ParseCommandLineOrExit(
      argc, argv,
      "moe-bench measures the engine against what the machine can do.\n\n"
      "  moe-bench                                      the whole table\n"
      "  moe-bench --weight_formats=int8 --tokens=1,64  some cells\n"
      "  moe-bench DIR                                  the shapes of a "
      "checkpoint\n"
      "  moe-bench --compare                            with plain oneDNN",
      "moe_bench.cc");
  absl::Status status = absl::OkStatus();
  if (positional.size() > 1) {
    status = absl::InvalidArgumentError(absl::StrCat(
        "want flags and at most one checkpoint, got \"", positional[1], "\""));
  } else {
    const auto options =
        OptionsFromFlags(positional.empty() ? "" : positional.front());
    status = options.ok() ? Run(*options) : options.status();
  }
  if (status.ok()) return ExitCode(0);
  PrintError(status.message());
  return 2;
}

}  // namespace
}  // namespace moe

int main(int argc, char** argv) { return moe::Main(argc, argv); }
