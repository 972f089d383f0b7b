#include "server/warm_up.h"

#include <algorithm>

#include "absl/synchronization/notification.h"
#include "experts/base/status_macros.h"

namespace moe {
namespace {

// One batch through one layer. With given routing: token t to expert t, hence
// as many tokens as experts.
class WarmUpRequest final : public EngineRequest {
 public:
  WarmUpRequest(const ServedLayer& layer, int64_t num_tokens, bool given) {
    tokens = num_tokens;
    SetLayer(layer, given ? 1 : 0, /*route_only=*/false);
  }

  bool Cancelled() const override { return false; }
  void Decode(int64_t /*first*/, Matrix hidden_states) const override {
    for (int64_t r = 0; r < hidden_states.rows(); ++r) {
      std::fill_n(hidden_states.Row(r), hidden_states.cols(), 1.0F);
    }
  }
  void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                     Matrix weights) const override {
    for (int64_t r = 0; r < ids.rows(); ++r) {
      *ids.Row(r) = static_cast<int32_t>(first + r);
      *weights.Row(r) = 1.0F;
    }
  }
  void Encode(int64_t /*first*/, const EngineResult& /*rows*/) override {}
  void Finish(const absl::Status& status) override {
    status_ = status;
    done_.Notify();
  }
  const absl::Status& Wait() {
    done_.WaitForNotification();
    return status_;
  }

 private:
  absl::Status status_;
  absl::Notification done_;
};

absl::Status Run(const ServedLayer& layer, int64_t tokens, bool given,
                 Engine& engine) {
  WarmUpRequest request(layer, tokens, given);
  MOE_RETURN_IF_ERROR(engine.Submit(&request));
  return request.Wait();
}

}  // namespace

absl::Status WarmUp(const std::shared_ptr<const ServedModel>& model,
                    Engine& engine) {
  for (const ModelLayer& model_layer : model->model->layers()) {
    const ServedLayer layer{
        .served = model, .layer = &model_layer, .metrics = nullptr};
    const int64_t num_experts = model_layer.ffn->num_experts();
    if (num_experts > 0) {
      MOE_RETURN_IF_ERROR(Run(layer, num_experts, /*given=*/true, engine));
    }
    // The router, or the dense FFN.
    MOE_RETURN_IF_ERROR(Run(layer, /*tokens=*/1, /*given=*/false, engine));
  }
  return absl::OkStatus();
}

}  // namespace moe
