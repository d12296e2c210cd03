#include "training/evaluation.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/command_output.h"
#include "base/error.h"
#include "base/progress.h"
#include "comm/gpu/staged.h"
#include "corpus/masked_corpus.h"
#include "corpus/span_corpus.h"
#include "data/input_list.h"
#include "data/text_source.h"
#include "inference/fill_mask.h"
#include "training/pseudo_losses.h"

namespace megatron::training {
namespace {

using RowsOfSets = std::array<std::optional<int64_t>, 3>;  // asked for; none: all

constexpr int64_t kEncoderLength = 512;  // of encoder-decoders, whose positions may not end
constexpr int64_t kPasses = 8;           // forward passes of each rank between two progress reports

data::Split split_named(const std::string& name) {
  return name == "train"  ? data::Split::train
         : name == "test" ? data::Split::test
                          : data::Split::valid;
}

void require_finite(const LossSum& loss, const std::string& of) {
  MG_CHECK(std::isfinite(loss.sum),
           "the loss of {} is {}: the model's weights contain NaN or infinity, or its "
           "activations overflow",
           of, loss.sum);
}

Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

}  // namespace

void EvaluationSettings::fields(Fields& f) {
  f.begin_group("input");
  model.fields(f);
  f.add(
      "input", &text.paths,
      "text instead of a data set: files, directories or quoted patterns, as preprocess reads "
      "them; each document is scored separately. For a model with a score head: JSON lines with "
      "'text' or 'messages' and 'label', or with 'chosen' and 'rejected'; for an encoder-decoder: "
      "JSON lines with 'input' and 'target', or 'prompt' and 'completion'");
  f.add("input-format", &text.format, {"auto", "jsonl"},
        "auto: by file name; jsonl: every file is JSON lines");
  f.add("json-keys", &text.json_key, "key of the text in a record");
  f.add_switch("whole-files", &text.whole_files, true,
               "treat each plain text file as one document; by default it is split at paragraph "
               "breaks into documents of 2 to 8 kB");
  f.add_switch("append-eod", &text.append_eod, true,
               "append the end-of-document token, which is scored, to each document of the text");
  f.add_switch(
      "prepend-eod", &text.prepend_eod, true,
      "prepend the end-of-document token to each document, so that its first token is also scored");
  f.begin_group("evaluation");
  f.add("eval-set", &set, {"train", "valid", "test"}, "split to evaluate on");
  f.add("eval-samples", &samples,
        "number of sequences to evaluate; default one pass over the "
        "split");
  f.add("seq-length", &seq_length, "tokens per sequence; default the model's context length");
  f.add("decoder-seq-length", &decoder_seq_length,
        "tokens of a text of the decoder, if the model is an encoder-decoder, whose encoder reads "
        "--seq-length tokens (512 by default); default --seq-length");
  f.add("stride", &stride,
        "score each document separately in windows of --seq-length that start this many tokens "
        "apart; each window scores the tokens that the previous one did not; default --seq-length");
  f.begin_group("output");
  f.add("per-document", &per_document,
        "JSONL file for the loss of each document; the documents of a data set are then scored "
        "separately, too");
  f.begin_group("evaluation");
  f.add("micro-batch-size", &micro_batch_size,
        "sequences per rank and forward pass; does not change the result");
  f.begin_group("precision");
  f.add_switch("bf16", &bf16, true, "compute in bfloat16 instead of fp32");
  data.fields(f);
  // The model tells whether these have an effect (check()); there is no --task.
  for (const char* name : {"mask-prob", "short-seq-prob", "megatron-data-order"})
    f.find(name)->idle = nullptr;
  runtime.fields(f);
  const std::vector<std::string> sources = {
      "mock-data",       "data-path",      "data-args-path",          "train-data-path",
      "valid-data-path", "test-data-path", "per-split-data-args-path"};
  f.common({"load", "adapter", "input", "eval-set", "eval-samples", "seq-length", "stride",
            "per-document", "micro-batch-size", "bf16"});
  f.replace({"input"}, sources);
  f.replace({"input"}, {"split"});
  f.replace(sources, {"input"});
  f.replace({"per-document"}, {"eval-samples"});
  f.replace({"eval-samples"}, {"per-document"});
}

double EvaluationResult::perplexity() const { return std::exp(loss.mean()); }

std::optional<double> EvaluationResult::bits_per_byte() const {
  if (bytes <= 0) return std::nullopt;
  return loss.sum / std::numbers::ln2 / static_cast<double>(bytes);
}

Json EvaluationResult::json() const {
  Json out(Json::Object{
      {"evaluated", what},
      {"loss", loss.mean()},
      {kind == Kind::pseudo ? "pseudo_perplexity" : "perplexity", finite_or_null(perplexity())},
      {"tokens", static_cast<int64_t>(loss.tokens)},
      {"sequences", sequences},
      {"unigram_entropy", unigram_entropy}});
  if (!documents.empty()) out.set("documents", static_cast<int64_t>(documents.size()));
  if (bytes >= 0) out.set("bytes", bytes);
  if (const auto bits = bits_per_byte()) out.set("bits_per_byte", *bits);
  if (pairs > 0) {
    out.set("pairs", pairs);
    out.set("pair_loss", pair_loss);
    out.set("pair_accuracy", pair_accuracy);
  }
  return out;
}

Evaluation::Evaluation(EvaluationSettings settings, bool show)
    : s_(std::move(settings)),
      show_(show),
      directory_(s_.model.open("to evaluate")),
      model_(models::with_context_length(models::model_of(directory_), s_.max_length)) {
  const models::ModelFacts& facts = model_->facts();
  if (facts.two_sided) inference::require_masked_model(model_, "megatron eval");
  else if (facts.encoder_layers == 0) models::require_language_model(model_, "megatron eval");
  length_ = s_.seq_length.value_or(facts.encoder_layers > 0
                                       ? std::min(kEncoderLength, model_->context_length())
                                       : model_->context_length());
  labelled_length_ = s_.decoder_seq_length.value_or(length_);
  stride_ = s_.stride.value_or(length_);
  check();
  check_outputs();
  ThreadPool pool(s_.runtime.threads_per_rank());
  require_whole_model(directory_, pool);
  if (!s_.data.tokenizer_model && !s_.data.tokenizer_type && !s_.data.vocab_file &&
      !s_.data.mock_data)
    s_.data.tokenizer_model = tokenizer_path({}, tokenizer_directory(directory_));
  const corpus::Vocabulary vocabulary = corpus::open_vocabulary(s_.data, model_->vocab_size());
  if (!vocabulary.directory.empty())
    report_missing_tokens(vocabulary.tokenizer->vocabulary_size(), model_->vocab_size());
  MG_CHECK(vocabulary.eod >= 0 || !(s_.text.append_eod || s_.text.prepend_eod),
           "--append-eod and --prepend-eod: the tokenizer {} has no end-of-document token",
           vocabulary.directory);
  tokenizer_ = vocabulary.tokenizer;
  if (!s_.text.paths.empty() && facts.encoder_layers > 0) {
    open_text_pairs(vocabulary, pool);
    return;
  }
  if (!s_.text.paths.empty()) {
    documents_ = corpus::read_documents(s_.text, vocabulary, model_->vocab_size(), show);
    return;
  }
  if (facts.two_sided || facts.encoder_layers > 0) {
    open_sentences(vocabulary, pool);
    return;
  }
  const data::Split split = split_named(s_.set);
  if (s_.by_document()) {
    documents_ = corpus::stored_documents(corpus::open_split(s_.data, vocabulary, split, pool),
                                          s_.text.prepend_eod ? vocabulary.eod : -1);
    return;
  }
  std::array<std::optional<int64_t>, 3> wanted = {0, 0, 0};
  wanted[static_cast<size_t>(split)] = s_.samples;
  const corpus::Corpus corpus =
      corpus::open_corpus(s_.data, vocabulary, length_, s_.runtime.seed, wanted);
  corpus.set(split);  // throws Error if the data has no such set
  set_ = corpus.sets[static_cast<size_t>(split)];
  count_ = std::min(s_.samples.value_or(set_->size()), set_->size());
  MG_CHECK(
      count_ > 0,
      "the {} set has no full sequence of {} tokens; use a shorter --seq-length or change --split",
      s_.set, length_);
}

// The records of --task seq2seq, a row each.
void Evaluation::open_text_pairs(const corpus::Vocabulary& vocabulary, ThreadPool& pool) {
  settings::DataSettings data = s_.data;
  data.valid_data_path = s_.text.paths;
  data.chat_packing = "none";
  const corpus::Corpus corpus =
      corpus::open_text_pairs({.settings = data,
                               .vocabulary = vocabulary,
                               .seq_length = length_,
                               .seed = s_.runtime.seed,
                               .decoder_length = labelled_length_,
                               .start_token = model_->facts().start_token,
                               .wanted = {false, true, false},
                               .samples = [](int64_t) { return RowsOfSets{}; },
                               .pool = pool});
  set_ = corpus.sets[static_cast<size_t>(data::Split::valid)];
  count_ = set_->size();
}

// The samples of --task mlm or span-corruption.
void Evaluation::open_sentences(const corpus::Vocabulary& vocabulary, ThreadPool& pool) {
  const auto split = static_cast<size_t>(split_named(s_.set));
  std::array<bool, 3> wanted{};
  std::array<std::optional<int64_t>, 3> samples = {0, 0, 0};
  wanted[split] = true;
  samples[split] = s_.samples.value_or(1);  // whole passes are built
  const corpus::ExampleFiles files{.settings = s_.data,
                                   .vocabulary = vocabulary,
                                   .seq_length = length_,
                                   .seed = s_.runtime.seed,
                                   .decoder_length = labelled_length_,
                                   .start_token = model_->facts().start_token,
                                   .wanted = wanted,
                                   .samples = [&](int64_t) { return samples; },
                                   .pool = pool};
  const corpus::Corpus corpus = model_->facts().two_sided
                                    ? corpus::open_masked(files, model_->facts())
                                    : corpus::open_spans(files);
  corpus.set(split_named(s_.set));
  set_ = corpus.sets[split];
  count_ = std::min(s_.samples.value_or(set_->size()), set_->size());
}

// Throws Error for flags of masked tokens where none are drawn.
void Evaluation::check_masking() const {
  const bool two_texts = model_->facts().encoder_layers > 0;
  if ((model_->facts().two_sided || two_texts) && s_.text.paths.empty()) return;
  const settings::DataSettings usual;
  const char* flag = s_.data.mask_prob != usual.mask_prob             ? "mask-prob"
                     : s_.data.short_seq_prob != usual.short_seq_prob ? "short-seq-prob"
                     : s_.data.megatron_data_order                    ? "megatron-data-order"
                                                                      : nullptr;
  MG_CHECK(flag == nullptr,
           "--{} makes samples of masked tokens from a data set of sentences, for encoders and "
           "encoder-decoders; {}: leave it out",
           flag,
           model_->facts().two_sided ? "each token of --input is masked in turn"
           : two_texts               ? "--input has pairs of texts"
                                     : "the model is a decoder");
}

// Throws Error for flags of texts if --input has pairs of texts, and for those of pairs if not.
void Evaluation::check_keys(bool reads_pairs) const {
  const data::TextSourceOptions usual;
  MG_CHECK(!reads_pairs || (s_.text.json_key == usual.json_key && s_.text.format == "auto" &&
                            !s_.text.whole_files),
           "--json-keys, --input-format and --whole-files are for texts, and the --input of an "
           "encoder-decoder has pairs of texts as JSON lines: leave them out; --input-key and "
           "--target-key name the keys");
  MG_CHECK(reads_pairs || (!s_.data.input_key && !s_.data.target_key),
           "--input-key and --target-key name keys of the pairs that an encoder-decoder reads from "
           "--input: leave them out");
}

void Evaluation::check_of_sentences() const {
  const bool text = !s_.text.paths.empty();
  const std::string_view kind = model_->facts().two_sided ? "an encoder" : "an encoder-decoder";
  MG_CHECK(!s_.stride && !s_.text.append_eod && !s_.text.prepend_eod,
           "--stride, --append-eod and --prepend-eod are for decoders, and the model is {} ({}); "
           "leave them out",
           kind, model_->family());
  MG_CHECK((text && model_->facts().two_sided) || !s_.per_document,
           "--per-document needs the texts of --input and a decoder or an encoder; this is {} with "
           "{}",
           kind, text ? "pairs of texts" : "a data set, whose samples of masked tokens are none");
  const settings::DataSettings& data = s_.data;
  const bool several = data.data_path.size() > 1 || data.train_data_path.size() > 1 ||
                       data.valid_data_path.size() > 1 || data.test_data_path.size() > 1;
  MG_CHECK(
      text || s_.samples ||
          !(several || data.mock_data || data.data_args_path || data.per_split_data_args_path),
      "--eval-samples N is needed: the number of samples of the {} set to mask and evaluate. Only "
      "a single data set has a default, one pass",
      s_.set);
}

void Evaluation::check() const {
  const bool two_texts = model_->facts().encoder_layers > 0;
  if (model_->facts().two_sided || two_texts) check_of_sentences();
  check_masking();
  check_keys(two_texts && !s_.text.paths.empty());
  MG_CHECK(two_texts || !s_.decoder_seq_length,
           "--decoder-seq-length is for encoder-decoders, and the model is a {}; leave it out",
           model_->family());
  constexpr int64_t kMaxSequences = int64_t{1} << 20;
  MG_CHECK(s_.micro_batch_size > 0 && s_.micro_batch_size <= kMaxSequences,
           "--micro-batch-size is {}; it must lie in [1, {}]", s_.micro_batch_size, kMaxSequences);
  MG_CHECK(s_.samples.value_or(1) > 0, "--eval-samples is {}; it must be positive", *s_.samples);
  s_.runtime.check();
  MG_CHECK(length_ > 0 && length_ <= model_->max_position_embeddings(),
           "--seq-length is {}, but the model has only {} positions; lower it, or raise "
           "--inference-max-seq-length",
           length_, model_->max_position_embeddings());
  MG_CHECK(labelled_length_ > 0 && labelled_length_ <= model_->max_position_embeddings(),
           "--decoder-seq-length is {}; the model has {} positions, so it must lie in [1, {}]",
           labelled_length_, model_->max_position_embeddings(), model_->max_position_embeddings());
  MG_CHECK(stride_ > 0 && stride_ <= length_,
           "--stride is {}; it must lie in [1, {}], the --seq-length", stride_, length_);
  const bool text = !s_.text.paths.empty();
  MG_CHECK(!text || !corpus::names_data(s_.data),
           "--input {} and a data set are both given; evaluate one at a time", s_.text.paths[0]);
  MG_CHECK(!text || !s_.data.split,
           "--split divides a data set; the text of --input is evaluated as a whole");
  MG_CHECK(text || !s_.text.append_eod,
           "--append-eod applies to the text of --input; token files are used as preprocess "
           "wrote them");
  MG_CHECK(s_.by_document() || !s_.text.prepend_eod,
           "--prepend-eod needs documents that are scored separately: give --input, "
           "--per-document or --stride");
  MG_CHECK(!s_.by_document() || !s_.samples,
           "--eval-samples counts sequences of packed documents, but {} scores each document "
           "separately: drop one",
           text        ? "--input"
           : s_.stride ? "--stride"
                       : "--per-document");
  MG_CHECK(
      !s_.data.infilling.fim_data || !(s_.by_document() || model_->facts().two_sided || two_texts),
      "--fim-data rearranges the documents in the samples of a decoder, but {}: drop one",
      model_->facts().two_sided ? "the model is an encoder"
      : two_texts               ? "the model is an encoder-decoder"
      : text                    ? "--input scores each document as it is"
      : s_.stride               ? "--stride scores each document as it is"
                                : "--per-document scores each document as it is");
}

void Evaluation::check_outputs() const {
  if (!s_.per_document) return;
  std::vector<std::string> inputs;
  if (!s_.text.paths.empty()) {
    const data::TextSourceOptions source{.json_lines = s_.text.format == "jsonl"};
    for (const auto& entry : data::list_inputs(s_.text.paths, source.kind()))
      inputs.push_back(entry.path);
  }
  for (const auto& file : {s_.data.data_args_path, s_.data.per_split_data_args_path,
                           s_.data.tokenizer_model, s_.model.load, s_.model.adapter})
    if (file) inputs.push_back(*file);
  check_output(
      {*s_.per_document, "--per-document", {"a list of document losses", is_document_lines}},
      inputs);
}

EvaluationResult Evaluation::run(comm::Group& ranks_of_run) const {
  Runtime runtime(s_.runtime.device_value(ranks_of_run.rank()), s_.runtime.threads_per_rank(),
                  DeviceKind::cpu, s_.runtime.ranks_in_process());
  std::unique_ptr<comm::Group> made;
  comm::Group& world =
      comm::for_device(ranks_of_run, runtime.device(), made, s_.runtime.gpu_backend());
  const DType type = s_.bf16 ? DType::bf16 : DType::f32;
  const auto stage = load_model(directory_, model_, runtime, type, 0);
  models::Stage* const whole = stage.get();
  if (model_->facts().two_sided && documents_ != nullptr) return run_pseudo(*stage, runtime, world);
  const parallel::Ranks ranks({}, world);
  StepOptions options;
  if (model_->facts().pair_head && documents_ == nullptr) options.objective = s_.pair_objective;
  LossPass pass({.chunks = {&whole, 1}, .type = type, .ranks = &ranks}, runtime, options);
  EvaluationResult result = documents_ != nullptr ? run_documents(pass) : run_samples(pass);
  result.what = what();
  if (model_->facts().two_sided) result.kind = EvaluationResult::Kind::masked;
  MG_CHECK(result.loss.tokens > 0,
           "the {} has no token to predict: every document has fewer than two, or the loss mask "
           "excludes them",
           result.what);
  if (world.rank() == 0) {
    result.unigram_entropy = documents_ != nullptr
                                 ? unigram_entropy(*documents_)
                                 : unigram_entropy(*set_, 0, count_, labelled_length_);
  }
  return result;
}

EvaluationResult Evaluation::run_samples(LossPass& pass) const {
  const comm::Group& world = pass.ranks().world();
  EvaluationResult result;
  result.sequences = count_;
  std::optional<Progress> progress;
  if (show_ && world.rank() == 0) progress.emplace("evaluating", count_, "sequences");
  const int64_t chunk = s_.micro_batch_size * world.size() * kPasses;
  std::vector<int64_t> indices;
  for (int64_t begin = 0; begin < count_; begin += chunk) {
    indices.resize(static_cast<size_t>(std::min(chunk, count_ - begin)));
    std::iota(indices.begin(), indices.end(), begin);
    const auto losses =
        evaluate_samples(pass, *set_, indices, s_.micro_batch_size, labelled_length_);
    for (size_t i = 0; i < losses.size(); ++i) {
      require_finite(losses[i], fmt::format("sequence {} of the {}", indices[i], what()));
      result.loss += losses[i];
    }
    if (progress) progress->update(begin + static_cast<int64_t>(indices.size()));
  }
  if (pass.objective() != nullptr) {
    const std::span<const LossSum::Metric> of_pairs = std::span(result.loss.metrics).last(2);
    const double count = std::max(of_pairs[0].weight, 1.0);
    result.pairs = std::llround(of_pairs[0].weight);
    result.pair_loss = of_pairs[0].sum / count;
    result.pair_accuracy = of_pairs[1].sum / count;
  }
  return result;
}

EvaluationResult Evaluation::run_documents(LossPass& pass) const {
  const comm::Group& world = pass.ranks().world();
  const corpus::Documents& documents = *documents_;
  EvaluationResult result;
  int64_t total = 0;
  for (int64_t d = 0; d < documents.size(); ++d) {
    const int64_t tokens = documents.tokens(d);
    total += std::max<int64_t>(0, tokens - 1);
    result.sequences += static_cast<int64_t>(windows_of(d, tokens, length_, stride_).size());
  }
  std::optional<Progress> progress;
  if (show_ && world.rank() == 0) progress.emplace("evaluating", total, "tokens");
  const WindowShape shape{
      .seq_length = length_, .stride = stride_, .micro_batch = s_.micro_batch_size};
  const auto losses = document_losses(pass, documents, shape, [&](int64_t done) {
    if (progress) progress->update(done);
  });
  add_documents(losses, world.rank() == 0, result);
  return result;
}

EvaluationResult Evaluation::run_pseudo(const models::Stage& stage, Runtime& runtime,
                                        const comm::Group& world) const {
  MG_CHECK(world.size() == 1,
           "the pseudo-perplexity of texts is computed by one rank, but there are {}; start one",
           world.size());
  EvaluationResult result{.what = what(), .loss = {}, .kind = EvaluationResult::Kind::pseudo};
  std::optional<Progress> progress;
  const PseudoTexts texts(*documents_, *tokenizer_, length_);
  if (show_) progress.emplace("evaluating", texts.tokens(), "tokens");
  result.sequences = texts.windows();
  add_documents(texts.losses(stage, runtime,
                             [&](int64_t done) {
                               if (progress) progress->update(done);
                             }),
                true, result);
  MG_CHECK(result.loss.tokens > 0, "the text has no token to mask");
  return result;
}

void Evaluation::add_documents(std::span<const LossSum> losses, bool lists,
                               EvaluationResult& result) const {
  for (int64_t d = 0; d < documents_->size(); ++d) {
    const LossSum& loss = losses[static_cast<size_t>(d)];
    require_finite(loss, documents_->place(d));
    result.loss += loss;
    const int64_t bytes = documents_->bytes(d);
    if (bytes >= 0) result.bytes = std::max<int64_t>(0, result.bytes) + bytes;
    if (lists) result.documents.push_back({documents_->place(d), loss, bytes});
  }
}

std::string document_lines(const std::vector<DocumentLoss>& documents) {
  std::string lines;
  for (size_t d = 0; d < documents.size(); ++d) {
    const DocumentLoss& document = documents[d];
    Json line(Json::Object{{"document", static_cast<int64_t>(d)},
                           {"place", document.place},
                           {"tokens", static_cast<int64_t>(document.loss.tokens)},
                           {"loss", document.loss.tokens > 0 ? Json(document.loss.mean()) : Json()},
                           {"sum", document.loss.sum}});
    if (document.bytes >= 0) line.set("bytes", document.bytes);
    lines += line.dump() + "\n";
  }
  return lines;
}

bool is_document_lines(std::string_view start) {
  return start.starts_with(R"({"document": )") &&
         first_line(start).find(R"("place": )") != start.npos;
}

}  // namespace megatron::training
