#include "plan/parameters.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace megatron::plan {
namespace {

// Returns "mlp" for "layers.3.mlp.up.weight", "final_norm" for "final_norm.bias".
std::string_view module_of(std::string_view parameter) {
  if (parameter.starts_with("layers."))
    parameter.remove_prefix(parameter.find('.', std::string_view("layers.").size()) + 1);
  return parameter.substr(0, parameter.find('.'));
}

std::string group_of(const std::string& parameter) {
  const std::string_view module = module_of(parameter);
  if (module == "position_embedding" || module == "token_type_embedding") return "position";
  constexpr std::string_view kHeads[] = {"head_transform", "output_bias", "pooler", "pair",
                                         "pair_bias"};
  if (std::ranges::find(kHeads, module) != std::end(kHeads)) return "output";
  if (module == "score_transform" || module == "score_bias") return "score";
  if (module.ends_with("norm")) return "norm";
  for (const std::string_view group :
       {"embedding", "attention", "mlp", "projection", "output", "score"})
    if (module == group) return std::string(group);
  if (module == "cross_attention") return "attention";
  throw InternalError(fmt::format("the parameter '{}' belongs to no class", parameter));
}

int64_t elements(const parallel::Placement& placement) {
  int64_t sum = 0;
  for (const parallel::CanonicalTensor& part : placement.tensors) sum += part.global.elements();
  return sum;
}

class Counter {
 public:
  explicit Counter(const models::Stage& stage) {
    for (const parallel::ParameterSpec* placed : stage.parameters())
      placed_.emplace(&placed->parameter, placed);
  }

  void add(const Span& span) {
    const size_t begin = counts_.size();
    for (const Parameter* parameter : span.parameters) {
      const auto found = placed_.find(parameter);
      if (found == placed_.end()) continue;
      add(begin, span.name, group_of(parameter->name), elements(found->second->placement));
      placed_.erase(found);
    }
  }

  std::vector<ParameterCount> take() {
    MG_ASSERT(placed_.empty());
    return std::move(counts_);
  }

 private:
  void add(size_t begin, const std::string& span, const std::string& group, int64_t count) {
    const auto same = std::find_if(counts_.begin() + static_cast<std::ptrdiff_t>(begin),
                                   counts_.end(), [&](const auto& c) { return c.group == group; });
    if (same != counts_.end()) {
      same->count += count;
    } else {
      counts_.push_back({span, group, count});
    }
  }

  std::map<const Parameter*, const parallel::ParameterSpec*> placed_;
  std::vector<ParameterCount> counts_;
};

}  // namespace

std::vector<ParameterCount> count_parameters(const models::Stage& stage) {
  Counter counter(stage);
  for (const models::Block& block : stage.blocks()) counter.add(block.span);
  counter.add(stage.head());
  return counter.take();
}

}  // namespace megatron::plan
