// What the rest of a decoder asks of a kind of mixer: the part of a layer that mixes tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/decoder/layer.h"
#include "models/decoder/plain_parts.h"
#include "models/decoder/value.h"
#include "models/facts.h"

namespace megatron::models {

// Specialized for each type of configuration in MixerValue, with these static members:
//   kName                             the kind in a model's description
//   fields(config, f)                 calls f(name, field, always) for each field of the
//                                     description; always: written even if it is the default
//   check(model, config)              throws Error naming a value out of range and its flag
//   parameters(config, norm, hidden)  number of parameters; norm: of the layer
//   forward_flops(config, hidden, length)   of a sequence of this length
//   facts(config)                     null for a mixer without attention
//   rotary(config)                    null if it does not rotate
//   matrices(config, parameter)       rows of the matrices of which a parameter (".qkv.weight")
//                                     consists, which Muon orthogonalizes one by one; empty: one
//   build(builder, name, config, place)     the module; null for none
//   plain(parts, x, name, config, norm)     an independent implementation (plain_parts.h)
template <class Config>
struct Mixer;

// Calls f(Mixer<Config>{}, config) for the configuration that the value has.
template <class Value, class F>
decltype(auto) visit_mixer(Value&& value, F&& f) {
  return std::visit(
      [&](auto&& config) -> decltype(auto) {
        return f(Mixer<std::remove_cvref_t<decltype(config)>>{}, config);
      },
      std::forward<Value>(value));
}

}  // namespace megatron::models
