// What a step does with an arena, seen once on a meta run and then played on a copy of the arena: a
// step of any number of micro-batches, from steps of few. Where tensors of several micro-batches
// come and go between each other, holes grow for hundreds of them, so that no short step has the
// high-water mark of a long one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "device/arena.h"

namespace megatron::plan {

// In order: the bytes of a block that is taken; or below 0, which block is given back: -1 is the
// one taken last, -2 the one before. 0: a block is given back that was taken before all these.
using ArenaEvents = std::vector<int64_t>;

class ArenaTrace final : public ArenaListener {
 public:
  void taken(int64_t offset, int64_t bytes) override;
  void given_back(int64_t offset) override;
  ArenaEvents take();  // since the last time

 private:
  ArenaEvents events_;
  std::unordered_map<int64_t, int64_t> open_;  // offset -> blocks taken before that one
  int64_t taken_ = 0;
};

// Events of which [begin, end) come `again` times more.
struct StepEvents {
  ArenaEvents events;
  size_t begin = 0, end = 0;
  int64_t again = 0;
};

// The same without the blocks that are not given back: what comes another time, where those stay.
ArenaEvents without_kept(const ArenaEvents& events);

// What `more` does beyond `less`, where it does it as often as one likes: it comes behind the same
// events in both, at least once in `less`, and the same ones follow. Else nullopt.
std::optional<ArenaEvents> repeated_part(const ArenaEvents& less, const ArenaEvents& more);

// A step whose last `part` comes `again` times more. nullopt where it has none, or gives back what
// others took.
std::optional<StepEvents> lengthened(ArenaEvents step, const ArenaEvents& part, int64_t again);

ArenaEvents flattened(const StepEvents& step);  // all of them, one after another

// A copy of a meta arena on which steps are played. As often as a part may come again, it takes no
// longer than until the blocks lie where they lay after an earlier time.
class ArenaReplay {
 public:
  explicit ArenaReplay(const Arena& arena) : arena_(arena.copy()) {}
  void play(const StepEvents& step);
  int64_t high_water() const { return arena_->high_water(); }
  int64_t in_use() const { return arena_->in_use(); }

 private:
  struct Block {
    int64_t offset = 0, bytes = 0;  // 0: given back
    bool operator==(const Block&) const = default;
  };
  using Blocks = std::vector<Block>;  // in the order in which they were taken
  void play(std::span<const int64_t> events, Blocks& blocks);
  void repeat(std::span<const int64_t> part, int64_t again, size_t reach, Blocks& blocks);

  std::shared_ptr<Arena> arena_;
};

}  // namespace megatron::plan
