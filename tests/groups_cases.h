// Layouts of golden/groups/groups.json, with the process groups that Megatron-LM makes for each.
#pragma once

#include "base/json.h"
#include "parallel/mesh.h"

namespace megatron::testing {

struct GroupsCase {
  parallel::Layout layout;
  int world = 0;
  bool refused = false;   // refused by Megatron-LM, or here: gtp_remat
  bool pipeline = false;  // tests the pipeline's chunks

  explicit GroupsCase(const Json& entry) {
    const auto number = [&](std::string_view key, int absent) {
      const Json* found = entry.find(key);
      return found == nullptr ? absent : static_cast<int>(found->as_integer());
    };
    layout.tp = number("tp", 1);
    layout.cp = number("cp", 1);
    layout.ep = number("ep", 1);
    layout.pp = number("pp", 1);
    layout.etp = number("etp", 0);
    layout.instances = number("instances", 1);
    layout.weight_shards = number("gtp", 1);
    layout.expert_weight_shards = number("egtp", 1);
    layout.hybrid_cp = entry.contains("hybrid_cp");
    if (const Json* levels = entry.find("hcp"); levels != nullptr) {
      for (const Json& level : levels->as_array())
        layout.hierarchical_cp.push_back(static_cast<int>(level.as_integer()));
    }
    if (entry.contains("order")) layout.order = entry["order"].as_string();
    world = number("world", 0);
    refused =
        entry.contains("error") || layout.weight_shards > 1 || layout.expert_weight_shards > 1;
    pipeline = entry.contains("vpp");
  }
};

}  // namespace megatron::testing
