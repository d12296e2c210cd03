#include "inference/adapter.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "checkpoint/model_directory.h"
#include "models/adapters/lora_config.h"

namespace megatron::inference {
namespace {

uint64_t next_number() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

// Throws Error for what is trained besides low-rank matrices.
void require_matrices_alone(const models::LoraConfig& config) {
  const auto refuse = [](std::string_view what) {
    fail(
        "the adapter has {}, which several adapters of one model cannot have: serve it alone "
        "(--adapter), or merge it into a model of its own",
        what);
  };
  if (config.weight_decomposed) refuse("magnitudes of weights (use_dora)");
  if (!config.modules_to_save.empty()) refuse("whole modules (modules_to_save)");
  if (config.bias != models::LoraBias::none) refuse("biases of the model (bias)");
  if (!config.trainable_token_indices.empty())
    refuse("rows of the embedding (trainable_token_indices)");
}

}  // namespace

Adapter::Adapter(const models::Model& model, const Device& device, DType type)
    : number_(next_number()), runtime_(device, 1) {
  MG_ASSERT(model->adapter() != nullptr);
  require_matrices_alone(*model->adapter());
  stage_ = model->build(runtime_, type, 0, {.layers = model->num_layers()}, {});
  size_t listed = 0;
  for (const auto& [matrix, low_rank] : stage_->adapters()) {
    of_matrix_.emplace(matrix, &low_rank);
    ops::for_each_weight(low_rank, [&](const Weight&) { ++listed; });
  }
  const std::vector<parallel::ParameterSpec*> own = tensors();
  MG_CHECK(listed == own.size(),
           "the adapter has matrices of experts, of the embedding or of the output layer, which "
           "several adapters of one model cannot have: serve it alone (--adapter), or merge it "
           "into a model of its "
           "own");
  parallel::allocate(own, runtime_);
}

std::vector<parallel::ParameterSpec*> Adapter::tensors() const {
  std::vector<parallel::ParameterSpec*> own;
  for (parallel::ParameterSpec* spec : stage_->parameters())
    if (spec->placement.tensors.at(0).name.starts_with(checkpoint::kAdapterPrefix))
      own.push_back(spec);
  return own;
}

int64_t Adapter::bytes() const {
  int64_t sum = 0;
  for (const parallel::ParameterSpec* spec : tensors()) sum += spec->parameter.value.bytes();
  return sum;
}

const ops::LowRank* Adapter::find(std::string_view matrix) const {
  const auto found = of_matrix_.find(matrix);
  return found == of_matrix_.end() ? nullptr : found->second;
}

void RowAdapters::append(const Adapter* adapter, int64_t count) {
  const int64_t first = std::exchange(rows_, rows_ + count);
  if (adapter == nullptr) return;
  if (!ranges_.empty() && ranges_.back().adapter == adapter &&
      ranges_.back().first + ranges_.back().count == first) {
    ranges_.back().count += count;
  } else {
    ranges_.push_back({.adapter = adapter, .first = first, .count = count});
  }
}

void RowAdapters::add(Tape& tape, const Weight& w, const Tensor& x, const Tensor& y) const {
  for (const auto& [adapter, first, count] : ranges_)
    if (const ops::LowRank* low_rank = adapter->find(w.parameter->name)) {
      MG_ASSERT(x.size(0) == rows_);  // the head alone reads other rows, and has no adapter
      ops::add_low_rank(tape, *low_rank, x.slice(0, first, count), y.slice(0, first, count));
    }
}

void RowAdapters::for_each_range(const Weight& w, const OfRows& f) const {
  for (const auto& [adapter, first, count] : ranges_)
    if (adapter->find(w.parameter->name) != nullptr) f(first, count);
}

}  // namespace megatron::inference
