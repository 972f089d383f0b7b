#include "experts/base/no_destructor.h"

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"

namespace moe {
namespace {

struct Counted {
  explicit Counted(int* count) : destroyed(count) {}
  ~Counted() { ++*destroyed; }
  int* destroyed;
};

TEST(NoDestructorTest, MakesTheObjectAndNeverDestroysIt) {
  int destroyed = 0;
  {
    const NoDestructor<Counted> kept(&destroyed);
    EXPECT_EQ(kept->destroyed, &destroyed);
    const Counted dropped(&destroyed);
  }
  EXPECT_EQ(destroyed, 1) << "that of the other one";
  static_assert(
      std::is_trivially_destructible_v<NoDestructor<std::vector<std::string>>>);
}

TEST(NoDestructorTest, ObjectIsThereForAllWhoAsk) {
  const auto names = []() -> const std::vector<std::string>& {
    static const NoDestructor<std::vector<std::string>> all(
        std::vector<std::string>{"a", "b"});
    return *all;
  };
  EXPECT_EQ(names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(&names(), &names());
}

TEST(NoDestructorTest, KeepsToTheAlignmentOfTheObject) {
  struct alignas(64) Wide {
    char bytes[64] = {};
  };
  static const NoDestructor<Wide> wide;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(&*wide) % 64, 0U);
}

}  // namespace
}  // namespace moe
