#include "experts/expert_workspace.h"

#include <memory>
#include <optional>

#include "experts/executor.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

struct First {
  int value = 1;
};
struct Second {
  int value = 2;
  std::shared_ptr<int> owned;
};

TEST(ExpertWorkspaceTest, HasOneScratchObjectOfEachType) {
  Executor executor(1);
  ExpertWorkspace workspace(&executor);
  First& first = workspace.Scratch<First>();
  EXPECT_EQ(first.value, 1);
  first.value = 7;
  EXPECT_EQ(workspace.Scratch<Second>().value, 2);
  EXPECT_EQ(&workspace.Scratch<First>(), &first);
  EXPECT_EQ(first.value, 7);
}

TEST(ExpertWorkspaceTest, SharesNoneWithOtherWorkspaces) {
  Executor executor(1);
  ExpertWorkspace one(&executor);
  ExpertWorkspace other(&executor);
  EXPECT_NE(&one.Scratch<First>(), &other.Scratch<First>());
}

TEST(ExpertWorkspaceTest, OwnsItsScratchObjects) {
  Executor executor(1);
  const auto owned = std::make_shared<int>(3);
  {
    ExpertWorkspace workspace(&executor);
    workspace.Scratch<Second>().owned = owned;
    EXPECT_EQ(owned.use_count(), 2);
  }
  EXPECT_EQ(owned.use_count(), 1);
}

}  // namespace
}  // namespace moe
