// Creates the parameters of modules: each once, in the model's type, with its placement and its
// initial distribution, and divided among the ranks that share the module.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nn/adapter_rules.h"
#include "nn/module_state.h"
#include "ops/expert_low_rank.h"
#include "ops/low_rank.h"
#include "parallel/model_ranks.h"

namespace megatron::nn {

class Builder {
 public:
  using PlacementOf =
      std::function<parallel::Placement(const std::string& name, const Shape& shape)>;
  // placement: the model family's mapping from a parameter's name and whole shape to canonical
  // tensors. adapters: borrowed; null: none. With adapters, only they are trained, and what their
  // rules name. seed: of their dropout.
  Builder(Runtime& runtime, DType type, PlacementOf placement,
          const parallel::ModelRanks& ranks = {}, const AdapterRules* adapters = nullptr,
          uint64_t seed = 0)
      : runtime_(runtime),
        type_(type),
        placement_(std::move(placement)),
        ranks_(ranks),
        adapters_(adapters),
        seed_(seed) {}

  struct Options {
    int uses = 1;
    // At most one per axis. A parameter that is not divided among a group's ranks is replicated on
    // them.
    std::vector<parallel::Division> divisions = {};
    // True if each rank's gradient of a parameter held by several ranks is only a partial sum: over
    // the tensor-parallel ranks, or for an expert's parameters over those of expert_tensor.
    // Default: true if --sequence-parallel divides the tokens outside the matrix products, and
    // false for an expert's.
    std::optional<bool> partial = std::nullopt;
    std::optional<DType> type = std::nullopt;  // overrides the model's type
  };
  // Adds a parameter whose value has a shape and a type but no memory yet (parallel::allocate,
  // parallel::DataParallel). shape: of all ranks' slices together. Weight decay applies to
  // parameters of two or more dims. Returns its first use; for a parameter of a shared module that
  // is there already, the next use.
  Weight add(const std::string& name, Shape shape, parallel::Init init, Options options);
  Weight add(const std::string& name, Shape shape, parallel::Init init) {
    return add(name, shape, init, Options());
  }

  // A module that several layers of the model use. The layers of one chunk share its parameters,
  // which have an accumulator of gradients for each of them.
  struct SharedModule {
    std::vector<int64_t> layers;  // all that use it, in order
    size_t use = 0;               // index of the one that is built
    // Low-rank additions to the outputs of linear layers, by the layers' names: y += b a x, whose
    // matrices each use has for itself. names: of one addition for all outputs, or one for each
    // block of them. rank: width of a x.
    struct Additions {
      std::vector<std::string> names;
      int64_t rank = 0;
    };
    std::map<std::string, Additions> additions;
  };
  // While it exists, the parameters that are added are those of a shared module.
  class Sharing {
   public:
    Sharing(Builder& builder, const SharedModule* module)
        : builder_(builder), outer_(std::exchange(builder.shared_, module)) {}
    ~Sharing() { builder_.shared_ = outer_; }
    Sharing(const Sharing&) = delete;
    Sharing& operator=(const Sharing&) = delete;

   private:
    Builder& builder_;
    const SharedModule* outer_;
  };
  // The module within a Sharing; null: none.
  const SharedModule* shared() const { return shared_; }
  // The stream of a module's random numbers: layers that share a module have streams of their own.
  uint64_t random_stream(const std::string& name, std::string_view kind) const;
  // Returns the parameters that were added or used again since the last call.
  std::vector<Parameter*> take_used() { return std::exchange(used_, {}); }

  // Adds the adapters of a matrix [out,in] that was added before, divided like the matrix, as
  // parameters <name>.lora_a.<i> and .lora_b.<i>; none if no canonical tensor of it has one.
  ops::LowRank add_adapter(const Parameter& matrix, AdaptedKind kind = AdaptedKind::linear);
  // Returns the adapters that add_adapter() has added to linear layers, by the name of the matrix.
  std::vector<std::pair<std::string, ops::LowRank>> take_adapters() { return std::move(added_); }
  // The same for add_expert_adapter().
  std::vector<std::pair<std::string, ops::ExpertLowRank>> take_expert_adapters() {
    return std::move(added_to_experts_);
  }
  // Adds the adapter of a table of tokens [V,H] where it is looked up: the table a^T [V,r], divided
  // like the table, and b [H,r]; absent if it has none.
  struct TableAdapter {
    Weight a, b;
    double scale = 1;
  };
  std::optional<TableAdapter> add_table_adapter(const Parameter& table);
  // Adds rows that are trained in the place of rows of a table of tokens, or of an output layer, as
  // the parameter <name>.rows, of which each rank has all; none if no row is.
  ops::ReplacedRows add_token_rows(const Parameter& table, AdaptedKind kind);

