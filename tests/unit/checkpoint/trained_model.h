// A small model with optimizer state for tests of checkpoints: fused, transposed, padded and plain
// parameters with random bits.
#pragma once

#include <cstring>

#include "checkpoint/checkpoint_directory.h"
#include "support.h"

namespace megatron::checkpoint {

class TrainedModel {
 public:
  TrainedModel(DType type, bool tied, uint64_t seed, int layers = 2)
      : type_(type), runtime_(Device{DeviceKind::reference}, 1) {
    constexpr int64_t kVocabulary = 20, kPadded = 32, kHidden = 8, kInner = 12;
    const auto whole = [](const std::string& name, Shape shape, bool transposed = false) {
      return parallel::CanonicalTensor{name, shape, {{0, {{0, 0, shape[0]}}}}, transposed};
    };
    const auto embedding = [&](const std::string& name) {
      model_.add(Shape{kPadded, kHidden}, type, {whole(name, Shape{kVocabulary, kHidden})});
    };
    embedding("transformer.wte.weight");
    for (int layer = 0; layer < layers; ++layer) {
      const std::string prefix = fmt::format("transformer.h.{}.", layer);
      model_.add(prefix + "ln_1.weight", Shape{kHidden}, type);
      model_.add(prefix + "attn.c_attn.weight", Shape{3 * kHidden, kHidden}, type, true);
      parallel::CanonicalTensor gate = whole(prefix + "mlp.gate.weight", Shape{kInner, kHidden}),
                                up = whole(prefix + "mlp.up.weight", Shape{kInner, kHidden});
      up.held[0].slices[0].local_begin = kInner;
      model_.add(Shape{2 * kInner, kHidden}, type, {gate, up});
    }
    if (!tied) embedding("lm_head.weight");
    std::vector<std::string> prefixes = {"exp_avg.", "exp_avg_sq."};
    if (type == DType::bf16) prefixes.push_back("remainder.");
    for (const parallel::ParameterSpec* placed : model_.parameters()) {
      for (const std::string& prefix : prefixes) {
        const DType state = prefix == "remainder." ? DType::i16 : DType::f32;
        optimizer_.push_back({prefix, &placed->placement,
                              Tensor::empty(runtime_.arena(MemoryClass::optimizer),
                                            placed->parameter.value.shape(), state, "test"),
                              placed->parameter.value.shape(), 0});
      }
    }
    fill(seed);
  }

  std::span<parallel::ParameterSpec* const> parameters() const { return model_.parameters(); }
  const std::vector<HeldTensor>& optimizer() const { return optimizer_; }
  Stream& stream() { return runtime_.stream(); }
  ThreadPool& pool() { return runtime_.pool(); }

  // `iteration` is also in the trainer's state.
  Contents contents(int64_t iteration, int64_t shard_bytes) const {
    return {.config = Json(Json::Object{{"model_type", Json("test")}}),
            .model = held(parameters()),
            .optimizer = optimizer_,
            .shard_bytes = shard_bytes,
            .written_files = {{"tokenizer.json", "{}\n"}},
            .trainer_state = Json(Json::Object{{"format", Json(kFormat)},
                                               {"written_by", Json("megatron 0.1.0")},
                                               {"iteration", Json(iteration)}})};
  }

  void load(const CheckpointDirectory& directory) {
    checkpoint::load(directory.model(), parameters());
    directory.load_optimizer(optimizer_);
  }

  std::string bits() const {  // bits of all tensors
    std::string text;
    const auto add = [&](const Tensor& t) {
      text.append(static_cast<const char*>(t.raw()), static_cast<size_t>(t.bytes()));
    };
    for (const parallel::ParameterSpec* placed : parameters()) add(placed->parameter.value);
    for (const HeldTensor& tensor : optimizer_) add(tensor.value);
    return text;
  }

  void fill(uint64_t seed) {
    uint64_t stream = 0;
    for (const parallel::ParameterSpec* placed : parameters())
      fill(placed->placement, placed->parameter.value, seed + stream++);
    for (const HeldTensor& tensor : optimizer_)
      fill(*tensor.placement, tensor.value, seed + stream++);
  }

 private:
  // Random bits in the part's elements, zeros elsewhere.
  static void fill(const parallel::Placement& placement, const Tensor& value, uint64_t seed) {
    std::memset(value.raw(), 0, static_cast<size_t>(value.bytes()));
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    const int64_t row = value.bytes() / value.size(0);
    for (const parallel::CanonicalTensor& part : placement.tensors) {
      const parallel::Slice rows = part.slices(0)[0];
      char* const at = static_cast<char*>(value.raw()) + rows.local_begin * row;
      for (int64_t i = 0; i < rows.size * row; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        at[i] = static_cast<char>(state >> 56);
      }
    }
  }

  DType type_;
  Runtime runtime_;
  Model model_;
  std::vector<HeldTensor> optimizer_;
};

}  // namespace megatron::checkpoint
