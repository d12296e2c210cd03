// Which part of which canonical tensor a rank holds. Initialisation, checkpoints, shards of the
// optimizer, layout tests and the planner read placements and nothing else.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "parallel/mesh.h"

namespace megatron::parallel {

// Rows [global_begin, +size) along an axis of a canonical tensor, or of all ranks' slices together,
// lie at [local_begin, +size) along the same axis of our parameter.
struct Slice {
  int64_t global_begin = 0, local_begin = 0, size = 0;
};

struct AxisSlices {
  int axis = 0;
  std::vector<Slice> slices;  // disjoint; none: nothing is held
};

// One canonical (Hugging Face) tensor, or what this rank holds of it: the product of the slices
// along each axis. `global` is its logical shape, which has as many dims as our parameter: [out, in]
// for matrices.
struct CanonicalTensor {
  std::string name;
  Shape global;
  std::vector<AxisSlices> held;  // at most one an axis; of the axes not listed all is held
  bool transposed = false;       // on disk the last two dims are swapped (GPT-2's Conv1D)
  // It is one of several tensors that our parameter stacks (an expert's matrix): global[0] is 1,
  // and is not there on disk.
  bool stacked = false;

  Shape stored_shape() const;                 // as on disk
  std::vector<Slice> slices(int axis) const;  // in the order given; one where all is held
};

// A parameter of ours is one canonical tensor or several (q, k, v; gate, up; experts).
struct Placement {
  std::vector<CanonicalTensor> tensors;
};

// How a parameter begins: normal draws are made for element i of canonical tensor `name` from
// RandomStream(seed, name) at i, so that no layout changes them.
struct Init {
  // xavier_uniform (Glorot & Bengio 2010): uniform in [-a, a), a = sqrt(6 / (rows + columns)) of
  // the whole parameter, whose rows may be those of several canonical tensors.
  enum class Kind { normal, zeros, ones, xavier_uniform } kind = Kind::zeros;
  double standard_deviation = 0;  // of normal
};

// The groups of ranks that share a module (parallel/model_ranks.h).
enum class RankGroup : uint8_t { tensor, context, expert, expert_tensor };

// How a parameter is divided among the ranks of one group, along `axis` of its whole shape. blocks:
// sizes of the matrices that lie one after another along it ([q | k | v]); each is divided by itself
// (share_of), and a rank's shares lie one after another.
struct Division {
  int axis = 0;
  std::vector<int64_t> blocks;
  RankGroup group = RankGroup::tensor;
  int ranks = 1, rank = 0;  // of that group and this rank in it (nn::Builder sets both)

  // What a rank of the group holds, in the coordinates of the whole shape.
  std::vector<Slice> slices(int of_rank) const;
  std::vector<Slice> slices() const { return slices(rank); }
  int64_t length(int of_rank) const;  // of those slices together
};

// What optimizers may treat apart: the table of tokens (tied or not) and the output layer.
enum class Role { hidden, embedding, output };

// A parameter with all that the rooms above need to know of it.
struct ParameterSpec {
  Parameter parameter;
  Placement placement;
  Init init;
  bool decay = true;  // weight decay applies
  Role role = Role::hidden;
  // muP (Yang et al. 2022): how many times wider its model is than the one whose learning rates it takes
  // over, and whether both dims of this matrix grow with the width.
  double width_multiplier = 1;
  bool grows_both_ways = false;
  // Rows of each of the matrices that lie one below the other in it ([q | k | v]), of all ranks
  // together; empty: it is one.
  std::vector<int64_t> matrices;
  Shape whole;                      // shape of all ranks' slices together
  std::vector<Division> divisions;  // at most one an axis; none: every rank holds all of it
  // Each rank's gradient there is a part of the sum (of a parameter used on divided tokens or heads).
  std::optional<RankGroup> partial;
  // Whether this rank counts it in norms: of several in the groups of its module (and of pipeline
  // stages) that hold the same, the first does.
  bool counted = true;
  // Another pipeline stage holds it, too, for another use (tied embeddings): one gradient.
  bool tied_across_stages = false;

  // Divided among the ranks of RankGroup::expert. Its replicas are other ranks than those of dense
  // layers.
  bool is_expert() const;
  bool is_divided() const;  // among more than one rank
  // Number, in the whole shape and row-major, of the first element that this rank holds: ranks
  // whose slices are not the same have different ones. -1: it holds none.
  int64_t first_element() const;
};

// Rows [begin, begin + size) of `total` that rank `rank` of `ranks` holds: ceil(total / ranks)
// each, the last ones what remains, which may be nothing.
Slice share_of(int64_t total, int ranks, int rank);

// What is left of a whole parameter's placement when only `slices` of its dim `axis` are held.
Placement narrowed(const Placement& whole, int axis, std::span<const Slice> slices);

// Elements [begin, begin + value.elements()) of a parameter in row-major order: what a rank keeps
// and updates of it.
struct Shard {
  ParameterSpec* placed = nullptr;
  int64_t begin = 0;
  Tensor value;     // of the model's type; of the parameter's shape when it is all of it, else [n]
  Tensor gradient;  // of the accumulator's type and of value's shape; undefined: not trainable
  // Whether this rank counts it in sums over parallel::Ranks::norm(): of the ranks there that hold
  // the same elements one does.
  bool counted = true;

  int64_t size() const { return value.elements(); }
  bool is_whole() const { return size() == placed->parameter.value.elements(); }
};

// Fills a shard's value (converted to its type); elements that no part covers become zero.
void initialize(const Shard& shard, uint64_t seed, Stream& stream);
// The same of a parameter that is held whole.
void initialize(ParameterSpec& placed, uint64_t seed, Stream& stream);

// Gives every parameter memory of its own, in the parameters' arena: for models that are not
// trained. A trained one gets it from DataParallel (parallel/data_parallel.h).
void allocate(std::span<ParameterSpec* const> parameters, Runtime& runtime);

// Calls f(part, canonical element index of the run's begin, local element index, run length) for
// each run of elements contiguous both in the canonical tensor (logical layout) and in our
// parameter, in canonical order of each part.
void for_each_run(const ParameterSpec& placed,
                  const std::function<void(const CanonicalTensor&, int64_t canonical, int64_t local,
                                           int64_t size)>& f);

}  // namespace megatron::parallel
