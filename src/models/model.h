// A model as a value, without any parameters: the family-independent description used by training,
// inference, plans and checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/metrics.h"
#include "base/json.h"
#include "models/facts.h"
#include "nn/router_training.h"
#include "parallel/layer_layout.h"
#include "parallel/model_ranks.h"

namespace megatron::checkpoint {
class ModelDirectory;
}

namespace megatron::models {

class ModelDefinition;
class Stage;
struct LoraConfig;
struct ModelFlags;
struct UpcyclingFlags;
struct UpcycledModel;

// Copies share the definition, which never changes.
class Model {
 public:
  Model() = default;  // none
  explicit Model(std::shared_ptr<const ModelDefinition> definition)
      : definition_(std::move(definition)) {}
  const ModelDefinition* operator->() const { return definition_.get(); }
  explicit operator bool() const { return definition_ != nullptr; }

  // Builds the part of the model that a rank holds. Parameters have no memory until
  // parallel::allocate or parallel::DataParallel provides it. seed: for dropout.
  std::unique_ptr<Stage> build(Runtime& runtime, DType type, uint64_t seed,
                               const parallel::ModelPart& part,
                               const parallel::ModelRanks& ranks) const;
  // Builds the whole model with allocated memory, to be filled by initialize() or
  // checkpoint::load(). Not for training: its products are not quantized.
  std::unique_ptr<Stage> build(Runtime& runtime, DType type, uint64_t seed) const;

 private:
  std::shared_ptr<const ModelDefinition> definition_;
};

// Results of a depth of multi-token prediction by the plain implementation, for each token: the
// loss of its label, and 1 where no logit is above the label's, else 0.
struct PlainPrediction {
  std::vector<double> losses, hits;
};

// A head that scores texts, or each of their tokens (facts.h).
struct ScoreHead {
  std::vector<std::string> label_names;
  int64_t padding = -1;  // ModelFacts::score_padding
  // each_token and span: heads of an encoder's tokens. Otherwise the family's head for texts.
  // Ignored for a model that already has a score head: it keeps its kind of scores.
  ScoredTokens scored = ScoredTokens::last_token;
  bool multi_label = false;  // ModelFacts::multi_label
};

// Multi-token prediction of a copy (--mtp-num-layers and related flags).
struct PredictionChange {
  int64_t depths = 0;
  double loss_scale = 0.1;
  bool detached = false;
};

// Fields to override when copying a model definition.
struct ModelChanges {
  std::optional<int64_t> num_layers;
  std::optional<int64_t>
      context_length;  // positive; Error if it exceeds the number of learned positions
  std::optional<double> hidden_dropout, attention_dropout;
  std::optional<int64_t> start_token;  // ModelFacts::start_token
  std::optional<nn::RouterTraining> router;
  // Quantization of the products of linear layers, except those of multi-token prediction; or none.
  std::optional<LowPrecisionLayers> low_precision;
  bool leaves_low_precision = false;
  std::optional<int64_t> mlp_chunks;  // --mlp-chunks-for-training
  // Error if the family has no such models.
  std::optional<PredictionChange> prediction;
  // Replaces the output layer, and drops the multi-token-prediction depths. Error if the family has
  // no such models.
  std::optional<ScoreHead> score_head;
  // Adds an adapter. Only the adapter and the modules that it names are then trained. Error if it
  // does not fit the model.
  std::shared_ptr<const LoraConfig> adapter;
};

// Tensors by their names in Hugging Face's format, with elements in the layout on disk.
using PlainTensors = std::map<std::string, std::vector<double>>;

// A sequence, with its token types (empty: 0), and the text that the encoder of an encoder-decoder
// reads beside it.
struct PlainText {
  std::span<const int32_t> tokens, encoder = {}, types = {};
};

// The length of a sequence, and of the text that the encoder of an encoder-decoder reads beside it;
// by default they are equal.
struct TextLength {
  TextLength(int64_t of_tokens) : tokens(of_tokens), encoder(of_tokens) {}
  TextLength(int64_t of_tokens, int64_t of_encoder) : tokens(of_tokens), encoder(of_encoder) {}
  int64_t tokens, encoder;
};

// Interface that families implement. Sizes are final and valid.
class ModelDefinition {
 public:
  explicit ModelDefinition(ModelFacts facts) : facts_(std::move(facts)) {}
  virtual ~ModelDefinition() = default;

  const ModelFacts& facts() const { return facts_; }
  // The most frequently used facts.
  std::string_view family() const { return facts_.family; }
  int64_t num_layers() const { return facts_.num_layers; }
  int64_t hidden_size() const { return facts_.hidden_size; }
  int64_t vocab_size() const { return facts_.vocab_size; }
  int64_t max_position_embeddings() const { return facts_.max_position_embeddings; }
  int64_t context_length() const { return facts_.context_length; }
  int64_t score_labels() const { return facts_.score_labels; }
  int64_t parameter_count() const { return facts_.parameters; }

  // FLOPs of forward and backward for one sequence of this length: 2MNK per matrix product, times
  // three; causal attention counts half; lookups, norms and elementwise work are left out.
  virtual double training_flops(const TextLength& length) const = 0;
  // Rotary angles may depend on the length of the whole text (nn/rotary.h). Texts whose lengths
  // have the same class have equal angles, so that cached keys can be shared between them. Classes
  // up to 0 have tables of angles at fixed addresses; those above 0 only have the table of the text
  // that was read last.
  virtual int64_t context_class(int64_t length) const {
    static_cast<void>(length);
    return 0;
  }
  // Metrics that its modules report in a step besides the loss (Tape::report), in the order of the
  // log.
  virtual std::vector<MetricDefinition> metrics() const { return {}; }

