// What the rest of a decoder asks of a kind of mixer or of a kind of feed-forward: the parts of a
// layer that mix tokens, and that transform each token by itself.
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

// Specialized for each type of configuration in MixerValue and FeedForwardValue, with these static
// members:
//   kName                             the kind in a model's description
//   fields(config, f)                 calls f(name, field, always) for each field of the
//                                     description; always: written even if it is the default
//   check(model, config)              throws Error naming a value out of range and its flag
//   parameters(config, norm, hidden)  number of parameters; norm: of the layer
//   forward_flops(config, hidden, length)   of a sequence of this length
//   add_facts(config, facts)          adds its facts to those of the layers before
//   build(builder, name, config, place)     the module; null for none
//   plain(parts, x, name, config, norm)     an independent implementation (plain_parts.h)
// Mixers also have:
//   rotary(config)                    null if it does not rotate
//   matrices(config, parameter)       rows of the matrices of which a parameter (".qkv.weight")
//                                     consists, which Muon orthogonalizes one by one; empty: one
template <class Config>
struct LayerPart;

// Calls f(LayerPart<Config>{}, config) for the configuration that a MixerValue or FeedForwardValue
// has.
template <class Value, class F>
decltype(auto) visit_part(Value&& value, F&& f) {
  return std::visit(
      [&](auto&& config) -> decltype(auto) {
        return f(LayerPart<std::remove_cvref_t<decltype(config)>>{}, config);
      },
      std::forward<Value>(value));
}

}  // namespace megatron::models
