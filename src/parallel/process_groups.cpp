#include "parallel/process_groups.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"

namespace megatron::parallel {

namespace {

using Lists = std::vector<std::vector<int>>;

// Each list cut into pieces of `size` neighbours; the last one has what is left.
Lists chunks(const Lists& lists, size_t size) {
  Lists result;
  for (const std::vector<int>& list : lists) {
    for (size_t begin = 0; begin < list.size(); begin += size) {
      const auto first = list.begin() + static_cast<std::ptrdiff_t>(begin);
      result.emplace_back(first,
                          first + static_cast<std::ptrdiff_t>(std::min(size, list.size() - begin)));
    }
  }
  return result;
}

// The groups of one level of a hierarchy: of each list, seen as [above][size][below], those along
// the middle axis.
Lists level(const Lists& lists, size_t below, size_t size) {
  Lists result;
  for (const std::vector<int>& list : lists) {
    for (size_t block = 0; block < list.size(); block += below * size) {
      for (size_t i = 0; i < below; ++i) {
        std::vector<int>& group = result.emplace_back();
        for (size_t j = 0; j < size; ++j) group.push_back(list[block + i + j * below]);
      }
    }
  }
  return result;
}

Lists ends(const Lists& pipelines) {
  Lists result;
  for (const std::vector<int>& stages : pipelines) {
    result.push_back({stages.front()});
    if (stages.size() > 1) result.back().push_back(stages.back());
  }
  return result;
}

Lists firsts(const Lists& pipelines) {
  Lists result;
  for (const std::vector<int>& stages : pipelines) result.push_back({stages.front()});
  return result;
}

// Lists side by side, `count` of the result.
Lists united(const Lists& lists, size_t count) {
  Lists result(count);
  for (size_t i = 0; i < lists.size(); ++i) {
    std::vector<int>& group = result[i / (lists.size() / count)];
    group.insert(group.end(), lists[i].begin(), lists[i].end());
  }
  return result;
}

class Maker {
 public:
  Maker(const Layout& layout, int world) : layout_(layout), world_(world) {}

  std::vector<ProcessGroups> make() {
    add("GTP_WEIGHT_REMAT_GROUP", dense({}));
    data();
    dense_groups();
    expert_groups();
    return std::move(groups_);
  }

 private:
  Lists dense(AxisSet axes) const { return rank_lists(layout_, world_, axes); }
  Lists expert(AxisSet axes) const { return rank_lists(layout_, world_, axes, true); }
  void add(std::string name, Lists lists) {
    groups_.push_back({std::move(name), std::move(lists)});
  }
  size_t instances() const { return static_cast<size_t>(layout_.instances); }

  void data() {
    const Lists all = dense({Axis::dp, Axis::cp});
    add("DATA_PARALLEL_GROUP_WITH_CP", all);
    if (instances() > 1)
      add("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", chunks(all, all[0].size() / instances()));
    if (layout_.hybrid_cp) {
      for (size_t size = 2; size * 2 <= all[0].size(); size *= 2)
        add(fmt::format("HYBRID_DP_CP_GROUP_{}", size), chunks(all, size));
    }
    add("DATA_PARALLEL_GROUP", dense(Axis::dp));
  }

  void dense_groups() {
    const Lists contexts = dense(Axis::cp), pipelines = dense(Axis::pp);
    add("CONTEXT_PARALLEL_GROUP", contexts);
    size_t below = 1;
    for (size_t i = 0; i < layout_.hierarchical_cp.size(); ++i) {
      const auto size = static_cast<size_t>(layout_.hierarchical_cp[i]);
      add(fmt::format("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{}", i), level(contexts, below, size));
      below *= size;
    }
    add("MODEL_PARALLEL_GROUP", dense({Axis::tp, Axis::pp}));
    add("TENSOR_MODEL_PARALLEL_GROUP", dense(Axis::tp));
    add("PIPELINE_MODEL_PARALLEL_GROUP", pipelines);
    add("EMBEDDING_GROUP", ends(pipelines));
    add("POSITION_EMBEDDING_GROUP", firsts(pipelines));
    add("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", dense({Axis::tp, Axis::dp, Axis::cp}));
    add("TENSOR_AND_DATA_PARALLEL_GROUP", dense({Axis::tp, Axis::dp}));
    add("TENSOR_AND_CONTEXT_PARALLEL_GROUP", dense({Axis::tp, Axis::cp}));
  }

  void expert_groups() {
    const Lists whole = expert({Axis::tp, Axis::ep, Axis::pp}), replicas = expert(Axis::dp);
    add("EXPERT_GTP_WEIGHT_REMAT_GROUP", expert({}));
    add("EXPERT_MODEL_PARALLEL_GROUP", expert(Axis::ep));
    add("EXPERT_TENSOR_PARALLEL_GROUP", expert(Axis::tp));
    add("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", expert({Axis::tp, Axis::ep}));
    add("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", whole);
    add("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP_WITH_EGTP", whole);
    add("EXPERT_DATA_PARALLEL_GROUP", replicas);
    if (instances() > 1) {
      const size_t shards = replicas[0].size() / instances();
      add("HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L0", level(replicas, 1, shards));
      add("HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1", level(replicas, shards, instances()));
    }
    add("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", united(whole, instances()));
  }

  const Layout& layout_;
  int world_;
  std::vector<ProcessGroups> groups_;
};

}  // namespace

std::vector<ProcessGroups> process_groups(const Layout& layout, int world) {
  return Maker(layout, world).make();
}

}  // namespace megatron::parallel
