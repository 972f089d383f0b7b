// config.json. The input is the file.

#include <cstdint>

#include "absl/status/statusor.h"
#include "experts/checkpoint/config.h"
#include "experts/checkpoint/quantization.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

constexpr char kFile[] = "config.json: ";

template <typename T>
void Check(const absl::StatusOr<T>& value) {
  if (!value.ok()) moe::CheckError(value.status(), kFile);
}

void ReadAll(const moe::Config& config, int depth) {
  for (const char* key :
       {"a", "b", "num_experts", "hidden_act", "mlp_only_layers", "text_config",
        "quantization_config"}) {
    Check(config.Int(key, 1));
    Check(config.OptionalInt(key));
    Check(config.DoubleOr(key, 0.5));
    Check(config.BoolOr(key, true));
    Check(config.StringOr(key, "silu"));
    Check(config.Ints(key));
    Check(config.Bools(key));
    Check(config.Strings(key));
    MOE_CHECK(!config.IsList(key) || config.Has(key));
    const auto section = config.OptionalSection(key);
    Check(section);
    if (section.ok() && section->has_value() && depth > 0) {
      ReadAll(**section, depth - 1);
    }
  }
  Check(moe::ParseQuantization(config));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = moe::Config::Parse(moe::TextOf(data, size));
  Check(config);
  if (config.ok()) ReadAll(*config, /*depth=*/2);
  return 0;
}
