// Placement: which part of which canonical tensor a rank holds. Initialization, checkpoints,
// optimizer shards, layout tests and the planner depend only on placements.
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
// are at [local_begin, +size) along the same axis of the parameter.
struct Slice {
  int64_t global_begin = 0, local_begin = 0, size = 0;
};

struct AxisSlices {
  int axis = 0;
  std::vector<Slice> slices;  // disjoint; none if nothing is held
};

// One canonical (Hugging Face) tensor, or this rank's part of it: the product of the slices along
// each axis. `global` is its logical shape, with as many dims as the parameter: [out, in] for
// matrices.
struct CanonicalTensor {
  std::string name;
  Shape global;
  std::vector<AxisSlices> held;  // at most one per axis; unlisted axes are held completely
  bool transposed = false;       // on disk, the last two dimensions are swapped (GPT-2's Conv1D)
  // True if the parameter stacks several such tensors (an expert's matrix): global[0] is 1 and not
  // present on disk.
  bool stacked = false;
  // The experts of axis 0 are joined to one matrix on disk (PEFT's adapters of fused experts):
  // [E,r,c] is stored as [E * r, c], or as [r, c * E], in which the expert changes fastest; with
  // `transposed`, r and c are swapped.
  enum class Joined : uint8_t { no, rows, columns } joined = Joined::no;

  Shape stored_shape() const;                   // as on disk
  std::vector<int64_t> stored_strides() const;  // on disk, of the dims of `global`
  std::vector<Slice> slices(int axis) const;    // in the given order; a single one if all is held
};

// A parameter consists of one canonical tensor or several (q, k, v; gate, up; experts).
struct Placement {
  std::vector<CanonicalTensor> tensors;
};

// Initial values of a parameter: normal draws for element i of canonical tensor `name` come from
// RandomStream(seed, name) at i, so that they do not depend on the layout.
struct Init {
  // xavier_uniform (Glorot & Bengio 2010): uniform in [-a, a), a = sqrt(6 / (rows + columns)) of
  // the whole parameter, whose rows may belong to several canonical tensors. uniform: in [-scale,
  // scale). log_of_uniform: the logarithm of a number that is uniform in [low, high).
  // inverse_softplus: the number whose softplus is s, at least `floor`, the logarithm of s uniform
  // in [ln low, ln high).
  enum class Kind {
    normal,
    zeros,
    ones,
    xavier_uniform,
    uniform,
    log_of_uniform,
    inverse_softplus
  } kind = Kind::zeros;
  double scale = 0;  // standard deviation of a normal distribution
  double low = 0, high = 0, floor = 0;
};

// The groups of ranks that share a module (parallel/model_ranks.h).
enum class RankGroup : uint8_t { tensor, context, expert, expert_tensor };

// Division of a parameter among the ranks of one group, along `axis` of its whole shape. blocks:
// sizes of the consecutive matrices along the axis ([q | k | v]); each is divided separately
// (share_of), and a rank's shares are consecutive.
struct Division {
  int axis = 0;
  std::vector<int64_t> blocks;
  RankGroup group = RankGroup::tensor;
  int ranks = 1, rank = 0;  // size of that group and this rank in it (set by nn::Builder)

  // A rank's slices, in the coordinates of the whole shape.
  std::vector<Slice> slices(int of_rank) const;
  std::vector<Slice> slices() const { return slices(rank); }
  int64_t length(int of_rank) const;  // total length of those slices
};

// Roles that optimizers may treat differently: the table of tokens (tied or not), the output layer,
// and tables of numbers for each head by the distance of two tokens, which are no matrices.
enum class Role { hidden, embedding, output, distances };

