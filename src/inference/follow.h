// Engines that do what the leading rank's do.
#pragma once

#include "inference/engine_ranks.h"
#include "models/stage.h"

namespace megatron::inference {

// On each rank but the drawing one of ranks that are led: makes the engines that the drawing rank makes, one after the
// other, and steps them with it, until its Followers goes. Throws what a rank's failure makes the group's calls throw.
void follow(const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks);

// The drawing rank has one as long as it makes engines. With one rank, and ranks that are not led, it does nothing.
class Followers {
 public:
  explicit Followers(const EngineRanks& ranks) : ranks_(ranks) {}
  ~Followers();
  Followers(const Followers&) = delete;
  Followers& operator=(const Followers&) = delete;

 private:
  const EngineRanks ranks_;
};

}  // namespace megatron::inference
