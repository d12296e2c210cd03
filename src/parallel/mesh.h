// The ranks as a grid with named axes; every process group is a slice of the grid.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"

namespace megatron::parallel {

enum class Axis : uint8_t { tp, cp, ep, dp, pp };
inline constexpr int kAxes = 5;
std::string_view name(Axis axis);

// A set of axes.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits_(1u << static_cast<int>(axis)) {}
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis a : axes) bits_ |= 1u << static_cast<int>(a);
  }
  constexpr bool contains(Axis axis) const { return (bits_ >> static_cast<int>(axis)) & 1u; }
  constexpr bool operator==(const AxisSet&) const = default;
  constexpr bool operator<(const AxisSet& other) const { return bits_ < other.bits_; }

 private:
  unsigned bits_ = 0;
};

// Degrees of a layout. The data-parallel degree is the rest of the world size. Expert axes overlay
// the dense ranks: dense layers see the ranks as tp x cp x dp x pp, experts see the same ranks as
// etp x ep x expert-dp x pp.
struct Layout {
  int tp = 1, cp = 1, ep = 1, pp = 1;
  int etp = 0;  // expert tensor parallel; 0: same as tp
  std::string order =
      "tp-cp-ep-dp-pp";  // fastest axis first; Megatron-LM's alternative: "tp-cp-ep-pp-dp"
  // Replicas of the optimizer: the ranks along dp and cp are split into this many contiguous
  // chunks, each of which holds the whole optimizer (hybrid sharding).
  int instances = 1;
  std::vector<int> hierarchical_cp;  // levels of the cp axis, innermost first; empty: a single one
  // Groups of 2, 4, ... ranks along dp and cp, for samples of different lengths.
  bool hybrid_cp = false;
  // Megatron-LM's generalized tensor parallelism (axes gtp_remat): values above 1 are refused with
  // the flag's name.
  int weight_shards = 1, expert_weight_shards = 1;
};

// Returns all groups along `axes` as lists of ranks, a pure function of the grid of `world` ranks
// in layout.order, in dense or expert view. Groups are in ascending order of their first rank.
// Throws Error naming the degrees, the number of ranks and the flags if they do not fit together.
std::vector<std::vector<int>> rank_lists(const Layout& layout, int world, AxisSet axes,
                                         bool expert = false);

class Mesh {
 public:
  // Collective over `world`. Throws Error like rank_lists.
  static Mesh build(const Layout& layout, comm::Group& world);

  const Layout& layout() const { return layout_; }
  comm::Group& world() const { return *world_; }
  int size(Axis axis) const;  // of the dense view
  int coordinate(Axis axis) const;
  // The group of this rank along some axes of the dense view, where ep is 1. Only the sets that
  // build() makes: each single axis, {dp, cp} and {tp, pp}. Sets with the same ranks share one
  // group.
  comm::Group& group(AxisSet axes) const;
  comm::Group& expert_group(AxisSet axes) const;  // ep, tp (etp), dp (expert data)
  // The group of this rank along a level of layout().hierarchical_cp.
  comm::Group& context_level(size_t level) const { return *context_levels_.at(level); }

 private:
  using Lists = std::vector<std::vector<int>>;
  comm::Group* made(const Lists& lists, const std::string& name);

  Layout layout_;
  comm::Group* world_ = nullptr;
  std::map<Lists, std::unique_ptr<comm::Group>> made_;
  std::map<AxisSet, comm::Group*> groups_, expert_groups_;
  std::vector<comm::Group*> context_levels_;
};

}  // namespace megatron::parallel
