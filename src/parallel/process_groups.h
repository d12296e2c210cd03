// Which process groups Megatron-LM makes of a layout, by its names.
#pragma once

#include <string>
#include <vector>

#include "parallel/mesh.h"

namespace megatron::parallel {

struct ProcessGroups {
  std::string name;                     // "TENSOR_MODEL_PARALLEL_GROUP"
  std::vector<std::vector<int>> ranks;  // of all groups of this name
};

// All of them in the order in which Megatron-LM creates them; a rank may be in none of a name. The
// groups of optimizer instances are there with Layout::instances above 1, those of a hierarchy with
// hierarchical_cp, those of 2, 4, ... ranks with hybrid_cp. Throws Error as rank_lists does.
std::vector<ProcessGroups> process_groups(const Layout& layout, int world);

}  // namespace megatron::parallel
