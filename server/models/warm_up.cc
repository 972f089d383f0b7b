#include "server/models/warm_up.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "experts/base/status_macros.h"

namespace moe {
namespace {

// One batch through one layer. With experts: one token to each of them.
class WarmUpRequest final : public RequestCodec, public RequestObserver {
 public:
  WarmUpRequest(const ServedLayer& layer, std::vector<int32_t> experts)
      : experts_(std::move(experts)),
        request_({.layer = layer,
                  .tokens = std::max<int64_t>(
                      1, static_cast<int64_t>(experts_.size())),
                  .given_k = experts_.empty() ? 0 : 1,
                  .parts = {ResponsePart::kOutput}},
                 SteadyTime::max(), /*bytes=*/0, this, this) {}

  absl::Status Run(Engine& engine) {
    MOE_RETURN_IF_ERROR(engine.Submit(&request_));
    done_.WaitForNotification();
    return status_;
  }

  void Decode(int64_t /*first*/, Matrix hidden_states) const override {
    for (int64_t r = 0; r < hidden_states.rows(); ++r) {
      std::fill_n(hidden_states.Row(r), hidden_states.cols(), 1.0F);
    }
  }
  void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                     Matrix weights) const override {
    for (int64_t r = 0; r < ids.rows(); ++r) {
      *ids.Row(r) = experts_[static_cast<size_t>(first + r)];
      *weights.Row(r) = 1.0F;
    }
  }
  void LayOut() override {}
  void Encode(int64_t /*first*/, const EngineResult& /*rows*/) override {}
  bool Cancelled() const override { return false; }
  void OnFinished(const absl::Status& status) override {
    status_ = status;
    done_.Notify();
  }

 private:
  const std::vector<int32_t> experts_;
  EngineRequest request_;
  absl::Status status_;
  absl::Notification done_;
};

absl::Status Run(const ServedLayer& layer, std::vector<int32_t> experts,
                 Engine& engine) {
  WarmUpRequest request(layer, std::move(experts));
  return request.Run(engine);
}

}  // namespace

absl::Status WarmUp(const std::shared_ptr<const ServedModel>& model,
                    Engine& engine) {
  for (const ModelLayer& model_layer : model->model->layers()) {
    const ServedLayer layer{
        .served = model, .layer = &model_layer, .metrics = nullptr};
    std::vector<int32_t> experts = model_layer.held_experts;
    if (experts.empty()) {
      experts.resize(static_cast<size_t>(model_layer.ffn->num_experts()));
      std::iota(experts.begin(), experts.end(), 0);
    }
    if (!experts.empty()) {
      MOE_RETURN_IF_ERROR(Run(layer, std::move(experts), engine));
    }
    if (model_layer.ffn->dense() || model_layer.ffn->has_router()) {
      MOE_RETURN_IF_ERROR(Run(layer, {}, engine));
    }
  }
  return absl::OkStatus();
}

}  // namespace moe
