// A model run in parts, one after another, is bit-identical to the whole model.
#include <gtest/gtest.h>

#include <deque>

#include "dist/ranks.h"
#include "tiny_gpt.h"

namespace megatron::models {
namespace {

using parallel::ModelPart;
using parallel::ParameterSpec;
using testing::Canonical;

struct PartsResult {
  std::vector<double> losses;
  Canonical gradients;
};

struct Piece {
  testing::TinyModel model;
  Tape tape;
  Var in, out;

  Piece(const testing::TinyConfig& config, Runtime& runtime, DType type, const ModelPart& part,
        const parallel::TensorParallel& tensor)
      : model(config, runtime, type, 77, part, {.tensor = tensor}), tape(runtime) {
    parallel::allocate(model.parameters(), runtime);
    testing::fill_with_noise(model.parameters());
    testing::give_gradients(model.parameters(), runtime);
  }
};

PartsResult run(const testing::TinyConfig& config, DType type, const std::vector<ModelPart>& parts,
                Runtime& runtime, const parallel::TensorParallel& tensor = {}) {
  PartsResult result;
  const nn::Batch batch = testing::tiny_batch(runtime, config, type);
  std::deque<Piece> pieces;
  for (const ModelPart& part : parts) {
    Piece& piece = pieces.emplace_back(config, runtime, type, part, tensor);
    Bundle in;
    if (!part.embedding) {
      piece.in = piece.tape.leaf(pieces[pieces.size() - 2].out.value);
      in = {{"hidden", piece.in}};
    }
    const Bundle out = forward(piece.model, piece.tape, in, batch, Phase::train);
    if (part.head) {
      result.losses = to_doubles(head_loss(piece.model, piece.tape, out, batch));
    } else {
      piece.out = flowing(piece.tape, out);
    }
  }
  for (size_t i = pieces.size(); i-- > 0;) {
    Piece& piece = pieces[i];
    if (!piece.model.part().head)
      piece.tape.set_gradient(piece.out, pieces[i + 1].tape.gradient(pieces[i + 1].in));
    piece.tape.backward();
  }
  for (const Piece& piece : pieces) {
    for (const ParameterSpec* placed : piece.model.parameters()) {
      const std::vector<double> values = testing::gradient_of(placed->parameter);
      if (placed->tied_across_stages() && !piece.model.part().embedding) {
        result.gradients.accumulate(*placed, values, type != DType::f64);
      } else {
        result.gradients.add(*placed, values);
      }
    }
  }
  return result;
}

const std::vector<std::vector<ModelPart>> kCuts = {
    {{0, 2, true, false}, {2, 1, false, true}},
    {{0, 1, true, false}, {1, 1, false, false}, {2, 1, false, true}},
    {{0, 0, true, false}, {0, 3, false, false}, {3, 0, false, true}},
    {{0, 3, true, false}, {3, 0, false, false}, {3, 0, false, true}}};

void expect_same(const testing::TinyConfig& config, DType type, Runtime& runtime,
                 const parallel::TensorParallel& tensor = {}) {
  const PartsResult whole = run(config, type, {{0, config.num_layers}}, runtime, tensor);
  for (size_t i = 0; i < kCuts.size(); ++i) {
    const PartsResult parts = run(config, type, kCuts[i], runtime, tensor);
    EXPECT_EQ(parts.losses, whole.losses) << i;
    EXPECT_EQ(parts.gradients.tensors(), whole.gradients.tensors()) << i;
  }
}

TEST(ModelParts, ChainedAreTheWholeModelBitForBit) {
  for (const testing::TinyConfig& config :
       {testing::tiny_gpt2(), testing::tiny_llama(4, 2, true), testing::tiny_llama(4, 2, false)}) {
    for (const auto& [kind, type] : {std::pair{DeviceKind::reference, DType::f64},
                                     {DeviceKind::cpu, DType::f32},
                                     {DeviceKind::cpu, DType::bf16}}) {
      Runtime runtime({kind, 0}, 1);
      expect_same(config, type, runtime);
    }
  }
}

// The same for tensor-parallel stages with sequence parallelism.
TEST(ModelParts, ChainedOnDividedTokens) {
  testing::each_rank(2, DeviceKind::cpu, [&](comm::Group& world, Runtime& runtime) {
    for (const bool sequence : {false, true}) {
      expect_same(testing::tiny_gpt2(), DType::f32, runtime,
                  {.group = &world, .sequence = sequence});
    }
  });
}

}  // namespace
}  // namespace megatron::models
