#include "training/corpus.h"

#include <algorithm>

#include "base/error.h"
#include "data/gpt_dataset.h"
#include "data/indexed_dataset.h"
#include "data/mock_dataset.h"
#include "data/token_check.h"

namespace megatron::training {
namespace {

Vocabulary null_vocabulary(std::optional<int64_t> vocab_size) {
  MG_CHECK(vocab_size.has_value(),
           "without a tokenizer (--tokenizer-model) the number of tokens is needed: --vocab-size");
  MG_CHECK(*vocab_size > 0 && *vocab_size < (int64_t{1} << 31),
           "--vocab-size is {}; it must lie in [1, 2^31)", *vocab_size);
  Vocabulary v;
  v.size = *vocab_size;
  v.eod = v.size - 1;
  Json identity(Json::Object{});
  identity.set("class", "NullTokenizer");
  identity.set("vocab_size", std::to_string(v.size));
  identity.set("eod_id", std::to_string(v.eod));
  v.identity = identity;
  return v;
}

}  // namespace

Vocabulary open_vocabulary(const DataSettings& settings, std::optional<int64_t> vocab_size) {
  const std::string type = settings.tokenizer_type.value_or(
      settings.tokenizer_model ? "HuggingFaceTokenizer" : "NullTokenizer");
  if (type == "NullTokenizer") return null_vocabulary(vocab_size);
  MG_CHECK(type == "HuggingFaceTokenizer",
           "--tokenizer-type is '{}'; this version supports HuggingFaceTokenizer (a "
           "tokenizer.json) and NullTokenizer",
           type);
  MG_CHECK(settings.tokenizer_model.has_value(),
           "--tokenizer-type {} needs --tokenizer-model (a tokenizer.json or its directory)", type);
  Vocabulary v;
  v.directory = *settings.tokenizer_model;
  v.tokenizer =
      std::make_shared<const tokenizers::Tokenizer>(tokenizers::Tokenizer::load(v.directory));
  v.size = std::max<int64_t>(v.tokenizer->vocabulary_size(), vocab_size.value_or(0));
  MG_CHECK(!vocab_size || *vocab_size >= v.tokenizer->vocabulary_size(),
           "the tokenizer {} has {} tokens, and the vocabulary of the model {} (of a model that "
           "exists: its config.json; else --vocab-size); use the tokenizer that the model was made "
           "with, or a model with as many tokens",
           v.directory, v.tokenizer->vocabulary_size(), *vocab_size);
  v.eod = v.tokenizer->eod().value_or(-1);
  if (v.tokenizer->pad()) v.pad = *v.tokenizer->pad();
  Json identity(Json::Object{});
  identity.set("class", "HuggingFaceTokenizer");
  identity.set("tokenizer_path", v.directory);
  v.identity = identity;
  return v;
}

const data::Dataset& Corpus::set(data::Split split) const {
  const auto& set = sets[static_cast<size_t>(split)];
  MG_CHECK(set != nullptr, "--split gives no documents to the {} set; change it",
           data::name(split));
  return *set;
}

Corpus open_corpus(const DataSettings& settings, const Vocabulary& vocabulary, int64_t seq_length,
                   int64_t seed, const std::array<std::optional<int64_t>, 3>& samples) {
  MG_CHECK(settings.mock_data || !settings.data_path.empty(),
           "there is no data: give --data-path PREFIX or --mock-data");
  MG_CHECK(!settings.mock_data || settings.data_path.empty(),
           "--mock-data and --data-path {} are both given; give one", settings.data_path[0]);
  MG_CHECK(settings.data_path.size() <= 1,
           "--data-path has {} entries; this version takes one prefix (blends are not supported)",
           settings.data_path.size());
  std::shared_ptr<const data::TokenSource> source;
  if (settings.mock_data) {
    source = std::make_shared<data::MockTokens>(vocabulary.size, vocabulary.eod);
  } else {
    const auto stored = std::make_shared<const data::IndexedDataset>(settings.data_path[0]);
    data::check_token_ids(
        *stored, vocabulary.size,
        data::index_cache_directory(settings.data_path[0], settings.data_cache_path));
    source = stored;
  }
  data::GptDatasetConfig config;
  config.sequence_length = seq_length;
  config.seed = seed;
  config.split = settings.split.value_or(settings.mock_data ? "1,1,1" : "969, 30, 1");
  config.reset_position_ids = settings.reset_position_ids;
  config.eod_mask_loss = settings.eod_mask_loss;
  MG_CHECK(vocabulary.eod >= 0 || !(settings.reset_position_ids || settings.eod_mask_loss),
           "--reset-position-ids and --eod-mask-loss need an end-of-document token, and the "
           "tokenizer has none");
  config.eod = vocabulary.eod;
  config.pad = vocabulary.pad;
  if (vocabulary.eod >= 0) config.special = {vocabulary.eod};
  config.vocabulary_size = vocabulary.size;
  config.tokenizer = vocabulary.identity;
  config.cache = !settings.mock_data || settings.data_cache_path.has_value();
  config.cache_path = settings.data_cache_path;
  const data::SplitMatrix shares = data::parse_split(*config.split);
  Corpus corpus;
  for (size_t i = 0; i < corpus.sets.size(); ++i) {
    if (!shares[i] || samples[i] == 0) continue;
    corpus.sets[i] =
        std::make_unique<data::GptDataset>(source, config, static_cast<data::Split>(i), samples[i]);
  }
  return corpus;
}

HostBatch read_batch(const data::Dataset& set, std::span<const int64_t> indices,
                     int64_t seq_length) {
  HostBatch batch{.sequences = static_cast<int64_t>(indices.size()), .length = seq_length};
  data::Sample sample;
  for (const int64_t index : indices) {
    set.read(index, sample);
    batch.tokens.insert(batch.tokens.end(), sample.tokens.begin(), sample.tokens.end());
    batch.labels.insert(batch.labels.end(), sample.labels.begin(), sample.labels.end());
    batch.positions.insert(batch.positions.end(), sample.position_ids.begin(),
                           sample.position_ids.end());
    batch.loss_mask.insert(batch.loss_mask.end(), sample.loss_mask.begin(), sample.loss_mask.end());
    batch.samples.push_back(index);
  }
  return batch;
}

}  // namespace megatron::training
