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

// Rows [global_begin, +size) along the part's axis lie at [local_begin, +size) along dim `axis` of
// our parameter.
struct Slice {
  int64_t global_begin = 0, local_begin = 0, size = 0;
};

// One canonical (Hugging Face) tensor, or what this rank holds of it. `global` is its logical
// shape, [out, in] for matrices; `transposed`: on disk it lies as [in, out] (GPT-2's Conv1D).
struct Part {
  std::string name;
  Shape global;
  int axis = 0;
  std::vector<Slice> slices;
  bool transposed = false;

  Shape stored_shape() const;  // as on disk
};

enum class Kind { dense, expert };

// A parameter of ours is one canonical tensor or several along `axis` (q, k, v; gate, up).
struct Placement {
  std::vector<Part> parts;
  AxisSet replicated = {Axis::cp, Axis::dp};  // axes whose ranks hold the same
  Kind kind = Kind::dense;
};

// How a parameter begins: normal draws are made for element i of canonical tensor `name` from
// RandomStream(seed, name) at i, so that no layout changes them.
struct Init {
  // xavier_uniform (Glorot & Bengio 2010): uniform in [-a, a), a = sqrt(6 / (rows + columns)) of
  // the whole parameter, whose rows may be those of several canonical tensors.
  enum class Kind { normal, zeros, ones, xavier_uniform } kind = Kind::zeros;
  double standard_deviation = 0;  // of normal
};

// How a parameter of a layer is divided among tensor-parallel ranks, along `axis` of its whole
// shape. blocks: sizes of the matrices that lie one after another along it ([q | k | v]); each is
// divided by itself (share_of), and this rank's shares lie one after another.
struct Division {
  int axis = 0;
  std::vector<int64_t> blocks;
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
  // Rows of each of the matrices that lie one below the other in it ([q | k | v]), of all ranks
  // together; empty: it is one.
  std::vector<int64_t> matrices;
  Shape whole;                       // shape of all ranks' slices together
  std::optional<Division> division;  // none: every tensor-parallel rank holds all of it
  // Each tensor-parallel rank's gradient is a part of the sum (a parameter used on divided tokens).
  bool partial = false;
  // Whether this rank counts it in norms: of several that hold the same, the first does.
  bool counted = true;
  // Another pipeline stage holds it, too, for another use (tied embeddings): one gradient.
  bool tied_across_stages = false;
};

// The slices, in the coordinates of the whole shape, that a rank holds of a division.
std::vector<Slice> slices_of(const Division& division, int ranks, int rank);
// What is left of a whole parameter's placement when only `slices` of its dim `axis` are held.
Placement narrowed(const Placement& whole, int axis, std::span<const Slice> slices);

// Elements [begin, begin + value.elements()) of a parameter in row-major order: what a rank keeps
// and updates of it.
struct Shard {
  ParameterSpec* placed = nullptr;
  int64_t begin = 0;
  Tensor value;     // of the model's type; of the parameter's shape when it is all of it, else [n]
  Tensor gradient;  // of the accumulator's type and of value's shape; undefined: not trainable

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
void for_each_run(
    const ParameterSpec& placed,
    const std::function<void(const Part&, int64_t canonical, int64_t local, int64_t size)>& f);

}  // namespace megatron::parallel
