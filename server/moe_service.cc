#include "server/moe_service.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "experts/base/status_macros.h"
#include "server/grpc_status.h"

namespace moe {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;

// One unary call, from its arrival to OnDone; counts itself.
class Call : public grpc::ServerUnaryReactor {
 public:
  Call(Method method, Metrics& metrics, OpenCalls& open_calls)
      : method_(method), metrics_(metrics), open_calls_(open_calls) {
    open_calls_.Add();
    metrics_.RequestStarted();
  }

  // Answers the call. Thread-safe with respect to OnCancel, once per call.
  void Answer(const absl::Status& status) {
    metrics_.RequestDone(method_, status.code(),
                         absl::ToDoubleSeconds(absl::Now() - start_));
    grpc::ServerUnaryReactor::Finish(ToGrpcStatus(status));
  }

  // gRPC's last word on a reactor: it owns itself until here.
  void OnDone() final {
    OpenCalls& open_calls = open_calls_;
    { const std::unique_ptr<Call> self(this); }
    open_calls.Remove();
  }

 private:
  const Method method_;
  Metrics& metrics_;
  OpenCalls& open_calls_;
  const absl::Time start_ = absl::Now();
};

// A call that runs on the engine.
template <typename Request, typename Response>
class EngineCall : public Call, public EngineRequest {
 public:
  EngineCall(Method method, Metrics& metrics, OpenCalls& open_calls,
             grpc::CallbackServerContext* context, const Request* request,
             Response* response)
      : Call(method, metrics, open_calls),
        request_(*request),
        response_(*response) {
    deadline = absl::FromChrono(context->deadline());
  }

  // Checks what both kinds of request have in common.
  absl::Status Prepare(const ModelRegistry& registry,
                       const ServiceLimits& limits) {
    if (request_.request_id().size() > kMaxRequestIdBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("request_id: want at most ", kMaxRequestIdBytes,
                       " bytes, got ", request_.request_id().size()));
    }
    MOE_ASSIGN_OR_RETURN(
        layer, registry.FindLayer(request_.model(), request_.layer()));
    MOE_ASSIGN_OR_RETURN(
        hidden_states,
        CheckHiddenStates(request_.hidden_states(), "hidden_states",
                          layer.layer->ffn->d_model(),
                          limits.max_request_tokens));
    return absl::OkStatus();
  }

  // Gives the call to the engine, or answers it.
  void Start(Engine& engine, absl::Status prepared) {
    if (prepared.ok()) prepared = engine.Submit(this);
    if (!prepared.ok()) Answer(prepared);
  }

  void OnCancel() final { cancelled_.store(true, std::memory_order_relaxed); }
  bool Cancelled() const final {
    return cancelled_.load(std::memory_order_relaxed);
  }
  void Finish(const absl::Status& status) final {
    if (status.ok()) response_.set_request_id(request_.request_id());
    Answer(status);
  }

 protected:
  const Request& request_;
  Response& response_;

 private:
  std::atomic<bool> cancelled_ = false;
};

class ForwardCall final
    : public EngineCall<v1::ForwardRequest, v1::ForwardResponse> {
 public:
  using EngineCall::EngineCall;

  absl::Status PrepareForward(const ModelRegistry& registry,
                              const ServiceLimits& limits) {
    MOE_RETURN_IF_ERROR(Prepare(registry, limits));
    MOE_ASSIGN_OR_RETURN(output_dtype_, OutputDType());
    if (request_.has_expert_ids() != request_.has_routing_weights()) {
      return absl::InvalidArgumentError(
          request_.has_expert_ids()
              ? "routing_weights: want them with expert_ids, got none"
              : "expert_ids: want them with routing_weights, got none");
    }
    if (request_.has_expert_ids()) {
      const FfnLayer& ffn = *layer.layer->ffn;
      if (ffn.dense()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "expert_ids: want none, layer ", request_.layer(), " is dense"));
      }
      MOE_ASSIGN_OR_RETURN(
          routing,
          CheckRouting(request_.expert_ids(), request_.routing_weights(),
                       hidden_states.rows, ffn.num_experts()));
    }
    return absl::OkStatus();
  }

  void Encode(const EngineResult& result) override {
    moe::Encode(result.output, output_dtype_, *response_.mutable_output());
    if (!request_.return_routing() || layer.layer->ffn->dense()) return;
    EncodeIds(result.routing.ids, *response_.mutable_expert_ids());
    moe::Encode(result.routing.weights, v1::F32,
                *response_.mutable_routing_weights());
  }

 private:
  absl::StatusOr<v1::DType> OutputDType() const {
    switch (request_.output_dtype()) {
      case v1::DTYPE_UNSPECIFIED:
        return hidden_states.dtype;
      case v1::F32:
      case v1::BF16:
      case v1::F16:
        return request_.output_dtype();
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("output_dtype: want F32, BF16 or F16, got ",
                         static_cast<int>(request_.output_dtype())));
    }
  }

  v1::DType output_dtype_ = v1::F32;
};

