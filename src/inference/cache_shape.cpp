#include "inference/cache_shape.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/divide.h"
#include "base/error.h"
#include "base/machine_limits.h"
#include "comm/values.h"
#include "kernels/cuda_scratch/attention.h"
#include "kernels/state_scan.h"

namespace megatron::inference {
namespace {

constexpr int64_t kWithoutLimit = std::numeric_limits<int64_t>::max();

// Number of slots that all requests need at once: the one that each read last, and in a pass one
// for every block that it reads a part of. With prefix caching there are as many again for
// snapshots.
int64_t slots_of(const EngineOptions& options) {
  const int64_t needed =
      2 * options.max_requests + ceil_div(options.max_tokens, options.block_size);
  return options.prefix_caching ? 2 * needed : needed;
}

// Returns the pages for `blocks` blocks of every group; groups with windows or slots never need
// more than all requests hold at once.
std::vector<int64_t> pages_of(const std::vector<nn::CacheGroup>& groups, int64_t blocks,
                              const EngineOptions& options) {
  const bool bounded =
      std::ranges::any_of(groups, [](const nn::CacheGroup& g) { return g.window == 0; });
  std::vector<int64_t> pages;
  for (const nn::CacheGroup& group : groups) {
    int64_t most = group.slots ? slots_of(options) : kWithoutLimit;
    if (bounded && group.window > 0 && !group.slots) {
      const int64_t seen = group.window + options.max_tokens;
      most = options.max_requests * (ceil_div(seen, options.block_size) + 1);
    }
    pages.push_back(std::min(blocks, most));
  }
  return pages;
}

// What the layers keep of the tokens that they have read; those of an encoder keep nothing.
std::vector<nn::LayerCache> caches_of(const models::Stage& stage) {
  if (!stage.model()->facts().two_sided) return stage.layer_caches();
  return std::vector<nn::LayerCache>(static_cast<size_t>(stage.part().layers));
}

// Cache groups over all pipeline stages.
std::vector<nn::CacheGroup> groups_of_model(const models::Stage& stage, DType type,
                                            const EngineRanks& ranks) {
  if (ranks.stages == nullptr) return nn::cache_groups(caches_of(stage));
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const models::Model& model = stage.model();
  const auto whole = model.build(shapes_only, type, 0, {.layers = model->num_layers()}, {});
  return nn::cache_groups(caches_of(*whole));
}

// True if the caches of latents are read in absorbed form: on CUDA, attention's kernels limit the
// widths of latents.
bool absorbs(const models::Stage& stage, const Runtime& runtime, const EngineOptions& options) {
  if (options.latent_decode != LatentDecode::absorbed) return false;
  const std::optional<models::AttentionFacts> attention = stage.model()->facts().attention;
  const int64_t rotated = attention && attention->latent ? attention->latent->rotated : 0;
  return runtime.device().is_host() ||
         std::ranges::all_of(caches_of(stage), [&](const nn::LayerCache& layer) {
           return kernels::cuda::supports_latents(layer.latent, layer.latent - rotated);
         });
}

// Largest number of blocks, up to `most`, whose bytes fit the budget.
template <class Bytes>
int64_t blocks_within(int64_t budget, int64_t most, const Bytes& bytes_of) {
  int64_t blocks = 0;
  for (int64_t step = int64_t{1} << 40; step > 0; step /= 2)
    if (blocks + step <= most && bytes_of(blocks + step) <= budget) blocks += step;
  return blocks;
}

}  // namespace

CacheShape cache_shape(const models::Stage& stage, DType type, Runtime& runtime,
                       const EngineOptions& options, const EngineRanks& ranks) {
  const int64_t length = options.longest_text(stage.model());
  MG_CHECK(!stage.model()->facts().state_space || options.block_size % kernels::kScanChunk == 0,
           "--inference-dynamic-batching-block-size is {}, and the state spaces of this model keep "
           "their states at the ends of chunks of {} tokens: give a multiple of it",
           options.block_size, kernels::kScanChunk);
  CacheShape shape{.blocks = {.block_size = options.block_size,
                              .windows = {},
                              .pages = {},
                              .prefix_caching = options.prefix_caching},
                   .encoded = {.block_size = options.block_size,
                               .windows = {},
                               .pages = {},
                               .prefix_caching = false},
                   .state = {.layers = caches_of(stage),
                             .block_size = options.block_size,
                             .pages = {},
                             .absorbed = absorbs(stage, runtime, options)},
                   .groups = {}};
  const std::vector<nn::CacheGroup> groups = groups_of_model(stage, type, ranks);
  for (const nn::CacheGroup& group : groups)
    (group.of_encoder ? shape.encoded : shape.blocks).windows.push_back(group.window);
  const std::vector<nn::CacheGroup> own = nn::cache_groups(shape.state.layers);
  for (const nn::CacheGroup& group : own) {
    const auto at = std::ranges::find_if(groups, [&](const auto& g) { return g.matches(group); });
    shape.groups.push_back(group.of_encoder ? 0 : static_cast<size_t>(at - groups.begin()));
  }
  const auto with = [&](int64_t blocks) {
    const std::vector<int64_t> pages = pages_of(groups, blocks, options);
    const auto of_decoder = pages.begin() + std::ssize(shape.blocks.windows);
    shape.blocks.pages.assign(pages.begin(), of_decoder);
    shape.encoded.pages.assign(of_decoder, pages.end());
    shape.state.pages.clear();
    for (size_t g = 0; g < own.size(); ++g)
      shape.state.pages.push_back(
          (own[g].of_encoder ? shape.encoded : shape.blocks).pages[shape.groups[g]]);
    return shape.state.bytes(type);
  };
  const int64_t of_one = ceil_div(length, options.block_size);
  const int64_t most = options.max_requests * of_one;
  int64_t blocks = most, budget = options.cache_bytes;
  // By default half of the remaining memory; it need not suffice for the longest text.
  if (budget == 0 && runtime.device().is_host()) {
    const int64_t sharing = ranks.all == nullptr ? options.engines : ranks.all->size();
    budget = std::max(available_memory() / 2 / sharing, with(of_one));
  }
  if (budget > 0) blocks = blocks_within(budget, most, with);
  std::array<double, 2> largest = {-static_cast<double>(blocks), static_cast<double>(with(of_one))};
  if (ranks.all != nullptr) comm::largest(*ranks.all, runtime.stream(), largest, "engine.pages");
  blocks = static_cast<int64_t>(-largest[0]);
  MG_CHECK(
      blocks >= of_one || groups.empty(),
      "--inference-dynamic-batching-buffer-size-gb is {:.3f}, but the cache of one sequence of "
      "{} tokens{} needs {:.3f}; raise it, or lower --inference-max-seq-length",
      static_cast<double>(budget) * 1e-9, length,
      shape.encoded.windows.empty() ? "" : ", and as many of the encoder's text,",
      largest[1] * 1e-9);
  with(blocks);
  return shape;
}

}  // namespace megatron::inference
