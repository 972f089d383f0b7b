// The roofline table of the kernels, without checkpoint or network: weight
// formats x tokens, uniformly random routing, weights colder than any cache.
//
//   kernels_bench [formats=f32,bf16] [tokens=1,16] [isa=AVX2] [pool=spin|tbb]
//                 [d_model=2048] [d_ff=1024] [experts=64] [top_k=8]
//                 [threads=N] [repeats=N] [arena_mb=N]

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "experts/base/check.h"
#include "experts/base/cpu.h"
#include "experts/executor.h"
#include "experts/kernels/kernels.h"
#include "experts/kernels/machine_rates.h"
#include "experts/kernels/packed_matrix.h"
#include "experts/kernels/run_experts.h"

namespace moe {
namespace {

using Clock = std::chrono::steady_clock;

// Memory on huge pages, where the system grants them.
class Arena {
 public:
  explicit Arena(int64_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MOE_CHECK(data_ != MAP_FAILED);
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  ~Arena() { munmap(data_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  uint8_t* data() { return static_cast<uint8_t*>(data_); }
  int64_t size() const { return bytes_; }

 private:
  void* data_;
  int64_t bytes_;
};

// Threads that spin for work: what a wake-up costs at best.
class SpinPool {
 public:
  explicit SpinPool(int num_threads) {
    for (int worker = 1; worker < num_threads; ++worker) {
      threads_.emplace_back([this, worker] {
        int64_t seen = 0;
        while (true) {
          while (generation_.load(std::memory_order_acquire) == seen) {
            __builtin_ia32_pause();
          }
          ++seen;
          if (stop_) return;
          Work(worker);
          done_.fetch_add(1, std::memory_order_release);
        }
      });
    }
  }
  ~SpinPool() {
    stop_ = true;
    generation_.fetch_add(1, std::memory_order_release);
    for (std::thread& thread : threads_) thread.join();
  }
  void ParallelFor(int64_t num_tasks,
                   absl::FunctionRef<void(int64_t, int)> fn) {
    num_tasks_ = num_tasks;
    fn_ = &fn;
    next_.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    Work(0);
    while (done_.load(std::memory_order_acquire) <
           static_cast<int64_t>(threads_.size())) {
      __builtin_ia32_pause();
    }
  }

 private:
  void Work(int worker) {
    for (int64_t task;
         (task = next_.fetch_add(1, std::memory_order_relaxed)) < num_tasks_;) {
      (*fn_)(task, worker);
    }
  }
  std::vector<std::thread> threads_;
  std::atomic<int64_t> generation_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> done_{0};
  int64_t num_tasks_ = 0;
  absl::FunctionRef<void(int64_t, int)>* fn_ = nullptr;
  bool stop_ = false;
};

struct Options {
  std::map<std::string, std::string> values;
  std::string Text(const std::string& name, const std::string& otherwise) {
    return values.count(name) != 0 ? values[name] : otherwise;
  }
  int64_t Number(const std::string& name, int64_t otherwise) {
    int64_t value = otherwise;
    if (values.count(name) != 0) {
      MOE_CHECK(absl::SimpleAtoi(values[name], &value));
    }
    return value;
  }
};

// Each token chooses top_k distinct experts at random.
struct Routing {
  std::vector<int32_t> offsets;
  std::vector<int32_t> rows;
  Routing(int64_t tokens, int64_t num_experts, int64_t top_k,
          std::mt19937_64& engine) {
    std::vector<std::vector<int32_t>> of_expert(num_experts);
    std::vector<int64_t> ids(num_experts);
    std::iota(ids.begin(), ids.end(), 0);
    for (int64_t token = 0; token < tokens; ++token) {
      for (int64_t i = 0; i < top_k; ++i) {
        std::swap(ids[i], ids[i + engine() % (num_experts - i)]);
        of_expert[ids[i]].push_back(static_cast<int32_t>(token));
      }
    }
    offsets.push_back(0);
    for (const auto& list : of_expert) {
      rows.insert(rows.end(), list.begin(), list.end());
      offsets.push_back(static_cast<int32_t>(rows.size()));
    }
  }
};

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::vector<std::string> parts =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    MOE_CHECK(parts.size() == 2);
    options.values[parts[0]] = parts[1];
  }
  ExpertSpec spec;
  spec.d_model = options.Number("d_model", 2048);
  spec.d_ff = options.Number("d_ff", 1024);
  const int64_t num_experts = options.Number("experts", 64);
  const int64_t top_k = options.Number("top_k", 8);
  const int64_t repeats = options.Number("repeats", 0);
  const int num_threads =
      static_cast<int>(options.Number("threads", DetectCpuLimits().threads()));
  const std::string isa = options.Text("isa", "");
  const Kernels* kernels = &BestKernels();
  for (const Kernels* candidate : AllKernels()) {
    if (candidate->isa == isa) kernels = candidate;
  }
  Executor executor(num_threads);
  SpinPool pool(options.Text("pool", "spin") == "spin" ? num_threads : 1);
  const auto spin_for = [&](int64_t n,
                            absl::FunctionRef<void(int64_t, int)> fn) {
    pool.ParallelFor(n, fn);
  };
  const auto tbb_for = [&](int64_t n,
                           absl::FunctionRef<void(int64_t, int)> fn) {
    executor.ParallelFor(n, fn);
  };
  const ParallelFor parallel_for = options.Text("pool", "spin") == "spin"
                                       ? ParallelFor(spin_for)
                                       : ParallelFor(tbb_for);

  Arena arena(options.Number("arena_mb", 1700) << 20);
  std::memset(arena.data(), 1, arena.size());
  const auto measure = [&] {
    return MeasureMachine(*kernels, arena.data(), arena.size(), num_threads,
                          parallel_for);
  };
  MachineRates rates = measure();
  std::printf("isa %s, %d threads, %.1f GB/s read, %.1f GFLOP/s peak\n",
              std::string(kernels->isa).c_str(), num_threads,
              rates.read_gb_per_s, rates.peak_gflop_per_s);
  std::printf("%-6s %6s %10s %9s %8s %8s %9s\n", "format", "tokens",
              "median_ms", "GFLOP/s", "GB/s", "roofline", "of_min");

  double log_sum = 0;
  double least = 1e9;
  int64_t cells = 0;
  std::mt19937_64 engine(1);
  const std::vector<std::string> formats = absl::StrSplit(
      options.Text("formats", "f32,bf16,f16,fp8,mxfp4,int8,int4"), ',');
  for (const std::string& name : formats) {
    const WeightFormat format = *ParseWeightFormat(name);
    const auto up = PackedLayout::For(format, spec.d_ff, spec.d_model);
    const auto down = PackedLayout::For(format, spec.d_model, spec.d_ff);
    const int64_t expert_bytes = 2 * up.bytes() + down.bytes();
    const int64_t total = arena.size() / expert_bytes;
    MOE_CHECK(total >= num_experts);
    // One expert, copied: its values don't matter here.
    std::normal_distribution<float> normal(0.0F, 0.02F);
    const auto read = [&](int64_t, int64_t, absl::Span<float> out) {
      for (float& value : out) value = normal(engine);
    };
    std::vector<PackedExpert> experts;
    for (int64_t e = 0; e < total; ++e) {
      uint8_t* data = arena.data() + e * expert_bytes;
      if (e == 0) {
        std::vector<uint8_t> panel(
            std::max(up.panel_bytes(), down.panel_bytes()));
        PackPanel(up, read, 0, panel.data());
        for (int64_t p = 0; p < 2 * up.panels(); ++p) {
          std::memcpy(data + p * up.panel_bytes(), panel.data(),
                      up.panel_bytes());
        }
        PackPanel(down, read, 0, panel.data());
        for (int64_t p = 0; p < down.panels(); ++p) {
          std::memcpy(data + 2 * up.bytes() + p * down.panel_bytes(),
                      panel.data(), down.panel_bytes());
        }
      } else {
        std::memcpy(data, arena.data(), expert_bytes);
      }
      PackedExpert expert;
      expert.up = {up, data, 2 * up.panels()};
      expert.down = {down, data + 2 * up.bytes(), down.panels()};
      experts.push_back(expert);
    }
    const std::vector<std::string> token_counts =
        absl::StrSplit(options.Text("tokens", "1,4,16,64,256,1024"), ',');
    for (const std::string& tokens_text : token_counts) {
      int64_t tokens = 0;
      MOE_CHECK(absl::SimpleAtoi(tokens_text, &tokens));
      std::vector<float> hidden(tokens * spec.d_model);
      for (float& value : hidden) value = normal(engine);
      std::vector<float> out(tokens * top_k * spec.d_model);
      ExpertRunner runner(*kernels, num_threads);
      std::vector<double> seconds;
      std::vector<double> fractions;
      double gflops = 0;
      double gbs = 0;
      const auto begin = Clock::now();
      int64_t layer = 0;
      const int64_t layers = total / num_experts;
      const MachineRates again = measure();
      rates.read_gb_per_s = std::max(rates.read_gb_per_s, again.read_gb_per_s);
      rates.peak_gflop_per_s =
          std::max(rates.peak_gflop_per_s, again.peak_gflop_per_s);
      for (int64_t i = 0; repeats > 0 ? i <= repeats : true; ++i) {
        const Routing routing(tokens, num_experts, top_k, engine);
        ExpertBatch batch;
        batch.hidden_states = ConstMatrix(hidden.data(), tokens, spec.d_model);
        batch.offsets = routing.offsets;
        batch.rows = routing.rows;
        int64_t touched = 0;
        for (int64_t e = 0; e < num_experts; ++e) {
          if (routing.offsets[e + 1] > routing.offsets[e]) ++touched;
        }
        const auto layer_experts = absl::MakeConstSpan(experts).subspan(
            layer * num_experts, num_experts);
        layer = (layer + 1) % layers;
        const auto start = Clock::now();
        runner.Run(spec, layer_experts, batch, parallel_for,
                   Matrix(out.data(), tokens * top_k, spec.d_model));
        const double time =
            std::chrono::duration<double>(Clock::now() - start).count();
        if (i == 0) continue;  // warms up
        const double bytes =
            static_cast<double>(touched) * static_cast<double>(expert_bytes);
        const double flops = 6.0 * static_cast<double>(tokens * top_k) *
                             static_cast<double>(spec.d_model * spec.d_ff);
        const double bound = std::max(bytes / (rates.read_gb_per_s * 1e9),
                                      flops / (rates.peak_gflop_per_s * 1e9));
        seconds.push_back(time);
        fractions.push_back(bound / time);
        gflops = std::max(gflops, flops / time * 1e-9);
        gbs = std::max(gbs, bytes / time * 1e-9);
        const double elapsed =
            std::chrono::duration<double>(Clock::now() - begin).count();
        if (repeats == 0 && i >= 7 && elapsed > 2.5) break;
      }
      std::sort(seconds.begin(), seconds.end());
      std::sort(fractions.begin(), fractions.end());
      const double median = fractions[fractions.size() / 2];
      std::printf("%-6s %6ld %10.3f %9.1f %8.2f %8.3f %9.3f\n", name.c_str(),
                  static_cast<long>(tokens), seconds[seconds.size() / 2] * 1e3,
                  gflops, gbs, median, fractions.back());
      std::fflush(stdout);
      if (format != WeightFormat::kF16 && format != WeightFormat::kFp8 &&
          format != WeightFormat::kMxfp4) {
        log_sum += std::log(median);
        least = std::min(least, median);
        ++cells;
      }
    }
  }
  std::printf(
      "%.1f GB/s, %.1f GFLOP/s; f32, bf16, int8, int4: geomean %.3f min %.3f\n",
      rates.read_gb_per_s, rates.peak_gflop_per_s,
      std::exp(log_sum / static_cast<double>(std::max<int64_t>(cells, 1))),
      least);
  return 0;
}

}  // namespace
}  // namespace moe

int main(int argc, char** argv) { return moe::Main(argc, argv); }
