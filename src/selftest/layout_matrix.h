// The layout matrix: a covering set of layouts of a run, each of which must give the same results
// as one rank.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "selftest/covering.h"
#include "selftest/environment.h"
#include "selftest/experiment.h"
#include "selftest/report.h"

namespace megatron::selftest {

// A layout of up to 16 ranks. The matrix covers tensor parallel 1, 2 and 4, divided tokens, 1 to 4
// stages with each schedule, 1 to 4 data-parallel ranks with each sharding strategy, one or two
// instances, recompute, overlap, offload, a tied GPT-2 with dropout, an untied Llama with grouped
// heads, one with experts and one with latent attention, a BERT with its heads for masked tokens
// and pairs of texts, a hybrid of state spaces, attention and experts, a T5 whose encoder reads a
// text for each document, 1 or 2 sequences per micro-batch, and packed documents. Rows are in a
// fixed order. After the covering set come rows of other tasks. For each of these tasks, enough
// rows of the set are repeated with it that every value occurs in one: an objective
// (toy_objective.h) or a reward model, which alternate and share the code for losses of whole
// sequences (not with T5); adapters (LoRA); and adapters trained on preferences (DPO). Rows with
// adapters do not have feed-forward blocks in chunks, BERT, T5 or the hybrid, and have dropout of
// adapters if the model has no experts. Preferences are packed; one more row of these has dropout
// and one stage. Rows of multi-token prediction follow in the same way, for models with one stack
// of decoder layers and an untied output layer. The last row is not part of the set: TP 4 with SP
// and DP 3 of a sharded optimizer, whose tensor-parallel ranks would close small buckets at
// different parameters.
struct MatrixRow {
  int number = 0;
  // Index: an untied Llama, a tied GPT-2, a Llama with experts, or with latents, a BERT, a hybrid,
  // a T5.
  size_t model = 0;
  bool drops_tokens = false;  // true if the experts have a capacity: every other row with experts
  bool packed = false;        // true if each sequence has several documents
  MatrixTask task = MatrixTask::next_tokens;
  Layout layout;
  bool has_experts() const { return model == 2 || is_hybrid(); }
  bool is_encoder() const { return model == 4; }
  bool is_hybrid() const { return model == 5; }
  bool is_encoder_decoder() const { return model == 6; }
  bool is_tied() const { return model == 1 || is_encoder() || is_encoder_decoder(); }
  std::string str() const;  // "gpt2, TP 2 SP, PP 2 1f1b, DP 2 optim, micro-batch 1"
};

class LayoutMatrix {
 public:
  // strength: 2 covers every pair of values that validation allows, 3 every triple.
  explicit LayoutMatrix(int strength);

  const std::vector<MatrixRow>& rows() const { return rows_; }
  // Part `number` (from 0) of the rows, of `parts` of nearly equal size. Rows that are compared
  // with the same one-rank run are mostly in the same part, so that this run is made once.
  std::vector<const MatrixRow*> part(int number, int parts) const;
  const Covering& covering() const { return covering_; }
  // Impossible pairs of values with their reasons, one per line.
  std::vector<std::string> excluded() const;
  // The covering set's rows that have each value of each factor, as few as a greedy search finds.
  // may: of the rows, those that may be chosen, and whose values count; default: all.
  static std::vector<size_t> rows_with_every_value(const Covering& covering,
                                                   const std::function<bool(const Row&)>& may = {});
  // True if a row can have a loss of whole sequences, adapters, preferences, or multi-token
  // prediction.
  static bool may_reward(const Row& row);
  static bool may_adapt(const Row& row);
  static bool may_predict(const Row& row);
  static bool may_prefer(const Row& row);
  std::string summary() const;  // "26 layouts have all 575 pairs of values of 12 flags ..."

 private:
  int strength_;
  Covering covering_;
  std::vector<MatrixRow> rows_;
};

// The layout whose bits another must have on this device: the same ranks without stages, sharding
// and options that do not change any bit. On a GPU feed-forward blocks stay in chunks, whose
// products have other shapes: cuBLASLt may choose algorithms for these that add in another order.
Layout plain_layout(const Layout& layout, DeviceKind device);

// Selects the runs of a row.
enum class Precisions { all, fp64, fp32 };

// Runs rows on ranks that are threads. Each row: on the fp64 reference against one rank within
// 1e-10 (those of other tasks than next tokens are not run otherwise); in fp32 on the device
// against one rank within kLayoutFp32 (but for experts and BERT), and bit for bit against the same
// tensor- and data-parallel ranks without stages, sharding, recompute, overlap and offload where
// DESIGN's rules of equal bits hold: with sharded gradients and several micro-batches sums are
// added in another order (docs/decisions). Compared are the loss, every parameter's gradient, the
// norms and losses of steps of SGD and its parameters, for next tokens the losses of steps of
// AdamW, and the model's metrics in all of them. The log-probabilities of the reference model of
// preferences are compared with those of a model that has no dropout, too.
class MatrixRun {
 public:
  // composed: converts each model of the matrix to the one that is run; default: unchanged.
  explicit MatrixRun(const Environment& environment, Precisions precisions = Precisions::all,
                     DeviceKind device = DeviceKind::cpu,
                     std::function<models::Model(const models::Model&)> composed = {});
  ~MatrixRun();
  Report run(const MatrixRow& row);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megatron::selftest
