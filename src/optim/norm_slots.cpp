#include "optim/norm_slots.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <unordered_map>

#include "base/error.h"
#include "base/philox.h"

namespace megatron::optim {
namespace {

// Description of a rank's parameter that the other ranks receive.
struct Described {
  int64_t name = 0;      // hash of the name
  int64_t layer = -1;    // that first uses it: the number in its name, if it has one use
  int64_t elements = 0;  // in this rank's slice
  int64_t first = 0;     // ParameterSpec::first_element(), which differs between slices
  int64_t detached = 0;  // 1: ParameterSpec::detached
};
constexpr size_t kNumbers = 5;

// First part of the name, between dots, that is a number.
int64_t layer_of(std::string_view name) {
  while (!name.empty()) {
    const size_t dot = std::min(name.find('.'), name.size());
    const std::string_view part = name.substr(0, dot);
    const bool digits = !part.empty() && part.size() < 10 &&
                        std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (digits) return std::stoll(std::string(part));
    name.remove_prefix(std::min(dot + 1, name.size()));
  }
  return -1;
}

std::vector<Described> described(std::span<const parallel::Shard> shards) {
  std::vector<Described> all;
  for (const parallel::Shard& shard : shards) {
    const parallel::ParameterSpec& placed = *shard.placed;
    all.push_back(
        {.name = static_cast<int64_t>(hash_name(placed.parameter.name)),
         .layer = placed.used_in.empty() ? layer_of(placed.parameter.name) : placed.used_in.front(),
         .elements = placed.parameter.value.elements(),
         .first = placed.first_element(),
         .detached = placed.detached ? 1 : 0});
  }
  return all;
}

std::vector<int64_t> gathered(const std::vector<int64_t>& mine, comm::Group& group,
                              Runtime& runtime, std::string_view call) {
  Stream& stream = runtime.stream();
  const auto n = static_cast<int64_t>(mine.size());
  const Tensor in = Tensor::empty(stream.scratch(), {n}, DType::i64, call);
  const Tensor out = Tensor::empty(stream.scratch(), {n * group.size()}, DType::i64, call);
  copy_bytes_from(in, std::as_bytes(std::span(mine)));
  group.all_gather(in, out, stream, call).wait(stream);
  stream.synchronize();
  std::vector<int64_t> all(static_cast<size_t>(out.elements()));
  copy_bytes_to(out, std::as_writable_bytes(std::span(all)));
  return all;
}

// Slots of each rank.
std::vector<std::vector<Described>> of_all_ranks(const std::vector<Described>& mine,
                                                 comm::Group& group, Runtime& runtime) {
  const std::vector<int64_t> counts =
      gathered({static_cast<int64_t>(mine.size())}, group, runtime, "norm.counts");
  const auto most = static_cast<size_t>(*std::ranges::max_element(counts));
  std::vector<int64_t> numbers;
  numbers.reserve(most * kNumbers);
  for (const Described& t : mine) {
    for (const int64_t number : {t.name, t.layer, t.elements, t.first, t.detached})
      numbers.push_back(number);
  }
  numbers.resize(most * kNumbers);
  const std::vector<int64_t> all = gathered(numbers, group, runtime, "norm.parameters");
  std::vector<std::vector<Described>> lists(counts.size());
  for (size_t r = 0; r < counts.size(); ++r) {
    const int64_t* n = all.data() + r * most * kNumbers;
    for (int64_t i = 0; i < counts[r]; ++i, n += kNumbers)
      lists[r].push_back({n[0], n[1], n[2], n[3], n[4]});
  }
  return lists;
}

// Merges names into an order that is consistent with every list; if the lists leave it open, by
// layer.
std::vector<int64_t> merged(const std::vector<std::vector<Described>>& lists) {
  struct Node {
    int64_t layer = -1;
    int before = 0;
    std::vector<int64_t> after;
  };
  std::unordered_map<int64_t, Node> nodes;
  std::vector<std::vector<int64_t>> seen;
  for (const std::vector<Described>& list : lists) {
    std::vector<int64_t> names;
    for (const Described& t : list) names.push_back(t.name);
    if (std::ranges::find(seen, names) != seen.end()) continue;  // of the same stage
    for (size_t i = 0; i < list.size(); ++i) {
      nodes[list[i].name].layer = list[i].layer;
      if (i == 0) continue;
      nodes[names[i - 1]].after.push_back(names[i]);
      ++nodes[names[i]].before;
    }
    seen.push_back(std::move(names));
  }
  using Ready = std::pair<int64_t, int64_t>;  // layer, name
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  for (const auto& [name, node] : nodes)
    if (node.before == 0) ready.emplace(node.layer, name);
  std::vector<int64_t> order;
  while (!ready.empty()) {
    const int64_t name = ready.top().second;
    ready.pop();
    order.push_back(name);
    for (const int64_t next : nodes[name].after)
      if (--nodes[next].before == 0) ready.emplace(nodes[next].layer, next);
  }
  MG_ASSERT(order.size() == nodes.size());
  return order;
}

}  // namespace

NormSlots norm_slots(std::span<const parallel::Shard> all, comm::Group* norm, Runtime& runtime) {
  const auto counts = [](const parallel::Shard& s) {
    return s.placed->parameter.trainable && s.counted;
  };
  std::vector<parallel::Shard> shards;
  std::ranges::copy_if(all, std::back_inserter(shards), counts);
  const std::vector<Described> mine = described(shards);
  const bool several = norm != nullptr && norm->size() > 1;
  const bool exchanges = several && runtime.device().has_data();
  const std::vector<std::vector<Described>> lists =
      exchanges ? of_all_ranks(mine, *norm, runtime) : std::vector<std::vector<Described>>{mine};

  std::unordered_map<int64_t, std::map<int64_t, int64_t>> slices;  // name -> first -> elements
  std::unordered_map<int64_t, int64_t> detached;                   // by name
  for (const std::vector<Described>& list : lists) {
    for (const Described& t : list) {
      slices[t.name][t.first] = t.elements;
      detached[t.name] = t.detached;
    }
  }
  std::map<std::pair<int64_t, int64_t>, int64_t> begins;  // index by {name, first}
  NormSlots slots;
  std::vector<int64_t> order = merged(lists);
  std::ranges::stable_partition(order, [&](int64_t name) { return detached[name] == 0; });
  for (const int64_t name : order) {
    for (const auto& [first, elements] : slices[name]) {
      begins[{name, first}] = slots.total;
      slots.total += blocks_of(elements);
      if (detached[name] != 0) slots.detached += blocks_of(elements);
    }
  }
  size_t index = 0;
  for (const parallel::Shard& shard : all) {
    slots.first.push_back(-1);
    if (!counts(shard)) continue;
    const Described& own = mine[index++];
    if (shard.size() == 0) continue;
    MG_ASSERT(shard.begin % kernels::kNormBlock == 0);
    slots.first.back() = begins[{own.name, own.first}] + shard.begin / kernels::kNormBlock;
  }
  if (several && !exchanges) {
    slots.total *= norm->size();
    slots.detached *= norm->size();
  }
  return slots;
}

}  // namespace megatron::optim
