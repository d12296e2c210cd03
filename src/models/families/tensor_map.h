// The tensors of a family by their names on disk, row by row: read, written and placed by.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/decoder/value.h"
#include "parallel/placement.h"

namespace megatron::models {

// What a tensor on disk is of a parameter of ours.
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
  experts_interleaved,  // all of [E, gate | up, in], stored as [E, in, gate and up in turn]; biases alike
  grouped,  // all of [q | k | v], stored as one block a key head: its queries, its key, its value
};

// `ours` names a module or a parameter, "attention.qkv" or "attention.sinks"; what follows it (".weight",
// ".bias") follows `theirs`.
struct TensorName {
  std::string_view ours, theirs;
  Take take = Take::all;
};

struct FamilyTensors {
  std::string layer_prefix;         // of tensors of a layer: "model.layers.*.", '*' is its number
  std::vector<TensorName> outside;  // of layers
  std::vector<TensorName> layer;
};

// The tensors on disk that a parameter consists of. Throws Error naming the parameter where the map has no
// row for it.
parallel::Placement placement_of(const FamilyTensors& map, const DecoderValue& value,
                                 const std::string& parameter, const Shape& shape);

// "layers.3.x" where pattern is "layers.*.x"; also "layers.3.x.y" where it ends in a dot,
// "layers.*.x.".
bool matches(std::string_view pattern, std::string_view name);

}  // namespace megatron::models
