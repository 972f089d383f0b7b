#include "server/open_inference/infer_metadata.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace moe {
namespace {

constexpr absl::string_view kPlatform = "moe_ffn";

struct NamedTensor {
  absl::string_view name;
  v1::DType dtype;
  int64_t columns;  // -1 = any number
  bool optional;    // as an input
};

void AddRouting(std::vector<NamedTensor>* tensors) {
  tensors->push_back({"expert_ids", v1::I32, -1, /*optional=*/true});
  tensors->push_back({"routing_weights", v1::F32, -1, /*optional=*/true});
}

std::vector<NamedTensor> Inputs(const InferTarget& target) {
  std::vector<NamedTensor> tensors = {{"hidden_states", v1::F32,
                                       target.served->model->spec().d_model,
                                       /*optional=*/false}};
  // A layer as a model of its own lists only what it needs: load testers fill
  // what is optional, too, with numbers that are no expert ids.
  if (target.routed() && !target.layer.has_value()) AddRouting(&tensors);
  return tensors;
}

std::vector<NamedTensor> Outputs(const InferTarget& target) {
  std::vector<NamedTensor> tensors = {{"output", v1::F32,
                                       target.served->model->spec().d_model,
                                       /*optional=*/false}};
  if (target.routed()) AddRouting(&tensors);
  return tensors;
}

inference::DataType ConfigType(v1::DType dtype) {
  return dtype == v1::I32 ? inference::TYPE_INT32 : inference::TYPE_FP32;
}

std::string LayerList(const InferTarget& target) {
  if (target.layer.has_value()) return absl::StrCat(*target.layer);
  return absl::StrJoin(target.served->model->layers(), ",",
                       [](std::string* out, const ModelLayer& layer) {
                         absl::StrAppend(out, layer.index);
                       });
}

}  // namespace

void DescribeMetadata(const InferTarget& target, absl::string_view name,
                      const ServiceLimits& limits,
                      inference::ModelMetadataResponse* metadata) {
  metadata->set_name(std::string(name));
  metadata->add_versions(std::string(kInferVersion));
  metadata->set_platform(std::string(kPlatform));
  const auto fill = [](const NamedTensor& info, auto* tensor) {
    tensor->set_name(std::string(info.name));
    tensor->set_datatype(std::string(InferDatatype(info.dtype)));
    tensor->add_shape(-1);
    tensor->add_shape(info.columns);
  };
  for (const NamedTensor& info : Inputs(target)) {
    fill(info, metadata->add_inputs());
  }
  for (const NamedTensor& info : Outputs(target)) {
    fill(info, metadata->add_outputs());
  }
  auto& properties = *metadata->mutable_properties();
  properties.insert({"family", target.served->model->spec().family});
  properties.insert({"weight_format", target.served->weight_format});
  properties.insert({"layers", LayerList(target)});
  properties.insert(
      {"max_request_tokens", absl::StrCat(limits.max_request_tokens)});
  properties.insert(
      {"max_message_bytes", absl::StrCat(limits.max_message_bytes)});
}

void DescribeConfig(const InferTarget& target, absl::string_view name,
                    const ServiceLimits& limits,
                    inference::ModelConfig* config) {
  config->set_name(std::string(name));
  config->set_platform(std::string(kPlatform));
  config->set_backend(std::string(kPlatform));
  config->set_max_batch_size(static_cast<int32_t>(std::min<int64_t>(
      limits.max_request_tokens, std::numeric_limits<int32_t>::max())));
  for (const NamedTensor& info : Inputs(target)) {
    inference::ModelInput& input = *config->add_input();
    input.set_name(std::string(info.name));
    input.set_data_type(ConfigType(info.dtype));
    input.add_dims(info.columns);
    input.set_optional(info.optional);
  }
  for (const NamedTensor& info : Outputs(target)) {
    inference::ModelOutput& output = *config->add_output();
    output.set_name(std::string(info.name));
    output.set_data_type(ConfigType(info.dtype));
    output.add_dims(info.columns);
  }
}

void DescribeStatistics(const InferTarget& target, absl::string_view name,
                        inference::ModelStatistics* statistics) {
  statistics->set_name(std::string(name));
  statistics->set_version(std::string(kInferVersion));
  auto& times = *statistics->mutable_inference_stats();
  const auto add = [](const EventTimes& from,
                      inference::StatisticDuration* to) {
    to->set_count(to->count() + from.count());
    to->set_ns(to->ns() + from.nanoseconds());
  };
  const ServedModel& served = *target.served;
  const auto& layers = served.model->layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    if (target.layer.value_or(layers[i].index) != layers[i].index) continue;
    const LayerStatistics& layer = served.layer_statistics[i];
    add(layer.succeeded, times.mutable_success());
    add(layer.failed, times.mutable_fail());
    add(layer.queued, times.mutable_queue());
    add(layer.decoded, times.mutable_compute_input());
    add(layer.computed, times.mutable_compute_infer());
    add(layer.encoded, times.mutable_compute_output());
    statistics->set_inference_count(
        statistics->inference_count() +
        layer.tokens.load(std::memory_order_relaxed));
    statistics->set_execution_count(statistics->execution_count() +
                                    layer.computed.count());
    statistics->set_last_inference(
        std::max(statistics->last_inference(),
                 static_cast<uint64_t>(
                     layer.last_milliseconds.load(std::memory_order_relaxed))));
  }
  if (!target.layer.has_value()) {
    auto& memory = *statistics->add_memory_usage();
    memory.set_type("CPU");
    memory.set_byte_size(static_cast<uint64_t>(served.model->weights_bytes()));
  }
}

}  // namespace moe
