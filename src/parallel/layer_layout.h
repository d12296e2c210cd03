// Assignment of a model's layers to the virtual stages of the pipeline.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/schedule.h"

namespace megatron::parallel {

// Part of a model of `num_layers` consecutive layers that one chunk of a stage holds.
struct ModelPart {
  int64_t first_layer = 0, layers = 0;
  bool embedding = true, head = true;  // head: output layer and loss, and the norm before them
  // Where the depths of multi-token prediction are, if the model has any: with the head; in this
  // part, which is before the head's; or in a part before this one. The final norm is in the same
  // part.
  enum class Predictions { with_head, here, earlier } predictions = Predictions::with_head;
  bool has_predictions() const {
    return predictions == Predictions::here || (predictions == Predictions::with_head && head);
  }
  bool operator==(const ModelPart&) const = default;
};

// Distribution of layers over stages; flags of Megatron-LM.
struct LayerPlacement {
  std::optional<int64_t> first_stage_layers;  // --decoder-first-pipeline-num-layers
  std::optional<int64_t> last_stage_layers;   // --decoder-last-pipeline-num-layers
  bool count_embedding = false;  // --account-for-embedding-in-pipeline-split: as one layer
  bool count_loss = false;       // --account-for-loss-in-pipeline-split
  std::string layout;            // --pipeline-model-parallel-layout, "Et*3|(tt|)*29,m|L"; "": none
  bool uneven = false;  // layers that do not divide evenly are divided as evenly as possible
};

// Returns the parts by virtual stage (PipelineShape::virtual_stage), shape.virtual_stages() of
// them. Throws Error naming the numbers and the flags if the layers do not fit; for a layout
// string, the character and its position.
std::vector<ModelPart> place_layers(int64_t num_layers, const PipelineShape& shape,
                                    const LayerPlacement& placement);

// The place of a parameter's use in the head (ParameterSpec::used_in).
inline constexpr int64_t kHeadPlace = std::numeric_limits<int64_t>::max();
// The pipeline stage of each of a parameter's uses (ParameterSpec::used_in). parts: by virtual
// stage.
std::vector<int> stages_of_uses(std::span<const int64_t> used_in, int64_t num_layers,
                                std::span<const ModelPart> parts, const PipelineShape& shape);

// Number of virtual stages in a layout string.
int virtual_stages_of_layout(const std::string& layout);
// Number of depths of multi-token prediction (m) in a layout string. Without such symbols they
// belong to the part with the head.
int64_t predictions_of_layout(const std::string& layout);

}  // namespace megatron::parallel
