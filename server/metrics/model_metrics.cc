#include "server/metrics/model_metrics.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "experts/base/weight_format.h"

namespace moe {
namespace {

prometheus::Labels OfModel(absl::string_view model) {
  return {{"model", std::string(model)}};
}

prometheus::Labels OfWeights(absl::string_view model, WeightFormat format) {
  return {{"model", std::string(model)},
          {"weight_format", std::string(WeightFormatName(format))}};
}

}  // namespace

ModelFamilies::ModelFamilies(prometheus::Registry& registry,
                             ExpertMetrics detail)
    : detail_(detail),
      expert_tokens_(MakeCounters(registry, "moe_expert_tokens_total",
                                  "Tokens sent to each expert.")),
      layer_tokens_(MakeCounters(registry, "moe_layer_tokens_total",
                                 "Tokens that ran through a layer.")),
      layer_seconds_(MakeCounters(
          registry, "moe_layer_seconds_total",
          "Time that batches took in a layer, from gate to combine.")),
      balancedness_(MakeGauges(
          registry, "moe_expert_load_balancedness",
          "Mean over maximum of the tokens per expert of a layer, over about "
          "its last 16384 tokens; 1 = even, and before the first.")),
      expert_seconds_(
          MakeCounters(registry, "moe_expert_seconds_total",
                       "Time that the experts of a model computed.")),
      expert_bytes_(MakeCounters(
          registry, "moe_expert_read_bytes_total",
          "Weights of the experts that batches visited, each once a batch.")),
      expert_flops_(
          MakeCounters(registry, "moe_expert_flops_total",
                       "Floating point operations of the experts of a model.")),
      roofline_seconds_(MakeCounters(
          registry, "moe_expert_roofline_seconds_total",
          "The least time that the experts could have taken on this machine.")),
      ready_(MakeGauges(registry, "moe_model_ready",
                        "1 = the model answers, 0 = it is being loaded.")),
      weights_bytes_(
          MakeGauges(registry, "moe_model_weights_bytes",
                     "Memory of a model's weights, by weight format.")),
      load_duration_(MakeGauges(registry, "moe_model_load_duration_seconds",
                                "Time that loading a model took.")) {
  CounterFamily* const loads =
      MakeCounters(registry, "moe_model_loads_total",
                   "Models and new versions of them: loaded, or no good and "
                   "what was served before kept.");
  loads_ok_ = &loads->Add({{"result", "ok"}});
  loads_failed_ = &loads->Add({{"result", "failed"}});
}

void ModelFamilies::SetMachine(const MachineRates& rates) {
  absl::MutexLock lock(&mutex_);
  rates_ = rates;
}

void ModelFamilies::Announced(absl::string_view model) {
  if (ready_->Has(OfModel(model))) return;
  ready_->Add(OfModel(model)).Set(0);
}

void ModelFamilies::Withdrawn(absl::string_view model) {
  // Add returns what there is.
  ready_->Remove(&ready_->Add(OfModel(model)));
  load_duration_->Remove(&load_duration_->Add(OfModel(model)));
  for (const WeightFormat format : kPackedFormats) {
    weights_bytes_->Remove(&weights_bytes_->Add(OfWeights(model, format)));
  }
}

void ModelFamilies::Ready(absl::string_view model, const WeightsBytes& weights,
                          double load_seconds) {
  for (const WeightFormat format : kPackedFormats) {
    const prometheus::Labels labels = OfWeights(model, format);
    // A format of before goes to 0; one that never was has no series.
    if (weights[format] == 0 && !weights_bytes_->Has(labels)) continue;
    weights_bytes_->Add(labels).Set(static_cast<double>(weights[format]));
  }
  load_duration_->Add(OfModel(model)).Set(load_seconds);
  ready_->Add(OfModel(model)).Set(1);
}

ModelMetrics ModelFamilies::Add(absl::string_view model,
                                absl::Span<const LayerCost> layers) {
  absl::MutexLock lock(&mutex_);
  const ModelSeries series = SeriesOf(model, layers);
  ModelMetrics metrics{.detail = series.detail};
  for (const LayerCost& cost : layers) {
    metrics.layers.push_back(std::make_unique<LayerMetrics>(
        cost, rates_, MakeLayer(model, series, cost)));
  }
  return metrics;
}

ModelFamilies::ModelSeries ModelFamilies::SeriesOf(
    absl::string_view model, absl::Span<const LayerCost> layers) {
  const auto found = models_.find(model);
  if (found != models_.end()) return found->second;
  int64_t num_experts = 0;
  for (const LayerCost& layer : layers) num_experts += layer.num_experts;
  const prometheus::Labels labels = OfModel(model);
  ModelSeries series{
      .detail = detail_,
      .of_model = {.expert_seconds = &expert_seconds_->Add(labels),
                   .expert_bytes = &expert_bytes_->Add(labels),
                   .expert_flops = &expert_flops_->Add(labels),
                   .roofline_seconds = &roofline_seconds_->Add(labels)}};
  if (detail_ == ExpertMetrics::kAuto) {
    series.detail = expert_series_ + num_experts <= kMaxExpertSeries
                        ? ExpertMetrics::kFull
                        : ExpertMetrics::kLayer;
  }
  if (series.detail == ExpertMetrics::kFull) expert_series_ += num_experts;
  models_.emplace(model, series);
  return series;
}

LayerSeries ModelFamilies::MakeLayer(absl::string_view model,
                                     const ModelSeries& series,
                                     const LayerCost& cost) {
  LayerSeries layer = series.of_model;
  prometheus::Labels labels = OfModel(model);
  labels["layer"] = absl::StrCat(cost.layer);
  if (series.detail != ExpertMetrics::kOff) {
    layer.tokens = &layer_tokens_->Add(labels);
    layer.seconds = &layer_seconds_->Add(labels);
    if (cost.num_experts > 0) {
      layer.balancedness = &balancedness_->Add(labels);
      layer.balancedness->Set(1);
    }
  }
  if (series.detail == ExpertMetrics::kFull) {
    for (int64_t e = 0; e < cost.num_experts; ++e) {
      labels["expert"] = absl::StrCat(e);
      layer.expert_tokens.push_back(&expert_tokens_->Add(labels));
    }
  }
  return layer;
}

}  // namespace moe
