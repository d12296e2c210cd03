#include "training/plan/arena_marks.h"

#include <algorithm>
#include <utility>

namespace megatron::training {

ArenaMarks::ArenaMarks(Runtime& runtime, MetaSteps steps)
    : runtime_(runtime), steps_(std::move(steps)) {
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    Arena& arena = runtime.arena(static_cast<MemoryClass>(i));
    replays_[i].emplace(arena);
    arena.listen(&traces_[i]);
  }
}

ArenaMarks::~ArenaMarks() {
  for (size_t i = 0; i < kMemoryClasses; ++i)
    runtime_.arena(static_cast<MemoryClass>(i)).listen(nullptr);
}

ArenaMarks::Seen ArenaMarks::see(const std::function<void()>& work) {
  for (plan::ArenaTrace& trace : traces_) trace.take();
  work();
  Seen seen;
  for (size_t i = 0; i < kMemoryClasses; ++i) seen[i] = traces_[i].take();
  return seen;
}

const ArenaMarks::Seen& ArenaMarks::see_later(int64_t micro_batches) {
  const auto found = later_.find(micro_batches);
  if (found != later_.end()) return found->second;
  return later_[micro_batches] = see([&] { steps_.make(micro_batches); });
}

std::optional<ArenaMarks::Work> ArenaMarks::lengthened(const Seen& step, const Seen& part,
                                                       int64_t again) {
  Work longer;
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    auto of_arena = plan::lengthened(step[i], part[i], again);
    if (!of_arena) return std::nullopt;
    longer[i] = std::move(*of_arena);
  }
  return longer;
}

std::optional<ArenaMarks::Seen> ArenaMarks::repeated_part(const Seen& less, const Seen& more) {
  Seen part;
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    auto of_arena = plan::repeated_part(less[i], more[i]);
    if (!of_arena) return std::nullopt;
    part[i] = std::move(*of_arena);
  }
  return part;
}

// A step of `less` is made only once if its repetition is known: in a later phase, if it leaves
// nothing allocated; and if the longer one must agree.
bool ArenaMarks::see_steps(int64_t micro_batches, int64_t end) {
  const auto [less, more] = steps_.samples(micro_batches);
  std::optional<Seen> first;
  if (!later_.contains(less)) {
    first = see([&, count = less] { steps_.make(count); });
    Seen rest;
    std::ranges::transform(*first, rest.begin(), plan::without_kept);
    if (more > less || (!phases_.empty() && rest == *first)) later_[less] = std::move(rest);
    if (*first == see_later(less)) first.reset();
  }
  auto part = repeated_part(later_[less], see_later(more));
  if (!part) {
    later_.erase(less);
    part = repeated_part(see_later(less), later_[more]);
  }
  if (!part) return false;
  if (more > less) {  // checks that inserting the part into the shorter step gives the longer one
    const auto once = lengthened(later_[less], *part, 1);
    if (!once || !std::ranges::equal(*once, later_[more], {}, plan::flattened)) return false;
  }
  const int64_t again = more > less ? (micro_batches - less) / (more - less) : 0;
  auto first_work = first ? lengthened(*first, *part, again) : std::nullopt;
  auto later_work = lengthened(later_[less], *part, again);
  if ((first && !first_work) || !later_work) return false;
  phases_.push_back({std::move(first_work), std::move(*later_work), end});
  return true;
}

bool ArenaMarks::see_between(const std::function<void()>& work,
                             std::function<int64_t(int64_t)> next, bool at_end) {
  auto first = lengthened(see(work), {}, 0), later = lengthened(see(work), {}, 0);
  if (!first || !later) return false;
  between_.push_back({std::move(*first), std::move(*later), std::move(next), at_end});
  return true;
}

// Between two steps, only memory that stays is allocated. If that and the marks are unchanged, the
// free blocks are where they were, and further repetitions change nothing.
void ArenaMarks::play(const Work& work) {
  if (quiet(work)) return;
  bool changed = false;
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    plan::ArenaReplay& replay = *replays_[i];
    const std::pair before(replay.high_water(), replay.in_use());
    replay.play(work[i]);
    changed = changed || before != std::pair(replay.high_water(), replay.in_use());
  }
  if (changed) quiet_.clear();
  else quiet_.insert(&work);
}

void ArenaMarks::play(Between& between) {
  play(between.work());
  between.begun = true;
}

// at: the last replayed iteration; set to the last iteration of the phase.
void ArenaMarks::play_phase(const Phase& phase, int64_t& at) {
  const Work* step = phase.first ? &*phase.first : &phase.later;
  while (at < phase.end) {
    int64_t next = quiet(*step) ? phase.end + 1 : at + 1;
    for (const Between& between : between_)
      if (!quiet(between.work())) next = std::min(next, between.next(at + 1));
    if (next > phase.end) break;
    at = next;
    play(*std::exchange(step, &phase.later));
    for (Between& between : between_)
      if (between.next(at) == at) play(between);
  }
  at = std::max(at, phase.end);
}

std::array<int64_t, kMemoryClasses> ArenaMarks::play(int64_t begin) {
  int64_t at = begin;
  for (const Phase& phase : phases_) play_phase(phase, at);
  for (Between& between : between_)
    if (between.at_end) play(between);
  std::array<int64_t, kMemoryClasses> marks;
  for (size_t i = 0; i < kMemoryClasses; ++i) marks[i] = replays_[i]->high_water();
  return marks;
}

}  // namespace megatron::training
