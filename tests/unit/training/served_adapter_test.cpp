// Adapters that a server loads by name: their memory and what is refused.
#include "training/served_adapter.h"

#include <gtest/gtest.h>

#include "unit/checkpoint/support.h"
#include "unit/training/adapter_files.h"

namespace megatron::training::served_adapter_test {
namespace {

using inference::Adapter;
using megatron::testing::adapted;
using megatron::testing::base_of;
using megatron::testing::write_adapter;

constexpr int64_t kMaxRank = 3;

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_in(std::string_view text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts)
    EXPECT_NE(text.find(part), text.npos) << part << " is not in " << text;
}

struct Served {
  explicit Served(const std::string& family, const std::vector<std::string>& directories = {})
      : adapters({.device = {DeviceKind::cpu, 0}, .most = 1, .max_rank = kMaxRank}, base_of(family),
                 directories, *world) {}

  std::shared_ptr<const Adapter> load(const std::string& directory) {
    return adapters.load(directory, adapters.take(false), Adapter::next_number());
  }

  const std::unique_ptr<comm::Group> world = comm::single();
  ServedAdapters adapters;
};

// A layer's experts are one tensor of the base.
TEST(ServedAdapters, OfAllLinearLayersAndExpertsFitTheirMemory) {
  const auto with_rank = [](int64_t rank) {
    return adapted("gpt_oss",
                   {.rank = rank,
                    .all_linear = true,
                    .target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}});
  };
  Served served("gpt_oss");
  EXPECT_EQ(served.adapters.memory().bytes_of_one(),
            inference::adapter_bytes(with_rank(kMaxRank), DType::f32));
  const checkpoint::TemporaryDirectory folder;
  write_adapter(folder.path(), "gpt_oss", with_rank(kMaxRank));
  auto one = served.load(folder.path());
  EXPECT_TRUE(one->shares_passes());
  EXPECT_NE(one->find_of_experts("layers.0.mlp.experts.up.weight"), nullptr);
  const auto replacing = served.load(folder.path());
  expect_in(error_of([&] { served.load(folder.path()); }),
            {"memory for 2 adapters", "--max-loras", "unfinished texts"});
  one = nullptr;
  EXPECT_NE(served.load(folder.path()), nullptr);

  const checkpoint::TemporaryDirectory larger;
  write_adapter(larger.path(), "gpt_oss", with_rank(kMaxRank + 1));
  expect_in(error_of([&] { served.load(larger.path()); }),
            {"rank 4", "--max-lora-rank is 3: raise it"});
}

TEST(ServedAdapters, NeedTheMemoryOfWhatTheySave) {
  const checkpoint::TemporaryDirectory folder;
  write_adapter(folder.path(), "llama",
                adapted("llama", {.rank = 2,
                                  .targets = {.names = {"q_proj"}},
                                  .modules_to_save = {"lm_head", "embed_tokens"}}));
  Served small("llama");
  expect_in(error_of([&] { small.load(folder.path()); }),
            {"bytes", "are reserved for each", "--max-lora-rank", "--lora-modules"});
  Served named("llama", {folder.path()});
  EXPECT_FALSE(named.load(folder.path())->shares_passes());
}

TEST(ServedAdapters, MoreThanThereIsMemoryForAreRefused) {
  const auto world = comm::single();
  expect_in(error_of([&] {
              ServedAdapters({.device = {DeviceKind::cpu, 0}, .most = int64_t{1} << 40},
                             base_of("llama"), {}, *world);
            }),
            {"memory cannot be reserved", "--max-loras", "--max-lora-rank"});
}

}  // namespace
}  // namespace megatron::training::served_adapter_test
