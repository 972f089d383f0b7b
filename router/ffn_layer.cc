#include "router/ffn_layer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "experts/base/check.h"
#include "experts/base/status_macros.h"
#include "router/combine.h"
#include "router/top_k.h"

namespace moe {
namespace {

constexpr int64_t kRowsPerTask = 16;

// Adds the time since construction to a stage.
class StageTimer {
 public:
  StageTimer(ForwardStats& stats, Stage stage)
      : seconds_(stats.stage_seconds[static_cast<size_t>(stage)]) {}
  ~StageTimer() {
    const std::chrono::duration<double> elapsed =
        std::chrono::steady_clock::now() - start_;
    seconds_ += elapsed.count();
  }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
};

// Calls fn(first, count) for consecutive row ranges on the executor's threads.
template <typename Fn>
void ForRows(Executor& executor, int64_t rows, const Fn& fn) {
  executor.ParallelFor((rows + kRowsPerTask - 1) / kRowsPerTask,
                       [&](int64_t task, int) {
                         const int64_t first = task * kRowsPerTask;
                         fn(first, std::min(kRowsPerTask, rows - first));
                       });
}

bool IsFinite(const float* row, int64_t size) {
  // All exponent bits set: infinity or NaN. No early exit, so that it
  // vectorises.
  constexpr uint32_t kExponent = 0x7f800000U;
  uint32_t found = 0;
  for (int64_t i = 0; i < size; ++i) {
    const auto bits = std::bit_cast<uint32_t>(row[i]);
    found |= static_cast<uint32_t>((bits & kExponent) == kExponent);
  }
  return found == 0;
}

// Every row through the one expert of `shard`. Its failure is one of the batch.
absl::Status RunForAll(const ExpertShard& shard, ConstMatrix hidden_states,
                       Dispatch& dispatch, ExpertWorkspace& workspace,
                       Matrix out) {
  dispatch.BuildDense(hidden_states.rows());
  ExpertFailures failures;
  MOE_RETURN_IF_ERROR(
      shard.Forward(dispatch.Batch(hidden_states), workspace, out, failures));
  return failures.StatusOf(0);
}

}  // namespace

void LayerWorkspace::Clear() {
  routing_ = Routing{};
  logits_ = ConstMatrix();
  failures_.Clear();
  failed_experts_.clear();
  left_out_.clear();
}

FfnLayer::FfnLayer(FfnLayerParts parts) : parts_(std::move(parts)) {
  MOE_CHECK(parts_.experts != nullptr);
  MOE_CHECK(parts_.rule.has_value() || !parts_.gate.has_value());
  MOE_CHECK(parts_.latent_in.has_value() == parts_.latent_out.has_value());
}

void FfnLayer::Route(ConstMatrix hidden_states, LayerWorkspace& workspace,
                     ForwardStats& stats) const {
  const int64_t tokens = hidden_states.rows();
  LayerWorkspace& w = workspace;
  w.Clear();
  const Matrix logits(w.logits_memory_.Grow(tokens * num_experts()), tokens,
                      num_experts());
  const MatrixView<int32_t> ids(w.ids_memory_.Grow(tokens * top_k()), tokens,
                                top_k());
  const Matrix weights(w.weights_memory_.Grow(tokens * top_k()), tokens,
                       top_k());
  {
    StageTimer timer(stats, Stage::kGate);
    parts_.gate->Forward(hidden_states, w.experts_, logits);
  }
  {
    StageTimer timer(stats, Stage::kTopK);
    ForRows(w.experts_.executor(), tokens, [&](int64_t first, int64_t count) {
      TopK(rule(), parts_.selection_bias, logits.Rows(first, count),
           ids.Rows(first, count), weights.Rows(first, count));
    });
  }
  w.logits_ = logits;
  w.routing_ = Routing{.ids = ids, .weights = weights};
}

absl::Status FfnLayer::Forward(ConstMatrix hidden_states, const Routing* given,
                               LayerWorkspace& workspace, Matrix out,
                               ForwardStats& stats) const {
  LayerWorkspace& w = workspace;
  w.Clear();
  const bool* finite = FindFinite(hidden_states, w);
  if (dense()) {
    StageTimer timer(stats, Stage::kExperts);
    MOE_RETURN_IF_ERROR(RunForAll(*parts_.experts, hidden_states, w.dispatch_,
                                  w.experts_, out));
  } else {
    MOE_RETURN_IF_ERROR(RunRouted(hidden_states, given, w, out, stats));
  }
  if (parts_.shared_expert != nullptr) {
    StageTimer timer(stats, Stage::kExperts);
    MOE_RETURN_IF_ERROR(AddSharedExpert(hidden_states, w, out));
  }
  for (int64_t t = 0; t < hidden_states.rows(); ++t) {
    if (finite[t]) continue;
    ++stats.nonfinite_rows;
    std::fill_n(out.Row(t), d_model(), std::numeric_limits<float>::quiet_NaN());
  }
  return absl::OkStatus();
}

const bool* FfnLayer::FindFinite(ConstMatrix hidden_states,
                                 LayerWorkspace& workspace) const {
  const int64_t tokens = hidden_states.rows();
  bool* finite = workspace.finite_.Grow(tokens);
  ForRows(workspace.experts_.executor(), tokens,
          [&](int64_t first, int64_t count) {
            for (int64_t t = first; t < first + count; ++t) {
              finite[t] = IsFinite(hidden_states.Row(t), d_model());
            }
          });
  return finite;
}

absl::Status FfnLayer::RunRouted(ConstMatrix hidden_states,
                                 const Routing* given,
                                 LayerWorkspace& workspace, Matrix out,
                                 ForwardStats& stats) const {
  LayerWorkspace& w = workspace;
  if (given == nullptr) {
    Route(hidden_states, w, stats);
  } else {
    w.routing_ = *given;
  }
  if (!parts_.latent_in.has_value()) {
    return RunRoutedExperts(hidden_states, w, out, stats);
  }
  const int64_t tokens = hidden_states.rows();
  const int64_t width = expert_spec().d_model;
  const Matrix inputs(w.latent_inputs_.Grow(tokens * width), tokens, width);
  const Matrix sums(w.latent_outputs_.Grow(tokens * width), tokens, width);
  parts_.latent_in->Forward(hidden_states, w.experts_, inputs);
  MOE_RETURN_IF_ERROR(RunRoutedExperts(inputs, w, sums, stats));
  parts_.latent_out->Forward(sums, w.experts_, out);
  return absl::OkStatus();
}

absl::Status FfnLayer::RunRoutedExperts(ConstMatrix hidden_states,
                                        LayerWorkspace& workspace, Matrix out,
                                        ForwardStats& stats) const {
  LayerWorkspace& w = workspace;
  {
    StageTimer timer(stats, Stage::kDispatch);
    w.dispatch_.Build(w.routing_.ids, w.routing_.weights,
                      rule().num_ffn_experts(), rule().placement);
  }
  const int64_t assignments = w.dispatch_.num_assignments();
  const Matrix expert_outputs(w.expert_outputs_.Grow(assignments * out.cols()),
                              assignments, out.cols());
  {
    StageTimer timer(stats, Stage::kExperts);
    ExpertBatch batch = w.dispatch_.Batch(hidden_states);
    batch.deadline = w.deadline_;
    MOE_RETURN_IF_ERROR(parts_.experts->Forward(batch, w.experts_,
                                                expert_outputs, w.failures_));
    if (!w.failures_.empty()) HandleMissing(w);
  }
  StageTimer timer(stats, Stage::kCombine);
  ForRows(w.experts_.executor(), out.rows(), [&](int64_t first, int64_t count) {
    Combine(w.dispatch_, w.routing_.weights, rule().placement, expert_outputs,
            hidden_states, first, count, out);
  });
  return absl::OkStatus();
}

void FfnLayer::HandleMissing(LayerWorkspace& workspace) const {
  LayerWorkspace& w = workspace;
  std::vector<bool> missing(static_cast<size_t>(rule().num_experts));
  for (const ExpertFailures::Failure& failure : w.failures_) {
    missing[static_cast<size_t>(failure.expert)] = true;
  }
  if (parts_.leave_out_missing &&
      rule().placement == WeightPlacement::kOutput) {
    LeaveOutMissing(missing, w);
  }
  const MatrixView<const int32_t> ids = w.routing_.ids;
  w.failed_experts_.assign(static_cast<size_t>(ids.rows()), -1);
  for (int64_t t = 0; t < ids.rows(); ++t) {
    const int32_t* end = ids.Row(t) + ids.cols();
    const int32_t* first = std::find_if(ids.Row(t), end, [&](int32_t id) {
      return id >= 0 && missing[static_cast<size_t>(id)];
    });
    if (first != end) w.failed_experts_[static_cast<size_t>(t)] = *first;
  }
}

void FfnLayer::LeaveOutMissing(const std::vector<bool>& missing,
                               LayerWorkspace& workspace) const {
  LayerWorkspace& w = workspace;
  const Routing given = w.routing_;
  const int64_t tokens = given.ids.rows();
  const int64_t k = given.ids.cols();
  // The router's own memory, or as much beside what the caller gave.
  const MatrixView<int32_t> ids(w.ids_memory_.Grow(tokens * k), tokens, k);
  const Matrix weights(w.weights_memory_.Grow(tokens * k), tokens, k);
  if (ids.data() != given.ids.data()) {
    std::copy_n(given.ids.data(), tokens * k, ids.data());
    std::copy_n(given.weights.data(), tokens * k, weights.data());
  }
  w.left_out_.assign(static_cast<size_t>(tokens), 0);
  for (int64_t t = 0; t < tokens; ++t) {
    float all = 0;
    float present = 0;
    int32_t left_out = 0;
    for (int64_t j = 0; j < k; ++j) {
      const int32_t id = ids.Row(t)[j];
      if (id < 0) continue;
      all += weights.Row(t)[j];
      if (missing[static_cast<size_t>(id)]) {
        ++left_out;
      } else {
        present += weights.Row(t)[j];
      }
    }
    // With nothing left, or weights that cancel, the token fails.
    if (left_out == 0 || present == 0) continue;
    w.left_out_[static_cast<size_t>(t)] = left_out;
    for (int64_t j = 0; j < k; ++j) {
      int32_t& id = ids.Row(t)[j];
      if (id >= 0 && missing[static_cast<size_t>(id)]) {
        w.dispatch_.Skip(t * k + j);
        id = -1;
        weights.Row(t)[j] = 0;
      } else {
        weights.Row(t)[j] *= all / present;
      }
    }
  }
  w.routing_ = Routing{.ids = ids, .weights = weights};
}

absl::Status FfnLayer::AddSharedExpert(ConstMatrix hidden_states,
                                       LayerWorkspace& workspace,
                                       Matrix out) const {
  LayerWorkspace& w = workspace;
  const int64_t tokens = hidden_states.rows();
  const Matrix shared(w.shared_outputs_.Grow(tokens * d_model()), tokens,
                      d_model());
  MOE_RETURN_IF_ERROR(RunForAll(*parts_.shared_expert, hidden_states,
                                w.shared_dispatch_, w.experts_, shared));
  Matrix gates;
  if (parts_.shared_expert_gate.has_value()) {
    gates = Matrix(w.shared_gates_.Grow(tokens), tokens, 1);
    parts_.shared_expert_gate->Forward(hidden_states, w.experts_, gates);
  }
  ForRows(w.experts_.executor(), tokens, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      const float scale =
          gates.rows() > 0 ? 1.0F / (1.0F + std::exp(-*gates.Row(t))) : 1.0F;
      const float* y = shared.Row(t);
      float* sum = out.Row(t);
      for (int64_t c = 0; c < d_model(); ++c) sum[c] += scale * y[c];
    }
  });
  return absl::OkStatus();
}

}  // namespace moe
