// The parts of a model on all ranks and stages together make the whole model.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "comm/traffic.h"
#include "tiny_gpt.h"

namespace megatron::models {
namespace {

using parallel::ModelPart;
using parallel::ParameterSpec;
using testing::Canonical;
using testing::tiny_gpt2;
using testing::tiny_llama;

constexpr uint64_t kSeed = 1234;

struct Case {
  std::string name;
  testing::TinyConfig config;
  std::vector<int> ranks;
};

std::vector<Case> cases() {
  testing::TinyConfig xavier = tiny_llama(8, 4, true);
  xavier.xavier_init = true;
  return {{"gpt2", tiny_gpt2(12), {2, 3, 4}},
          {"llama, key heads as ranks or more", tiny_llama(8, 4, true), {2, 4}},
          {"llama, fewer key heads than ranks", tiny_llama(12, 2, false), {4, 6, 12}},
          {"one key head", tiny_llama(12, 1, true), {2, 3}},
          {"xavier", xavier, {2, 8}}};
}

// Tensors of one rank of a tensor-parallel group, with values.
struct Held {
  Held(const testing::TinyConfig& config, int ranks, int rank, bool sequence = false,
       const ModelPart& part = {}, DType type = DType::f32)
      : group(comm::simulated(rank, ranks)),
        model(config, runtime, type, 1, part.layers > 0 ? part : ModelPart{0, config.num_layers},
              {.tensor = {.group = group.get(), .sequence = sequence}}) {
    parallel::allocate(model.parameters(), runtime);
    initialize(model, kSeed, runtime.stream());
  }

