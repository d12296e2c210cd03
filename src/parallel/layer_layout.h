// Which layers of a model lie on which virtual stage of the pipeline.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/schedule.h"

namespace megatron::parallel {

// What one chunk of one stage holds of a model of `num_layers` layers in a row.
struct ModelPart {
  int64_t first_layer = 0, layers = 0;
  bool embedding = true, head = true;  // head: final norm, output layer and loss
  bool operator==(const ModelPart&) const = default;
};

// How layers are given out; flags of Megatron-LM.
struct LayerPlacement {
  std::optional<int64_t> first_stage_layers;  // --decoder-first-pipeline-num-layers
  std::optional<int64_t> last_stage_layers;   // --decoder-last-pipeline-num-layers
  bool count_embedding = false;  // --account-for-embedding-in-pipeline-split: as one layer
  bool count_loss = false;       // --account-for-loss-in-pipeline-split
  std::string layout;            // --pipeline-model-parallel-layout, "Et*3|(tt|)*29,m|L"; "": none
  bool uneven = false;           // layers that cannot be divided evenly are, as evenly as can be
};

// The parts by virtual stage (PipelineShape::virtual_stage), shape.virtual_stages() of them. Throws Error naming the
// numbers and the flags where the layers do not fit; of a layout, the character and its place.
std::vector<ModelPart> place_layers(int64_t num_layers, const PipelineShape& shape,
                                    const LayerPlacement& placement);

// The number of virtual stages that a layout string describes.
int virtual_stages_of_layout(const std::string& layout);

}  // namespace megatron::parallel
