// A few training steps of a small model, spread over ranks that are threads, and their results.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "selftest/canonical.h"
#include "selftest/environment.h"
#include "selftest/report.h"
#include "selftest/tiny_models.h"
#include "training/trained_model.h"

namespace megatron::selftest {

// Default size of a gradient bucket: a few parameters of a small model.
inline constexpr int64_t kBucketElements = 4096;

// Layout of the steps over ranks.
struct Layout {
  int tp = 1, cp = 1, dp = 1;
  int ep = 1, etp = 0;  // for models with experts; etp 0: same as tp
  bool sequence = false;
  parallel::PipelineShape pipeline;
  parallel::LayerPlacement layers = {.uneven = true};
  parallel::Sharding sharding = parallel::Sharding::none;
  int instances = 1;
  models::RecomputeOptions recompute;
  int64_t mlp_chunks = 1;
  bool overlap = false;
  parallel::TokenDispatcher dispatcher = parallel::TokenDispatcher::allgather;
  parallel::ContextExchange exchange = parallel::ContextExchange::p2p;
  std::vector<int> context_levels = {};  // sizes of ContextExchange::a2a_p2p
  models::OffloadOptions offload;        // offloading of activations
  double optimizer_offload = 0;          // share of the optimizer state in host memory
  int64_t micro_batch = 8;
  int64_t bucket_elements = kBucketElements;
  int threads = 1;
  std::vector<std::string> freeze = {};  // patterns of training::FrozenParameters

  int ranks() const { return tp * cp * dp * pipeline.stages; }
  std::string str() const;  // "TP 2, SP, PP 2 interleaved x 2, DP 2 optim_grads, recompute full"
  training::ModelLayout model_layout() const;
};

struct Outcome {
  TensorMap gradients, parameters;  // gradients of the first batch; parameters after the SGD steps
  std::map<optim::Method, std::vector<double>> losses;
  std::vector<double> gradient_norms;
  std::map<std::string, std::vector<double>> metrics;  // by name, over the steps of all methods
  std::vector<std::string> complaints;  // replicas that differ, elements that no rank holds
};

inline constexpr int kSteps = 3;

class Experiment {
 public:
  // weights: type to which initial parameters are rounded; they are held in the type of the
  // computation. sequences: per step. environment is borrowed; objective: null: the mean loss of
  // the next tokens. packed: as for random_batch(). prefers: batches have pairs of completions
  // (preferences.h), and the values of environment.reference().
  Experiment(models::Model model, DeviceKind device, DType type, DType weights,
             settings::LossScope scope, int64_t sequences, int64_t length,
             const Environment& environment,
             std::shared_ptr<const training::Objective> objective = nullptr, bool packed = false,
             bool prefers = false);

  // Computes the gradients of the first batch, then kSteps of SGD, and kSteps of each other method.
  Outcome run(const Layout& layout, const std::vector<optim::Method>& methods) const;
  TensorMap gradients(const Layout& layout) const;

 private:
  struct Trial;
  std::vector<corpus::HostBatch> batches(const Layout& layout, const parallel::Ranks& ranks,
                                         int step) const;
  // Calls f on each rank, with the group of all ranks as created by the environment.
  void on_ranks(const Layout& layout, const std::function<void(comm::Group&)>& f) const;
  void train(const Layout& layout, comm::Group& world, optim::Method method, Outcome& outcome,
             GatheredTensors& gradients, GatheredTensors& parameters) const;

  const models::Model model_;
  DeviceKind device_;
  DType type_, weights_;
  settings::LossScope scope_;
  int64_t sequences_, length_;
  const Environment& environment_;
  std::shared_ptr<const training::Objective> objective_;
  bool packed_, prefers_;
};

// tensor_metric of each tensor (base/tolerances.h).
std::map<std::string, double> metrics(const TensorMap& tensors, const TensorMap& expected);

// Compares all values of two outcomes; bound 0: bit for bit. what: describes the layout.
void compare_outcomes(const std::string& what, const Outcome& outcome, const Outcome& expected,
                      double bound, Report& report);

}  // namespace megatron::selftest