  Runtime runtime{{DeviceKind::reference, 0}, 1};
  std::unique_ptr<comm::Group> group;
  testing::TinyModel model;
};

Canonical initial_values(const testing::TinyConfig& config, int ranks) {
  Canonical all;
  for (int rank = 0; rank < ranks; ++rank) {
    const Held held(config, ranks, rank);
    for (const ParameterSpec* placed : held.model.parameters())
      all.add(*placed, to_doubles(placed->parameter.value));
  }
  EXPECT_TRUE(all.complete());
  return all;
}

TEST(ModelPlacement, InitialValuesOfAllRanksAreThoseOfOne) {
  for (const Case& c : cases()) {
    const Canonical one = initial_values(c.config, 1);
    for (const int ranks : c.ranks)
      EXPECT_EQ(initial_values(c.config, ranks).tensors(), one.tensors()) << c.name << ranks;
  }
}

TEST(ModelPlacement, OneRankIsTheModelByItself) {
  for (const Case& c : cases()) {
    Runtime runtime({DeviceKind::reference, 0}, 1);
    testing::TinyModel alone(c.config, runtime, DType::f32, 1, {0, c.config.num_layers}, {});
    parallel::allocate(alone.parameters(), runtime);
    initialize(alone, kSeed, runtime.stream());
    const Held held(c.config, 1, 0);
    ASSERT_EQ(alone.parameters().size(), held.model.parameters().size());
    for (size_t i = 0; i < alone.parameters().size(); ++i) {
      const ParameterSpec &a = *alone.parameters()[i], &b = *held.model.parameters()[i];
      EXPECT_EQ(a.parameter.name, b.parameter.name);
      EXPECT_EQ(to_doubles(a.parameter.value), to_doubles(b.parameter.value));
      EXPECT_TRUE(a.counted && !a.partial && !a.tied_across_stages());
    }
  }
}

TEST(ModelPlacement, OfEachElementOneRankCounts) {
  for (const Case& c : cases()) {
    for (const int ranks : c.ranks) {
      std::map<std::string, std::vector<int>> counts;
      for (int rank = 0; rank < ranks; ++rank) {
        const Held held(c.config, ranks, rank, true);
        for (const ParameterSpec* placed : held.model.parameters()) {
          EXPECT_EQ(placed->partial.has_value(), placed->divisions.empty())
              << placed->parameter.name;
          for_each_run(*placed, [&](const parallel::CanonicalTensor& part, int64_t canonical,
                                    int64_t, int64_t size) {
            auto& tensor = counts[part.name];
            tensor.resize(static_cast<size_t>(part.global.elements()));
            for (int64_t i = 0; i < size; ++i)
              tensor[static_cast<size_t>(canonical + i)] += placed->counted;
          });
        }
      }
      for (const auto& [name, of_tensor] : counts) {
        EXPECT_EQ(std::ranges::count(of_tensor, 1), static_cast<int64_t>(of_tensor.size()))
            << c.name << name << ranks;
      }
    }
  }
}

// Shards that begin and end anywhere hold the same bits as that range of the whole parameter.
TEST(ModelPlacement, ShardsBeginAsTheirParameterDoes) {
  for (const DType type : {DType::f64, DType::bf16}) {
    for (const Case& c : cases()) {
      Held held(c.config, c.ranks.back(), 1, false, {}, type);
      for (ParameterSpec* placed : held.model.parameters()) {
        const std::vector<double> whole = to_doubles(placed->parameter.value);
        const auto elements = static_cast<int64_t>(whole.size());
        std::vector<double> joined;
        for (int64_t begin = 0, size = 1; begin < elements; begin += size, size = 3 * size + 4) {
          size = std::min(size, elements - begin);
          const parallel::Shard shard{
              .placed = placed,
              .begin = begin,
              .value = Tensor::empty(held.runtime.arena(MemoryClass::parameters), {size}, type,
                                     "shard")};
          initialize(shard, kSeed, held.runtime.stream());
          const std::vector<double> values = to_doubles(shard.value);
          joined.insert(joined.end(), values.begin(), values.end());
          EXPECT_EQ(shard.is_whole(), size == elements);
        }
        EXPECT_EQ(joined, whole) << placed->parameter.name;
      }
    }
  }
}

TEST(ModelPlacement, ParametersHaveNoMemoryUntilTheyAreGivenSome) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const testing::TinyConfig config = tiny_gpt2();
  const testing::TinyModel model(config, runtime, DType::bf16, 1, {0, config.num_layers}, {});
  EXPECT_EQ(runtime.arena(MemoryClass::parameters).high_water(), 0);
  int64_t bytes = 0;
  for (const ParameterSpec* placed : model.parameters()) {
    EXPECT_FALSE(placed->parameter.value.device().has_data());
    EXPECT_EQ(placed->parameter.value.shape(), placed->whole);
    bytes += (placed->parameter.value.bytes() + 63) / 64 * 64;
  }
  parallel::allocate(model.parameters(), runtime);
  EXPECT_EQ(runtime.arena(MemoryClass::parameters).in_use(), bytes);
}

std::string message(const testing::TinyConfig& config, int ranks) {
  try {
    const Held held(config, ranks, 0);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(ModelPlacement, HeadsThatCannotBeDividedAreRefused) {
  const auto names = [](const std::string& text, std::initializer_list<std::string> words) {
    for (const std::string& word : words)
      EXPECT_NE(text.find(word), std::string::npos) << text << " lacks " << word;
  };
  names(message(tiny_gpt2(4), 3), {"--num-attention-heads 4", "--tensor-model-parallel-size 3"});
  names(message(tiny_llama(12, 2, true), 3),
        {"--num-query-groups 2", "--tensor-model-parallel-size 3"});
  names(message(tiny_llama(12, 3, true), 12), {"--kv-channels", "--tensor-model-parallel-size 12"});
}

// Stages.

TEST(ModelParts, HoldTheirLayersUnderTheNamesOfTheWhole) {
  Runtime runtime({DeviceKind::meta, 0}, 1);
  for (const bool untied : {false, true}) {
    const testing::TinyConfig config = tiny_llama(4, 2, untied);
    testing::TinyModel whole(config, runtime, DType::f32, 1, {0, config.num_layers}, {});
    parallel::allocate(whole.parameters(), runtime);
    const testing::TinyModel first(config, runtime, DType::f32, 1, {0, 1, true, false}, {});
    const testing::TinyModel middle(config, runtime, DType::f32, 1, {1, 1, false, false}, {});
    const testing::TinyModel last(config, runtime, DType::f32, 1, {2, 1, false, true}, {});
    std::vector<std::string> names, joined;
    for (const ParameterSpec* placed : whole.parameters()) names.push_back(placed->parameter.name);
    for (const testing::TinyModel* part : {&first, &middle, &last}) {
      for (const ParameterSpec* placed : part->parameters()) {
        if (!untied && part == &last && placed->parameter.name == "embedding.weight") continue;
        joined.push_back(placed->parameter.name);
      }
    }
    EXPECT_EQ(joined, names);
    EXPECT_EQ(first.blocks().size(), 2u);
    EXPECT_EQ(first.blocks()[0].span.name, "embedding");
    EXPECT_EQ(middle.blocks()[0].span.name, "layers.1");
    EXPECT_EQ(last.blocks()[0].span.name, "layers.2");
    EXPECT_EQ(last.head().name, "head");
    EXPECT_EQ(last.head().parameters.back()->name, untied ? "output.weight" : "embedding.weight");
    EXPECT_EQ(middle.layer_caches().size(), 1U);
    EXPECT_EQ(middle.part(), (ModelPart{1, 1, false, false}));
  }
}

TEST(ModelParts, ATiedTableLiesAtBothEnds) {
  Runtime runtime({DeviceKind::meta, 0}, 1);
  const testing::TinyConfig config = tiny_gpt2();
  const testing::TinyModel first(config, runtime, DType::f32, 1, {0, 1, true, false}, {});
  const testing::TinyModel last(config, runtime, DType::f32, 1, {1, 2, false, true}, {});
  const ParameterSpec& in = *first.parameters().front();
  const ParameterSpec& out = *last.parameters().back();
  EXPECT_EQ(in.parameter.name, out.parameter.name);
  EXPECT_EQ(in.placement.tensors[0].name, out.placement.tensors[0].name);
  EXPECT_EQ(in.parameter.uses.size(), 1u);
  EXPECT_EQ(out.parameter.uses.size(), 1u);
  EXPECT_TRUE(in.tied_across_stages() && out.tied_across_stages());
  EXPECT_TRUE(in.counted && !out.counted);
  EXPECT_EQ(in.role, parallel::Role::embedding);
  EXPECT_EQ(out.role, parallel::Role::embedding);
  testing::TinyModel whole(config, runtime, DType::f32, 1, {0, config.num_layers}, {});
  parallel::allocate(whole.parameters(), runtime);
  EXPECT_EQ(whole.parameters().front()->parameter.uses.size(), 2u);
}

}  // namespace
}  // namespace megatron::models
