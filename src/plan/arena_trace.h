// Arena events of a step, traced once on a meta run and then replayed on a copy of the arena:
// extends short steps to a step of any number of micro-batches. If tensors of several micro-batches
// are allocated and freed between each other, holes grow for hundreds of micro-batches, so no short
// step reaches the high-water mark of a long one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "device/arena.h"

namespace megatron::plan {

// Events in order: a positive number is the size in bytes of an allocated block; a negative one is
// a release: -1 of the block allocated last, -2 of the one before. 0: release of a block that was
// allocated before all these events.
using ArenaEvents = std::vector<int64_t>;

class ArenaTrace final : public ArenaListener {
 public:
  void taken(int64_t offset, int64_t bytes) override;
  void given_back(int64_t offset) override;
  ArenaEvents take();  // events since the last call

 private:
  ArenaEvents events_;
  std::unordered_map<int64_t, int64_t> open_;  // offset -> index of the block
  int64_t taken_ = 0;
};

// Events of a step, of which [begin, end) are repeated `again` more times.
struct StepEvents {
  ArenaEvents events;
  size_t begin = 0, end = 0;
  int64_t again = 0;
};

// The same events without the blocks that are never released: the events of a repetition, for which
// those blocks already exist.
ArenaEvents without_kept(const ArenaEvents& events);

// Events that `more` has beyond `less` and that may be repeated any number of times: they follow
// the same events in both, occur at least once in `less`, and are followed by the same events.
// Otherwise nullopt.
std::optional<ArenaEvents> repeated_part(const ArenaEvents& less, const ArenaEvents& more);

// A step whose last `part` is repeated `again` more times; nullopt if it has no such part, or the
// part releases blocks that others allocated.
std::optional<StepEvents> lengthened(ArenaEvents step, const ArenaEvents& part, int64_t again);

ArenaEvents flattened(const StepEvents& step);  // all events, concatenated

// A copy of a meta arena on which steps are replayed. Repetitions of a part stop as soon as the
// blocks lie where they lay after an earlier repetition, so the time does not grow with their
// number.
class ArenaReplay {
 public:
  explicit ArenaReplay(const Arena& arena) : arena_(arena.copy()) {}
  void play(const StepEvents& step);
  int64_t high_water() const { return arena_->high_water(); }
  int64_t in_use() const { return arena_->in_use(); }

 private:
  struct Block {
    int64_t offset = 0, bytes = 0;  // bytes 0: released
    bool operator==(const Block&) const = default;
  };
  using Blocks = std::vector<Block>;  // in the order of allocation
  void play(std::span<const int64_t> events, Blocks& blocks);
  void repeat(std::span<const int64_t> part, int64_t again, size_t reach, Blocks& blocks);

  std::shared_ptr<Arena> arena_;
};

}  // namespace megatron::plan
