#include "selftest/tiny_models.h"

#include <algorithm>

#include "base/philox.h"

namespace megatron::selftest {

std::vector<TinyModel> tiny_models() {
  models::ModelFlags gpt2{.num_layers = 2,
                          .hidden_size = 32,
                          .num_attention_heads = 2,
                          .ffn_hidden_size = 48,
                          .max_position_embeddings = 32,
                          .vocab_size = 61};
  gpt2.norm_epsilon = 0x1p-9;
  gpt2.hidden_dropout = gpt2.attention_dropout = 0.25;
  gpt2.init_method_std = 0.2;
  models::ModelFlags llama = gpt2;
  llama.num_layers = 3;
  llama.num_attention_heads = 4;
  llama.group_query_attention = true;
  llama.num_query_groups = 2;
  llama.kv_channels = 4;
  llama.position_embedding = models::PositionEmbedding::rope;
  llama.normalization = nn::Normalization::rms_norm;
  llama.swiglu = llama.untie = true;
  llama.add_bias_linear = false;
  llama.hidden_dropout = llama.attention_dropout = 0;
  models::ModelFlags tied = llama;
  tied.num_layers = 2;
  tied.num_attention_heads = 2;
  tied.num_query_groups = 1;
  tied.kv_channels = 16;
  tied.untie = false;
  tied.add_bias_linear = true;
  return {{"gpt2", gpt2}, {"llama", llama}, {"llama tied", tied}};
}

TinyModel predicting_model() {
  TinyModel model = tiny_models().back();
  model.name += ", multi-token prediction";
  model.flags.mtp_num_layers = 2;
  model.flags.mtp_loss_scaling_factor = 0.5;
  return model;
}

TinyModel tiny_hybrid() {
  TinyModel model = tiny_models()[1];
  model.name = "hybrid";
  model.flags.num_layers.reset();
  model.flags.hybrid_layer_pattern = "M*M";
  model.flags.mamba_num_heads = 8;
  model.flags.mamba_head_dim = 4;
  model.flags.mamba_num_groups = 2;
  model.flags.mamba_state_dim = 6;
  return model;
}

std::vector<TinyModel> tiny_encoders() {
  models::ModelFlags bert = tiny_models()[0].flags;
  bert.encoder = true;
  bert.num_attention_heads = 4;
  bert.model_family = "bert";
  return {{"bert", bert}, {"modernbert", {}, R"({
    "model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"], "vocab_size": 61,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "global_attn_every_n_layers": 2, "local_attention": 6, "norm_eps": 0.001953125,
    "pad_token_id": 0, "max_position_embeddings": 64, "initializer_range": 0.2})"}};
}

TinyModel tiny_t5() {
  return {"t5", {}, R"({
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 61,
    "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.1,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
    "layer_norm_epsilon": 0.001953125, "feed_forward_proj": "gated-gelu", "initializer_factor": 10,
    "is_encoder_decoder": true})"};
}

