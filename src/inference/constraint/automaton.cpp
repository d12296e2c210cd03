#include "inference/constraint/automaton.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace megatron::inference {

using tokenizers::Joining;

Automaton::Automaton(const Network& network, std::shared_ptr<const TokenBytes> tokens)
    : tokens_(std::move(tokens)), rules_(network.rules()) {
  const std::vector<bool> live = network.live(tokens_->single());
  const auto is_live = [&](int32_t state) { return bool{live[static_cast<size_t>(state)]}; };
  const auto states = static_cast<size_t>(network.states());

  // Drops edges that lead nowhere, and bytes that are not tokens.
  std::vector<Network::Edge> byte_edges;
  for (const Network::Edge& edge : network.edges()) {
    if (!is_live(edge.to)) continue;
    for (int b = edge.first; b <= edge.last; ++b) {
      if (!tokens_->single()[static_cast<size_t>(b)]) continue;
      const int first = b;
      while (b < edge.last && tokens_->single()[static_cast<size_t>(b) + 1]) ++b;
      byte_edges.push_back(
          {edge.from, edge.to, static_cast<uint8_t>(first), static_cast<uint8_t>(b)});
    }
  }
  find_classes(byte_edges);
  std::vector<Edge> edges;
  for (const Network::Edge& edge : byte_edges)
    edges.push_back({edge.from, edge.to, class_of_[edge.first], class_of_[edge.last]});
  std::vector<Network::Empty> empties;
  for (const Network::Empty& empty : network.empties()) {
    if (is_live(empty.to)) empties.push_back(empty);
  }
  std::vector<Network::Call> calls;
  for (const Network::Call& call : network.calls()) {
    if (is_live(call.after) && is_live(rules_[static_cast<size_t>(call.rule)].start))
      calls.push_back(call);
  }
  edges_ = {states, edges, [](const Edge& e) { return e.from; }};
  empties_ = {states, empties, [](const Network::Empty& e) { return e.from; }};
  calls_ = {states, calls, [](const Network::Call& c) { return c.from; }};
  rule_ending_.assign(states, -1);
  for (size_t i = 0; i < rules_.size(); ++i)
    rule_ending_[static_cast<size_t>(rules_[i].final)] = static_cast<int32_t>(i);

  frames_.intern({});  // frame 0
  std::vector<uint64_t> none;
  intern(none);  // frontier 0: nothing may follow
  path_.resize(tokens_->longest() + 1);
  if (is_live(rules_[0].start)) add(pair(static_cast<uint32_t>(rules_[0].start), kOutside));
  start_ = close();
  if (start_ != 0 && tokens_->joining() != Joining::plain) {
    const auto pairs = frontiers_[start_];
    std::vector<uint64_t> blank(pairs.begin(), pairs.end());
    blank.push_back(pair(kBlank, kOutside));
    start_ = intern(blank);
  }
  check_start();
}

void Automaton::find_classes(const std::vector<Network::Edge>& edges) {
  Network::Bytes begins;
  const auto cut = [&](size_t first, size_t last) {
    begins.set(first);
    if (last < 255) begins.set(last + 1);
  };
  for (const Network::Edge& edge : edges) cut(edge.first, edge.last);
  cut(' ', ' ');
  for (size_t b = 1; b < 256; ++b)
    class_of_[b] = static_cast<uint8_t>(class_of_[b - 1] + (begins[b] ? 1 : 0));
  classes_ = size_t{class_of_[255]} + 1;
}

