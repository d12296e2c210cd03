#include "data/gpt_dataset.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "data/source_facts.h"

namespace megatron::data {
namespace {

constexpr int64_t kWorthALine = 10'000'000;  // entries that take noticeable time to build

int64_t pad_id(const GptDatasetConfig& config) {
  constexpr int64_t kNoPadding = -1;
  if (!config.pad) return kNoPadding;
  const bool special =
      *config.pad == config.eod ||
      std::find(config.special.begin(), config.special.end(), *config.pad) != config.special.end();
  if (!special || config.allow_ambiguous_pad_tokens) return *config.pad;
  log::warning(
      "the padding token {} is also a special token, so it is not treated as padding and its "
      "loss counts (--allow-ambiguous-pad-tokens changes that)",
      *config.pad);
  return kNoPadding;
}

// Makes the request, except the number of tokens.
IndexRequest make_request(const TokenSource& source, const GptDatasetConfig& config, Split split,
                          std::optional<int64_t> samples) {
  IndexRequest request;
  std::pair<int64_t, int64_t> range{0, source.sequence_count()};
  if (config.split) {
    const auto share = parse_split(*config.split)[static_cast<size_t>(split)];
    MG_CHECK(share.has_value(), "{}: the {} split has weight 0 in --split {}", source.path(),
             name(split), *config.split);
    range = split_range(*share, range.second);
  }
  request.first_sequence = range.first;
  request.sequences = range.second - range.first;
  request.samples = samples;
  request.sequence_length = config.sequence_length;
  request.extra_tokens = config.add_extra_token ? 1 : 0;
  request.drop_last_partial = split != Split::valid || config.drop_last_partial_validation_sequence;
  return request;
}

// Number of threads that are worth starting for this much work; small sets finish before a thread
// starts.
int threads_for(int64_t entries, int given) {
  constexpr int64_t kEntriesOfAThread = 1'000'000;
  const int most = given > 0 ? given : available_processors();
  return static_cast<int>(std::min<int64_t>(most, 1 + entries / kEntriesOfAThread));
}

}  // namespace

GptDataset::GptDataset(std::shared_ptr<const TokenSource> source, GptDatasetConfig config,
                       Split split, std::optional<int64_t> samples)
    : source_(std::move(source)), config_(std::move(config)), split_(split), pad_(pad_id(config_)) {
  prepare(samples);
  if (config_.infilling != nullptr && config_.infilling->config().megatron_data_order)
    draws_.emplace(config_.seed);
  if (cache_) {
    if (auto found = cache_->load()) indices_.emplace(std::move(*found));
  }
  from_cache_ = indices_.has_value();
  if (!from_cache_) build();
}

void GptDataset::prepare(std::optional<int64_t> samples) {
  ThreadPool pool(threads_for(source_->sequence_count(), config_.threads));
  request_ = make_request(*source_, config_, split_, samples);
  std::optional<std::string> directory;
  if (config_.cache) directory = index_cache_directory(source_->path(), config_.cache_path);
  SourceFacts facts(*source_, directory);
  std::string content;
  if (config_.cache) {
    content = facts.content(pool);
  } else {
    source_->check(pool);
  }
  request_.tokens_per_epoch = facts.tokens(request_.first_sequence, request_.sequences, pool);
  MG_CHECK(request_.tokens_per_epoch > 1,
           "{}: the {} split gets {} of {} sequences, with {} tokens{}: give it a larger share, "
           "weight 0, or more data",
           source_->path(), name(split_), request_.sequences, source_->sequence_count(),
           request_.tokens_per_epoch,
           config_.split ? fmt::format(" (--split {})", *config_.split) : std::string());
  facts.remember();
  plan_ = plan_index(request_);
  if (config_.cache)
    cache_.emplace(std::move(*directory), std::move(content), request_, plan_, config_.seed);
}

void GptDataset::build() {
  check_build();
  ThreadPool pool(threads_for(plan_.documents + plan_.samples, config_.threads));
  std::optional<IndexWriter> writer;
  if (cache_) writer.emplace(*cache_, source_->path(), std::string(name(split_)));
  std::mutex mutex;
  std::optional<Progress> progress;
  int64_t done = 0;
  if (plan_.documents + plan_.samples >= kWorthALine)
    progress.emplace("indices", plan_.documents + 3 * plan_.samples, "entries");
  indices_.emplace(build_indices(request_, plan_, config_.seed, source_->lengths(), pool,
                                 [&](std::string_view name, const IntegerArray& index) {
                                   if (writer) writer->write(name, index);
                                   const std::lock_guard lock(mutex);
                                   if (progress) progress->update(done += index.size(), name);
                                 }));
  if (progress) progress->finish();
  if (writer) writer->commit();
}

std::string GptDataset::cache_file(std::string_view suffix) const {
  return cache_ ? cache_->path(suffix) : std::string();
}

void GptDataset::check_build() const {
  const int64_t bytes = index_bytes(plan_);
  const int64_t memory = config_.memory.value_or(available_memory());
  MG_CHECK(bytes <= memory / 2,
           "{}: the indices of {} {} samples ({} epochs of {} sequences) take {}, more than half "
           "of the available {} of memory: request fewer samples (--train-iters, --train-samples, "
           "--global-batch-size, --eval-iters) or use an index cache that is already built "
           "(--data-cache-path)",
           source_->path(), plan_.samples, name(split_), plan_.epochs, request_.sequences,
           format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(memory)));
  if (plan_.documents + plan_.samples >= kWorthALine) {
    log::info("{}: building sample indices: {} {} samples, {} epochs, {}", source_->path(),
              plan_.samples, name(split_), plan_.epochs, format_bytes(static_cast<double>(bytes)));
  }
}