  struct StateOptions {
    // Shape of this rank's observations; default: the value's shape. observed, update: see
    // ModuleState.
    std::optional<Shape> observed;
    comm::Reduce reduce = comm::Reduce::sum;
    std::function<void(const ModuleState&, Stream&)> update;
    std::vector<parallel::Division> divisions = {};
    bool of_training = false;  // see ModuleState
  };
  // Adds a state in f32 (f64 for f64), placed and divided like a parameter. One of training is in
  // f32 and has its own name in checkpoints.
  ModuleState& add_state(const std::string& name, Shape shape, parallel::Init init,
                         StateOptions options);

  // Quantization of the products with a weight, by its name; none: they are computed in the model's
  // type.
  using FormatsOf = std::function<std::optional<LowPrecisionFormats>(const std::string& weight)>;
  // For the linear layers that are added from now on; null: none of them is quantized.
  void set_low_precision(FormatsOf formats_of) { formats_of_ = std::move(formats_of); }
  // Sets it for the layer with this weight [out,in], with the states that its recipe needs; not for
  // one that layers share. divided: operands of which each tensor-parallel rank has a part. Throws
  // Error naming the weight if ranks divide it within a block.
  void quantize(Parameter& weight, std::array<bool, kOperands> divided);
  // The same for the weight [E,out,in] of a layer of experts. NVFP4 leaves experts out.
  void quantize_experts(Parameter& weight);

  StepSum& add_step_sum(Shape shape, DType type);

  // Adds the adapters of experts' matrices [E,out,in] that were added before, like add_adapter():
  // a [E,r,in] and b [E,out,r]. Throws Error unless all experts of a canonical part (gate, up) have
  // adapters of one rank and scale, or none has.
  ops::ExpertLowRank add_expert_adapter(const Parameter& matrices);

  Runtime& runtime() const { return runtime_; }
  DType type() const { return type_; }
  const parallel::ModelRanks& ranks() const { return ranks_; }
  const parallel::TensorParallel& tensor() const { return ranks_.tensor; }
  std::vector<std::unique_ptr<parallel::ParameterSpec>> take() { return std::move(parameters_); }
  std::vector<std::unique_ptr<ModuleState>> take_states() { return std::move(states_); }
  std::vector<std::unique_ptr<StepSum>> take_step_sums() { return std::move(step_sums_); }

 private:
  void place(parallel::ParameterSpec& placed, const std::string& name, parallel::Placement whole,
             Shape shape, DType type, parallel::Init init, Options options) const;
  Weight add(const std::string& name, parallel::Placement whole, Shape shape, parallel::Init init,
             Options options);
  // A canonical tensor of a matrix, its adapter, and the consecutive rows of the whole matrix that
  // belong to it.
  struct AdaptedPart {
    parallel::CanonicalTensor tensor;
    std::string module;
    AdapterRules::Adapter adapter;
    int64_t begin = 0, rows = 0;
  };
  parallel::ParameterSpec* find(const std::string& name) const;
  parallel::ParameterSpec& spec_of(const Parameter& parameter) const;
  std::vector<AdaptedPart> adapted_parts(const parallel::ParameterSpec& matrix,
                                         AdaptedKind kind) const;
  ops::LowRank::Block add_block(const parallel::ParameterSpec& matrix,
                                std::span<const AdaptedPart> parts, size_t index);
  Weight add_a(const parallel::ParameterSpec& matrix, std::span<const AdaptedPart> parts,
               size_t index);
  void add_scales(LowPrecision& how, const std::string& weight);
  LowPrecision::Chances chances_of(const parallel::ParameterSpec& weight) const;
  ops::LowRank::Dropout dropout_of(const parallel::ParameterSpec& matrix, double p) const;
  ops::LowRank::Part add_b(const parallel::ParameterSpec& matrix, const AdaptedPart& part,
                           size_t index);

  // The canonical tensors of the same rows of all experts, and their adapter.
  struct AdaptedExperts;
  std::vector<AdaptedExperts> adapted_experts(const parallel::ParameterSpec& matrices) const;
  Weight add_expert_tensor(const parallel::ParameterSpec& matrices, const AdaptedExperts& experts,
                           bool is_b, const std::string& name);

  Runtime& runtime_;
  DType type_;
  PlacementOf placement_;
  parallel::ModelRanks ranks_;
  const AdapterRules* adapters_;
  uint64_t seed_;
  const SharedModule* shared_ = nullptr;
  std::vector<Parameter*> used_;
  FormatsOf formats_of_;
  std::vector<std::pair<std::string, ops::LowRank>> added_;
  std::vector<std::pair<std::string, ops::ExpertLowRank>> added_to_experts_;
  std::vector<std::unique_ptr<parallel::ParameterSpec>> parameters_;
  std::vector<std::unique_ptr<ModuleState>> states_;
  std::vector<std::unique_ptr<StepSum>> step_sums_;
};

inline parallel::Init normal(double standard_deviation) {
  return {parallel::Init::Kind::normal, standard_deviation};
}
inline parallel::Init xavier_uniform() { return {parallel::Init::Kind::xavier_uniform, 0}; }
inline parallel::Init zeros() { return {parallel::Init::Kind::zeros, 0}; }
inline parallel::Init ones() { return {parallel::Init::Kind::ones, 0}; }

}  // namespace megatron::nn
