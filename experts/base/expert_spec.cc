#include "experts/base/expert_spec.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace moe {

namespace {

struct Name {
  absl::string_view name;
  Activation activation;
};
constexpr Name kNames[] = {
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
};

}  // namespace

absl::StatusOr<Activation> ParseActivation(absl::string_view name) {
  for (const Name& known : kNames) {
    if (known.name == name) return known.activation;
  }
  return absl::UnimplementedError(absl::StrCat(
      "activation: want one of ", KnownActivations(), ", got \"", name, "\""));
}

std::string KnownActivations() {
  return absl::StrJoin(kNames, ", ", [](std::string* out, const Name& known) {
    absl::StrAppend(out, known.name);
  });
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
