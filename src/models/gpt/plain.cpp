#include "models/gpt/plain.h"

#include <cmath>

namespace megatron::models {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;  // one a token

class PlainModel {
 public:
  PlainModel(const GptConfig& config, const PlainTensors& weights)
      : c_(config),
        weights_(weights),
        llama_(config.position_embedding == PositionEmbedding::rope) {}

  // Losses of one sequence.
  Row losses(std::span<const int32_t> tokens, std::span<const int32_t> labels) const {
    Rows x = embedded(tokens);
    for (int64_t i = 0; i < c_.num_layers; ++i) {
      const std::string layer =
          (llama_ ? "model.layers." : "transformer.h.") + std::to_string(i) + ".";
      add(x, attention(layer, normed(x, layer + (llama_ ? "input_layernorm" : "ln_1"))));
      add(x, mlp(layer, normed(x, layer + (llama_ ? "post_attention_layernorm" : "ln_2"))));
    }
    x = normed(x, llama_ ? "model.norm" : "transformer.ln_f");
    const Row& head = weights_.at(c_.untied ? "lm_head.weight"
                                  : llama_  ? "model.embed_tokens.weight"
                                            : "transformer.wte.weight");
    Row losses;
    for (size_t t = 0; t < x.size(); ++t) losses.push_back(cross_entropy(x[t], head, labels[t]));
    return losses;
  }

 private:
  Rows embedded(std::span<const int32_t> tokens) const {
    const Row& table = weights_.at(llama_ ? "model.embed_tokens.weight" : "transformer.wte.weight");
    Rows x;
    for (size_t t = 0; t < tokens.size(); ++t) {
      Row row;
      for (int64_t h = 0; h < c_.hidden_size; ++h) {
        double value = table[static_cast<size_t>(tokens[t] * c_.hidden_size + h)];
        if (!llama_)
          value += weights_.at("transformer.wpe.weight")[t * static_cast<size_t>(c_.hidden_size) +
                                                         static_cast<size_t>(h)];
        row.push_back(value);
      }
      x.push_back(std::move(row));
    }
    return x;
  }