namespace {

// Rounds values that are held in bf16; values of other types are unchanged.
void round_to(DType type, std::span<double> values) {
  if (type != DType::bf16) return;
  for (double& v : values) v = static_cast<float>(bf16(static_cast<float>(v)));
}

// Divides the sequences into documents. The first tokens of a sequence's documents differ, and the
// second of each from its first: equal tokens would be equal in every layer (random_batch()). Every
// second sequence ends with padding.
void pack(corpus::HostBatch& batch, int64_t vocabulary) {
  const RandomStream documents(5, "documents");
  const int64_t length = batch.layout.length;
  for (int64_t i = 0, begin = 0, number = 0; i < std::ssize(batch.tokens); ++i) {
    const int64_t s = batch.sample_ids[static_cast<size_t>(i / length)], t = i % length;
    const bool starts = t == 0 || documents.uniform(static_cast<uint64_t>(s * length + t)) < 0.2;
    if (starts) begin = t;
    number = t == 0 ? 0 : number + (starts ? 1 : 0);
    const auto at = static_cast<size_t>(i);
    int32_t& token = batch.tokens[at];
    if (starts)
      token =
          static_cast<int32_t>((batch.tokens[static_cast<size_t>(i - t)] + number) % vocabulary);
    if (t == begin + 1 && token == batch.tokens[at - 1])
      token = static_cast<int32_t>((token + 1) % vocabulary);
    batch.positions[at] = static_cast<int32_t>(t - begin);
    batch.segment_starts.push_back(static_cast<int32_t>(begin));
    batch.sources.push_back(0);
    if (s % 2 == 1 || t < length - 2) continue;
    batch.positions[at] = 0;
    batch.segment_starts[at] = static_cast<int32_t>(t);
    batch.sources[at] = -1;
    batch.loss_mask[at] = 0;
  }
}

// What encoders read besides tokens: types, of which each text has two, and the labels of pairs.
void add_texts(corpus::HostBatch& batch, const models::ModelFacts& model) {
  const int64_t length = batch.layout.length;
  if (model.pair_head) batch.pair_labels.assign(batch.tokens.size(), -1);
  for (int64_t i = 0, number = 0; i < std::ssize(batch.tokens); ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t begin = batch.segment_starts.empty() ? 0 : batch.segment_starts[at];
    const bool padding = !batch.sources.empty() && batch.sources[at] < 0;
    if (i % length == 0) number = batch.sample_ids[static_cast<size_t>(i / length)];
    if (model.token_types > 1) batch.token_types.push_back((i % length - begin) % 5 < 2 ? 0 : 1);
    if (model.pair_head && i % length == begin && !padding)
      batch.pair_labels[at] = static_cast<int32_t>(number++ % 2);
  }
}

// The number of each token's document in its sequence, from 0.
std::vector<int64_t> document_numbers(const corpus::HostBatch& batch) {
  std::vector<int64_t> numbers(batch.tokens.size());
  const auto length = static_cast<size_t>(batch.layout.length);
  for (size_t i = 0; i < numbers.size() && !batch.segment_starts.empty(); ++i) {
    const size_t t = i % length;
    if (t > 0)
      numbers[i] = numbers[i - 1] + (batch.segment_starts[i] == static_cast<int32_t>(t) ? 1 : 0);
  }
  return numbers;
}

// Texts of twice the length for an encoder: one for each document, of which it sees only its own.
void add_encoder_texts(corpus::HostBatch& batch, int64_t vocabulary) {
  const RandomStream drawn(5, "encoder tokens");
  const int64_t length = batch.layout.length, of_text = 2 * length;
  const std::vector<int64_t> numbers = document_numbers(batch);
  corpus::HostBatch texts{.layout = {.sequences = batch.layout.sequences, .length = of_text}};
  texts.sample_ids = batch.sample_ids;
  for (int64_t s = 0; s < batch.layout.sequences; ++s) {
    const int64_t documents = numbers[static_cast<size_t>((s + 1) * length - 1)] + 1;
    const auto begin = [&](int64_t document) {
      return static_cast<int32_t>(document * of_text / documents);
    };
    for (int64_t t = 0, document = 0; t < of_text; ++t) {
      while (t >= begin(document + 1)) ++document;
      const int64_t index = batch.sample_ids[static_cast<size_t>(s)] * of_text + t;
      texts.tokens.push_back(static_cast<int32_t>(drawn.bits(static_cast<uint64_t>(index)) %
                                                  static_cast<uint64_t>(vocabulary)));
      texts.positions.push_back(static_cast<int32_t>(t - begin(document)));
      if (!batch.segment_starts.empty()) texts.segment_starts.push_back(begin(document));
    }
    for (int64_t t = 0; t < length && !batch.segment_starts.empty(); ++t) {
      const int64_t document = numbers[static_cast<size_t>(s * length + t)];
      batch.encoder_starts.push_back(begin(document));
      batch.encoder_ends.push_back(begin(document + 1) - 1);
    }
  }
  if (!texts.segment_starts.empty()) corpus::set_segment_ends(texts);
  batch.encoder = std::make_shared<const corpus::HostBatch>(std::move(texts));
}

// Scores at two tokens of every second sequence, a pair with a margin, and at four of the others.
void mark_pairs(corpus::HostBatch& batch) {
  std::ranges::fill(batch.loss_mask, 0.0f);
  std::ranges::fill(batch.labels, 0);
  batch.targets.assign(batch.tokens.size(), 0);
  const int64_t length = batch.layout.length;
  for (int64_t i = 0; i < batch.layout.sequences; ++i) {
    const int64_t sample = batch.sample_ids[static_cast<size_t>(i)], shift = sample % (length / 4),
                  scored = sample % 2 == 0 ? 2 : 4;
    for (int64_t part = 0; part < scored; ++part) {
      const auto at = static_cast<size_t>(i * length + part * (length / 4) + shift);
      batch.loss_mask[at] = 1;
      if (part % 2 == 0) batch.targets[at] = 0.1 * static_cast<double>(shift);
    }
  }
}

}  // namespace

