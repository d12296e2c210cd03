// Layers of experts and dense layers with explicit gradients. They use the groups of a module
// (parallel/model_ranks.h) with uneven counts, an expert without tokens, and experts whose replicas
// are on other ranks than those of dense parameters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/philox.h"
#include "nn/builder.h"
#include "parallel/ranks.h"

namespace megatron::testing {

// For token x with weight c on its output, both [H], a layer's loss is
//   c . W (g * x)  +  c . down_e ((up_e (s_e * x))^2 / 2),   e: the token's expert,
// with W [H,H] divided by rows among tensor-parallel ranks, g [H], and for each expert s_e [H],
// up_e [F,H] and down_e [H,F], divided along F among the ranks of expert_tensor.
struct ToyExperts {
  static constexpr int64_t kHidden = 3, kFfn = 5, kExperts = 5, kTokens = 24;
  static constexpr int kLayers = 2;
  static constexpr int64_t kIdle = 3;  // the expert without tokens

  // Expert of token `id` of a step. In micro-batch 0 no token goes to the last two experts.
  static int64_t expert_of(int64_t id) {
    const int64_t early[] = {0, 1, 0, 2, 0, 0, 1}, late[] = {4, 1, 0, 4, 2, 4, 0};
    return (id < kTokens ? early : late)[id % 7];
  }

  struct Layer {
    Span span;
    Parameter *gain, *weight, *scale, *up, *down;
  };

  ToyExperts(Runtime& runtime, const parallel::ModelRanks& ranks) {
    nn::Builder builder(runtime, DType::f64, placement, ranks);
    using parallel::RankGroup;
    const parallel::Division experts{.axis = 0, .blocks = {kExperts}, .group = RankGroup::expert};
    for (int l = 0; l < kLayers; ++l) {
      const std::string name = fmt::format("layers.{}.", l);
      const auto add = [&](const char* what, Shape shape, nn::Builder::Options options) {
        return builder.add(name + what, shape, nn::normal(0.5), std::move(options)).parameter;
      };
      Layer& layer = layers.emplace_back();
      layer.gain = add("gain", {kHidden}, {.partial = true});
      layer.weight =
          add("weight", {kHidden, kHidden}, {.divisions = {{.axis = 0, .blocks = {kHidden}}}});
      layer.scale =
          add("experts.scale", {kExperts, kHidden}, {.divisions = {experts}, .partial = true});
      layer.up = add("experts.up", {kExperts, kFfn, kHidden},
                     {.divisions = {experts, {1, {kFfn}, RankGroup::expert_tensor}}});
      layer.down = add("experts.down", {kExperts, kHidden, kFfn},
                       {.divisions = {experts, {2, {kFfn}, RankGroup::expert_tensor}}});
      layer.span = {.name = fmt::format("layers.{}", l),
                    .parameters = {layer.gain, layer.weight, layer.scale, layer.up, layer.down}};
    }
    owned = builder.take();
    for (const auto& spec : owned) parameters.push_back(spec.get());
  }

  std::vector<const Span*> spans() const {
    std::vector<const Span*> list;
    for (const Layer& layer : layers) list.push_back(&layer.span);
    return list;
  }

  // Runs forward and backward of a micro-batch: `tokens` go through the dense layers of this rank,
  // and the tokens of `routed` that belong to its experts go through those experts.
  void run(parallel::DataParallel& dp, const std::vector<int64_t>& tokens,
           const std::vector<int64_t>& routed) {
    for (const Layer& layer : layers) {
      dp.enter(layer.span, Pass::forward);
      dp.leave(layer.span, Pass::forward);
    }
    for (size_t l = layers.size(); l-- > 0;) {
      dp.enter(layers[l].span, Pass::backward);
      of_experts(dp, layers[l], routed);
      of_dense(dp, layers[l], tokens);
      dp.leave(layers[l].span, Pass::backward);
    }
  }

  std::vector<Layer> layers;
  std::vector<std::unique_ptr<parallel::ParameterSpec>> owned;
  std::vector<parallel::ParameterSpec*> parameters;

