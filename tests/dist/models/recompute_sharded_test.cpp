// Recompute and offload with sharded parameters (ZeRO-3): spans of values are gathered and
// released, also while layers are recomputed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "comm/async.h"
#include "dist/ranks.h"
#include "parallel/data_parallel.h"
#include "tiny_gpt.h"

namespace megatron::models {
namespace {

using Granularity = RecomputeOptions::Granularity;
using Method = RecomputeOptions::Method;

struct Options {
  RecomputeOptions recompute;
  OffloadOptions offload;
  bool in_parts = false;
};

using Gradients = std::map<std::string, std::vector<double>>;

// Assembled from the ranks' shards.
Gradients run(parallel::Sharding sharding, bool overlap, const Options& options) {
  constexpr int kRanks = 2;
  testing::TinyConfig config = testing::tiny_llama(4, 2, false);
  config.num_layers = 5;
  std::mutex mutex;
  Gradients gradients;
  testing::each_rank(kRanks, DeviceKind::cpu, [&](comm::Group& world, Runtime& runtime) {
    const std::unique_ptr<comm::Group> async =
        comm::async(world.split(0, world.rank(), world.size()));
    const testing::TinyModel model(config, runtime, DType::f32, 77, {0, config.num_layers}, {});
    std::vector<const Span*> spans;
    for (const Block& block : model.blocks()) spans.push_back(&block.span);
    spans.push_back(&model.head());
    parallel::DataParallel dp(
        {model.parameters().begin(), model.parameters().end()}, spans,
        {.dense = {.shards = &world, .async = async.get()}}, runtime,
        {.sharding = sharding, .overlap_reduce = overlap, .overlap_gather = overlap});
    for (const parallel::Shard& shard : dp.shards())
      if (shard.size() > 0) parallel::initialize(shard, 5, runtime.stream());
    dp.parameters_changed();
    const nn::Batch batch = testing::tiny_batch(runtime, config, DType::f32);
    dp.begin_step(1);
    Tape tape(runtime);
    tape.listen(static_cast<GradientListener*>(&dp));
    tape.listen(static_cast<SpanListener*>(&dp));
    head_loss(model, tape,
              forward(model, tape, {}, batch, Phase::train, options.recompute, options.offload),
              batch);
    if (options.in_parts) tape.backward(BackwardPart::input);
    tape.backward(options.in_parts ? BackwardPart::weight : BackwardPart::all);
    dp.finish();
    const std::lock_guard lock(mutex);
    for (const parallel::Shard& shard : dp.shards()) {
      const Parameter& parameter = shard.placed->parameter;
      std::vector<double>& whole = gradients[parameter.name];
      whole.resize(static_cast<size_t>(parameter.value.elements()));
      if (shard.size() > 0)
        std::ranges::copy(to_doubles(shard.gradient), whole.begin() + shard.begin);
    }
  });
  return gradients;
}

TEST(RecomputeSharded, SameBitsWithAllOfThem) {
  const auto full = [](Method method, int64_t layers) {
    return Options{
        .recompute = {.granularity = Granularity::full, .method = method, .layers = layers}};
  };
  const auto selective = [](std::vector<std::string> modules) {
    return Options{
        .recompute = {.granularity = Granularity::selective, .modules = std::move(modules)}};
  };
  const auto resident = run(parallel::Sharding::optimizer, false, {});
  for (const bool overlap : {false, true}) {
    for (Options options :
         {Options{}, full(Method::uniform, 1), full(Method::uniform, 2), full(Method::uniform, 5),
          full(Method::block, 2), selective({"core_attn", "mlp", "layernorm"}),
          selective({"mlp_act", "layernorm"}), Options{.offload = {3}}}) {
      for (const bool in_parts : {false, true}) {
        options.in_parts = in_parts;
        EXPECT_EQ(run(parallel::Sharding::parameters, overlap, options), resident)
            << overlap << in_parts << options.recompute.layers;
      }
    }
  }
}

}  // namespace
}  // namespace megatron::models