void Automaton::check_start() const {
  // After a space that the text does not show, the grammar's own space may not come first either.
  bool begins = is_complete(start_);
  for (const uint64_t one : frontiers_[start_]) {
    if (state_of(one) == kEnd || state_of(one) == kBlank) continue;
    for (const Edge& edge : edges_[static_cast<int32_t>(state_of(one))])
      begins |= tokens_->joining() != Joining::leading_spaces || edge.first != class_of_[' '] ||
                edge.last != edge.first;
  }
  if (begins) return;
  std::string missing;
  for (const char c : std::string_view("{}[]\",:0123456789")) {
    if (!tokens_->single()[static_cast<uint8_t>(c)])
      missing += missing.empty() ? std::string(1, c) : std::string(" ") + c;
  }
  fail(
      "the tokenizer cannot produce any text of this grammar: a byte that it needs is not a token "
      "by itself{}",
      missing.empty() ? "" : " (missing bytes include " + missing + ")");
}

Automaton::Frontier Automaton::intern(std::vector<uint64_t>& pairs) {
  std::ranges::sort(pairs);
  const Frontier id = frontiers_.intern(pairs);
  if (static_cast<size_t>(id) * classes_ == steps_.size())
    steps_.resize(steps_.size() + classes_, -1);
  return id;
}

// One step of the closure: `pair` is reached.
void Automaton::add(uint64_t pair) {
  if (seen_.insert(pair)) open_.push_back(pair);
}

// Returns the frontier of all added pairs and those reachable from them without a byte.
Automaton::Frontier Automaton::close() {
  const auto follow = [&] {
    while (!open_.empty()) {
      const uint64_t one = open_.back();
      open_.pop_back();
      ++work_;
      const uint32_t frame = frame_of(one);
      const auto state = static_cast<int32_t>(state_of(one));
      for (const Network::Empty& empty : empties_[state])
        add(pair(static_cast<uint32_t>(empty.to), frame));
      for (const Network::Call& call : calls_[state])
        called_[call.rule].push_back(pair(static_cast<uint32_t>(call.after), frame));
      if (!edges_[state].empty()) found_.push_back(one);
      if (rule_ending_[static_cast<size_t>(state)] < 0) continue;
      if (frame == kOutside) {
        found_.push_back(pair(kEnd, kOutside));
      } else {
        const auto callers = frames_[static_cast<int32_t>(frame)];
        work_ += callers.size();
        for (const uint64_t caller : callers) add(caller);
      }
    }
  };
  follow();
  // Rules call no rule before they read a byte, so all their callers are known now.
  auto called = std::exchange(called_, {});
  for (auto& [rule, callers] : called) {
    std::ranges::sort(callers);
    callers.erase(std::ranges::unique(callers).begin(), callers.end());
    const int32_t frame = frames_.intern(callers);
    add(pair(static_cast<uint32_t>(rules_[static_cast<size_t>(rule)].start),
             static_cast<uint32_t>(frame)));
  }
  follow();
  MG_ASSERT(called_.empty());
  seen_.clear();
  std::vector<uint64_t> pairs = std::exchange(found_, {});
  std::ranges::sort(pairs);
  pairs.erase(std::ranges::unique(pairs).begin(), pairs.end());
  return intern(pairs);
}

Automaton::Frontier Automaton::step(Frontier frontier, uint8_t byte) {
  const uint8_t byte_class = class_of_[byte];
  const Frontier known = steps_[static_cast<size_t>(frontier) * classes_ + byte_class];
  return known >= 0 ? known : find_step(frontier, byte_class);
}

Automaton::Frontier Automaton::find_step(Frontier frontier, uint8_t byte_class) {
  if (work_ >= kMaximumWork)
    throw GrammarLimit(
        "finding the next allowed tokens takes too long, because the grammar is too ambiguous; "
        "limit its repeats, or let its alternatives begin differently");
  Frontier next = 0;
  if (byte_class == class_of_[' '] && is_blank(frontier)) {
    next = frontier;
    if (tokens_->joining() != Joining::leading_spaces) {
      const auto pairs = frontiers_[frontier];
      std::vector<uint64_t> rest(pairs.begin(), pairs.end());
      std::erase(rest, pair(kBlank, kOutside));
      next = intern(rest);
    }
  } else {
    for (const uint64_t one : frontiers_[frontier]) {
      if (state_of(one) >= kBlank) continue;
      for (const Edge& edge : edges_[static_cast<int32_t>(state_of(one))]) {
        ++work_;
        if (edge.first <= byte_class && byte_class <= edge.last)
          add(pair(static_cast<uint32_t>(edge.to), frame_of(one)));
      }
    }
    next = close();
  }
  steps_[static_cast<size_t>(frontier) * classes_ + byte_class] = next;
  return next;
}

