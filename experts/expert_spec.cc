#include "experts/expert_spec.h"

#include "absl/strings/str_cat.h"

namespace moe {

absl::StatusOr<Activation> ParseActivation(absl::string_view name) {
  struct Entry {
    absl::string_view name;
    Activation activation;
  };
  static constexpr Entry kNames[] = {
      {"silu", Activation::kSilu},
      {"swish", Activation::kSilu},
      {"gelu", Activation::kGelu},
      {"gelu_new", Activation::kGeluTanh},
      {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh},
      {"relu", Activation::kRelu},
      {"relu2", Activation::kRelu2},
      {"sigmoid", Activation::kSigmoid},
      {"linear", Activation::kIdentity},
      {"identity", Activation::kIdentity},
  };
  for (const Entry& entry : kNames) {
    if (entry.name == name) return entry.activation;
  }
  return absl::UnimplementedError(
      absl::StrCat("activation: want one of silu, swish, gelu, gelu_new, "
                   "gelu_pytorch_tanh, gelu_fast, relu, relu2, sigmoid, "
                   "linear; got \"",
                   name, "\""));
}

absl::string_view ActivationName(Activation activation) {
  switch (activation) {
    case Activation::kIdentity:
      return "identity";
    case Activation::kRelu:
      return "relu";
    case Activation::kRelu2:
      return "relu2";
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_tanh";
    case Activation::kSilu:
      return "silu";
    case Activation::kSigmoid:
      return "sigmoid";
  }
  return "?";
}

int64_t ExpertSpec::parameters() const {
  const int64_t matrices = gated ? 3 : 2;
  const int64_t biases = has_bias ? (gated ? 2 : 1) * d_ff + d_model : 0;
  return matrices * d_ff * d_model + biases;
}

int64_t ExpertSpec::flops_per_row() const {
  return 2 * (gated ? 3 : 2) * d_ff * d_model;
}

}  // namespace moe
