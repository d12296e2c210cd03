// Micro-batches on the host and on the device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "models/model.h"
#include "nn/batch.h"
#include "settings/batch_settings.h"

namespace megatron::corpus {

// B sequences of which this rank holds S tokens each, row by row.
struct HostBatch {
  parallel::TokenLayout layout;
  // The texts that the encoder of an encoder-decoder reads, one for each sequence, without labels
  // and masks; or null.
  std::shared_ptr<const HostBatch> encoder;
  // [B*S]. The position -1 is that of padding in a table whose texts begin after it
  // (ModelFacts::position_offset); other tables have none.
  std::vector<int32_t> tokens, positions, labels;
  std::vector<int32_t> token_types;  // [B*S]: index in the model's table of types; empty: 0
  std::vector<double>
      targets;  // [B*S]: what scores are compared with, or an objective reads; or none
  // [B*S]: the log-probabilities of the labels under a reference model, for an objective; or none.
  // Only whole sequences have them (set_reference()).
  std::vector<double> reference;
  std::vector<float> loss_mask;     // [B*S], 1 if the token counts
  std::vector<int64_t> sample_ids;  // [B]
  // [B*S] (nn/batch.h); empty if attention is not confined to segments.
  std::vector<int32_t> segment_starts;
  // [B*S]: at the first token of a pair of texts whether the second follows the first (nn/batch.h),
  // -1 elsewhere; or none.
  std::vector<int32_t> pair_labels;
  // [B*S]: at the scored token of a text the numbers of its classes, if it may have several, empty
  // elsewhere; or none.
  std::vector<std::vector<int32_t>> label_sets;
  // [B*S] (nn/batch.h): for two-sided attention; empty: up to the end of each sequence.
  std::vector<int32_t> segment_ends;
  // [B*S] (nn/batch.h): bounds of cross attention in the encoder's texts; empty: all of them.
  std::vector<int32_t> encoder_starts, encoder_ends;
  std::vector<int32_t> sources;  // [B*S]: the number of each token's source, -1: padding; or none

  // If the rank holds only a part of each sequence: the tokens of every rank, and the whole
  // sequences.
  std::vector<int32_t> rank_indices;  // parallel::tokens_by_rank()
  std::shared_ptr<const HostBatch> cut_from;
  int64_t text_length = 0;  // length before padding; 0: not padded

  double counted() const;  // sum of the mask
  const HostBatch& whole() const { return cut_from == nullptr ? *this : *cut_from; }
  // Tokens that this rank holds, and those of the encoder's texts.
  int64_t encoder_rows() const { return encoder == nullptr ? 0 : encoder->layout.rows(); }
  // Index within its sequence of each token that this rank holds; empty: 0, 1, ... in each.
  std::span<const int32_t> indices() const;
};

// Sets the segment_ends of whole sequences from their segment_starts: a document ends before the
// next token that is its own start, the last one with its sequence. Without starts, a sequence is
// one document.
void set_segment_ends(HostBatch& batch);
// Pads whole sequences, and the texts of an encoder, to a multiple of `multiple` tokens with tokens
// that do not count, and that no other token sees: segment_ends and encoder_ends are set if the
// batch has none.
void pad_sequences(HostBatch& batch, int64_t multiple);
// One of a batch's whole sequences.
HostBatch sequence_of(const HostBatch& batch, int64_t sequence);
// Sets the reference model's log-probabilities of the whole sequences.
void set_reference(HostBatch& batch, std::vector<double> of_sequences);
// Keeps only those tokens of whole sequences that a context-parallel rank holds.
void keep_tokens(HostBatch& batch, const parallel::TokenLayout& layout);

// Device tensors of one shape that are refilled for each micro-batch, so that no memory is
// allocated after the first.
class DeviceBatch {
 public:
  // sources: number of sources by which losses are logged, or 0. recorded: the work of a
  // micro-batch is recorded and replayed for others, so its messages must have fixed sizes.
  explicit DeviceBatch(Runtime& runtime, DType model_type, int64_t sources = 0,
                       bool recorded = false)
      : runtime_(runtime), type_(model_type), sources_(sources), recorded_(recorded) {}
  // Throws Error naming a token, label or position that the model does not have, or a segment that
  // begins after its token, or ends before it begins. loss_scale: factor of the loss weights;
  // of_sequences: a further factor for each sequence; may be empty.
  const nn::Batch& fill(const HostBatch& host, const models::Model& model,
                        settings::LossScope scope, double loss_scale = 1,
                        std::span<const double> of_sequences = {});
  // Lists the tokens that count, after fill(): the batch's `labelled`, and its pairs. Without data,
  // all tokens. squares: as in parallel::LabelledTokens.
  void list_labelled(const HostBatch& host, bool squares = false);

 private:
  Runtime& runtime_;
  DType type_;
  int64_t sources_;
  bool recorded_;
  void allocate(const HostBatch& host, const models::ModelFacts& model);
  // Fills what the model reads, but not labels and loss weights.
  void fill_inputs(const HostBatch& host, const models::Model& model);
  void fill_encoder(const HostBatch& host, const models::Model& model);
  void fill_losses(const HostBatch& host, const models::Model& model, settings::LossScope scope,
                   double loss_scale, std::span<const double> of_sequences);
  void fill_embedding(const HostBatch& host, const models::ModelFacts& model);
  // Lists those of `tokens` tokens for whose index counts() is true, with their labels. memory: is
  // allocated for all tokens.
  parallel::LabelledTokens listed(parallel::LabelledTokens& memory,
                                  const std::vector<int32_t>& labels, int64_t tokens,
                                  const std::function<bool(size_t)>& counts);
  void fill_real_tokens(const HostBatch& host);
  // scale: factor of the losses of all depths together.
  void fill_predicted(const HostBatch& host, const models::PredictionFacts& prediction,
                      double scale);
  void fill_source_weights(const HostBatch& host);
  void fill_segments(const HostBatch& host);

  nn::Batch batch_;
  std::unique_ptr<DeviceBatch> encoder_;  // created for the first batch with texts for an encoder
  // Tokens with a label: memory for all of a batch.
  parallel::LabelledTokens labelled_, pairs_;
  bool lists_pairs_ = false;     // the model has a head for pairs
  std::vector<double> weights_;  // of the last batch; the memory is reused
};

}  // namespace megatron::corpus