bool Automaton::is_complete(Frontier frontier) const {
  const auto pairs = frontiers_[frontier];
  return std::ranges::find(pairs, pair(kEnd, kOutside)) != pairs.end();
}

bool Automaton::is_blank(Frontier frontier) const {
  const auto pairs = frontiers_[frontier];
  return std::ranges::find(pairs, pair(kBlank, kOutside)) != pairs.end();
}

bool Automaton::complete(Frontier frontier) const {
  const std::lock_guard lock(mutex_);
  return is_complete(frontier);
}

bool Automaton::must_end(Frontier frontier) const {
  const std::lock_guard lock(mutex_);
  return is_complete(frontier) && frontiers_[frontier].size() == 1;
}

Automaton::Frontier Automaton::accept(Frontier frontier, int32_t token) {
  const std::lock_guard lock(mutex_);
  const std::string_view bytes = tokens_->bytes(token);
  if (bytes.empty()) return -1;
  if (is_blank(frontier) && std::ranges::binary_search(tokens_->not_first(), token)) return -1;
  work_ = 0;
  for (const char byte : bytes) frontier = step(frontier, static_cast<uint8_t>(byte));
  return frontier == 0 ? -1 : frontier;
}

bool Automaton::is_full() const {
  const std::lock_guard lock(mutex_);
  return frames_.numbers() + frontiers_.numbers() + steps_.size() / 2 > kMaximumNumbers;
}

size_t Automaton::bytes() const {
  const std::lock_guard lock(mutex_);
  return sizeof(Automaton) + sizeof(Network::Rule) * rules_.capacity() + edges_.bytes() +
         empties_.bytes() + calls_.bytes() + sizeof(int32_t) * rule_ending_.capacity() +
         frames_.bytes() + frontiers_.bytes() + sizeof(Frontier) * steps_.capacity() + mask_bytes_ +
         sizeof(uint64_t) * (open_.capacity() + found_.capacity()) + seen_.bytes() +
         sizeof(Frontier) * path_.capacity();
}

Automaton::Frontier Automaton::adopt(const Automaton& other, Frontier frontier) {
  const std::scoped_lock lock(mutex_, other.mutex_);
  // Frames come after those that they refer to.
  std::map<uint32_t, uint32_t> frames = {{kOutside, kOutside}};
  std::vector<uint32_t> open;
  const auto find = [&](std::span<const uint64_t> pairs) {
    for (const uint64_t one : pairs) {
      if (frames.try_emplace(frame_of(one), kOutside).second) open.push_back(frame_of(one));
    }
  };
  const auto moved = [&](std::span<const uint64_t> pairs) {
    std::vector<uint64_t> out;
    for (const uint64_t one : pairs) out.push_back(pair(state_of(one), frames.at(frame_of(one))));
    std::ranges::sort(out);
    return out;
  };
  find(other.frontiers_[frontier]);
  while (!open.empty()) {
    const uint32_t frame = open.back();
    open.pop_back();
    find(other.frames_[static_cast<int32_t>(frame)]);
  }
  for (auto& [there, here] : frames) {
    if (there == kOutside) continue;
    here = static_cast<uint32_t>(frames_.intern(moved(other.frames_[static_cast<int32_t>(there)])));
  }
  std::vector<uint64_t> pairs = moved(other.frontiers_[frontier]);
  return intern(pairs);
}

}  // namespace megatron::inference
