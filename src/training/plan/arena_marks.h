// High-water marks of the arenas of a pipeline rank over a whole run: a few short steps, and the
// work between steps, are recorded on meta and replayed in the run's order for as long as anything
// changes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "device/stream.h"
#include "parallel/short_steps.h"
#include "plan/arena_trace.h"

namespace megatron::training {

// Functions that make steps.
struct MetaSteps {
  std::function<void(int64_t micro_batches)> make;
  std::function<parallel::ShortSteps(int64_t all)> samples;
};

class ArenaMarks {
 public:
  // Construct before the first step.
  ArenaMarks(Runtime& runtime, MetaSteps steps);
  ~ArenaMarks();
  ArenaMarks(const ArenaMarks&) = delete;
  ArenaMarks& operator=(const ArenaMarks&) = delete;

  // Records the run's next steps, up to iteration `end`. This and the next function return false if
  // the steps cannot be replayed, because short steps do not represent them, or because they free
  // memory that others allocated.
  bool see_steps(int64_t micro_batches, int64_t end);
  // Records work that is done after certain iterations: next(i) returns the first such iteration
  // from i on. at_end: the work is also done after the last iteration.
  bool see_between(const std::function<void()>& work, std::function<int64_t(int64_t)> next,
                   bool at_end);

  // Replays the work that was recorded successfully. begin: iterations before the run.
  std::array<int64_t, kMemoryClasses> play(int64_t begin);

 private:
  // Events of each arena.
  using Seen = std::array<plan::ArenaEvents, kMemoryClasses>;
  using Work = std::array<plan::StepEvents, kMemoryClasses>;
  struct Phase {
    std::optional<Work>
        first;  // the phase's first step, if it differs: it allocates memory that stays
    Work later;
    int64_t end = 0;
  };
  struct Between {
    Work first, later;
    std::function<int64_t(int64_t)> next;
    bool at_end = false;
    bool begun = false;
    const Work& work() const { return begun ? later : first; }
  };

  Seen see(const std::function<void()>& work);
  const Seen& see_later(int64_t micro_batches);
  static std::optional<Seen> repeated_part(const Seen& less, const Seen& more);
  static std::optional<Work> lengthened(const Seen& step, const Seen& part, int64_t again);
  void play(const Work& work);
  void play(Between& between);
  void play_phase(const Phase& phase, int64_t& at);
  bool quiet(const Work& work) const { return quiet_.contains(&work); }

  Runtime& runtime_;
  MetaSteps steps_;
  std::array<plan::ArenaTrace, kMemoryClasses> traces_;
  std::array<std::optional<plan::ArenaReplay>, kMemoryClasses> replays_;
  std::map<int64_t, Seen>
      later_;  // by number of micro-batches: a step that allocates no memory that stays
  std::vector<Phase> phases_;
  std::vector<Between> between_;
  std::set<const Work*> quiet_;  // work whose replay changes nothing in the present state
};

}  // namespace megatron::training
