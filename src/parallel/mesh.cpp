#include "parallel/mesh.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/text_parts.h"

namespace megatron::parallel {

std::string_view name(Axis axis) {
  switch (axis) {
    case Axis::tp: return "tp";
    case Axis::cp: return "cp";
    case Axis::ep: return "ep";
    case Axis::dp: return "dp";
    case Axis::pp: return "pp";
  }
  MG_ASSERT(false);
}

namespace {

constexpr std::array<Axis, kAxes> kAll = {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp};

// Axes of a view with their sizes, fastest-varying first.
struct Dimension {
  Axis axis;
  int size;
};
using Grid = std::vector<Dimension>;

Axis axis_named(std::string_view token, const std::string& order) {
  for (const Axis axis : kAll) {
    if (name(axis) == token) return axis;
  }
  fail("the rank order '{}' contains '{}'; it consists of tp, cp, ep, dp and pp separated by '-'",
       order, token);
}

std::vector<Axis> parse_order(const std::string& order) {
  std::vector<Axis> axes;
  for (const std::string_view token : split_text(order, '-')) {
    const Axis axis = axis_named(token, order);
    MG_CHECK(std::find(axes.begin(), axes.end(), axis) == axes.end(),
             "the rank order '{}' contains {} twice", order, name(axis));
    axes.push_back(axis);
  }
  return axes;
}

// Axes not named by the order come last; they must have size 1.
Grid make_grid(const std::string& order, const std::array<int, kAxes>& sizes) {
  Grid grid;
  std::vector<Axis> axes = parse_order(order);
  for (const Axis axis : kAll) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
    const int size = sizes[static_cast<size_t>(axis)];
    MG_CHECK(size == 1, "the {} degree is {}, but the rank order '{}' does not contain {}",
             name(axis), size, order, name(axis));
    axes.push_back(axis);
  }
  for (const Axis axis : axes) grid.push_back({axis, sizes[static_cast<size_t>(axis)]});
  return grid;
}

int stride(const Grid& grid, Axis axis) {
  int product = 1;
  for (const Dimension& d : grid) {
    if (d.axis == axis) break;
    product *= d.size;
  }
  return product;
}

int expert_tp(const Layout& layout) { return layout.etp == 0 ? layout.tp : layout.etp; }

constexpr std::string_view kTp = "--tensor-model-parallel-size", kCp = "--context-parallel-size",
                           kPp = "--pipeline-model-parallel-size",
                           kEp = "--expert-model-parallel-size",
                           kEtp = "--expert-tensor-parallel-size",
                           kInstances = "--num-distributed-optimizer-instances";

struct Degree {
  std::string_view flag;
  int value;
};

void check_divides(int world, std::initializer_list<Degree> degrees) {
  int64_t product = 1;
  std::string factors;
  for (const Degree& degree : degrees) {
    product = std::min<int64_t>(product, world + 1) * std::min<int64_t>(degree.value, world + 1);
    if (degree.value == 1) continue;
    factors += fmt::format("{}{} {}", factors.empty() ? "" : " x ", degree.flag, degree.value);
  }
  MG_CHECK(product <= world && world % product == 0,
           "{} ranks cannot be divided by {}: change one of these, or --ranks", world, factors);
}

void check_sizes(const Layout& layout, int world) {
  MG_CHECK(world >= 1, "--ranks is {}; it must be at least 1", world);
  for (const Degree& degree :
       {Degree{kTp, layout.tp}, Degree{kCp, layout.cp}, Degree{kPp, layout.pp},
        Degree{kEp, layout.ep}, Degree{kEtp, expert_tp(layout)},
        Degree{kInstances, layout.instances}}) {
    MG_CHECK(degree.value >= 1, "{} is {}; it must be at least 1", degree.flag, degree.value);
  }
  for (const Degree& degree :
       {Degree{"--tensor-parallel-num-weight-shards", layout.weight_shards},
        Degree{"--expert-tensor-parallel-num-weight-shards", layout.expert_weight_shards}}) {
    MG_CHECK(degree.value == 1,
             "{} is {}: generalized tensor parallelism (gtp_remat) is not supported: use 1, and "
             "--data-parallel-sharding-strategy optim_grads_params to shard the weights over "
             "ranks",
             degree.flag, degree.value);
  }
}

void check_hierarchy(const Layout& layout) {
  if (layout.hierarchical_cp.empty()) return;
  int64_t product = 1;
  std::string levels;
  for (const int size : layout.hierarchical_cp) {
    MG_CHECK(size >= 1,
             "--hierarchical-context-parallel-sizes has {}; each level needs at least 1 rank",
             size);
    product = std::min<int64_t>(product * size, int64_t{1} << 31);
    levels += fmt::format("{}{}", levels.empty() ? "" : " x ", size);
  }
  MG_CHECK(product == layout.cp,
           "the product of --hierarchical-context-parallel-sizes {} must equal {} {}", levels, kCp,
           layout.cp);
}

void check_replicas(const Layout& layout, int world) {
  const int data = world / (layout.tp * layout.pp);
  const int expert_data = world / (expert_tp(layout) * layout.ep * layout.pp);
  MG_CHECK(data % layout.instances == 0,
           "{} {} does not divide the {} data and context parallel ranks ({} ranks, {} {}, {} {}): "
           "change one of them",
           kInstances, layout.instances, data, world, kTp, layout.tp, kPp, layout.pp);
  MG_CHECK(expert_data % layout.instances == 0,
           "{} {} does not divide the {} data parallel ranks of experts ({} ranks, {} {}, {} {}, "
           "{} {}): change one of them",
           kInstances, layout.instances, expert_data, world, kEtp, expert_tp(layout), kEp,
           layout.ep, kPp, layout.pp);
  MG_CHECK(!layout.hybrid_cp || data % 2 == 0,
           "--hybrid-context-parallel needs an even number of data and context parallel ranks, and "
           "{} ranks with {} {} and {} {} leave {}",
           world, kTp, layout.tp, kPp, layout.pp, data);
}

void check_degrees(const Layout& layout, int world) {
  check_sizes(layout, world);
  check_divides(world, {{kTp, layout.tp}, {kCp, layout.cp}, {kPp, layout.pp}});
  check_divides(world, {{kEtp, expert_tp(layout)}, {kEp, layout.ep}, {kPp, layout.pp}});
  check_hierarchy(layout);
  check_replicas(layout, world);
}

Grid dense_grid(const Layout& layout, int world) {
  const int dp = world / (layout.tp * layout.cp * layout.pp);
  return make_grid(layout.order, {layout.tp, layout.cp, 1, dp, layout.pp});
}

Grid expert_grid(const Layout& layout, int world) {
  const int etp = expert_tp(layout);
  const int dp = world / (etp * layout.ep * layout.pp);
  return make_grid(layout.order, {etp, 1, layout.ep, dp, layout.pp});
}

// Both views must put a rank in the same pipeline stage, since a stage has dense and expert layers.
Grid checked_grid(const Layout& layout, int world, bool expert) {
  check_degrees(layout, world);
  Grid dense = dense_grid(layout, world), experts = expert_grid(layout, world);
  const int dense_stride = stride(dense, Axis::pp), expert_stride = stride(experts, Axis::pp);
  MG_CHECK(layout.pp == 1 || dense_stride == expert_stride,
           "with the rank order '{}' the ranks of adjacent pipeline stages are {} apart for "
           "dense layers ({} {}, {} {}) but {} apart for experts ({} {}, {} {}): make the "
           "products equal, or put pp last in the rank order (drop --use-tp-pp-dp-mapping)",
           layout.order, dense_stride, kTp, layout.tp, kCp, layout.cp, expert_stride, kEtp,
           expert_tp(layout), kEp, layout.ep);
  return expert ? experts : dense;
}

std::vector<std::vector<int>> lists(const Grid& grid, int world, AxisSet axes) {
  // A group is identified by its lowest rank, which has coordinate 0 along the axes.
  std::map<int, std::vector<int>> groups;
  for (int rank = 0; rank < world; ++rank) {
    int first = rank, rest = rank, stride = 1;
    for (const Dimension& d : grid) {
      if (axes.contains(d.axis)) first -= rest % d.size * stride;
      rest /= d.size;
      stride *= d.size;
    }
    groups[first].push_back(rank);
  }
  std::vector<std::vector<int>> result;
  for (auto& [first, ranks] : groups) result.push_back(std::move(ranks));
  return result;
}

// Groups along a level of the cp axis: of each group along cp, those ranks that differ only in the
// digit of that level, the innermost level being the lowest digit.
std::vector<std::vector<int>> lists_of_level(const std::vector<std::vector<int>>& context,
                                             const std::vector<int>& sizes, size_t level) {
  size_t stride = 1;
  for (size_t i = 0; i < level; ++i) stride *= static_cast<size_t>(sizes[i]);
  const auto size = static_cast<size_t>(sizes[level]);
  std::map<int, std::vector<int>> groups;  // by first rank
  for (const std::vector<int>& ranks : context)
    for (size_t i = 0; i < ranks.size(); ++i)
      groups[ranks[i - i / stride % size * stride]].push_back(ranks[i]);
  std::vector<std::vector<int>> result;
  for (auto& [first, ranks] : groups) result.push_back(std::move(ranks));
  return result;
}

// Formats "tp", "dp-cp".
std::string text_of(AxisSet axes) {
  std::string text;
  for (const Axis axis : kAll) {
    if (axes.contains(axis)) text += (text.empty() ? "" : "-") + std::string(name(axis));
  }
  return text;
}

// Collective: makes this rank's group from the lists.
std::unique_ptr<comm::Group> make_group(const std::vector<std::vector<int>>& groups,
                                        comm::Group& world) {
  if (groups[0].size() == 1) return comm::single();
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto place = std::find(groups[g].begin(), groups[g].end(), world.rank());
    if (place != groups[g].end()) {
      return world.split(static_cast<int>(g), static_cast<int>(place - groups[g].begin()),
                         static_cast<int>(groups[g].size()));
    }
  }
  MG_ASSERT(false);
}

}  // namespace

