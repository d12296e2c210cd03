// T tokens, H hidden
#include "models/decoder/mixers/shared_block.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "models/decoder/value_checks.h"
#include "nn/replicated_linear.h"
#include "ops/columns.h"

namespace megatron::models {
namespace {

using SharedMixer = LayerPart<SharedBlockConfig>;
using Additions = nn::Builder::SharedModule::Additions;

const SharedBlockConfig* config_of(const LayerValue& layer) {
  return std::get_if<SharedBlockConfig>(&layer.mixer);
}

// The block's module, after its first layer.
std::string block_name(const SharedUse& use) {
  return fmt::format("layers.{}.attention.shared", use.layers.at(0));
}

// The additions to a linear layer: of each of its parts, or of all.
std::vector<std::string> addition_names(const std::string& module,
                                        std::initializer_list<const char*> parts, int64_t number) {
  std::vector<std::string> names;
  for (const char* part : parts)
    names.push_back(fmt::format("{}.{}_adapter.{}", module, part, number));
  return names;
}

std::map<std::string, Additions> additions_of(const SharedBlockConfig& s, const std::string& block,
                                              int64_t number) {
  std::map<std::string, Additions> additions;
  if (s.attention_rank > 0)
    additions[block + ".attention.qkv"] = {
        .names = addition_names(block + ".attention", {"q", "k", "v"}, number),
        .rank = s.attention_rank};
  if (s.mlp_rank > 0)
    additions[block + ".mlp.up"] = {.names = addition_names(block + ".mlp", {"up"}, number),
                                    .rank = s.mlp_rank};
  return additions;
}

class SharedBlockSublayer final : public Sublayer {
 public:
  SharedBlockSublayer(nn::Builder& builder, const std::string& name, const SharedBlockConfig& s,
                      const LayerPlace& place)
      : window_(s.attention.window), head_size_(s.attention.head_size) {
    const DecoderValue& model = place.model;
    const int64_t hidden = model.hidden_size;
    const nn::NormConfig& norm = model.layer(place.index).norm;
    const parallel::Init init = matrix_init(model);
    build_block(builder, s, place);
    projection_ = std::make_unique<nn::ReplicatedLinear>(builder, name + ".projection", hidden,
                                                         hidden, false, init);
    norm_ = std::make_unique<nn::AddNorm>(builder, name + ".norm", hidden, norm);
    space_ = SharedMixer::Space::build(builder, name + ".mixer", s.state_space, place);
  }
  Var operator()(Tape&, const Var&, const nn::Batch&, bool) const override { MG_ASSERT(false); }
  Var with(Tape& tape, const Var& x_TH, const Bundle& passed_on, const nn::Batch& batch,
           bool train) const override {
    const Var joined = ops::join_columns(tape, x_TH, passed_on[kEmbedded]);
    Var y = (*block_norm_)(tape, joined, Var()).normed;
    y = (*attention_)(tape, y, batch, train);
    y = (*mlp_norm_)(tape, y, Var()).normed;
    y = (*projection_)(tape, (*mlp_)(tape, y));
    y = (*norm_)(tape, y, x_TH).normed;
    return (*space_)(tape, y, batch, train);
  }
  nn::LayerCache cache() const override {
    nn::LayerCache both = space_->cache();
    both.kv_heads = attention_->kv_heads();
    both.head_size = head_size_;
    both.window = window_;
    return both;
  }