int64_t GptDataset::gather(int64_t k, std::vector<int64_t>& text,
                           std::vector<int64_t>& borders) const {
  MG_CHECK(k >= 0 && k < plan_.samples, "{}: sample {} does not exist; the data set has {} samples",
           source_->path(), k, plan_.samples);
  const IntegerArray& rows = indices_->sample;
  const int64_t row = indices_->shuffle[k];
  const auto damaged = [&] {
    fail("{}: the index cache {} is damaged: delete its files and it will be rebuilt",
         source_->path(), cache_file("*"));
  };
  if (row < 0 || row >= plan_.samples) damaged();
  const int64_t first = rows[2 * row], first_offset = rows[2 * row + 1];
  const int64_t last = rows[2 * row + 2], last_end = rows[2 * row + 3] + request_.extra_tokens;
  if (first < 0 || last < first || last >= plan_.documents) damaged();
  int64_t filled = 0;
  for (int64_t d = first; d <= last; ++d) {
    const int64_t sequence = indices_->document[d];
    if (sequence < 0 || sequence >= source_->sequence_count()) damaged();
    const int64_t begin = d == first ? first_offset : 0;
    const int64_t end = d == last ? last_end : source_->length(sequence);
    const int64_t room = static_cast<int64_t>(text.size()) - filled;
    if (begin < 0 || end < begin || end > source_->length(sequence) || end - begin > room)
      damaged();
    source_->read(
        sequence, begin,
        std::span(text).subspan(static_cast<size_t>(filled), static_cast<size_t>(end - begin)));
    filled += end - begin;
    borders.push_back(filled);
  }
  return filled;
}

