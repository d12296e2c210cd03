// A family's table of tensor names on disk, by which tensors are read, written and placed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/decoder/value.h"
#include "parallel/placement.h"

namespace megatron::models {

// The part of a parameter that a tensor on disk holds.
enum class Take {
  all,         // all of it
  transposed,  // all of it, matrices stored [in, out] (GPT-2's Conv1D)
  q,           // the rows of queries of [q | k | v]
  k,
  v,
  gate,  // the rows of the gate of [gate | up]
  up,
  experts,       // of [E, ...], a tensor for each expert, whose number stands for '#'
  experts_gate,  // the same of the rows of the gate of [gate | up]
  experts_up,
  experts_stored_in_out,  // all of [E, out, in], stored as [E, in, out]
  experts_interleaved,  // all of [E, gate | up, in], stored as [E, in, gate and up in turn]; biases
                        // alike
  grouped,  // all of [q | k | v], stored as one block a key head: its queries, its key, its value
};

// `ours` names a module or a parameter, "attention.qkv" or "attention.sinks"; any suffix
// (".weight", ".bias") is appended to `theirs`.
struct TensorName {
  std::string_view ours, theirs;
  Take take = Take::all;
};

struct FamilyTensors {
  std::string layer_prefix;         // of tensors of a layer: "model.layers.*.", '*' is its number
  std::vector<TensorName> outside;  // of layers
  std::vector<TensorName> layer;
};

// Returns the tensors on disk that make up a parameter. Throws Error naming the parameter if the
// map has no row for it.
parallel::Placement placement_of(const FamilyTensors& map, const DecoderValue& value,
                                 const std::string& parameter, const Shape& shape);

// True for name "layers.3.x" and pattern "layers.*.x"; a pattern that ends in a dot, "layers.*.x.",
// also matches "layers.3.x.y".
bool matches(std::string_view pattern, std::string_view name);

}  // namespace megatron::models
