// Small models, and batches for them.
#pragma once

#include <string>
#include <vector>

#include "corpus/batch.h"
#include "models/model_flags.h"
#include "models/stage.h"

namespace megatron::selftest {

struct TinyModel {
  std::string name;
  models::ModelFlags flags = {};
  std::string config = {};  // a config.json that describes the model in place of flags

  models::Model model() const {
    return config.empty() ? models::model_from_flags(flags, 0)
                          : models::model_from_config_json(Json::parse(config));
  }
};
// GPT-2 (tied, with dropout), Llama (grouped heads, untied), Llama (tied, with biases). Their
// epsilons and attention scales are exact in f32, so that fp64 results can be compared to the last
// digits.
std::vector<TinyModel> tiny_models();
// The last of them with multi-token prediction of two depths.
TinyModel predicting_model();

// BERT, with dropout and a head for pairs of texts; ModernBERT, whose windowed layers have other
// rotary positions than those that see all.
std::vector<TinyModel> tiny_encoders();
// T5 with dropout: two layers of an encoder and two of a decoder.
TinyModel tiny_t5();

// State spaces and attention in turn, with heads of grouped b and c.
TinyModel tiny_hybrid();

// Gives every parameter, including norms and biases, values that differ between elements and are
// the same in any layout. held: bf16 rounds the values, whatever the model's type.
void randomize(std::span<const parallel::Shard> shards, uint64_t seed, Stream& stream,
               DType held = DType::f64);

// Sequences [first, first + sequences) of an endless stream of random tokens; about one label in
// five is not counted. packed: each sequence has documents of random lengths, most of them short,
// with positions and attention that begin again. Sequences of a model with one score have one or
// two pairs of scored tokens.
corpus::HostBatch random_batch(const models::Model& model, int64_t first, int64_t sequences,
                               int64_t length, bool packed = false);

}  // namespace megatron::selftest
