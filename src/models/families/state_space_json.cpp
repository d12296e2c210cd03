#include "models/families/state_space_json.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace megatron::models {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::string_view kLimits = "time_step_limit";

// Infinity is written as an object, which transformers 5 reads.
constexpr std::string_view kFloat = "__float__";

double limit(const Json& value) {
  if (value.is_number()) return value.as_number();
  const Json* text = value.is_object() ? value.find(kFloat) : nullptr;
  if (text != nullptr && text->is_string() && text->as_string() == "Infinity") return kInfinity;
  return NAN;
}

constexpr TensorName kMixerTensors[] = {{"attention.state_space.in_proj", "mixer.in_proj"},
                                        {"attention.state_space.conv", "mixer.conv1d"},
                                        {"attention.state_space.a_log", "mixer.A_log"},
                                        {"attention.state_space.dt_bias", "mixer.dt_bias"},
                                        {"attention.state_space.d", "mixer.D"},
                                        {"attention.state_space.norm", "mixer.norm"},
                                        {"attention.state_space.out_proj", "mixer.out_proj"}};

// A scan's chunks change no value, so their size is this program's own (docs/state_spaces.md); one
// that no program could use is refused.
void check_chunk_size(const Json& j) {
  for (const std::string_view key : {"chunk_size", "mamba_chunk_size"})
    if (present(j, key) != nullptr) integer(j, key);
}

}  // namespace

nn::StateSpaceConfig read_state_space(const Json& j, const StateSpaceKeys& keys, double epsilon) {
  check_chunk_size(j);
  return {.heads = integer(j, keys.heads),
          .head_size = integer(j, keys.head_size),
          .groups = integer(j, keys.groups),
          .states = integer(j, keys.states),
          .conv_width = integer(j, keys.conv_width),
          .conv_bias = boolean(j, keys.conv_bias),
          .norm_epsilon = epsilon};
}

nn::StateSpaceConfig read_bamba_space(Json j, int64_t width, std::string_view which,
                                      double epsilon) {
  const int64_t heads = integer(j, kBambaKeys.heads);
  MG_CHECK(width % heads == 0, "config.json has {} = {} and {} = {}, which does not divide it",
           which, width, kBambaKeys.heads, heads);
  if (const Json* size = present(j, kBambaKeys.head_size);
      size->is_string() && size->as_string() == "auto")
    j.set(kBambaKeys.head_size, width / heads);
  nn::StateSpaceConfig space = read_state_space(j, kBambaKeys, epsilon);
  MG_CHECK(space.width() == width,
           "config.json has {} = {} and {} = {}; their product must be {} = {}", kBambaKeys.heads,
           space.heads, kBambaKeys.head_size, space.head_size, which, width);
  read_step_limits(j, space);
  return space;
}

void write_state_space(const nn::StateSpaceConfig& s, const StateSpaceKeys& keys, Json& j) {
  j.set(keys.heads, s.heads);
  j.set(keys.head_size, s.head_size);
  j.set(keys.groups, s.groups);
  j.set(keys.states, s.states);
  j.set(keys.conv_width, s.conv_width);
  j.set(keys.conv_bias, s.conv_bias);
}

void read_step_limits(const Json& j, nn::StateSpaceConfig& s) {
  const Json* value = present(j, kLimits);
  if (value == nullptr) return;
  const bool two = value->is_array() && value->as_array().size() == 2;
  const double least = two ? limit(value->as_array()[0]) : NAN,
               most = two ? limit(value->as_array()[1]) : NAN;
  MG_CHECK(least >= 0 && std::isfinite(least) && most > least,
           "config.json has {} = {}; it must be a list of two numbers, the first 0 or more and the "
           "second above it (no limit: {{\"{}\": \"Infinity\"}})",
           kLimits, value->dump(), kFloat);
  s.min_step = least;
  s.max_step = std::isfinite(most) ? most : 0;
}

// The default is left out: older readers know no infinity in JSON.
void write_step_limits(const nn::StateSpaceConfig& s, Json& j) {
  if (s.min_step == 0 && s.max_step == 0) return;
  const Json most =
      s.max_step > 0 ? Json(s.max_step) : Json(Json::Object{{std::string(kFloat), "Infinity"}});
  j.set(kLimits, Json::Array{Json(s.min_step), most});
}

void read_initial_steps(const Json& j, nn::StateSpaceConfig& s) {
  s.initial_min_step = positive(j, "time_step_min");
  s.initial_max_step = positive(j, "time_step_max");
  s.initial_step_floor = number(j, "time_step_floor");
}

void write_initial_steps(const nn::StateSpaceConfig& s, Json& j) {
  j.set("time_step_min", s.initial_min_step);
  j.set("time_step_max", s.initial_max_step);
  j.set("time_step_floor", s.initial_step_floor);
}

int64_t expansion(const nn::StateSpaceConfig& s, const DecoderValue& value) {
  MG_CHECK(s.width() % value.hidden_size == 0,
           "a state space of width {} ({} heads of {}), which is not a multiple of the hidden size "
           "{}",
           s.width(), s.heads, s.head_size, value.hidden_size);
  return s.width() / value.hidden_size;
}

std::span<const TensorName> mixer_tensors() { return kMixerTensors; }

FamilyTensors hybrid_tensors(const DecoderValue&) {
  return {.layer_prefix = "model.layers.*.",
          .outside = {{"embedding", "model.embed_tokens"},
                      {"final_norm", "model.final_layernorm"},
                      {"output", "lm_head"}},
          .layer = {{"attention.qkv", "self_attn.q_proj", Take::q},
                    {"attention.qkv", "self_attn.k_proj", Take::k},
                    {"attention.qkv", "self_attn.v_proj", Take::v},
                    {"attention.output", "self_attn.o_proj"},
                    {"attention.state_space.in_proj", "mamba.in_proj"},
                    {"attention.state_space.conv", "mamba.conv1d"},
                    {"attention.state_space.a_log", "mamba.A_log"},
                    {"attention.state_space.dt_bias", "mamba.dt_bias"},
                    {"attention.state_space.d", "mamba.D"},
                    {"attention.state_space.norm", "mamba.norm"},
                    {"attention.state_space.out_proj", "mamba.out_proj"},
                    {"mlp.up", "feed_forward.gate_proj", Take::gate},
                    {"mlp.up", "feed_forward.up_proj", Take::up},
                    {"mlp.down", "feed_forward.down_proj"},
                    {"attention_norm", "input_layernorm"},
                    {"mlp_norm", "pre_ff_layernorm"}}};
}

}  // namespace megatron::models