std::vector<std::vector<int>> rank_lists(const Layout& layout, int world, AxisSet axes,
                                         bool expert) {
  return lists(checked_grid(layout, world, expert), world, axes);
}

comm::Group* Mesh::made(const Lists& lists, const std::string& name) {
  std::unique_ptr<comm::Group>& group = made_[lists];
  if (group == nullptr) {
    group = make_group(lists, *world_);
    group->set_name(name);
  }
  return group.get();
}

Mesh Mesh::build(const Layout& layout, comm::Group& world) {
  Mesh mesh;
  mesh.layout_ = layout;
  mesh.world_ = &world;
  const Grid dense = checked_grid(layout, world.size(), false),
             experts = checked_grid(layout, world.size(), true);
  for (const AxisSet axes :
       {AxisSet(Axis::tp), AxisSet(Axis::cp), AxisSet(Axis::ep), AxisSet(Axis::dp),
        AxisSet(Axis::pp), AxisSet{Axis::dp, Axis::cp}, AxisSet{Axis::tp, Axis::pp}}) {
    mesh.groups_[axes] = mesh.made(lists(dense, world.size(), axes), text_of(axes));
  }
  for (const AxisSet axes :
       {AxisSet(Axis::tp), AxisSet(Axis::ep), AxisSet(Axis::dp), AxisSet{Axis::tp, Axis::ep}}) {
    mesh.expert_groups_[axes] =
        mesh.made(lists(experts, world.size(), axes), "expert-" + text_of(axes));
  }
  for (size_t level = 0; level < layout.hierarchical_cp.size(); ++level)
    mesh.context_levels_.push_back(mesh.made(
        lists_of_level(lists(dense, world.size(), Axis::cp), layout.hierarchical_cp, level),
        fmt::format("cp-level-{}", level)));
  return mesh;
}

int Mesh::size(Axis axis) const { return group(axis).size(); }
int Mesh::coordinate(Axis axis) const { return group(axis).rank(); }

comm::Group& Mesh::group(AxisSet axes) const {
  const auto found = groups_.find(axes);
  MG_ASSERT(found != groups_.end());
  return *found->second;
}

comm::Group& Mesh::expert_group(AxisSet axes) const {
  const auto found = expert_groups_.find(axes);
  MG_ASSERT(found != expert_groups_.end());
  return *found->second;
}

}  // namespace megatron::parallel
