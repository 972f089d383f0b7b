// The index of a sharded checkpoint. The input is the file.

#include <cstdint>

#include "absl/strings/match.h"
#include "experts/checkpoint/shard_index.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto shards = moe::ParseShardIndex(moe::TextOf(data, size), "index");
  if (!shards.ok()) {
    moe::CheckError(shards.status(), "index: ");
    return 0;
  }
  for (const auto& [tensor, shard] : *shards) {
    MOE_CHECK(!shard.empty() && shard != "." && shard != "..");
    MOE_CHECK(!absl::StrContains(shard, "/"));
  }
  return 0;
}
