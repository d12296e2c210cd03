#include "corpus/corpus.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/machine_limits.h"
#include "corpus/data_sources.h"
#include "corpus/infilling.h"
#include "corpus/masked_corpus.h"
#include "data/blend_builder.h"
#include "data/indexed_dataset.h"
#include "data/mock_dataset.h"
#include "data/token_check.h"

namespace megatron::corpus {
namespace {

// Sets how the sources are mixed.
void settle_blend(data::BlendRequest& blend, const settings::DataSettings& s, bool several_valid) {
  blend.surplus = s.mid_level_dataset_surplus;
  blend.several_valid = several_valid;
  blend.threads = s.builder_threads.value_or(available_processors());
  MG_CHECK(blend.threads >= 1 && blend.threads <= 1024,
           "--num-dataset-builder-threads is {}; it must lie in [1, 1024]", blend.threads);
  MG_CHECK(!several_valid || !(blend.all || s.data_args_path),
           "--multiple-validation-sets needs data sets for validation only: give "
           "--valid-data-path or --per-split-data-args-path");
}

data::GptDatasetConfig dataset_config(const settings::DataSettings& settings,
                                      const Vocabulary& vocabulary) {
  data::GptDatasetConfig config;
  config.reset_position_ids = settings.reset_position_ids;
  config.reset_attention_mask = settings.reset_attention_mask;
  config.inter_document_masking = settings.inter_document_masking;
  config.eod_mask_loss = settings.eod_mask_loss;
  check_masks(settings, vocabulary);
  config.eod = vocabulary.eod;
  config.pad = vocabulary.pad;
  if (vocabulary.eod >= 0) config.special = {vocabulary.eod};
  if (vocabulary.tokenizer != nullptr) {
    for (const auto id : {vocabulary.tokenizer->bos(), vocabulary.tokenizer->eos()})
      if (id) config.special.push_back(*id);
  }
  config.vocabulary_size = vocabulary.size;
  config.allow_ambiguous_pad_tokens = settings.allow_ambiguous_pad_tokens;
  config.cache = !settings.mock_data || settings.data_cache_path.has_value();
  config.cache_path = settings.data_cache_path;
  config.infilling = open_infilling(settings, vocabulary);
  return config;
}

std::shared_ptr<const data::IndexedDataset> open_tokens(const settings::DataSettings& settings,
                                                        const Vocabulary& vocabulary,
                                                        const std::string& prefix) {
  const auto stored = std::make_shared<const data::IndexedDataset>(
      prefix, data::IndexedDatasetOptions{.map_tokens = settings.mmap_bin_files});
  data::check_token_ids(*stored, vocabulary.size,
                        data::index_cache_directory(prefix, settings.data_cache_path));
  return stored;
}

}  // namespace

const data::Dataset& Corpus::set(data::Split split) const {
  const auto& set = sets[static_cast<size_t>(split)];
  MG_CHECK(set != nullptr,
           "the {0} set has no data: give it a share of the documents (--split), or its own data "
           "(--{0}-data-path, --per-split-data-args-path)",
           data::name(split));
  return *set;
}

bool names_data(const settings::DataSettings& s) {
  return s.mock_data || !s.data_path.empty() || !s.train_data_path.empty() ||
         !s.valid_data_path.empty() || !s.test_data_path.empty() || s.data_args_path ||
         s.per_split_data_args_path;
}

void require_data(const settings::DataSettings& s) {
  MG_CHECK(names_data(s),
           "there is no data: give --data-path PREFIX (or --train-data-path and the like, "
           "--data-args-path, --per-split-data-args-path) or --mock-data");
}

void check_data(const settings::DataSettings& s,
                const std::array<std::optional<int64_t>, 3>& samples, bool several_valid,
                const std::vector<std::string>& names) {
  DataSources sources = sources_of_flags(s);
  if (!s.reads_tokens()) return;
  settle_blend(sources.blend, s, several_valid);
  data::check_blends(sources.blend, sources.blend.all ? std::optional(split_of(s)) : std::nullopt,
                     samples);
  const auto& valid = sources.blend.per_split[static_cast<size_t>(data::Split::valid)];
  if (valid && several_valid) check_names(names, valid->prefixes.size());
}

void check_names(const std::vector<std::string>& names, size_t sets) {
  MG_CHECK(names.empty() || names.size() == sets,
           "--validation-set-names has {} names, but there are {} validation sets", names.size(),
           sets);
}

void check_masks(const settings::DataSettings& s, const Vocabulary& vocabulary) {
  MG_CHECK(
      vocabulary.eod >= 0 || !(s.reset_position_ids || s.reset_attention_mask || s.eod_mask_loss),
      "--reset-position-ids, --reset-attention-mask and --eod-mask-loss need an end-of-document "
      "token, but the tokenizer has none; use --dataloader-inter-document-masking, which uses the "
      "boundaries of stored sequences");
}

Corpus open_corpus(const settings::DataSettings& settings, const Vocabulary& vocabulary,
                   int64_t seq_length, int64_t seed,
                   const std::array<std::optional<int64_t>, 3>& samples, bool several_valid,
                   const std::array<int64_t, 3>& extended) {
  DataSources sources = find_sources(settings);
  settle_blend(sources.blend, settings, several_valid);
  sources.blend.extended = extended;
  data::GptDatasetConfig config = dataset_config(settings, vocabulary);
  config.sequence_length = seq_length;
  config.seed = seed;
  if (sources.blend.all) config.split = split_of(settings);
  const auto open = [&](const std::string& prefix) -> std::shared_ptr<const data::TokenSource> {
    if (sources.mock) return std::make_shared<data::MockTokens>(vocabulary.size, vocabulary.eod);
    return open_tokens(settings, vocabulary, prefix);
  };
  data::BlendSets built = data::build_blends(sources.blend, config, samples, open);
  Corpus corpus;
  for (size_t i = 0; i < corpus.sets.size(); ++i)
    if (!built.sets[i].empty()) corpus.sets[i] = built.sets[i][0].set;
  for (auto& part : built.sets[static_cast<size_t>(data::Split::valid)])
    corpus.validation.push_back({std::move(part.name), std::move(part.set)});
  return corpus;
}

bool keeps_train_order(const settings::DataSettings& settings, const Corpus& corpus,
                       int64_t samples) {
  if (settings.reads_sentences())
    return dynamic_cast<const SentenceRows&>(corpus.set(data::Split::train)).keeps_order(samples);
  if (!settings.pretrains()) return true;
  DataSources sources = find_sources(settings);
  settle_blend(sources.blend, settings, false);
  return data::keeps_order(sources.blend, data::Split::train, corpus.set(data::Split::train),
                           samples);
}

std::vector<SplitTokens> open_split(const settings::DataSettings& settings,
                                    const Vocabulary& vocabulary, data::Split split,
                                    ThreadPool& pool) {
  const DataSources sources = find_sources(settings);
  MG_CHECK(!sources.mock, "--mock-data has no documents: give --data-path PREFIX or --input FILE");
  const auto at = static_cast<size_t>(split);
  const auto& list = sources.blend.all ? sources.blend.all : sources.blend.per_split[at];
  MG_CHECK(list.has_value(), "the {} set has no data", data::name(split));
  data::SplitShare share;
  if (sources.blend.all) {
    const auto own = data::parse_split(split_of(settings))[at];
    MG_CHECK(own.has_value(), "the {} split has weight 0 in --split {}", data::name(split),
             split_of(settings));
    share = *own;
  }
  std::vector<SplitTokens> parts;
  for (const std::string& prefix : list->prefixes) {
    const auto tokens = open_tokens(settings, vocabulary, prefix);
    tokens->check(pool);
    const auto [begin, end] = data::split_range(share, tokens->sequence_count());
    parts.push_back({tokens, begin, end});
  }
  return parts;
}

namespace {

template <class To, class From>
void append(std::vector<To>& to, const std::vector<From>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// Memory for the texts of a batch's encoder: that of its last ones, if nothing else holds it.
std::shared_ptr<HostBatch> emptied_encoder(HostBatch& batch) {
  const std::shared_ptr<const HostBatch> last = std::exchange(batch.encoder, nullptr);
  if (last == nullptr || last.use_count() > 1 || last->cut_from != nullptr)
    return std::make_shared<HostBatch>();
  auto texts = std::const_pointer_cast<HostBatch>(last);
  for (auto* values : {&texts->tokens, &texts->positions, &texts->segment_starts}) values->clear();
  return texts;
}

}  // namespace

void BatchReader::read(std::span<const int64_t> indices, HostBatch& batch) {
  batch.layout = {.sequences = static_cast<int64_t>(indices.size()), .length = layout_.length};
  for (auto* values : {&batch.tokens, &batch.labels, &batch.positions, &batch.segment_starts,
                       &batch.segment_ends, &batch.sources, &batch.token_types, &batch.pair_labels,
                       &batch.encoder_starts, &batch.encoder_ends})
    values->clear();
  batch.loss_mask.clear();
  batch.targets.clear();
  batch.label_sets.clear();
  batch.reference.clear();
  const auto tokens = static_cast<size_t>(batch.layout.rows());
  for (auto* values : {&batch.tokens, &batch.labels, &batch.positions}) values->reserve(tokens);
  batch.loss_mask.reserve(tokens);
  std::shared_ptr<HostBatch> texts;  // null: for a model without an encoder
  for (const int64_t index : indices) {
    set_.read(index, sample_);
    append(batch.tokens, sample_.tokens);
    append(batch.labels, sample_.labels);
    append(batch.positions, sample_.position_ids);
    append(batch.targets, sample_.targets);
    append(batch.label_sets, sample_.label_sets);
    append(batch.loss_mask, sample_.loss_mask);
    append(batch.segment_starts, sample_.segment_begin);
    append(batch.sources, sample_.sources);
    append(batch.token_types, sample_.token_types);
    append(batch.pair_labels, sample_.pair_labels);
    append(batch.encoder_starts, sample_.encoder_begin);
    append(batch.encoder_ends, sample_.encoder_end);
    if (sample_.encoder.tokens.empty()) continue;
    if (texts == nullptr) texts = emptied_encoder(batch);
    append(texts->tokens, sample_.encoder.tokens);
    append(texts->positions, sample_.encoder.position_ids);
    append(texts->segment_starts, sample_.encoder.segment_begin);
  }
  batch.sample_ids.assign(indices.begin(), indices.end());
  batch.cut_from.reset();
  if (two_sided_ && !batch.segment_starts.empty()) set_segment_ends(batch);
  if (texts != nullptr) {
    texts->layout = {.sequences = batch.layout.sequences,
                     .length = std::ssize(sample_.encoder.tokens)};
    texts->sample_ids = batch.sample_ids;
    set_segment_ends(*texts);
    batch.encoder = std::move(texts);
  }
  keep_tokens(batch, layout_);
}

}  // namespace megatron::corpus
