// A model as a value, before any of its parameters exists: what training, inference, plans and
// checkpoints know of it, whatever its family.
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

namespace megatron::models {

class ModelDefinition;
class Stage;
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

  // The part of a model that a rank holds. Parameters have no memory: parallel::allocate or
  // parallel::DataParallel gives it. seed: of dropout.
  std::unique_ptr<Stage> build(Runtime& runtime, DType type, uint64_t seed,
                               const parallel::ModelPart& part,
                               const parallel::ModelRanks& ranks) const;
  // All of it, allocated, not filled: initialize() or checkpoint::load() does.
  std::unique_ptr<Stage> build(Runtime& runtime, DType type, uint64_t seed) const;

 private:
  std::shared_ptr<const ModelDefinition> definition_;
};

// Fields to override when copying a model definition.
struct ModelChanges {
  std::optional<int64_t> num_layers;
  std::optional<int64_t>
      context_length;  // positive; Error if above the number of learned positions
  std::optional<double> hidden_dropout, attention_dropout;
  std::optional<nn::RouterTraining> router;
};

// Tensors by their names in Hugging Face's format, elements in the layout on disk.
using PlainTensors = std::map<std::string, std::vector<double>>;

// What a family implements. Sizes are final and valid.
class ModelDefinition {
 public:
  explicit ModelDefinition(ModelFacts facts) : facts_(std::move(facts)) {}
  virtual ~ModelDefinition() = default;

  const ModelFacts& facts() const { return facts_; }
  // Those that most ask for.
  std::string_view family() const { return facts_.family; }
  int64_t num_layers() const { return facts_.num_layers; }
  int64_t hidden_size() const { return facts_.hidden_size; }
  int64_t vocab_size() const { return facts_.vocab_size; }
  int64_t max_position_embeddings() const { return facts_.max_position_embeddings; }
  int64_t context_length() const { return facts_.context_length; }
  int64_t score_labels() const { return facts_.score_labels; }
  int64_t parameter_count() const { return facts_.parameters; }

  // Of forward and backward of one sequence of `length` tokens: 2MNK a matrix product, three times
  // the forward; causal attention counts half; no lookups, norms and element-wise work.
  virtual double training_flops(int64_t length) const = 0;
  // Rotary angles may depend on the length of the whole text (nn/rotary.h): texts of two lengths with equal
  // numbers have equal angles, so that what is kept of the one (keys) is that of the other. Up to 0: tables of angles
  // that stay where they are; above: of the text that was read last.
  virtual int64_t context_class(int64_t length) const {
    static_cast<void>(length);
    return 0;
  }
  // What its modules report of a step besides the loss (Tape::report), in the order of the log.
  virtual std::vector<MetricDefinition> metrics() const { return {}; }

  // All of it as it is logged and compared; without dropouts and initial standard deviation, on
  // which no tensor's shape or meaning depends.
  virtual Json describe() const = 0;
  // The keys that transformers 5 writes. Throws Error when config.json of the family cannot hold the
  // model, naming what stands in the way.
  virtual Json config_json(DType stored) const = 0;
  // A tensor that published directories have although no computation needs it (buffers of masks and angles):
  // it is dropped when a directory is read.
  virtual bool is_surplus(std::string_view tensor) const {
    static_cast<void>(tensor);
    return false;
  }
  // "model.layers.46" of a tensor of a layer that predicts tokens beyond the next one, which published directories number
  // behind the last; the model has none, and it is dropped, too. "": another tensor.
  virtual std::string prediction_layer(std::string_view tensor) const {
    static_cast<void>(tensor);
    return {};
  }
  // Directories saved from the model without its head lack this in front of every name; "": there are none.
  virtual std::string_view base_prefix() const { return {}; }
  // Where the output layer is the table of tokens: the name that its own tensor would have, and the table's. A
  // directory may have both, if they are equal.
  struct TiedOutput {
    std::string output, table;
  };
  virtual std::optional<TiedOutput> tied_output() const { return {}; }
  virtual Model with(const ModelChanges& changes) const = 0;
  // The model with experts that begin as its feed-forward blocks (models/upcycling.h). Throws Error naming the flags
  // that do not fit it.
  virtual UpcycledModel upcycled(const UpcyclingFlags& flags) const;
  virtual std::unique_ptr<Stage> build(Runtime& runtime, DType type, uint64_t seed,
                                       const parallel::ModelPart& part,
                                       const parallel::ModelRanks& ranks) const = 0;

  // The loss of each token of one sequence, without dropout, once more by plain loops in fp64: what
  // the model is checked against. Shares no code with the model, its ops or kernels.
  virtual std::vector<double> plain_losses(const PlainTensors& weights,
                                           std::span<const int32_t> tokens,
                                           std::span<const int32_t> labels) const = 0;

 private:
  const ModelFacts facts_;
};

// model_type of each config.json that is read.
std::vector<std::string_view> family_names();
// path: of the file that it was read from. Throws Error naming it, the key and the value that is not
// supported.
Model model_from_config_json(const Json& config, const std::string& path = "config.json");
// Of <directory>/config.json.
Model model_from_directory(const std::string& directory);
// Returns the model with a context length of `length` tokens (--inference-max-seq-length), and logs
// it if it is above the model's own. 0 keeps the model as it is.
Model with_context_length(const Model& model, int64_t length);
// Throws Error where the model scores texts: `purpose`, "megatron generate", needs a language model.
void require_language_model(const Model& model, std::string_view purpose);
// vocab_size must be there. seq_length: position embeddings when max_position_embeddings is not.
// Throws Error naming the flags.
Model model_from_flags(const ModelFlags& flags, int64_t seq_length);
// What the two describe() otherwise, of all that the flags would change in a model of the sizes of
// `model`; nothing where they agree. For flags beside a config.json. Throws Error where they make no
// model.
struct Disagreement {
  Json model{Json::Object{}}, flags{Json::Object{}};
};
Disagreement disagreement(const Model& model, const ModelFlags& flags);

}  // namespace megatron::models
