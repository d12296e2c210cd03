#include "inference/constraint/character_graph.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "inference/constraint/interned_lists.h"

namespace megatron::inference {

using tokenizers::CharacterSet;

bool CharacterGraph::Before::operator()(const CharacterSet& a, const CharacterSet& b) const {
  return std::ranges::lexicographical_compare(a.ranges(), b.ranges(), [](auto one, auto other) {
    return std::pair(one.first, one.last) < std::pair(other.first, other.last);
  });
}

int32_t CharacterGraph::add_state() {
  if (states() == kMaximumStates)
    throw GrammarLimit(
        fmt::format("it needs more than {} states; lower its counts of repeats", kMaximumStates));
  edges_.emplace_back();
  empties_.emplace_back();
  return static_cast<int32_t>(states()) - 1;
}

void CharacterGraph::add_set(int32_t from, int32_t to, const CharacterSet& set) {
  const auto [found, is_new] = known_.try_emplace(set, static_cast<uint32_t>(sets_.size()));
  if (is_new) {
    sets_.push_back(set);
    uses_.push_back(0);
  }
  ++uses_[found->second];
  edges_[static_cast<size_t>(from)].push_back({to, found->second});
}

void CharacterGraph::add_empty(int32_t from, int32_t to) {
  empties_[static_cast<size_t>(from)].push_back(to);
}

std::vector<int32_t> CharacterGraph::closure(std::vector<int32_t> states) const {
  NumberSet seen;
  for (const int32_t state : states) seen.insert(static_cast<uint64_t>(state));
  for (size_t i = 0; i < states.size(); ++i) {
    for (const int32_t to : empties_[static_cast<size_t>(states[i])])
      if (seen.insert(static_cast<uint64_t>(to))) states.push_back(to);
  }
  std::ranges::sort(states);
  return states;
}

bool CharacterGraph::contains(std::string_view text, size_t& steps) const {
  std::vector<int32_t> states = closure({kStart});
  for (size_t at = 0; at < text.size(); at += static_cast<size_t>(character_size(text[at]))) {
    const char32_t c = character_at(text, at);
    std::vector<int32_t> next;
    steps += 1 + states.size();
    for (const int32_t state : states) {
      for (const Edge& edge : edges_[static_cast<size_t>(state)])
        if (sets_[edge.set].contains(c)) next.push_back(edge.to);
    }
    std::ranges::sort(next);
    next.erase(std::ranges::unique(next).begin(), next.end());
    states = closure(std::move(next));
  }
  return std::ranges::binary_search(states, kFinal);
}

CharacterGraph CharacterGraph::all_but(std::span<const std::string_view> texts) {
  struct Node {
    std::map<char32_t, size_t> next;
    bool is_text = false;
  };
  std::vector<Node> tree(1);
  for (const std::string_view text : texts) {
    size_t node = 0;
    for (size_t at = 0; at < text.size(); at += static_cast<size_t>(character_size(text[at]))) {
      const auto [found, is_new] = tree[node].next.try_emplace(character_at(text, at), tree.size());
      node = found->second;
      if (is_new) tree.emplace_back();
    }
    tree[node].is_text = true;
  }
  CharacterGraph graph;
  const CharacterSet any(0, CharacterSet::kLast);
  const int32_t free = graph.add_state();
  graph.add_set(free, free, any);
  graph.add_empty(free, kFinal);
  std::vector<int32_t> state_of = {kStart};
  while (state_of.size() < tree.size()) state_of.push_back(graph.add_state());
  for (size_t i = 0; i < tree.size(); ++i) {
    CharacterSet others;
    for (const auto& [c, next] : tree[i].next) {
      others.add(c, c);
      graph.add_set(state_of[i], state_of[next], {c, c});
    }
    others.complement();
    graph.add_set(state_of[i], free, others);
    if (!tree[i].is_text) graph.add_empty(state_of[i], kFinal);
  }
  return graph;
}

// Places in all graphs at once, and the number of characters read so far (no further than any
// bound needs to know).
class CharacterGraph::Product {
 public:
  Product(std::span<const CharacterGraph> graphs, int64_t minimum, int64_t maximum, size_t& steps)
      : graphs_(graphs),
        minimum_(minimum),
        maximum_(maximum),
        closures_(graphs.size()),
        steps_(steps) {
    for (size_t i = 0; i < graphs.size(); ++i) closures_[i].resize(graphs[i].states());
  }

  CharacterGraph build() {
    state_of_[Place(graphs_.size() + 1, kStart)] = kStart;
    queue_.push_back(Place(graphs_.size() + 1, kStart));
    while (!queue_.empty()) {
      const Place place = std::move(queue_.back());
      queue_.pop_back();
      expand(place, state_of_.at(place));
    }
    return std::move(result_);
  }