  static void add(Rows& x, const Rows& y) {
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t h = 0; h < x[t].size(); ++h) x[t][h] += y[t][h];
    }
  }

  // RMSNorm, or LayerNorm where there is a bias.
  Rows normed(const Rows& x, const std::string& name) const {
    const Row& weight = weights_.at(name + ".weight");
    const auto bias = weights_.find(name + ".bias");
    Rows y = x;
    for (Row& row : y) {
      double mean = 0, variance = 0;
      const auto n = static_cast<double>(row.size());
      if (bias != weights_.end()) {
        for (const double v : row) mean += v / n;
      }
      for (const double v : row) variance += (v - mean) * (v - mean) / n;
      for (size_t h = 0; h < row.size(); ++h) {
        row[h] = (row[h] - mean) / std::sqrt(variance + c_.norm_epsilon) * weight[h];
        if (bias != weights_.end()) row[h] += bias->second[h];
      }
    }
    return y;
  }

  // Llama's matrices are [out, in], GPT-2's [in, out].
  Rows linear(const Rows& x, const std::string& name, int64_t out) const {
    const Row& weight = weights_.at(name + ".weight");
    const auto bias = weights_.find(name + ".bias");
    Rows y;
    for (const Row& row : x) {
      Row result(static_cast<size_t>(out));
      for (size_t o = 0; o < result.size(); ++o) {
        if (bias != weights_.end()) result[o] = bias->second[o];
        for (size_t i = 0; i < row.size(); ++i) {
          result[o] +=
              row[i] * (llama_ ? weight[o * row.size() + i] : weight[i * result.size() + o]);
        }
      }
      y.push_back(std::move(result));
    }
    return y;
  }

  // Pair i of a head is (i, i + half), turned by t / base^(i / half).
  void rotate(Rows& x) const {
    const int64_t half = c_.kv_channels / 2;
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t begin = 0; begin < x[t].size(); begin += static_cast<size_t>(c_.kv_channels)) {
        for (int64_t i = 0; i < half; ++i) {
          const double angle =
              static_cast<double>(t) /
              std::pow(c_.rotary_base, static_cast<double>(i) / static_cast<double>(half));
          double &a = x[t][begin + static_cast<size_t>(i)],
                 &b = x[t][begin + static_cast<size_t>(i + half)];
          const double turned = a * std::cos(angle) - b * std::sin(angle);
          b = a * std::sin(angle) + b * std::cos(angle);
          a = turned;
        }
      }
    }
  }

  Rows attention(const std::string& layer, const Rows& x) const {
    const int64_t query = c_.num_attention_heads * c_.kv_channels,
                  key = c_.num_query_groups * c_.kv_channels;
    Rows q, k, v;
    if (llama_) {
      q = linear(x, layer + "self_attn.q_proj", query);
      k = linear(x, layer + "self_attn.k_proj", key);
      v = linear(x, layer + "self_attn.v_proj", key);
      rotate(q);
      rotate(k);
    } else {
      for (const Row& row : linear(x, layer + "attn.c_attn", 3 * query)) {
        q.emplace_back(row.begin(), row.begin() + query);
        k.emplace_back(row.begin() + query, row.begin() + 2 * query);
        v.emplace_back(row.begin() + 2 * query, row.end());
      }
    }
    Rows out;
    for (size_t t = 0; t < x.size(); ++t) {
      Row row;
      for (int64_t n = 0; n < c_.num_attention_heads; ++n) attend(q, k, v, t, n, row);
      out.push_back(std::move(row));
    }
    return linear(out, layer + (llama_ ? "self_attn.o_proj" : "attn.c_proj"), c_.hidden_size);
  }

  // Appends head n of token t's result to `row`.
  void attend(const Rows& q, const Rows& k, const Rows& v, size_t t, int64_t n, Row& row) const {
    const auto size = static_cast<size_t>(c_.kv_channels), begin = static_cast<size_t>(n) * size;
    const size_t shared =
        static_cast<size_t>(n / (c_.num_attention_heads / c_.num_query_groups)) * size;
    Row p;
    double sum = 0;
    for (size_t s = 0; s <= t; ++s) {
      double score = 0;
      for (size_t d = 0; d < size; ++d) score += q[t][begin + d] * k[s][shared + d];
      p.push_back(std::exp(score / std::sqrt(static_cast<double>(size))));
      sum += p.back();
    }
    for (size_t d = 0; d < size; ++d) {
      double value = 0;
      for (size_t s = 0; s <= t; ++s) value += p[s] / sum * v[s][shared + d];
      row.push_back(value);
    }
  }

  Rows mlp(const std::string& layer, const Rows& x) const {
    if (!llama_) {
      Rows up = linear(x, layer + "mlp.c_fc", c_.ffn_hidden_size);
      for (Row& row : up) {
        for (double& v : row)
          v = 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
      }
      return linear(up, layer + "mlp.c_proj", c_.hidden_size);
    }
    Rows gate = linear(x, layer + "mlp.gate_proj", c_.ffn_hidden_size);
    const Rows up = linear(x, layer + "mlp.up_proj", c_.ffn_hidden_size);
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t f = 0; f < gate[t].size(); ++f)
        gate[t][f] *= up[t][f] / (1 + std::exp(-gate[t][f]));
    }
    return linear(gate, layer + "mlp.down_proj", c_.hidden_size);
  }

  static double cross_entropy(const Row& x, const Row& head, int32_t label) {
    double sum = 0, of_label = 0;
    for (size_t v = 0; v < head.size() / x.size(); ++v) {
      double logit = 0;
      for (size_t h = 0; h < x.size(); ++h) logit += x[h] * head[v * x.size() + h];
      sum += std::exp(logit);
      if (v == static_cast<size_t>(label)) of_label = logit;
    }
    return std::log(sum) - of_label;
  }

  const GptConfig& c_;
  const PlainTensors& weights_;
  bool llama_;
};

}  // namespace

std::vector<double> plain_losses(const GptConfig& config, const PlainTensors& weights,
                                 std::span<const int32_t> tokens, std::span<const int32_t> labels) {
  return PlainModel(config, weights).losses(tokens, labels);
}

}  // namespace megatron::models
