#include "plan/arena_trace.h"

#include <algorithm>
#include <utility>

namespace megatron::plan {

void ArenaTrace::taken(int64_t offset, int64_t bytes) {
  open_[offset] = taken_++;
  events_.push_back(bytes);
}

void ArenaTrace::given_back(int64_t offset) {
  const auto found = open_.find(offset);
  events_.push_back(found == open_.end() ? 0 : found->second - taken_);
  if (found != open_.end()) open_.erase(found);
}

ArenaEvents ArenaTrace::take() {
  open_.clear();
  taken_ = 0;
  return std::exchange(events_, {});
}

ArenaEvents without_kept(const ArenaEvents& events) {
  std::vector<int64_t> place;  // index of each block among those that are released; -1: it stays
  for (const int64_t event : events) {
    if (event > 0) place.push_back(-1);
    else if (event < 0) place[place.size() - static_cast<size_t>(-event)] = 0;
  }
  ArenaEvents rest;
  int64_t taken = 0;
  size_t block = 0;
  for (const int64_t event : events) {
    if (event > 0) {
      int64_t& at = place[block++];
      if (at < 0) continue;
      at = taken++;
      rest.push_back(event);
    } else {
      rest.push_back(event == 0 ? 0 : place[block - static_cast<size_t>(-event)] - taken);
    }
  }
  return rest;
}

std::optional<ArenaEvents> repeated_part(const ArenaEvents& less, const ArenaEvents& more) {
  if (more.size() < less.size()) return std::nullopt;
  const auto part = static_cast<std::ptrdiff_t>(more.size() - less.size());
  const auto [end_of_less, begin] = std::ranges::mismatch(less, more);
  const bool follows = std::equal(end_of_less, less.end(), begin + part, more.end());
  const bool before = begin - more.begin() >= part && std::equal(begin - part, begin, begin);
  if (!follows || !before) return std::nullopt;
  return ArenaEvents(begin, begin + part);
}

std::optional<StepEvents> lengthened(ArenaEvents step, const ArenaEvents& part, int64_t again) {
  if (std::ranges::find(step, 0) != step.end()) return std::nullopt;
  if (part.empty() || again == 0) return StepEvents{.events = std::move(step)};
  const auto found = std::ranges::find_end(step, part);
  if (found.empty()) return std::nullopt;
  const auto begin = static_cast<size_t>(found.begin() - step.begin());
  return StepEvents{std::move(step), begin, begin + part.size(), again};
}

ArenaEvents flattened(const StepEvents& step) {
  const std::span<const int64_t> events(step.events);
  ArenaEvents all(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(step.end));
  const auto part = events.subspan(step.begin, step.end - step.begin);
  for (int64_t i = 0; i < step.again; ++i) all.insert(all.end(), part.begin(), part.end());
  const auto rest = events.subspan(step.end);
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

void ArenaReplay::play(const StepEvents& step) {
  const std::span<const int64_t> events(step.events);
  const auto reach =
      events.empty() ? 0 : static_cast<size_t>(std::max<int64_t>(0, -std::ranges::min(events)));
  Blocks blocks;
  play(events.first(step.end), blocks);
  repeat(events.subspan(step.begin, step.end - step.begin), step.again, reach, blocks);
  play(events.subspan(step.end), blocks);
}

void ArenaReplay::play(std::span<const int64_t> events, Blocks& blocks) {
  for (const int64_t event : events) {
    if (event > 0) {
      blocks.push_back({arena_->take(event, "replay"), event});
      continue;
    }
    const Block block = std::exchange(blocks[blocks.size() - static_cast<size_t>(-event)], {});
    arena_->give_back(block.offset, block.bytes);
  }
}

// Blocks before the last `reach` ones stay until the step is over, so that only the positions of
// the last ones determine what follows. They are compared with those after increasing numbers of
// repetitions (Brent's cycle detection).
void ArenaReplay::repeat(std::span<const int64_t> part, int64_t again, size_t reach,
                         Blocks& blocks) {
  Blocks before;
  int64_t mark_before = -1;
  for (int64_t since = 0, most = 1; again > 0; --again) {
    play(part, blocks);
    ++since;
    const auto now = std::span(blocks).last(std::min(reach, blocks.size()));
    if (mark_before == high_water() && std::ranges::equal(now, before)) {
      again = (again - 1) % since + 1;
    } else if (since == most) {
      before.assign(now.begin(), now.end());
      mark_before = high_water();
      most *= 2;
      since = 0;
    }
  }
}

}  // namespace megatron::plan
