// Engines that mirror the leading rank's engines.
#pragma once

#include "inference/engine_ranks.h"
#include "models/stage.h"

namespace megatron::inference {

// Called on each led rank except the sampling one: creates the engines that the sampling rank
// creates, one after the other, and steps them with it, until its Followers object is destroyed.
// Throws what the group's calls throw if a rank fails.
void follow(const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks);

// Held by the sampling rank as long as it creates engines. It does nothing with a single rank, or
// if the ranks are not led.
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
