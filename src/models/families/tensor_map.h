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
  all,         // the whole tensor
  transposed,  // the whole tensor, with matrices stored [in, out] (GPT-2's Conv1D)
  q,           // query rows of [q | k | v]
  k,
  v,
  gate,  // gate rows of [gate | up], or keys of [k | v]: the first half
  up,
  experts,       // [E, ...] stored as one tensor per expert, with its number in place of '#'
  experts_gate,  // the same for gate rows of [gate | up]
  experts_up,
  experts_stored_in_out,  // the whole [E, out, in], stored as [E, in, out]
  // The whole [E, gate | up, in], stored as [E, in, interleaved gate and up]; biases alike.
  experts_interleaved,
  grouped,  // the whole [q | k | v], stored as one block per key head: its queries, key and value
};

// `ours` names a module or a parameter, "attention.qkv" or "attention.sinks"; any suffix
// (".weight", ".bias") is appended to `theirs`.
struct TensorName {
  std::string_view ours, theirs;
  Take take = Take::all;
};

// The tensors of a depth of multi-token prediction besides those of its layer, as DeepSeek-V3 and
// GLM-4.5 name them.
inline constexpr TensorName kPredictionTensors[] = {{"embedding_norm", "enorm"},
                                                    {"hidden_norm", "hnorm"},
                                                    {"projection", "eh_proj"},
                                                    {"final_norm", "shared_head.norm"}};

struct FamilyTensors {
  // Prefix of a layer's tensors: "model.layers.*.", where '*' is its number.
  std::string layer_prefix;
  std::vector<TensorName> outside;  // tensors outside of layers
  std::vector<TensorName> layer;
  // The same for the layers of an encoder before a decoder's, if each are numbered from 0; "": one
  // prefix and one list name all layers, which are numbered one after another.
  std::string encoder_prefix = "";
  std::vector<TensorName> encoder_layer = {};
};

// Returns the tensors on disk that make up a parameter. Throws Error naming the parameter if the
// map has no row for it.
parallel::Placement placement_of(const FamilyTensors& map, const DecoderValue& value,
                                 const std::string& parameter, const Shape& shape);

// The tensor of a shared block, which is named after its first layer, for a name after another
// layer that uses the block; "" for other names.
std::string original_in_block(const FamilyTensors& map, const DecoderValue& value,
                              std::string_view tensor);

// True for name "layers.3.x" and pattern "layers.*.x"; a pattern that ends in a dot, "layers.*.x.",
// also matches "layers.3.x.y".
bool matches(std::string_view pattern, std::string_view name);

}  // namespace megatron::models