void randomize(std::span<const parallel::Shard> shards, uint64_t seed, Stream& stream, DType held) {
  for (parallel::Shard shard : shards) {
    parallel::initialize(shard, seed, stream);
    std::vector<double> values = to_doubles(shard.value);
    round_to(held, values);
    parallel::for_each_run(*shard.placed, [&](const parallel::CanonicalTensor& part,
                                              int64_t canonical, int64_t local, int64_t size) {
      const RandomStream noise(seed + 1, part.name);
      const int64_t begin = std::max(local, shard.begin),
                    end = std::min(local + size, shard.begin + shard.size());
      for (int64_t i = begin; i < end; ++i) {
        values[static_cast<size_t>(i - shard.begin)] +=
            0.1 * noise.normal(static_cast<uint64_t>(canonical + i - local));
      }
    });
    round_to(held, values);
    copy_from(shard.value, std::span<const double>(values));
  }
}

corpus::HostBatch random_batch(const models::Model& model, int64_t first, int64_t sequences,
                               int64_t length, bool packed) {
  corpus::HostBatch batch{.layout = {.sequences = sequences, .length = length}};
  const RandomStream tokens(5, "tokens"), counted(5, "counted");
  const auto drawn = [&](int64_t index) {
    return static_cast<int64_t>(tokens.bits(static_cast<uint64_t>(index)) %
                                static_cast<uint64_t>(model->vocab_size()));
  };
  // The second token differs from the first. Equal tokens would be equal in every layer, and
  // rounding would decide which of them an expert's capacity drops.
  const auto token = [&](int64_t index) {
    const bool again = index % (length + 1) == 1 && drawn(index) == drawn(index - 1);
    return static_cast<int32_t>((drawn(index) + (again ? 1 : 0)) % model->vocab_size());
  };
  for (int64_t s = first; s < first + sequences; ++s) {
    batch.sample_ids.push_back(s);
    for (int64_t t = 0; t < length; ++t) {
      const int64_t index = s * (length + 1) + t;
      batch.tokens.push_back(token(index));
      batch.labels.push_back(token(index + 1));
      batch.positions.push_back(static_cast<int32_t>(t));
      batch.loss_mask.push_back(counted.uniform(static_cast<uint64_t>(index)) < 0.8 ? 1.0f : 0.0f);
    }
  }
  if (packed) pack(batch, model->vocab_size());
  if (model->facts().encoder_layers > 0) add_encoder_texts(batch, model->vocab_size());
  if (packed && model->facts().two_sided) corpus::set_segment_ends(batch);
  if (model->facts().two_sided) add_texts(batch, model->facts());
  if (model->score_labels() == 1) mark_pairs(batch);
  if (model->score_labels() > 1)
    for (int32_t& label : batch.labels) label %= static_cast<int32_t>(model->score_labels());
  return batch;
}

}  // namespace megatron::selftest
