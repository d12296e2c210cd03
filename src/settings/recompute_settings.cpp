#include "settings/recompute_settings.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"

namespace megatron::settings {
namespace {

using Granularity = models::RecomputeOptions::Granularity;
using Method = models::RecomputeOptions::Method;

constexpr std::array<std::string_view, 7> kModules = {"core_attn", "mlp_act", "mla_up_proj", "mlp",
                                                      "layernorm", "moe",     "moe_act"};
constexpr std::string_view kModulesText =
    "core_attn, mla_up_proj, mlp, mlp_act, layernorm, moe and moe_act";

// Modules that Megatron-LM can recompute, in layers that these models do not have.
struct Foreign {
  std::string_view module, of;
};
constexpr std::array<Foreign, 6> kForeign = {{{"shared_experts", "mixture-of-experts layers"},
                                              {"gdn_norm_out", "gated delta net layers"},
                                              {"gdp_in_proj", "gated delta product layers"},
                                              {"gdp_qkv", "gated delta product layers"},
                                              {"mhc", "hyper-connections"},
                                              {"mhc_norm", "hyper-connections"}}};

void check_module(const std::string& module) {
  if (std::ranges::find(kModules, module) != kModules.end()) return;
  for (const Foreign& foreign : kForeign) {
    MG_CHECK(module != foreign.module,
             "--recompute-modules: '{}' belongs to {}, which this model does not have; its "
             "modules are {}",
             module, foreign.of, kModulesText);
  }
  fail("--recompute-modules: there is no module '{}'; the modules are {}", module, kModulesText);
}

}  // namespace

void RecomputeSettings::fields(Fields& f) {
  f.begin_group("memory");
  f.add_switch("recompute-activations", &activations, true,
               "same as --recompute-granularity selective");
  f.add("recompute-granularity", &granularity,
        "full: save only the inputs of layers, recompute the rest; "
        "selective: recompute parts of layers (--recompute-modules)")
      .in_short_help();
  f.add("recompute-method", &method,
        "with granularity full: uniform (the default): save one input per group of "
        "--recompute-num-layers layers; block: recompute each of the first --recompute-num-layers "
        "layers of a pipeline stage's chunk, the other layers save everything");
  f.add("recompute-num-layers", &num_layers,
        "with granularity full: see --recompute-method; "
        "default 1");
  f.add("recompute-modules", &modules,
        "with granularity selective: core_attn (attention's output, the default), mla_up_proj "
        "(queries, keys "
        "and values of multi-latent attention), mlp (all "
        "activations between the feed-forward block's two linear layers), mlp_act (only the "
        "activation function's output, so that no matrix product is repeated), layernorm (the "
        "output of norms), moe (everything in a layer of experts except its input), moe_act "
        "(mlp_act for experts)");
  f.add_switch(
      "distribute-saved-activations", &distribute, true,
      "with granularity full and --tensor-model-parallel-size above 1: each tensor-parallel rank "
      "saves a slice of the inputs, which are gathered in backward");
  f.add("mlp-chunks-for-training", &mlp_chunks,
        "process the tokens of a micro-batch in this many chunks, one after another, in "
        "feed-forward blocks (except experts and shared experts), and save only the blocks' "
        "inputs; backward computes the first linear layer twice again, once per chunk of tokens "
        "and once per slice of the width, so that gradients have the same bits on a CPU; chunks "
        "need not be equal");
}

void RecomputeSettings::check(int64_t chunk_layers, std::vector<SettingNote>& notes) const {
  MG_CHECK(!granularity || *granularity == "full" || *granularity == "selective",
           "--recompute-granularity is '{}'; it must be full or selective",
           granularity.value_or(""));
  MG_CHECK(mlp_chunks >= 1, "--mlp-chunks-for-training is {}; it must be at least 1", mlp_chunks);
  for (const std::string& module : modules) check_module(module);
  MG_CHECK(!method || *method == "uniform" || *method == "block",
           "--recompute-method is '{}'; it must be uniform or block", method.value_or(""));
  MG_CHECK(num_layers.value_or(1) >= 1 && num_layers.value_or(1) <= chunk_layers,
           "--recompute-num-layers is {}; it must lie in [1, {}], the layers of a pipeline stage's "
           "chunk",
           num_layers.value_or(1), chunk_layers);
  if (activations && !granularity)
    notes.push_back({"recompute-granularity", "selective", "--recompute-activations"});
}

models::RecomputeOptions RecomputeSettings::options() const {
  models::RecomputeOptions o;
  if (!any()) return o;
  if (granularity == "full") {
    o.granularity = Granularity::full;
    o.method = method == "block" ? Method::block : Method::uniform;
    o.layers = num_layers.value_or(1);
    o.distribute = distribute;
    return o;
  }
  o.granularity = Granularity::selective;
  o.modules = modules;
  if (modules.empty()) o.modules = {"core_attn"};
  return o;
}

}  // namespace megatron::settings