  // Complete description for logs and comparison; without dropouts and the initial standard
  // deviation, which do not affect any tensor's shape or meaning.
  virtual Json describe() const = 0;
  // The keys that transformers 5 writes. Throws Error naming the obstacle if the family's
  // config.json cannot represent the model.
  virtual Json config_json(DType stored) const = 0;
  // True for a tensor in published directories that no computation needs (buffers of masks and
  // angles); it is dropped when a directory is read.
  virtual bool is_surplus(std::string_view tensor) const {
    static_cast<void>(tensor);
    return false;
  }
  // Returns "model.layers.46" for a tensor of a layer that predicts tokens beyond the next one.
  // Published directories number such layers after the last one; the model has none, so their
  // tensors are dropped as well. Returns "" for other tensors.
  virtual std::string prediction_layer(std::string_view tensor) const {
    static_cast<void>(tensor);
    return {};
  }
  // Published directories may have a copy of a shared block for each layer that uses it. Returns
  // the name of the tensor that `tensor`, which the model does not have, is a copy of; "": of none.
  virtual std::string original_of_copy(std::string_view tensor) const {
    static_cast<void>(tensor);
    return {};
  }
  // Prefix of every name that directories saved from the model without its head lack; "": there are
  // no such directories.
  virtual std::string_view base_prefix() const { return {}; }
  // If the output layer is tied to the token embeddings: the name that its own tensor would have,
  // and the table's name. A directory may have both if they are equal.
  struct TiedOutput {
    std::string output, table;
  };
  virtual std::optional<TiedOutput> tied_output() const { return {}; }
  virtual Model with(const ModelChanges& changes) const = 0;
  // Null: none.
  virtual const LoraConfig* adapter() const { return nullptr; }
  // Quantization of its linear layers' products in training; null: none.
  virtual const LowPrecisionLayers* low_precision() const { return nullptr; }
  // The model without its adapter; only for models that have one.
  virtual Model base() const;
  // Returns the model with experts that are initialized from its feed-forward blocks
  // (models/upcycling.h). Throws Error naming the flags that do not fit the model.
  virtual UpcycledModel upcycled(const UpcyclingFlags& flags) const;
  virtual std::unique_ptr<Stage> build(Runtime& runtime, DType type, uint64_t seed,
                                       const parallel::ModelPart& part,
                                       const parallel::ModelRanks& ranks) const = 0;

  // Computes the loss of each token of one sequence, without dropout, by independent plain loops in
  // fp64, against which the model is checked. Shares no code with the model, its ops or kernels.
  virtual std::vector<double> plain_losses(const PlainTensors& weights, const PlainText& text,
                                           std::span<const int32_t> labels) const = 0;
  // The same for a pair of texts and its label, of a model with a head for pairs.
  virtual double plain_pair_loss(const PlainTensors& weights, const PlainText& text,
                                 int32_t label) const {
    static_cast<void>(weights), static_cast<void>(text), static_cast<void>(label);
    return 0;
  }
  // The same for each depth k = 1, 2, ... of multi-token prediction of one document, of all tokens
  // but the last k.
  virtual std::vector<PlainPrediction> plain_predictions(const PlainTensors& weights,
                                                         std::span<const int32_t> tokens,
                                                         std::span<const int32_t> labels) const {
    static_cast<void>(weights), static_cast<void>(tokens), static_cast<void>(labels);
    return {};
  }

 private:
  const ModelFacts facts_;
};

// The supported values of model_type in config.json.
std::vector<std::string_view> family_names();
// path: the file from which it was read. Throws Error naming it, the key and the unsupported value.
Model model_from_config_json(const Json& config, const std::string& path = "config.json");
// Reads <directory>/config.json; of the directory of an adapter, that of its base model.
Model model_from_directory(const std::string& directory);
// The model itself if it has no adapter.
Model without_adapter(const Model& model);
// The model of an open directory, with the adapter if it is one, and with the head (LABEL_0, ...)
// that the adapter brings.
Model model_of(const checkpoint::ModelDirectory& directory);
// The same without the adapter, whose configuration is not read.
Model base_model_of(const checkpoint::ModelDirectory& directory);
// Returns the model with a context length of `length` tokens (--inference-max-seq-length), and logs
// it if it is above the model's own. 0 keeps the model as it is.
Model with_context_length(const Model& model, int64_t length);
// Throws Error if the model scores texts: `purpose`, e.g. "megatron generate", needs a language
// model.
void require_language_model(const Model& model, std::string_view purpose);
// The same, but the purpose may be texts by an encoder-decoder.
void require_generating_model(const Model& model, std::string_view purpose);
// Requires vocab_size. seq_length: number of position embeddings if max_position_embeddings is
// absent. Throws Error naming the flags.
Model model_from_flags(const ModelFlags& flags, int64_t seq_length);
// Differences between the two describe() results, among everything that the flags would change in a
// model of the sizes of `model`; empty if they agree. For flags given together with a config.json.
// Throws Error if the flags do not make a model.
struct Disagreement {
  Json model{Json::Object{}}, flags{Json::Object{}};
};
Disagreement disagreement(const Model& model, const ModelFlags& flags);

}  // namespace megatron::models
