#include "parallel/process_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/json.h"

namespace megatron::parallel {
namespace {

using Lists = std::vector<std::vector<int>>;

std::vector<int> list_of(const Json& json) {
  std::vector<int> list;
  for (const Json& rank : json.as_array()) list.push_back(static_cast<int>(rank.as_integer()));
  return list;
}

Lists lists_of(const Json& json) {
  Lists lists;
  for (const Json& group : json.as_array()) lists.push_back(list_of(group));
  return lists;
}

int number(const Json& entry, std::string_view key, int absent) {
  const Json* found = entry.find(key);
  return found == nullptr ? absent : static_cast<int>(found->as_integer());
}

Layout layout_of(const Json& entry) {
  Layout layout;
  layout.tp = number(entry, "tp", 1);
  layout.cp = number(entry, "cp", 1);
  layout.ep = number(entry, "ep", 1);
  layout.pp = number(entry, "pp", 1);
  layout.etp = number(entry, "etp", 0);
  layout.instances = number(entry, "instances", 1);
  layout.weight_shards = number(entry, "gtp", 1);
  layout.expert_weight_shards = number(entry, "egtp", 1);
  layout.hybrid_cp = entry.contains("hybrid_cp");
  if (entry.contains("hcp")) layout.hierarchical_cp = list_of(entry["hcp"]);
  if (entry.contains("order")) layout.order = entry["order"].as_string();
  return layout;
}

// The cases that have groups here: fewer than the file's by the refused ones.
void each_case(const std::function<void(const Json&, const Layout&, int world)>& body) {
  const Json file = Json::read(MEGATRON_GOLDEN "/groups/groups.json");
  for (const Json& entry : file.as_array()) {
    const Layout layout = layout_of(entry);
    if (entry.contains("error") || layout.weight_shards > 1 || layout.expert_weight_shards > 1)
      continue;
    body(entry, layout, number(entry, "world", 0));
  }
}

TEST(ProcessGroups, AreMegatrons) {
  int cases = 0;
  each_case([&](const Json& entry, const Layout& layout, int world) {
    const std::vector<ProcessGroups> groups = process_groups(layout, world);
    const auto& order = entry["creation_order"].as_array();
    ASSERT_EQ(groups.size(), order.size()) << entry.dump().substr(0, 100);
    size_t created = 0;
    for (size_t i = 0; i < groups.size(); ++i) {
      EXPECT_EQ(groups[i].name, order[i].as_string());
      EXPECT_EQ(groups[i].ranks, lists_of(entry["groups"][groups[i].name]))
          << groups[i].name << " of " << entry.dump().substr(0, 100);
      created += groups[i].ranks.size();
    }
    EXPECT_EQ(static_cast<int>(created), number(entry, "creation_count", 0));
    ++cases;
  });
  EXPECT_EQ(cases, 52);
}

// What one rank sees: the group of each name that it is in.
using Groups = std::map<std::string, std::vector<int>>;

Groups groups_of(const std::vector<ProcessGroups>& all, int rank) {
  Groups result;
  for (const ProcessGroups& groups : all) {
    for (const std::vector<int>& list : groups.ranks) {
      if (std::find(list.begin(), list.end(), rank) != list.end()) result[groups.name] = list;
    }
  }
  return result;
}

int place(const std::vector<int>& list, int rank) {
  return static_cast<int>(std::find(list.begin(), list.end(), rank) - list.begin());
}

const std::map<std::string, std::vector<std::string>> kKinds = {
    // the first of these names that there is
    {"tp", {"TENSOR_MODEL_PARALLEL_GROUP"}},
    {"pp", {"PIPELINE_MODEL_PARALLEL_GROUP"}},
    {"dp", {"DATA_PARALLEL_GROUP"}},
    {"dp_cp", {"DATA_PARALLEL_GROUP_WITH_CP"}},
    {"dp_cp_partial", {"INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "DATA_PARALLEL_GROUP_WITH_CP"}},
    {"cp", {"CONTEXT_PARALLEL_GROUP"}},
    {"mp", {"MODEL_PARALLEL_GROUP"}},
    {"tp_dp", {"TENSOR_AND_DATA_PARALLEL_GROUP"}},
    {"tp_dp_cp", {"TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP"}},
    {"tp_cp", {"TENSOR_AND_CONTEXT_PARALLEL_GROUP"}},
    {"embedding", {"EMBEDDING_GROUP"}},
    {"position_embedding", {"POSITION_EMBEDDING_GROUP"}},
    {"ep", {"EXPERT_MODEL_PARALLEL_GROUP"}},
    {"etp", {"EXPERT_TENSOR_PARALLEL_GROUP"}},
    {"etp_ep", {"EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP"}},
    {"etp_ep_pp", {"EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP"}},
    {"edp", {"EXPERT_DATA_PARALLEL_GROUP"}},
    {"edp_partial", {"HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L0", "EXPERT_DATA_PARALLEL_GROUP"}},
    {"inter_dist_opt_instance", {"HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1"}},
    {"intra_dist_opt_instance", {"INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP"}}};

std::vector<int> of_kind(const Groups& groups, const std::string& kind) {
  for (const std::string& name : kKinds.at(kind)) {
    if (groups.count(name) > 0) return groups.at(name);
  }
  return {};
}

void compare_view(const Json& view, const Groups& groups, int rank, const Layout& layout) {
  for (const auto& [kind, names] : kKinds) {
    const Json& expected = view[kind];
    EXPECT_EQ(of_kind(groups, kind), expected.is_null() ? std::vector<int>() : list_of(expected))
        << kind << " of rank " << rank;
  }
  for (const auto& [kind, coordinate] : view["coords"].as_object())
    EXPECT_EQ(place(of_kind(groups, kind), rank), coordinate.as_integer()) << kind;
  const std::vector<int> stages = of_kind(groups, "pp");
  const int stage = place(stages, rank), count = static_cast<int>(stages.size());
  EXPECT_EQ(stage == 0, view["first_stage"].as_bool());
  EXPECT_EQ(stage == count - 1, view["last_stage"].as_bool());
  EXPECT_EQ(stages[static_cast<size_t>((stage + 1) % count)], view["pp_next"].as_integer());
  EXPECT_EQ(stages[static_cast<size_t>((stage + count - 1) % count)], view["pp_prev"].as_integer());
  EXPECT_EQ(groups.count("EMBEDDING_GROUP") == 1, view["in_embedding_group"].as_bool());
  EXPECT_EQ(groups.count("POSITION_EMBEDDING_GROUP") == 1,
            view["in_position_embedding_group"].as_bool());
  for (size_t i = 0; i < layout.hierarchical_cp.size(); ++i) {
    EXPECT_EQ(groups.at("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L" + std::to_string(i)),
              list_of(view["hierarchical_cp"].as_array()[i]));
  }
  if (!layout.hybrid_cp) return;
  for (const auto& [size, list] : view["hybrid_dp_cp"].as_object()) {
    const auto found = groups.find("HYBRID_DP_CP_GROUP_" + size);
    if (found == groups.end()) continue;
    EXPECT_EQ(found->second, list_of(list)) << size;
  }
}

TEST(ProcessGroups, OfEachRankAreMegatrons) {
  int views = 0;
  each_case([&](const Json& entry, const Layout& layout, int world) {
    const std::vector<ProcessGroups> all = process_groups(layout, world);
    const Json& list = entry["views"];
    const auto compare = [&](const Json& view, int rank) {
      compare_view(view, groups_of(all, rank), rank, layout);
      ++views;
    };
    if (list.is_array()) {
      for (int rank = 0; rank < world; ++rank)
        compare(list.as_array()[static_cast<size_t>(rank)], rank);
    } else {
      for (const auto& [rank, view] : list.as_object()) compare(view, std::stoi(rank));
    }
    if (!entry.contains("coords")) return;
    for (int rank = 0; rank < world; ++rank) {
      const Groups groups = groups_of(all, rank);
      for (const auto& [kind, place_there] :
           entry["coords"].as_array()[static_cast<size_t>(rank)].as_object())
        EXPECT_EQ(place(of_kind(groups, kind), rank), place_there.as_integer()) << kind;
    }
  });
  EXPECT_EQ(views, 498);
}

TEST(ProcessGroups, WhatMegatronRefusesIsRefused) {
  int refused = 0;
  const Json file = Json::read(MEGATRON_GOLDEN "/groups/groups.json");
  for (const Json& entry : file.as_array()) {
    if (entry.contains("vpp")) continue;  // of the pipeline, not of the mesh
    const Layout layout = layout_of(entry);
    if (entry.contains("error") || layout.weight_shards > 1 || layout.expert_weight_shards > 1) {
      EXPECT_THROW(process_groups(layout, number(entry, "world", 0)), Error) << entry.dump();
      ++refused;
    }
  }
  EXPECT_EQ(refused, 15);
}

}  // namespace
}  // namespace megatron::parallel
