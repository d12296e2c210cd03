#include "parallel/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "groups_cases.h"

namespace megatron::parallel {
namespace {

using Lists = std::vector<std::vector<int>>;

Lists shifted_lists(const Json& json, int offset = 0) {
  Lists lists;
  for (const Json& group : json.as_array()) {
    lists.emplace_back();
    for (const Json& rank : group.as_array())
      lists.back().push_back(static_cast<int>(rank.as_integer()) - offset);
  }
  std::sort(lists.begin(),
            lists.end());  // here in ascending order of first rank, there in order of creation
  return lists;
}

int degree(const Json& entry, std::string_view key, int absent) {
  const Json* found = entry.find(key);
  return found == nullptr ? absent : static_cast<int>(found->as_integer());
}

// Returns the set for a name such as "dp-cp", in any order.
AxisSet axes_named(const std::string& tokens) {
  constexpr Axis kAll[] = {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp};
  const auto has = [&](Axis axis) { return tokens.find(name(axis)) != std::string::npos; };
  // An AxisSet is made from a list; an absent axis is replaced by one that is present.
  const Axis any = *std::find_if(std::begin(kAll), std::end(kAll), has);
  const auto pick = [&](Axis axis) { return has(axis) ? axis : any; };
  return {pick(Axis::tp), pick(Axis::cp), pick(Axis::ep), pick(Axis::dp), pick(Axis::pp)};
}

Layout degrees_of(const Json& entry) {
  Layout layout;
  layout.tp = degree(entry, "tp", 1);
  layout.cp = degree(entry, "cp", 1);
  layout.ep = degree(entry, "ep", 1);
  layout.pp = degree(entry, "pp", 1);
  layout.etp = degree(entry, "etp", 0);
  if (entry.contains("order")) layout.order = entry["order"].as_string();
  return layout;
}

std::string error_of(const Layout& layout, int world) {
  try {
    rank_lists(layout, world, Axis::tp);
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

TEST(RankLists, OfMegatronsRankGenerator) {
  const Json file = Json::read(MEGATRON_GOLDEN "/groups/rank_generator.json");
  int compared = 0;
  for (const Json& entry : file.as_array()) {
    const Layout layout = degrees_of(entry);
    const bool expert = layout.ep > 1;
    const int world = layout.tp * layout.cp * layout.ep * layout.pp * degree(entry, "dp", 1);
    if (entry.contains("gtp_remat")) {
      EXPECT_NE(error_of(layout, world).find("'gtp_remat'"), std::string::npos);
      continue;
    }
    if (entry.contains("error")) {
      // Megatron-LM refuses cp and ep in one generator. Here they are two views, so only its other
      // refusal applies.
      if (layout.ep > 1) continue;
      EXPECT_THROW(rank_lists(layout, world, Axis::tp), Error) << entry.dump();
      continue;
    }
    for (const auto& [tokens, groups] : entry["ranks"].as_object()) {
      EXPECT_EQ(rank_lists(layout, world, axes_named(tokens), expert),
                shifted_lists(groups, degree(entry, "rank_offset", 0)))
          << tokens << " of " << layout.order;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 5 * 13);
}

TEST(RankLists, WhatMegatronRefusesIsRefused) {
  int refused = 0;
  const Json file = Json::read(MEGATRON_GOLDEN "/groups/groups.json");
  for (const Json& entry : file.as_array()) {
    const testing::GroupsCase c(entry);
    if (c.pipeline || !c.refused) continue;
    EXPECT_THROW(rank_lists(c.layout, c.world, Axis::tp), Error) << entry.dump();
    ++refused;
  }
  EXPECT_EQ(refused, 15);
}

TEST(RankLists, EveryRankIsInOneGroup) {
  const Layout layout = {.tp = 2, .cp = 3, .ep = 6, .pp = 2, .etp = 1};
  for (const bool expert : {false, true}) {
    for (const AxisSet axes : {AxisSet(), AxisSet(Axis::dp), AxisSet{Axis::tp, Axis::pp}}) {
      std::set<int> seen;
      for (const auto& group : rank_lists(layout, 48, axes, expert))
        seen.insert(group.begin(), group.end());
      EXPECT_EQ(seen.size(), 48u);
    }
  }
}

TEST(RankLists, ErrorsNameNumbersAndDegrees) {
  const auto expect = [](const Layout& layout, int world,
                         std::initializer_list<std::string_view> parts) {
    const std::string text = error_of(layout, world);
    for (const auto part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
  };
  expect({.tp = 3}, 8, {"8 ranks", "--tensor-model-parallel-size 3", "--ranks"});
  expect({.tp = 2, .cp = 2, .pp = 4}, 8,
         {"8 ranks", "--context-parallel-size 2", "--pipeline-model-parallel-size 4"});
  expect({.ep = 3}, 8, {"8 ranks", "--expert-model-parallel-size 3"});
  expect({.tp = 2, .ep = 8}, 8, {"--expert-tensor-parallel-size 2 x --expert-model"});
  expect({.tp = 0}, 8, {"--tensor-model-parallel-size is 0"});
  expect({.pp = -1}, 8, {"--pipeline-model-parallel-size is -1"});
  expect({.etp = -2}, 8, {"--expert-tensor-parallel-size is -2"});
  expect({}, 0, {"--ranks is 0"});
  expect({.tp = 1 << 20, .cp = 1 << 20, .pp = 1 << 24}, 8, {"8 ranks cannot be divided"});
  expect({.cp = 2, .pp = 2, .order = "tp-cp-ep-pp-dp"}, 8,
         {"2 apart", "1 apart", "--context-parallel-size 2", "drop --use-tp-pp-dp-mapping"});
  expect({.instances = 0}, 8, {"--num-distributed-optimizer-instances is 0"});
  expect({.tp = 2, .instances = 3}, 8,
         {"--num-distributed-optimizer-instances 3", "4 data", "--tensor-model-parallel-size 2"});
  expect({.ep = 8, .instances = 4}, 16, {"2 data parallel ranks of experts"});
  expect({.cp = 4, .hierarchical_cp = {2, 4}}, 8, {"2 x 4", "--context-parallel-size 4"});
  expect({.cp = 4, .hierarchical_cp = {-2, -2}}, 8, {"has -2"});
  expect({.tp = 2, .hybrid_cp = true}, 6, {"--hybrid-context-parallel", "leave 3"});
  expect({.weight_shards = 2}, 8, {"--tensor-parallel-num-weight-shards is 2", "not supported"});
  expect({.expert_weight_shards = 2}, 8, {"--expert-tensor-parallel-num-weight-shards is 2"});
  expect({.order = "tp-xp"}, 1, {"'tp-xp'", "'xp'"});
  expect({.order = ""}, 1, {"''"});
  expect({.order = "tp-cp-tp"}, 1, {"contains tp twice"});
  expect({.cp = 2, .order = "tp-dp-pp"}, 2, {"cp degree is 2", "'tp-dp-pp'"});
}

}  // namespace
}  // namespace megatron::parallel
