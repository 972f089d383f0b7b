#include "server/engine/layer_call.h"

#include <utility>

#include "gtest/gtest.h"

namespace moe {
namespace {

LayerCall Call(const ModelLayer* layer, int64_t given_k, ResponseParts parts) {
  return {.layer = {.served = nullptr, .layer = layer},
          .tokens = 1,
          .given_k = given_k,
          .parts = std::move(parts)};
}

TEST(LayerCallTest, WithoutAnOutputTheRouterAloneRuns) {
  EXPECT_TRUE(Call(nullptr, 0, {ResponsePart::kExpertIds}).route_only());
  EXPECT_FALSE(
      Call(nullptr, 0, {ResponsePart::kExpertIds, ResponsePart::kOutput})
          .route_only());
  EXPECT_FALSE(Call(nullptr, 2, {ResponsePart::kExpertIds}).route_only())
      << "its routing is given";
}

TEST(LayerCallTest, WhatComesBackBesidesTheOutputSharesABatch) {
  const ModelLayer layers[2] = {};
  const LayerCall plain = Call(&layers[0], 0, {ResponsePart::kOutput});
  EXPECT_EQ(plain.Key(), Call(&layers[0], 0,
                              {ResponsePart::kOutput, ResponsePart::kExpertIds})
                             .Key());
  const LayerCall others[] = {Call(&layers[1], 0, {ResponsePart::kOutput}),
                              Call(&layers[0], 4, {ResponsePart::kOutput}),
                              Call(&layers[0], 0, {ResponsePart::kExpertIds})};
  for (const LayerCall& other : others) {
    EXPECT_FALSE(plain.Key() == other.Key());
  }
}

}  // namespace
}  // namespace moe