int64_t GptDataset::rearrange(int64_t k, int64_t filled, std::vector<int64_t>& text,
                              std::vector<int64_t>& borders) const {
  const auto room = std::ssize(text);
  std::vector<int64_t> out;
  const auto append = [&](RandomState& random) {
    const auto tokens = std::span<const int64_t>(text).first(static_cast<size_t>(filled));
    if (!config_.inter_document_masking) return config_.infilling->append(tokens, random, out);
    size_t begin = 0;
    for (int64_t& border : borders) {
      const size_t end = static_cast<size_t>(border);
      config_.infilling->append(tokens.subspan(begin, end - begin), random, out);
      border = std::min(std::ssize(out), room);
      begin = end;
    }
  };
  if (draws_) {
    const std::lock_guard lock(draws_mutex_);
    append(*draws_);
  } else {
    RandomState random((config_.seed + k) & 0xffffffff);
    append(random);
  }
  out.resize(static_cast<size_t>(std::min(std::ssize(out), room)));
  const auto count = std::ssize(out);
  out.resize(text.size(), config_.infilling->config().tokens.pad);
  text = std::move(out);
  return count;
}

void GptDataset::read(int64_t k, Sample& sample) const {
  const auto length = static_cast<size_t>(config_.sequence_length);
  std::vector<int64_t>& text = sample.tokens;  // includes the label of the last token
  text.resize(length + static_cast<size_t>(request_.extra_tokens));
  std::vector<int64_t> borders;
  const int64_t filled = gather(k, text, borders);
  for (int64_t i = 0; config_.vocabulary_size > 0 && i < filled; ++i) {
    const int64_t token = text[static_cast<size_t>(i)];
    MG_CHECK(token >= 0 && token < config_.vocabulary_size,
             "{}: sample {} contains token {}, but the vocabulary has {} entries: was it made "
             "with a different tokenizer?",
             source_->path(), k, token, config_.vocabulary_size);
  }
  int64_t count = filled;
  if (config_.infilling != nullptr) count = rearrange(k, filled, text, borders);
  else std::fill(text.begin() + filled, text.end(), pad_);
  sample.labels.assign(text.begin() + 1, text.end());
  text.resize(length);
  if (!config_.add_extra_token) sample.labels.push_back(pad_);
  mask(sample, borders);
  // Megatron-LM's loss counts the tokens that fill a rearranged sample.
  if (config_.infilling == nullptr || draws_) return;
  for (int64_t i = std::max<int64_t>(count - 1, 0); i < std::ssize(sample.labels); ++i)
    sample.loss_mask[static_cast<size_t>(i)] = 0.0f;
}

void GptDataset::mask(Sample& sample, const std::vector<int64_t>& borders) const {
  const size_t length = sample.tokens.size();
  sample.loss_mask.assign(length, 1.0f);
  sample.position_ids.resize(length);
  const bool confined = config_.reset_attention_mask || config_.inter_document_masking;
  sample.segment_begin.resize(confined ? length : 0);
  size_t position_begin = 0, segment_begin = 0, border = 0;
  for (size_t i = 0; i < length; ++i) {
    sample.position_ids[i] = static_cast<int64_t>(i - position_begin);
    if (confined) sample.segment_begin[i] = static_cast<int32_t>(segment_begin);
    bool ends = sample.tokens[i] == config_.eod;
    if (ends && config_.eod_mask_loss) sample.loss_mask[i] = 0.0f;
    if (config_.inter_document_masking) {
      while (border < borders.size() && borders[border] <= static_cast<int64_t>(i)) ++border;
      // Padding belongs to the last document.
      ends = border + 1 < borders.size() && borders[border] == static_cast<int64_t>(i) + 1;
    }
    if (ends && (config_.reset_position_ids || config_.inter_document_masking))
      position_begin = i + 1;
    if (ends && confined) segment_begin = i + 1;
    if (sample.labels[i] == pad_) sample.loss_mask[i] = 0.0f;
    if (sample.labels[i] == pad_) sample.labels[i] = 0;
    if (sample.tokens[i] == pad_) sample.tokens[i] = 0;
  }
}

void GptDataset::read_filler(Sample& sample) const {
  read(0, sample);
  std::fill(sample.loss_mask.begin(), sample.loss_mask.end(), 0.0f);
}

}  // namespace megatron::data