 private:
  // What its matrices give is not added to the residual stream, so none has output_init().
  void build_block(nn::Builder& builder, const SharedBlockConfig& s, const LayerPlace& place) {
    const DecoderValue& model = place.model;
    const int64_t hidden = model.hidden_size;
    const nn::NormConfig& norm = model.layer(place.index).norm;
    const parallel::Init init = matrix_init(model);
    const SharedUse use = shared_use(model, place.index);
    const std::string block = block_name(use);
    const nn::Builder::SharedModule module{
        .layers = use.layers, .use = use.index, .additions = additions_of(s, block, use.number)};
    const nn::Builder::Sharing sharing(builder, &module);
    block_norm_ = std::make_unique<nn::AddNorm>(builder, block + ".norm", 2 * hidden, norm);
    nn::AttentionPlace of_attention = SharedMixer::Attention::place_of(s.attention, place);
    of_attention.input = 2 * hidden;
    of_attention.output_init = init;
    attention_ =
        std::make_unique<nn::Attention>(builder, block + ".attention", s.attention, of_attention);
    mlp_norm_ = std::make_unique<nn::AddNorm>(builder, block + ".mlp_norm", hidden, norm);
    mlp_ = std::make_unique<nn::Mlp>(builder, block + ".mlp", hidden, s.mlp, init, init);
  }

