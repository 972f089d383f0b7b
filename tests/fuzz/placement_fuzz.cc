// A placement file. The input is the file.

#include <cstdint>
#include <vector>

#include "server/placement/placement.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto placement = moe::Placement::Parse(moe::TextOf(data, size));
  if (!placement.ok()) {
    moe::CheckError(placement.status(), "placement: ");
    return 0;
  }
  constexpr int kExperts = 5;
  const int num_shards = static_cast<int>(placement->shards().size());
  for (const char* model : {"m", "n"}) {
    for (int layer = 0; layer < 3; ++layer) {
      // Both questions have the same answer.
      std::vector<std::vector<int>> shards_of(kExperts);
      for (int shard = 0; shard < num_shards; ++shard) {
        for (const int32_t expert :
             placement->ExpertsOf(shard, model, layer, kExperts)) {
          MOE_CHECK(expert >= 0 && expert < kExperts);
          shards_of[static_cast<size_t>(expert)].push_back(shard);
        }
      }
      bool covered = true;
      for (int expert = 0; expert < kExperts; ++expert) {
        const auto& want = shards_of[static_cast<size_t>(expert)];
        MOE_CHECK(placement->ShardsOf(model, layer, expert) == want);
        covered = covered && !want.empty();
      }
      const absl::Status cover =
          placement->CheckCover(model, layer, kExperts, {});
      MOE_CHECK(covered || !cover.ok());
      if (!cover.ok()) moe::CheckError(cover, "model ");
    }
  }
  return 0;
}