// A parameter with all that the rooms above need to know about it.
struct ParameterSpec {
  Parameter parameter;
  Placement placement;
  Init init;
  bool decay = true;  // weight decay applies
  Role role = Role::hidden;
  // muP (Yang et al. 2022): width of this model relative to the one whose learning rates it uses,
  // and whether both dims of this matrix grow with the width.
  double width_multiplier = 1;
  bool grows_both_ways = false;
  double rate_multiplier = 1;  // of the run's learning rate
  // True in detached depths of multi-token prediction, whose losses train nothing else: gradients
  // of such parameters have a norm of their own, by which they are clipped.
  bool detached = false;
  bool orthogonalized = true;  // Muon updates it, if it is a matrix between embedding and output
  // Rows of each of the matrices stacked in it ([q | k | v]), of all ranks together; empty: it is a
  // single matrix.
  std::vector<int64_t> matrices;
  Shape whole;                      // shape over all ranks
  std::vector<Division> divisions;  // at most one per axis; none: every rank has the whole
  // Group over which each rank's gradient is a partial sum (of a parameter used on divided tokens
  // or heads).
  std::optional<RankGroup> partial;
  // True if this rank counts it in norms: among the ranks of its module's groups (and pipeline
  // stages) that hold the same elements, the first does.
  bool counted = true;
  // Where the model uses a parameter that has several uses, in order: the number of a layer, -1 for
  // the embedding of tokens, the number of layers for the depths of prediction and the final norm,
  // kHeadPlace (layer_layout.h) for the head. This chunk has the uses from
  // first_use on, as many as its Parameter. Empty: one use.
  std::vector<int64_t> used_in;
  int first_use = 0;
  std::vector<int> use_stages;  // pipeline stage of each of them (stages_of_uses); set for training
  // True if other chunks hold it, too, for other uses: they share one gradient.
  bool tied_across_stages() const { return used_in.size() > parameter.uses.size(); }

  // True if divided among the ranks of RankGroup::expert. Its replicas are on other ranks than
  // those of dense layers.
  bool is_expert() const;
  bool is_divided() const;  // true if more than one rank shares it
  // Row-major index, in the whole shape, of the first element that this rank holds: ranks with
  // different slices have different ones. -1: it holds none.
  int64_t first_element() const;
};

// Rows [begin, begin + size) of `total` that rank `rank` of `ranks` holds: ceil(total / ranks)
// each; the last ranks hold the rest, which may be empty.
Slice share_of(int64_t total, int ranks, int rank);

// Placement of the part of a whole parameter that has only `slices` of its dim `axis`.
Placement narrowed(const Placement& whole, int axis, std::span<const Slice> slices);

// Elements [begin, begin + value.elements()) of a parameter in row-major order: the part that a
// rank keeps and updates.
struct Shard {
  ParameterSpec* placed = nullptr;
  int64_t begin = 0;
  Tensor value;     // in the model's type; has the parameter's shape if complete, else [n]
  Tensor gradient;  // in the accumulator's type, shaped like value; undefined: not trainable
  // True if this rank counts it in sums over parallel::Ranks::norm(): exactly one of the ranks that
  // hold the same elements does.
  bool counted = true;

  int64_t size() const { return value.elements(); }
  bool is_whole() const { return size() == placed->parameter.value.elements(); }
};

// Fills a shard's value (converted to its type); elements that no part covers become zero.
void initialize(const Shard& shard, uint64_t seed, Stream& stream);
// The same for a parameter that is held whole.
void initialize(ParameterSpec& placed, uint64_t seed, Stream& stream);

// Allocates separate memory for every parameter, in the parameters' arena: for models that are not
// trained. A trained model gets it from DataParallel (parallel/data_parallel.h).
void allocate(std::span<ParameterSpec* const> parameters, Runtime& runtime);

// Calls f(part, canonical element index of the run's begin, local element index, run length) for
// each run of elements contiguous both in the canonical tensor (logical layout) and in the
// parameter, in canonical order of each part.
void for_each_run(const ParameterSpec& placed,
                  const std::function<void(const CanonicalTensor&, int64_t canonical, int64_t local,
                                           int64_t size)>& f);

}  // namespace megatron::parallel
