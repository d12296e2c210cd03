// `megatron eval`: loss of a model on a data set, or on text.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "settings/settings.h"
#include "training/document_losses.h"
#include "training/model_source.h"

namespace megatron::training {

struct EvaluationSettings {
  ModelToRead model;
  std::string set = "valid";
  std::optional<int64_t> samples, seq_length, decoder_seq_length, stride;
  int64_t micro_batch_size = 4;
  int64_t max_length = 0;  // context length of the evaluation; 0: the model's own
  bool bf16 = false;
  corpus::TextInput text;  // if paths is empty, a data set is evaluated instead
  std::optional<std::string> per_document;
  settings::DataSettings data;
  settings::RuntimeSettings runtime;
  // For samples of an encoder with a head for pairs: its loss is that of the masked tokens, its
  // last two metrics are the pairs' loss and accuracy. Null: pairs are not evaluated.
  std::shared_ptr<const Objective> pair_objective;

  void fields(Fields& fields);
  // True if documents are evaluated one by one, instead of samples of concatenated documents.
  bool by_document() const { return !text.paths.empty() || per_document || stride; }
};

struct DocumentLoss {
  std::string place;
  LossSum loss;
  int64_t bytes = -1;  // bytes of its text; -1: not known
};

struct EvaluationResult {
  std::string what;  // "valid set", "text"
  LossSum loss;
  int64_t sequences = 0;
  double unigram_entropy = 0;  // nats per counted token
  int64_t pairs = 0;  // pairs of texts; their mean loss, and the share classified correctly
  double pair_loss = 0, pair_accuracy = 0;
  // What the loss is of: next tokens; masked tokens of samples; or each token of a text, masked by
  // itself (training/pseudo_losses.h).
  enum class Kind { next, masked, pseudo } kind = Kind::next;
  int64_t bytes = -1;                   // bytes of the text; -1: not known
  std::vector<DocumentLoss> documents;  // all documents if by_document(), else empty

  double perplexity() const;
  std::optional<double> bits_per_byte() const;
  Json json() const;
};

// A model and its evaluation data, opened and checked.
class Evaluation {
 public:
  // show: progress bars, from rank 0. Throws Error naming the flag or file.
  Evaluation(EvaluationSettings settings, bool show);

  const EvaluationSettings& settings() const { return s_; }
  // Collective; the result is complete on rank 0 and lacks the entropy on others. It is the same,
  // bit for bit, for any number of ranks and any micro-batch. Throws Error naming a sample or
  // document whose loss is not finite.
  EvaluationResult run(comm::Group& world) const;

 private:
  void check() const;
  void check_masking() const;
  void check_keys(bool reads_pairs) const;
  void check_of_sentences() const;
  void check_outputs() const;
  void open_text_pairs(const corpus::Vocabulary& vocabulary, ThreadPool& pool);
  void open_sentences(const corpus::Vocabulary& vocabulary, ThreadPool& pool);
  EvaluationResult run_samples(LossPass& pass) const;
  EvaluationResult run_documents(LossPass& pass) const;
  EvaluationResult run_pseudo(const models::Stage& stage, Runtime& runtime,
                              const comm::Group& world) const;
  void add_documents(std::span<const LossSum> losses, bool lists, EvaluationResult& result) const;
  std::string what() const { return s_.text.paths.empty() ? s_.set + " set" : "text"; }

  EvaluationSettings s_;
  bool show_;
  checkpoint::ModelDirectory directory_;
  models::Model model_;
  int64_t length_ = 0, stride_ = 0;
  int64_t labelled_length_ = 0;  // of the text with labels: an encoder-decoder's second
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer_;  // null: the data has none
  std::shared_ptr<const data::Dataset> set_;                // null if `documents_` is set
  int64_t count_ = 0;                                       // number of samples to evaluate
  std::unique_ptr<corpus::Documents> documents_;
};

// JSON lines, one per document: {"document", "place", "tokens", "loss": mean or null, "sum",
// "bytes"}.
std::string document_lines(const std::vector<DocumentLoss>& documents);
// True if a file with this beginning holds such lines.
bool is_document_lines(std::string_view start);

}  // namespace megatron::training
