#include "models/decoder/heterogeneous.h"

#include "base/error.h"

namespace megatron::models {
namespace {

// One entry of the list, whose errors name the layer.
class JsonBlock {
  template <class Get>
  auto read(std::string_view key, Get get) const {
    try {
      return get();
    } catch (const Error& error) {
      fail("{} has {} = {}: {}", where_, key, find(key)->dump(), error.what());
    }
  }

 public:
  JsonBlock(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    MG_CHECK(json.is_object(), "{} is {}; expected an object", where_, json.dump());
  }
  const Json* find(std::string_view key) const {
    const Json* value = json_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  JsonBlock block(std::string_view key, std::string_view other) const {
    const Json* value = find(key);
    if (value == nullptr) value = find(other);
    MG_CHECK(value != nullptr, "{} has no '{}'", where_, key);
    return {*value, fmt::format("{}, {}", where_, key)};
  }
  bool flag(std::string_view key) const {
    const Json* value = find(key);
    return value != nullptr && read(key, [value] { return value->as_bool(); });
  }
  std::optional<int64_t> integer(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    const int64_t number = read(key, [value] { return value->as_integer(); });
    MG_CHECK(number > 0, "{} has {} = {}; expected a positive number", where_, key, number);
    return number;
  }
  std::optional<double> number(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    const double number = read(key, [value] { return value->as_number(); });
    MG_CHECK(number > 0 && number < 1e6, "{} has {} = {}; expected a positive number", where_, key,
             number);
    return number;
  }
  [[noreturn]] void lacks(std::string_view keys) const {
    fail("{} must have one of {}", where_, keys);
  }
  const std::string& where() const { return where_; }

 private:
  const Json& json_;
  std::string where_;
};

void apply_attention(const JsonBlock& block, LayerValue& layer) {
  if (block.flag("no_op")) {
    layer.mixer = NoOp{};
  } else if (block.flag("replace_with_linear")) {
    layer.mixer = LinearConfig{};
  } else {
    nn::AttentionConfig& a = *layer.attention();
    if (const auto groups = block.integer("num_query_groups")) {
      a.kv_heads = *groups;
    } else if (const auto in_group = block.integer("n_heads_in_group")) {
      MG_CHECK(a.heads % *in_group == 0,
               "{} has n_heads_in_group = {}, which does not divide the {} heads", block.where(),
               *in_group, a.heads);
      a.kv_heads = a.heads / *in_group;
    } else {
      block.lacks("num_query_groups, n_heads_in_group, no_op, replace_with_linear");
    }
  }
}

void apply_mlp(const JsonBlock& block, int64_t hidden, LayerValue& layer) {
  if (block.flag("no_op")) {
    layer.feed_forward = NoOp{};
  } else if (block.flag("replace_with_linear")) {
    layer.feed_forward = LinearConfig{};
  } else {
    nn::MlpConfig& mlp = *layer.mlp();
    if (const auto size = block.integer("ffn_hidden_size")) {
      mlp.ffn = *size;
    } else if (const auto width = block.integer("intermediate_size")) {
      mlp.ffn = *width;
    } else if (const auto multiple = block.number("ffn_mult")) {
      const auto wanted = static_cast<int64_t>(2 * *multiple * static_cast<double>(hidden) / 3);
      mlp.ffn = (wanted + 255) / 256 * 256;
    } else {
      block.lacks("ffn_hidden_size, intermediate_size, ffn_mult, no_op, replace_with_linear");
    }
  }
}

}  // namespace

void apply_blocks(const Json& list, std::string_view where, DecoderValue& value) {
  MG_CHECK(list.is_array(), "{} must be a list with one block per layer", where);
  MG_CHECK(std::ssize(list.as_array()) == value.num_layers(),
           "{} lists {} layers; --num-layers is {}", where, list.as_array().size(),
           value.num_layers());
  for (size_t i = 0; i < value.layers.size(); ++i) {
    const JsonBlock block(list.as_array()[i], fmt::format("{}, layer {}", where, i));
    apply_attention(block.block("attention", "attention"), value.layers[i]);
    apply_mlp(block.block("ffn", "mlp"), value.hidden_size, value.layers[i]);
  }
}

void apply_block_configs(const Json& config, std::string_view where, DecoderValue& value) {
  const Json* list = config.is_object() ? config.find("block_configs") : nullptr;
  MG_CHECK(list != nullptr, "{} has no 'block_configs'", where);
  apply_blocks(*list, fmt::format("{}, block_configs", where), value);
}

}  // namespace megatron::models
