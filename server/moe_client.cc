// moe-client: one command per run.

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "experts/base/status_macros.h"
#include "server/client/commands.h"
#include "server/client/connection.h"
#include "server/client/verify.h"
#include "server/flags.h"

ABSL_FLAG(std::string, server, "127.0.0.1:50051",
          "HOST:PORT of the server, or any gRPC target.");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(60),
          "How long a call may take.");
ABSL_FLAG(std::string, model, "demo", "Name of the model.");
ABSL_FLAG(int, layer, 0, "forward: index of the layer.");
ABSL_FLAG(std::string, input, "",
          "forward: safetensors file with hidden_states [tokens, d_model].");
ABSL_FLAG(int64_t, random, 1,
          "forward: tokens of random hidden states, without --input.");
ABSL_FLAG(uint64_t, seed, 1, "forward: seed of the random hidden states.");
ABSL_FLAG(std::string, dtype, "f32",
          "forward: type of the random hidden states: f32, bf16 or f16.");
ABSL_FLAG(std::string, output, "",
          "forward: safetensors file to write the answer to.");
ABSL_FLAG(std::string, vectors, "",
          "verify: safetensors file with inputs and expected outputs.");
ABSL_FLAG(double, output_tolerance, 2e-5,
          "verify: allowed error of the output, relative to the largest value "
          "of its row.");

namespace moe {
namespace {

constexpr char kUsage[] =
    "moe-client talks to a moe-server.\n\n"
    "  moe-client info      what the server serves\n"
    "  moe-client forward   sends a batch through a layer\n"
    "  moe-client verify    compares answers with recorded vectors; exit code "
    "1 "
    "if they differ\n"
    "  moe-client health    exit code 0 if the server is serving";

absl::StatusOr<v1::DType> ParseDType(const std::string& name) {
  if (name == "f32") return v1::F32;
  if (name == "bf16") return v1::BF16;
  if (name == "f16") return v1::F16;
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype: want f32, bf16 or f16, got \"", name, "\""));
}

absl::Status RunForward(const Connection& connection) {
  ForwardOptions options;
  options.model = absl::GetFlag(FLAGS_model);
  options.layer = absl::GetFlag(FLAGS_layer);
  options.input = absl::GetFlag(FLAGS_input);
  options.random_tokens = absl::GetFlag(FLAGS_random);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.output = absl::GetFlag(FLAGS_output);
  MOE_ASSIGN_OR_RETURN(options.dtype, ParseDType(absl::GetFlag(FLAGS_dtype)));
  if (options.random_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--random: want 0 or more, got ", options.random_tokens));
  }
  return Forward(connection, options);
}

// 0 = done, 1 = the answer is no, 2 = an error.
absl::StatusOr<int> Run(const std::string& command) {
  const Connection connection(absl::GetFlag(FLAGS_server),
                              absl::GetFlag(FLAGS_timeout));
  if (command == "info") {
    MOE_RETURN_IF_ERROR(Info(connection));
    return 0;
  }
  if (command == "forward") {
    MOE_RETURN_IF_ERROR(RunForward(connection));
    return 0;
  }
  if (command == "verify") {
    if (absl::GetFlag(FLAGS_vectors).empty()) {
      return absl::InvalidArgumentError("--vectors: want a file, got none");
    }
    MOE_ASSIGN_OR_RETURN(const bool pass,
                         Verify(connection, absl::GetFlag(FLAGS_model),
                                absl::GetFlag(FLAGS_vectors),
                                absl::GetFlag(FLAGS_output_tolerance)));
    return pass ? 0 : 1;
  }
  if (command == "health") {
    MOE_ASSIGN_OR_RETURN(const bool healthy, connection.Healthy());
    absl::PrintF("%s\n", healthy ? "SERVING" : "NOT_SERVING");
    return healthy ? 0 : 1;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "command: want info, forward, verify or health, got \"", command, "\""));
}

int Main(int argc, char** argv) {
  const std::vector<std::string> positional =
      ParseCommandLineOrExit(argc, argv, kUsage, "moe_client.cc");
  if (positional.size() != 1) {
    absl::FPrintF(stderr, "error: want one command, got %d; see --help\n",
                  positional.size());
    return 2;
  }
  const absl::StatusOr<int> result = Run(positional.front());
  if (!result.ok()) {
    absl::FPrintF(stderr, "error: %s: %s\n",
                  absl::StatusCodeToString(result.status().code()),
                  result.status().message());
    return 2;
  }
  return *result;
}

}  // namespace
}  // namespace moe

int main(int argc, char** argv) { return moe::Main(argc, argv); }
