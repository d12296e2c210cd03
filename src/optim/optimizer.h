// The optimizer step: gradient norm, clipping and update of every parameter.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "optim/muon.h"
#include "optim/rule.h"

namespace megatron::optim {

struct NormSlots;

enum class Method { adam, sgd, lion, muon };
std::string_view name(Method method);  // "adam"

struct OptimizerConfig {
  Method method = Method::adam;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_eps = 1e-8;
  // Type of Adam's moments: f32, bf16 or u8 (8-bit floats: kernels/moment_codes.h).
  DType exp_avg_type = DType::f32, exp_avg_sq_type = DType::f32;
  double sgd_momentum = 0.9;
  double lion_beta1 = 0.95, lion_beta2 = 0.98;
  MuonConfig muon;
  Method muon_scalar = Method::adam;  // for parameters that Muon does not update: adam or lion
  double clip_grad = 1.0;             // 0: no clipping
  // State and master weights of the first shards, up to this share of the rank's elements, are kept
  // in host memory (MemoryClass::offload) and copied to the device piece by piece for the update.
  double offload_fraction = 0;

  // True if this method uses a rule, counting Muon's second one.
  bool uses(Method rule) const {
    return method == rule || (method == Method::muon && muon_scalar == rule);
  }
  void check() const;  // throws Error naming the flag

 private:
  void check_codes() const;
};

// Values of the run that one update needs.
struct StepInputs {
  double learning_rate = 0, weight_decay = 0;
  std::optional<double>
      decoupled_learning_rate;  // for embedding and output layer; default: the same
};

// The ranks among which a model's parameters are divided. Groups are borrowed; null: one rank.
struct OptimizerGroups {
  // All ranks whose Shard::counted shards together hold each element of the model once.
  comm::Group* norm = nullptr;
  comm::Group* tensor = nullptr;  // Muon: ranks whose slices of a matrix are gathered
  // True if the model has detached parameters (ParameterSpec::detached), on whichever rank: they
  // are clipped by themselves. False: all parameters are clipped by one norm.
  bool clips_detached = false;
  // Number of sums of squares per all-reduce, and so the size of its buffer: 256 KB.
  int64_t norm_window = 32768;
};

class Optimizer {
 public:
  // Updates the shards' values from their gradients. State is allocated and zeroed, in the shard's
  // shape; the master weight of a bf16 or f16 parameter starts as its value. The parameters must
  // outlive the optimizer. Collective over groups.norm. Throws Error for Muon if this rank has only
  // a shard of a matrix.
  Optimizer(std::span<const parallel::Shard> shards, const OptimizerConfig& config,
            const OptimizerGroups& groups, Runtime& runtime);

  // Computes the norm of the gradients of all ranks' parameters and the factor that divides and
  // clips them, both for detached parameters by themselves: squares are summed in f64 over blocks
  // of kNormBlock elements of each parameter, and the blocks are added in the order of the model,
  // independent of the ranks that hold them. divisor: of the raw gradients, the number of tokens of
  // the step. Nothing else changes, so the step can still be skipped afterwards. Collective.
  void find_norm(double divisor);
  // L2 norm of all gradients before clipping, without those of detached parameters, computed by
  // find_norm(). 0-d f64.
  const Tensor& gradient_norm() const { return clipped_.front().norm; }
  // The same of detached parameters; undefined unless they are clipped by themselves.
  Tensor detached_norm() const { return clipped_.size() > 1 ? clipped_.back().norm : Tensor(); }
  // Updates every parameter; called after find_norm().
  void update(const StepInputs& inputs);

  // Computes the matrix products of update() and drops the results: nothing changes. The gradients
  // must be initialized. Collective.
  void rehearse();

  // All state, besides the parameters, that the next step depends on: "remainder" (the difference
  // between a bf16 parameter and its master weight) or "master" (an f16 parameter's, in f32), and
  // its rule's state: "exp_avg", "exp_avg_sq", "momentum_buffer"; in the shape of their shard.
  struct State {
    std::string name;
    const parallel::ParameterSpec* placed = nullptr;
    int64_t begin = 0;  // first element of the shard
    Tensor value;
  };
  std::vector<State> states() const;
  Tensor state(const parallel::ParameterSpec& placed,
               std::string_view name) const;  // undefined if there is none
  int64_t steps() const { return steps_; }    // number of updates so far
  void resume(int64_t steps);                 // call after the states were loaded

 private:
  struct Entry {
    Target target;
    Rule* rule = nullptr;
    Tensor value;   // shard of the parameter
    Tensor master;  // master weight of an f16 parameter
    // Index of its first block of squares among the model's; -1: counted by another rank.
    int64_t first_block = -1;
    size_t clipped = 0;  // index in clipped_
    bool offloaded = false;
    bool listed = false;  // whether it is among the updates of its Clipped
  };
  // Parameters that are clipped by one norm.
  struct Clipped {
    int64_t first = 0, blocks = 0;  // of squares, over all ranks (optim/norm_slots.h)
    Tensor norm;
    StepScalars scalars;
    // Each is one launch on CUDA: the squares of each window of blocks, and the updates of rule_.
    std::vector<std::unique_ptr<kernels::Together>> windows;
    std::unique_ptr<kernels::Together> updates;
  };
  void list_clipped(const NormSlots& slots);
  Entry make_entry(const parallel::Shard& shard, bool offloaded);
  Tensor zeros(const Shape& shape, DType type, const std::string& label,
               MemoryClass memory_class = MemoryClass::optimizer);
  void list_updates();
  std::unique_ptr<kernels::Together> squares_of(int64_t begin, int64_t count) const;
  void find_squares(kernels::Together& window, int64_t count);
  void find_norm(const Clipped& clipped);
  void update(const Entry& entry);
  void update_offloaded(const Entry& entry);
  void set_scalar(const Tensor& scalar, double value);
  Tensor rate_of(const parallel::ParameterSpec& placed, const Rule& rule);

  OptimizerConfig config_;
  OptimizerGroups groups_;
  Runtime& runtime_;
  std::unique_ptr<Rule> rule_, muon_;  // muon_: rule for the parameters that Muon updates
  std::vector<Entry> entries_;
  // One launch on CUDA: the copies of masters to f16 parameters.
  std::unique_ptr<kernels::Together> copies_;
  std::vector<Clipped> clipped_;  // all parameters; or those that are not detached, and the others
  Tensor squares_;                // f64: sum of the blocks before the window, then the window's
  Tensor divisor_, sum_;
  // Learning rate of a parameter: that of the step, or its decoupled one, times a multiplier.
  struct Rate {
    bool decoupled = false;
    double multiplier = 1;
    Tensor value;  // 0-d f64
  };
  std::vector<Rate> rates_;
  int64_t steps_ = 0;
};

}  // namespace megatron::optim