  int64_t window_, head_size_;
  std::unique_ptr<nn::AddNorm> block_norm_, mlp_norm_, norm_;
  std::unique_ptr<nn::Attention> attention_;
  std::unique_ptr<nn::Mlp> mlp_;
  std::unique_ptr<nn::ReplicatedLinear> projection_;
  std::unique_ptr<Sublayer> space_;
};

}  // namespace

SharedUse shared_use(const DecoderValue& model, int64_t layer) {
  const SharedBlockConfig* own = config_of(model.layer(layer));
  MG_ASSERT(own != nullptr);
  SharedUse use;
  for (int64_t i = 0; i < model.num_layers(); ++i) {
    const SharedBlockConfig* other = config_of(model.layer(i));
    if (other == nullptr) continue;
    if (i < layer) ++use.number;
    if (other->block != own->block) continue;
    if (i < layer) ++use.index;
    use.layers.push_back(i);
  }
  return use;
}

bool reads_embedded(const DecoderValue& model, int64_t first) {
  return std::any_of(model.layers.begin() + std::min(first, model.num_layers()), model.layers.end(),
                     [](const LayerValue& layer) { return config_of(layer) != nullptr; });
}

void SharedMixer::check(const DecoderValue& model, const SharedBlockConfig& s) {
  Attention::check(model, s.attention);
  Mlp::check(model, s.mlp);
  Space::check(model, s.state_space);
  MG_CHECK(!s.attention.two_sided && s.attention.relative.buckets == 0,
           "attention of a shared block sees earlier tokens only, and has no relative positions");
  MG_CHECK(s.block >= 0 && s.block < kMaxLayers,
           "a layer uses the shared block {}; the number must lie in [0, {}]", s.block,
           kMaxLayers - 1);
  for (const int64_t rank : {s.attention_rank, s.mlp_rank})
    MG_CHECK(rank >= 0 && rank <= kMaxHidden,
             "an adapter of a shared block has rank {}; it must lie in [0, {}]", rank, kMaxHidden);
  MG_CHECK(model.prediction.depths == 0 && model.encoder_layers == 0,
           "layers with shared blocks read the output of the embedding, which neither "
           "--mtp-num-layers nor an encoder-decoder passes on");
  for (const LayerValue& layer : model.layers) {
    const SharedBlockConfig* other = config_of(layer);
    MG_CHECK(other == nullptr || other->block != s.block ||
                 (other->attention == s.attention && other->mlp == s.mlp),
             "layers that share block {} differ in its attention or MLP", s.block);
  }
}

int64_t SharedMixer::shared_parameters(const SharedBlockConfig& s, const nn::NormConfig& norm,
                                       int64_t h) {
  const int64_t input = 2 * h, output = s.attention.heads * s.attention.head_size * (input - h);
  return norm.parameters(input) + Attention::parameters(s.attention, norm, input) - output -
         (s.attention.output_bias ? input - h : 0) + norm.parameters(h) +
         Mlp::parameters(s.mlp, norm, h);
}

int64_t SharedMixer::parameters(const SharedBlockConfig& s, const nn::NormConfig& norm, int64_t h) {
  const nn::AttentionConfig& a = s.attention;
  const int64_t rows = (a.heads + 2 * a.kv_heads) * a.head_size,
                up = s.mlp.ffn * (s.mlp.gated ? 2 : 1);
  return shared_parameters(s, norm, h) + s.attention_rank * (3 * 2 * h + rows) +
         s.mlp_rank * (h + up) + h * h + norm.parameters(h) +
         Space::parameters(s.state_space, norm, h);
}

double SharedMixer::forward_flops(const SharedBlockConfig& s, int64_t hidden, int64_t length) {
  const nn::AttentionConfig& a = s.attention;
  const auto t = static_cast<double>(length), h = static_cast<double>(hidden),
             q = static_cast<double>(a.heads * a.head_size),
             rows = q + static_cast<double>(2 * a.kv_heads * a.head_size),
             up = static_cast<double>(s.mlp.ffn * (s.mlp.gated ? 2 : 1));
  const double additions = static_cast<double>(s.attention_rank) * (6 * h + rows) +
                           static_cast<double>(s.mlp_rank) * (h + up);
  return Attention::forward_flops(a, 2 * hidden, length) - 2 * t * q * h +
         Mlp::forward_flops(s.mlp, hidden, length) + 2 * t * (additions + h * h) +
         Space::forward_flops(s.state_space, hidden, length);
}

void SharedMixer::add_facts(const SharedBlockConfig& s, ModelFacts& facts) {
  Attention::add_facts(s.attention, facts);
  Mlp::add_facts(s.mlp, facts);
  Space::add_facts(s.state_space, facts);
}

std::vector<int64_t> SharedMixer::matrices(const SharedBlockConfig& s, std::string_view parameter) {
  constexpr std::string_view kAttention = ".shared.attention";
  if (!parameter.starts_with(kAttention)) return {};
  return Attention::matrices(s.attention, parameter.substr(kAttention.size()));
}

std::unique_ptr<Sublayer> SharedMixer::build(nn::Builder& builder, const std::string& name,
                                             const SharedBlockConfig& s, const LayerPlace& place) {
  return std::make_unique<SharedBlockSublayer>(builder, name, s, place);
}

PlainRows SharedMixer::plain(const PlainParts& parts, const PlainRows& x, const std::string& name,
                             const SharedBlockConfig& s, const nn::NormConfig& norm) {
  constexpr std::string_view kLayers = "layers.";
  const SharedUse use = shared_use(parts.model(), std::stoll(name.substr(kLayers.size())));
  const std::string block = block_name(use);
  PlainParts own = parts;
  const int64_t q = s.attention.heads * s.attention.head_size,
                k = s.attention.kv_heads * s.attention.head_size,
                up = s.mlp.ffn * (s.mlp.gated ? 2 : 1);
  for (const auto& [linear, additions] : additions_of(s, block, use.number)) {
    const std::vector<int64_t> rows =
        additions.names.size() == 1 ? std::vector{up} : std::vector{q, k, k};
    for (size_t i = 0; i < rows.size(); ++i)
      own.add(linear, {.name = additions.names[i], .rows = rows[i], .rank = additions.rank});
  }
  PlainRows joined = x;
  for (size_t t = 0; t < x.size(); ++t)
    joined[t].insert(joined[t].end(), parts.embedding()[t].begin(), parts.embedding()[t].end());
  PlainRows y = parts.normed(joined, block + ".norm", norm);
  y = Attention::plain(own, y, block + ".attention", s.attention, norm);
  y = parts.normed(y, block + ".mlp_norm", norm);
  y = Mlp::plain(own, y, block + ".mlp", s.mlp, norm);
  y = parts.linear(y, name + ".projection", parts.model().hidden_size, false);
  for (size_t t = 0; t < x.size(); ++t)
    for (size_t h = 0; h < x[t].size(); ++h) y[t][h] += x[t][h];
  return Space::plain(parts, parts.normed(y, name + ".norm", norm), name + ".mixer", s.state_space,
                      norm);
}

}  // namespace megatron::models
