// The families whose models GptModel composes: what each says of config.json and of its tensors.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "models/gpt/config.h"
#include "parallel/placement.h"

namespace megatron::models {

struct GptFamily {
  std::string_view name;  // model_type of its config.json
  // Not final. Throws Error naming the key and the value that is not supported.
  GptConfig (*read)(const Json& config);
  // The keys that transformers 5 writes, of a shape that it holds.
  Json (*write)(const GptConfig& config, DType stored);
  // Why its config.json cannot hold the shape, naming flags; empty: it can.
  std::string (*why_not)(const GptConfig& config);
  // Whether it has a name for every tensor of the shape.
  bool (*names)(const GptConfig& config);
  // The tensors that a parameter of GptModel consists of, in their layout on disk.
  std::vector<parallel::CanonicalTensor> (*parts)(const GptConfig& config,
                                                  const std::string& parameter, const Shape& shape);
  // Flags, and the keys that say the same. One that begins another one's name comes after it.
  struct Key {
    std::string_view flag, key;
  };
  std::span<const Key> keys;
};

extern const GptFamily kGpt2, kLlama;

// Of the config.json that the shape came from; of one that flags gave the first that can hold it,
// else the first that has names for its tensors.
const GptFamily& family_of(const GptConfig& config);

// Final. Throws Error naming the key and the value that is not supported.
GptConfig read_config(const GptFamily& family, const Json& config);
// Throws Error where the family cannot hold the shape, naming what stands in the way.
Json write_config(const GptConfig& config, DType stored);
parallel::Placement placement_of(const GptConfig& config, const std::string& parameter,
                                 const Shape& shape);

}  // namespace megatron::models
