// Common parts of the config.json of families with state spaces.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "models/families/config_json.h"

namespace megatron::models {

// A family's spelling of the keys of a state space.
struct StateSpaceKeys {
  std::string_view heads, head_size, groups, states, conv_width, conv_bias;
};
// Appends the flags of a state space with these keys to `others`.
template <size_t kOthers = 0>
constexpr std::array<DecoderFamily::Key, kOthers + 4> state_space_flags(
    const StateSpaceKeys& keys, const std::array<DecoderFamily::Key, kOthers>& others = {}) {
  std::array<DecoderFamily::Key, kOthers + 4> all;
  std::ranges::copy(others, all.begin());
  std::ranges::copy(std::array<DecoderFamily::Key, 4>{{{"--mamba-num-heads", keys.heads},
                                                       {"--mamba-head-dim", keys.head_size},
                                                       {"--mamba-num-groups", keys.groups},
                                                       {"--mamba-state-dim", keys.states}}},
                    all.begin() + kOthers);
  return all;
}
// The sizes, and the epsilon of the model's norms for the gated one.
nn::StateSpaceConfig read_state_space(const Json& config, const StateSpaceKeys& keys,
                                      double epsilon);
void write_state_space(const nn::StateSpaceConfig& space, const StateSpaceKeys& keys, Json& config);

// The keys of Bamba and Falcon-H1.
inline constexpr StateSpaceKeys kBambaKeys{.heads = "mamba_n_heads",
                                           .head_size = "mamba_d_head",
                                           .groups = "mamba_n_groups",
                                           .states = "mamba_d_state",
                                           .conv_width = "mamba_d_conv",
                                           .conv_bias = "mamba_conv_bias"};
// A state space with these keys and time_step_limit, whose heads have `width` elements together, as
// `which` of config.json says; mamba_d_head may be "auto".
nn::StateSpaceConfig read_bamba_space(Json config, int64_t width, std::string_view which,
                                      double epsilon);

// time_step_limit: the least and the largest step.
void read_step_limits(const Json& config, nn::StateSpaceConfig& space);
void write_step_limits(const nn::StateSpaceConfig& space, Json& config);
// time_step_min, time_step_max and time_step_floor: the initial steps.
void read_initial_steps(const Json& config, nn::StateSpaceConfig& space);
void write_initial_steps(const nn::StateSpaceConfig& space, Json& config);

// The ratio of a state space's width to the hidden size, a whole number (expand). Throws Error if
// it is none.
int64_t expansion(const nn::StateSpaceConfig& space, const DecoderValue& value);

// A model's context, where the family has no key of its own: a state space has no limit.
inline constexpr int64_t kEndlessContext = 1 << 20;

// A state space's tensors in a module "mixer".
std::span<const TensorName> mixer_tensors();
// The tensors of Bamba and Falcon-H1.
FamilyTensors hybrid_tensors(const DecoderValue& value);

}  // namespace megatron::models