 private:
  using Place = std::vector<int32_t>;  // a state of each graph, then the count

  void spend(size_t steps) {
    if ((steps_ += steps) > kMaximumSteps)
      throw GrammarLimit(
          fmt::format("combining patterns and lengths takes more than {} steps; lower their "
                      "bounds, or express the length in the pattern",
                      kMaximumSteps));
  }

  const std::vector<int32_t>& closure_of(size_t graph, int32_t state) {
    std::vector<int32_t>& found = closures_[graph][static_cast<size_t>(state)];
    if (found.empty()) found = graphs_[graph].closure({state});
    spend(found.size());
    return found;
  }

  void expand(const Place& place, int32_t state) {
    const int64_t count = place.back();
    bool ends = count >= minimum_;
    for (size_t i = 0; i < graphs_.size(); ++i)
      ends = ends && std::ranges::binary_search(closure_of(i, place[i]), kFinal);
    if (ends) result_.add_empty(state, kFinal);
    if (maximum_ >= 0 && count == maximum_) return;
    Place next(place.size());
    const int64_t bound = maximum_ >= 0 ? maximum_ : minimum_;
    next.back() = static_cast<int32_t>(std::min(count + 1, bound));
    follow(place, 0, CharacterSet(0, CharacterSet::kLast), next, state);
  }

  // Edges of the graphs from `graph` on that read characters of `set`.
  void follow(const Place& place, size_t graph, const CharacterSet& set, Place& next,
              int32_t state) {
    if (graph == graphs_.size()) {
      const auto [found, is_new] = state_of_.try_emplace(next, 0);
      if (is_new) {
        found->second = result_.add_state();
        queue_.push_back(next);
      }
      return result_.add_set(state, found->second, set);
    }
    const CharacterGraph& of = graphs_[graph];
    for (const int32_t from : closure_of(graph, place[graph])) {
      for (const Edge& edge : of.edges_[static_cast<size_t>(from)]) {
        CharacterSet both = of.sets_[edge.set];
        if (graph > 0) both.intersect(set);
        spend(1 + (graph > 0 ? both.ranges().size() : 0));
        if (both.empty()) continue;
        next[graph] = edge.to;
        follow(place, graph + 1, both, next, state);
      }
    }
  }

  std::span<const CharacterGraph> graphs_;
  int64_t minimum_, maximum_;
  std::vector<std::vector<std::vector<int32_t>>> closures_;  // by graph and state
  std::map<Place, int32_t> state_of_;
  std::vector<Place> queue_;
  CharacterGraph result_;
  size_t& steps_;
};

CharacterGraph CharacterGraph::intersection(std::span<const CharacterGraph> graphs, int64_t minimum,
                                            int64_t maximum, size_t& steps) {
  return Product(graphs, minimum, maximum, steps).build();
}

void CharacterGraph::emit(Network& network, int32_t from, int32_t to, Spelling spelling) const {
  std::vector<int32_t> state_of = {from, to};
  while (state_of.size() < states()) state_of.push_back(network.add_state());
  // One-byte characters get edges of their own. Longer characters get a rule if their set is used
  // more than once.
  CharacterSet plain(spelling == Spelling::json ? 0x20 : 0, 0x7f), unusual('"', '"');
  unusual.add('\\', '\\');
  unusual.complement();
  if (spelling == Spelling::json) plain.intersect(unusual);
  CharacterSet rest = plain;
  rest.complement();
  std::map<uint32_t, int32_t> rules;
  const auto add = [&](int32_t begin, int32_t end, uint32_t id) {
    if (uses_[id] == 1) return add_characters(network, begin, end, sets_[id], spelling);
    CharacterSet bytes = sets_[id], others = sets_[id];
    bytes.intersect(plain);
    others.intersect(rest);
    add_characters(network, begin, end, bytes, spelling);
    if (others.empty()) return;
    const auto [found, is_new] = rules.try_emplace(id, 0);
    if (is_new) {
      found->second = network.add_rule();
      const Network::Rule rule = network.rules()[static_cast<size_t>(found->second)];
      add_characters(network, rule.start, rule.final, others, spelling);
    }
    network.add_call(begin, end, found->second);
  };
  for (size_t i = 0; i < states(); ++i) {
    for (const Edge& edge : edges_[i])
      add(state_of[i], state_of[static_cast<size_t>(edge.to)], edge.set);
    for (const int32_t next : empties_[i])
      network.add_empty(state_of[i], state_of[static_cast<size_t>(next)]);
  }
}

}  // namespace megatron::inference
