#include "inference/constraint/network.h"

namespace megatron::inference {

Network::Network() { add_rule(); }

int32_t Network::add_state() {
  if (states_ == kMaximumStates)
    throw GrammarLimit(
        fmt::format("the grammar needs more than {} states; lower its limits on lengths, items and "
                    "repeats, or split it",
                    kMaximumStates));
  return states_++;
}

void Network::check_edges() const {
  if (edges_.size() + empties_.size() + calls_.size() < kMaximumEdges) return;
  throw GrammarLimit(
      fmt::format("the grammar needs more than {} edges; lower its limits on lengths, items and "
                  "repeats, or split it",
                  kMaximumEdges));
}

size_t Network::bytes() const {
  return sizeof(Rule) * rules_.capacity() + sizeof(Edge) * edges_.capacity() +
         sizeof(Empty) * empties_.capacity() + sizeof(Call) * calls_.capacity();
}

int32_t Network::add_rule() {
  const int32_t start = add_state();
  rules_.push_back({start, add_state()});
  return static_cast<int32_t>(rules_.size()) - 1;
}

void Network::add_bytes(int32_t from, int32_t to, uint8_t first, uint8_t last) {
  check_edges();
  edges_.push_back({from, to, first, last});
}

void Network::add_empty(int32_t from, int32_t to) {
  check_edges();
  empties_.push_back({from, to});
}

void Network::add_call(int32_t from, int32_t to, int32_t rule) {
  check_edges();
  calls_.push_back({from, rule, to});
}

void Network::add_text(int32_t from, int32_t to, std::string_view text) {
  if (text.empty()) return add_empty(from, to);
  for (size_t i = 0; i < text.size(); ++i) {
    const int32_t next = i + 1 == text.size() ? to : add_state();
    const auto byte = static_cast<uint8_t>(text[i]);
    add_bytes(from, next, byte, byte);
    from = next;
  }
}

std::vector<bool> Network::live(const Bytes& allowed) const {
  const auto keys = static_cast<size_t>(states_);
  std::vector<Empty> steps = empties_;  // edges of both kinds
  for (const Edge& edge : edges_) {
    bool usable = false;
    for (int b = edge.first; b <= edge.last; ++b) usable |= allowed[static_cast<size_t>(b)];
    if (usable) steps.push_back({edge.from, edge.to});
  }
  const Grouped<Empty> steps_to(keys, steps, [](const Empty& e) { return e.to; });
  const Grouped<Call> calls_to(keys, calls_, [](const Call& c) { return c.after; });
  const Grouped<Call> calls_of(rules_.size(), calls_, [](const Call& c) { return c.rule; });

  std::vector<bool> live(keys), is_start(keys);
  std::vector<int32_t> rule_of(keys), queue;
  const auto reach = [&](int32_t state) {
    if (live[static_cast<size_t>(state)]) return;
    live[static_cast<size_t>(state)] = true;
    queue.push_back(state);
  };
  for (size_t i = 0; i < rules_.size(); ++i) {
    is_start[static_cast<size_t>(rules_[i].start)] = true;
    rule_of[static_cast<size_t>(rules_[i].start)] = static_cast<int32_t>(i);
    reach(rules_[i].final);
  }
  const auto is_live = [&](int32_t state) { return live[static_cast<size_t>(state)]; };
  while (!queue.empty()) {
    const int32_t state = queue.back();
    queue.pop_back();
    for (const Empty& step : steps_to[state]) reach(step.from);
    for (const Call& call : calls_to[state]) {
      if (is_live(rules_[static_cast<size_t>(call.rule)].start)) reach(call.from);
    }
    if (!is_start[static_cast<size_t>(state)]) continue;
    for (const Call& call : calls_of[rule_of[static_cast<size_t>(state)]]) {
      if (is_live(call.after)) reach(call.from);
    }
  }
  return live;
}

}  // namespace megatron::inference
