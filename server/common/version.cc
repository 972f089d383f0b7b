#include "server/common/version.h"

namespace moe {

constexpr char kVersion[] = MOE_VERSION;
constexpr char kCommit[] = MOE_COMMIT;

}  // namespace moe
