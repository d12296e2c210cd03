// One forward pass over new tokens of sequences that a state holds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "inference/adapter.h"
#include "inference/device_draws.h"
#include "inference/encoder_texts.h"
#include "inference/pass_adapters.h"
#include "models/stage.h"
#include "nn/sequence_state.h"

namespace megatron::inference {

// New tokens of one sequence: `count` of them from index `begin` on.
struct PassRow {
  int64_t begin = 0, count = 0;
  std::span<const int32_t> tokens;  // [count]
  // Labels of the first tokens, if their losses are requested; may be empty.
  std::span<const int32_t> labels;
  const Adapter* adapter = nullptr;      // null: none
  std::span<const int32_t> token_types;  // [count], for an encoder; may be empty
  bool expert_choices = false;           // whether the experts of its tokens are wanted
  const std::vector<std::vector<int32_t>>* pages =
      nullptr;                           // by group of the model's layers (nn/sequence_state.h)
  const EncoderText* encoder = nullptr;  // of an encoder-decoder: what the encoder reads
};

// Rows are concatenated without padding.
struct ForwardPassPlan {
  std::vector<PassRow> rows;
  std::span<const size_t> groups;  // the model's group behind each group of the state
  bool whole_texts = false;        // of an encoder: rows are texts, which the state does not hold
  // Texts of the rows that an encoder-decoder's encoder reads in this pass, shortest first.
  std::vector<const EncoderText*> texts = {};
  int64_t context = 0;  // tokens of the longest text among the rows; all have one context_class

  int64_t tokens() const;
  int64_t encoder_tokens() const;
  bool has_labels() const;
  bool wants_experts() const;
  // padding: rows after the others, which have the last one's adapter.
  PassAdapters adapters(const models::Model& model, int64_t padding = 0) const;
};

// The row as a part of a state's next pass.
nn::SequencePart part_of(const PassRow& row, const ForwardPassPlan& plan,
                         const nn::SequenceState& state);

// Logits [rows, V] from which the loss is computed, in f32 (f64); zeros on meta. They stay on the
// device.
class Logits {
 public:
  Logits(Tensor logits, Runtime& runtime);

  // Samples a token below `choices` for each row that the rules allow (inference/device_draws.h),
  // on CUDA.
  DeviceDraws draw(std::span<const double> rules, int64_t choices) const;

  // Copies rows to the host unless they are already there.
  void read(std::span<const size_t> rows);
  std::span<const float> row(size_t index) const;  // a row that was read
  std::vector<std::vector<float>> rows();          // all of them
  // Returns the loss of each of a row's labels, computed by the kernel that training uses.
  std::vector<std::vector<double>> losses(const std::vector<std::vector<int32_t>>& labels) const;

 private:
  Tensor logits_;
  Runtime& runtime_;
  std::vector<std::vector<float>>
      read_;  // used if the logits are not f32 on the host; empty: not read yet
};

// The encoder of an encoder-decoder reads its texts each by itself, so that a text's keys and
// values have the same bits in any pass.
class ForwardPass {
 public:
  // Runs the layers. Collective over the pipeline `stages`; null: one stage. All arguments are
  // borrowed.
  ForwardPass(const models::Stage& stage, Runtime& runtime, nn::SequenceState& state,
              const ForwardPassPlan& plan, comm::Group* stages = nullptr);
  // Returns the loss of every token [T], 0 without a label. Only on stages with the output layer;
  // collective over their tensor-parallel ranks, which all get the result.
  std::vector<double> losses();
  // Logits after the last token of these rows.
  Logits last_logits(std::span<const size_t> rows);
  // Logits after these tokens of the pass.
  Logits logits_after(std::span<const int32_t> tokens);
  // For an encoder, by row: the scores of a text [labels], or of each of its tokens [tokens,
  // labels] (models::ScoredTokens). Rows do not attend to each other.
  std::vector<std::vector<float>> text_scores();
  // What enters the output head [tokens, H].
  std::vector<std::vector<float>> hidden();
  // The experts of each token in every layer [T, layers with experts, most experts per token], -1
  // where a layer has fewer. Only on the last stage, if the plan wants them.
  std::vector<int32_t> expert_choices() const;

 private:
  std::vector<std::vector<float>> by_row(const Tensor& of_tokens) const;

  const models::Stage& stage_;
  Runtime& runtime_;
  const ForwardPassPlan& plan_;
  const PassAdapters adapters_;
  Tape tape_;
  nn::Batch encoder_, batch_;
  Tensor
      expert_choices_;  // i32 [T, layers with experts x most per token], of this and former stages
  Bundle out_;
};

}  // namespace megatron::inference
