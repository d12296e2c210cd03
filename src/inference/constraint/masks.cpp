// Masks of an Automaton.
#include <algorithm>
#include <utility>

#include "inference/constraint/automaton.h"

namespace megatron::inference {
namespace {

void allow(std::vector<uint64_t>& mask, std::span<const int32_t> tokens) {
  for (const int32_t id : tokens) mask[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
}

}  // namespace

void Automaton::allowed(Frontier frontier, std::span<uint64_t> mask, bool& complete) {
  const std::lock_guard lock(mutex_);
  const std::vector<uint64_t>& found = mask_of(frontier);
  std::ranges::copy(found, mask.begin());
  std::ranges::fill(mask.subspan(found.size()), uint64_t{0});
  complete = is_complete(frontier);
}

const std::vector<uint64_t>& Automaton::mask_of(Frontier frontier) {
  const auto known = masks_.find(frontier);
  if (known != masks_.end()) return known->second;
  if (mask_bytes_ > kMaximumMaskBytes) {
    masks_.clear();
    insides_.clear();
    mask_bytes_ = 0;
  }
  work_ = 0;
  std::vector<uint64_t> mask = find_mask(frontier);
  if (is_blank(frontier)) {
    for (const int32_t id : tokens_->not_first())
      mask[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64));
  }
  mask_bytes_ += 8 * mask.size();
  return masks_.emplace(frontier, std::move(mask)).first->second;
}

// Pairs with the same frame are processed together as if there were nothing outside their rules;
// the result depends on few states and is cached. Tokens that continue after the rules are followed
// from there.
std::vector<uint64_t> Automaton::find_mask(Frontier frontier) {
  std::vector<uint64_t> mask(tokens_->words());
  std::map<uint32_t, std::vector<uint64_t>> tops;  // by frame: pairs without it
  for (const uint64_t one : frontiers_[frontier])
    tops[frame_of(one)].push_back(pair(state_of(one), kOutside));
  if (is_blank(frontier) || (tops.size() == 1 && tops.begin()->first == kOutside)) {
    walk(frontier, 0, tokens_->nodes().size(), mask, nullptr);
    return mask;
  }
  for (auto& [frame, pairs] : tops) {
    const Inside& inside = inside_of(intern(pairs));
    for (size_t i = 0; i < mask.size(); ++i) mask[i] |= inside.mask[i];
    if (frame == kOutside) continue;
    for (const uint64_t caller : frames_[static_cast<int32_t>(frame)]) add(caller);
    const Frontier behind = close();
    for (const uint32_t exit : inside.exits)
      walk(behind, exit + 1, tokens_->nodes()[exit].end, mask, nullptr);
  }
  return mask;
}

const Automaton::Inside& Automaton::inside_of(Frontier frontier) {
  const auto [found, is_new] = insides_.try_emplace(frontier);
  if (!is_new) return found->second;
  Inside inside{std::vector<uint64_t>(tokens_->words()), {}};
  try {
    walk(frontier, 0, tokens_->nodes().size(), inside.mask, &inside.exits);
  } catch (...) {
    insides_.erase(found);
    throw;
  }
  mask_bytes_ += 8 * inside.mask.size() + 4 * inside.exits.size();
  return found->second = std::move(inside);
}

// Adds the tokens of nodes [first, last), whose parent corresponds to `frontier`.
void Automaton::walk(Frontier frontier, size_t first, size_t last, std::vector<uint64_t>& mask,
                     std::vector<uint32_t>* exits) {
  const std::span<const TokenBytes::Node> nodes = tokens_->nodes();
  if (first == last) return;
  const size_t base = nodes[first].depth - 1;
  path_[base] = frontier;
  for (size_t i = first; i < last;) {
    const TokenBytes::Node& node = nodes[i];
    const Frontier next = step(path_[node.depth - 1], node.byte);
    if (next == 0) {
      i = node.end;
      continue;
    }
    path_[node.depth] = next;
    allow(mask, tokens_->tokens(i));
    if (exits && node.end > i + 1 && is_complete(next)) exits->push_back(static_cast<uint32_t>(i));
    ++i;
  }
}

}  // namespace megatron::inference
