#include "parallel/mesh.h"

#include <algorithm>

#include "base/error.h"

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

// The axes of a view with their sizes, fastest first.
struct Dimension {
  Axis axis;
  int size;
};
using Grid = std::vector<Dimension>;

Axis axis_named(std::string_view token, const std::string& order) {
  for (const Axis axis : kAll) {
    if (name(axis) == token) return axis;
  }
  fail("the rank order '{}' has '{}'; it is made of tp, cp, ep, dp and pp with '-' between them",
       order, token);
}

std::vector<Axis> parse_order(const std::string& order) {
  std::vector<Axis> axes;
  for (size_t begin = 0; begin <= order.size();) {
    const size_t end = std::min(order.find('-', begin), order.size());
    const Axis axis = axis_named(std::string_view(order).substr(begin, end - begin), order);
    MG_CHECK(std::find(axes.begin(), axes.end(), axis) == axes.end(),
             "the rank order '{}' names {} twice", order, name(axis));
    axes.push_back(axis);
    begin = end + 1;
  }
  return axes;
}

// Axes that the order does not name come last; they must have size 1.
Grid make_grid(const std::string& order, const std::array<int, kAxes>& sizes) {
  Grid grid;
  std::vector<Axis> axes = parse_order(order);
  for (const Axis axis : kAll) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
    const int size = sizes[static_cast<size_t>(axis)];
    MG_CHECK(size == 1, "the {} degree is {}, but the rank order '{}' does not name {}", name(axis),
             size, order, name(axis));
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

void check_degrees(const Layout& layout, int world) {
  const auto positive = [](int degree, std::string_view axis) {
    MG_CHECK(degree >= 1, "the {} parallel degree is {}; it must be at least 1", axis, degree);
  };
  MG_CHECK(world >= 1, "the number of ranks is {}; it must be at least 1", world);
  positive(layout.tp, "tensor");
  positive(layout.cp, "context");
  positive(layout.pp, "pipeline");
  positive(layout.ep, "expert");
  positive(expert_tp(layout), "expert tensor");

  const auto divides = [world](int64_t a, int64_t b, int64_t c) {
    return a <= world && b <= world && c <= world && a * b * c <= world && world % (a * b * c) == 0;
  };
  MG_CHECK(divides(layout.tp, layout.cp, layout.pp),
           "{} ranks cannot be divided in tensor parallel {} x context parallel {} x pipeline "
           "parallel {}: change one of these degrees or the number of ranks",
           world, layout.tp, layout.cp, layout.pp);
  MG_CHECK(divides(expert_tp(layout), layout.ep, layout.pp),
           "{} ranks cannot be divided in expert tensor parallel {}{} x expert parallel {} x "
           "pipeline parallel {}: change one of these degrees or the number of ranks",
           world, expert_tp(layout), layout.etp == 0 ? " (as tensor parallel)" : "", layout.ep,
           layout.pp);
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

// Both views must put a rank in the same pipeline stage, for a stage has dense and expert layers.
Grid checked_grid(const Layout& layout, int world, bool expert) {
  check_degrees(layout, world);
  Grid dense = dense_grid(layout, world), experts = expert_grid(layout, world);
  const int dense_stride = stride(dense, Axis::pp), expert_stride = stride(experts, Axis::pp);
  MG_CHECK(layout.pp == 1 || dense_stride == expert_stride,
           "with the rank order '{}' ranks of neighbouring pipeline stages lie {} apart for dense "
           "layers (tensor parallel {}, context parallel {}) but {} apart for experts (expert "
           "tensor parallel {}, expert parallel {}): make the products equal, or put pp last in "
           "the rank order",
           layout.order, dense_stride, layout.tp, layout.cp, expert_stride, expert_tp(layout),
           layout.ep);
  return expert ? experts : dense;
}

std::vector<std::vector<int>> lists(const Grid& grid, int world, AxisSet axes) {
  // A group is known by its least rank, which has coordinate 0 along the axes.
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

// Collective: the group of this rank among the lists.
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

Mesh Mesh::build(const Layout& layout, comm::Group& world) {
  Mesh mesh;
  mesh.layout_ = layout;
  mesh.world_ = &world;
  const Grid dense = checked_grid(layout, world.size(), false),
             experts = checked_grid(layout, world.size(), true);
  for (const AxisSet axes : {AxisSet(Axis::tp), AxisSet(Axis::cp), AxisSet(Axis::ep),
                             AxisSet(Axis::dp), AxisSet(Axis::pp), AxisSet{Axis::dp, Axis::cp}}) {
    mesh.groups_[axes] = make_group(lists(dense, world.size(), axes), world);
  }
  for (const AxisSet axes : {AxisSet(Axis::tp), AxisSet(Axis::ep), AxisSet(Axis::dp)}) {
    mesh.expert_groups_[axes] = make_group(lists(experts, world.size(), axes), world);
  }
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