 private:
  // Each expert has its own tensor, except that `down` is one tensor on disk, stored transposed.
  static parallel::Placement placement(const std::string& name, const Shape& shape) {
    parallel::Placement placement;
    if (!name.ends_with("scale") && !name.ends_with("up")) {
      const bool transposed = name.ends_with("down");
      placement.tensors = {{.name = "model." + name, .global = shape, .transposed = transposed}};
      return placement;
    }
    Shape one = shape;
    one.set(0, 1);
    for (int64_t e = 0; e < kExperts; ++e)
      placement.tensors.push_back({.name = fmt::format("model.{}.{}", name, e),
                                   .global = one,
                                   .held = {{0, {{0, e, 1}}}},
                                   .stacked = true});
    return placement;
  }

  static double number(const char* what, int64_t id, int64_t h) {
    return RandomStream(5, what).normal(static_cast<uint64_t>(id * kHidden + h));
  }

  // First index along `axis` that this rank holds.
  int64_t first_of(const Parameter* parameter, int axis) const {
    for (const parallel::ParameterSpec* spec : parameters) {
      if (&spec->parameter != parameter) continue;
      for (const parallel::Division& division : spec->divisions)
        if (division.axis == axis) return division.slices()[0].global_begin;
    }
    return 0;
  }

  void of_dense(parallel::DataParallel& dp, const Layer& layer,
                const std::vector<int64_t>& tokens) {
    const std::vector<double> g = to_doubles(layer.gain->value),
                              w = to_doubles(layer.weight->value);
    const int64_t rows = layer.weight->value.size(0), first = first_of(layer.weight, 0);
    std::vector<double> dg(g.size()), dw(w.size());
    for (const int64_t id : tokens) {
      for (int64_t r = 0; r < rows; ++r) {
        const double c = number("weights", id, first + r);
        for (int64_t i = 0; i < kHidden; ++i) {
          const double x = number("tokens", id, i);
          const auto at = static_cast<size_t>(r * kHidden + i), col = static_cast<size_t>(i);
          dw[at] += c * g[col] * x;
          dg[col] += c * w[at] * x;
        }
      }
    }
    give(dp, *layer.weight, dw);
    give(dp, *layer.gain, dg);
  }

  void of_experts(parallel::DataParallel& dp, const Layer& layer,
                  const std::vector<int64_t>& routed) {
    const std::vector<double> scale = to_doubles(layer.scale->value),
                              up = to_doubles(layer.up->value),
                              down = to_doubles(layer.down->value);
    std::vector<double> dscale(scale.size()), dup(up.size()), ddown(down.size());
    const int64_t experts = layer.up->value.size(0), ffn = layer.up->value.size(1);
    const int64_t first = first_of(layer.up, 0);
    for (const int64_t id : routed) {
      const int64_t e = expert_of(id) - first;
      if (e < 0 || e >= experts) continue;
      for (int64_t f = 0; f < ffn; ++f) {
        double u = 0, da = 0;
        const auto of_up = [&](int64_t h) {
          return static_cast<size_t>((e * ffn + f) * kHidden + h);
        };
        const auto of_down = [&](int64_t h) {
          return static_cast<size_t>((e * kHidden + h) * ffn + f);
        };
        const auto of_scale = [&](int64_t h) { return static_cast<size_t>(e * kHidden + h); };
        for (int64_t h = 0; h < kHidden; ++h) {
          u += up[of_up(h)] * scale[of_scale(h)] * number("tokens", id, h);
          da += number("weights", id, h) * down[of_down(h)];
        }
        for (int64_t h = 0; h < kHidden; ++h) {
          const double x = number("tokens", id, h);
          ddown[of_down(h)] += number("weights", id, h) * u * u / 2;
          dup[of_up(h)] += da * u * scale[of_scale(h)] * x;
          dscale[of_scale(h)] += da * u * up[of_up(h)] * x;
        }
      }
    }
    give(dp, *layer.down, ddown);
    give(dp, *layer.up, dup);
    give(dp, *layer.scale, dscale);
  }

  static void give(parallel::DataParallel& dp, Parameter& p, std::vector<double> gradient) {
    Parameter::Use& use = p.uses[0];
    if (!use.grad.defined()) dp.gradient_begins(p);
    if (use.started) {
      const std::vector<double> before = to_doubles(use.grad);
      for (size_t i = 0; i < gradient.size(); ++i) gradient[i] += before[i];
    }
    copy_from(use.grad, std::span<const double>(gradient));
    use.started = true;
    dp.gradient_final(p, use.micro_batches++);
  }
};

}  // namespace megatron::testing