class RouteCall final : public EngineCall<v1::RouteRequest, v1::RouteResponse> {
 public:
  using EngineCall::EngineCall;

  absl::Status PrepareRoute(const ModelRegistry& registry,
                            const ServiceLimits& limits) {
    MOE_RETURN_IF_ERROR(Prepare(registry, limits));
    route_only = true;
    if (layer.layer->ffn->dense()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer: want a routed layer, ", request_.layer(), " is dense"));
    }
    return absl::OkStatus();
  }

  void Encode(const EngineResult& result) override {
    EncodeIds(result.routing.ids, *response_.mutable_expert_ids());
    moe::Encode(result.routing.weights, v1::F32,
                *response_.mutable_routing_weights());
    if (!request_.return_router_logits()) return;
    moe::Encode(result.router_logits, v1::F32,
                *response_.mutable_router_logits());
  }
};

}  // namespace

void OpenCalls::Add() {
  absl::MutexLock lock(&mutex_);
  ++count_;
}

void OpenCalls::Remove() {
  absl::MutexLock lock(&mutex_);
  --count_;
}

void OpenCalls::WaitUntilNone(absl::Time deadline) {
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return count_ == 0;
  };
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithDeadline(absl::Condition(&none), deadline);
}

grpc::ServerUnaryReactor* MoeServiceImpl::Forward(
    grpc::CallbackServerContext* context, const v1::ForwardRequest* request,
    v1::ForwardResponse* response) {
  auto* call =
      std::make_unique<ForwardCall>(Method::kForward, metrics_, open_calls_,
                                    context, request, response)
          .release();  // owns itself until OnDone
  call->Start(engine_, call->PrepareForward(registry_, limits_));
  return call;
}

grpc::ServerUnaryReactor* MoeServiceImpl::Route(
    grpc::CallbackServerContext* context, const v1::RouteRequest* request,
    v1::RouteResponse* response) {
  auto* call =
      std::make_unique<RouteCall>(Method::kRoute, metrics_, open_calls_,
                                  context, request, response)
          .release();  // owns itself until OnDone
  call->Start(engine_, call->PrepareRoute(registry_, limits_));
  return call;
}

grpc::ServerUnaryReactor* MoeServiceImpl::ListModels(
    grpc::CallbackServerContext* /*context*/,
    const v1::ListModelsRequest* /*request*/,
    v1::ListModelsResponse* response) {
  auto* call =
      std::make_unique<Call>(Method::kListModels, metrics_, open_calls_)
          .release();
  for (const auto& model : registry_.List()) {
    Describe(*model, *response->add_models());
  }
  call->Answer(absl::OkStatus());
  return call;
}

grpc::ServerUnaryReactor* MoeServiceImpl::GetModel(
    grpc::CallbackServerContext* /*context*/,
    const v1::GetModelRequest* request, v1::ModelInfo* response) {
  auto* call = std::make_unique<Call>(Method::kGetModel, metrics_, open_calls_)
                   .release();
  const auto model = registry_.Find(request->model());
  if (model.ok()) Describe(**model, *response);
  call->Answer(model.status());
  return call;
}

void MoeServiceImpl::Describe(const ServedModel& served,
                              v1::ModelInfo& info) const {
  const Model& model = *served.model;
  info.set_name(served.name);
  info.set_family(model.spec().family);
  info.set_d_model(model.spec().d_model);
  info.set_weights_bytes(model.weights_bytes());
  info.set_weight_format(served.weight_format);
  info.set_max_message_bytes(limits_.max_message_bytes);
  info.set_max_request_tokens(limits_.max_request_tokens);
  for (const LayerSpec& layer : model.spec().layers) {
    v1::LayerInfo& out = *info.add_layers();
    out.set_layer(layer.index);
    out.set_dense(!layer.rule.has_value());
    out.set_d_model(layer.d_model);
    out.set_d_ff(layer.experts.expert.d_ff);
    if (layer.rule.has_value()) {
      out.set_num_experts(layer.rule->num_experts);
      out.set_top_k(layer.rule->top_k);
    }
    if (layer.shared_expert.has_value()) {
      out.set_shared_d_ff(layer.shared_expert->expert.d_ff);
    }
    out.set_parameters(layer.parameters());
  }
}

}  // namespace moe
