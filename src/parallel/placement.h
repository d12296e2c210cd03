// Which part of which canonical tensor a rank holds. Initialisation, checkpoints, shards of the
// optimizer, layout tests and the planner read placements and nothing else.
#pragma once

#include <functional>
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
  double deviation = 0;  // of normal
};

// What optimizers may treat apart: the table of tokens (tied or not) and the output layer.
enum class Role { hidden, embedding, output };

// A parameter with all that the rooms above need to know of it.
struct Placed {
  Parameter parameter;
  Placement placement;
  Init init;
  bool decay = true;  // weight decay applies
  Role role = Role::hidden;
  // Rows of each of the matrices that lie one below the other in it ([q | k | v]); empty: it is
  // one.
  std::vector<int64_t> matrices;
};

// Fills the parameter's value (converted to its type); rows that no part covers become zero.
void initialize(Placed& placed, uint64_t seed, ThreadPool& pool);

// Calls f(part, canonical element index of the run's begin, local element index, run length) for
// each run of elements contiguous both in the canonical tensor (logical layout) and in our
// parameter, in canonical order of each part.
void for_each_run(
    const Placed& placed,
    const std::function<void(const Part&, int64_t canonical, int64_t local, int64_t size)>& f);

}  // namespace megatron::parallel
