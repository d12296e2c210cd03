#include "models/facts.h"

#include <fmt/format.h>

#include <algorithm>

namespace megatron::models {

std::string ModelFacts::summary() const {
  std::string text = fmt::format(
      "{} layers{}, hidden {}", num_layers,
      prediction.depths == 0 ? ""
                             : fmt::format(" and {} for multi-token prediction", prediction.depths),
      hidden_size);
  if (feed_forward) text += fmt::format(", feed-forward {}", feed_forward->width);
  if (experts) {
    const auto layers = std::ranges::count(experts->layers, true);
    text += fmt::format(", {} experts of {}{}, {} per token", experts->count, experts->each.width,
                        layers == num_layers ? "" : fmt::format(" in {} layers", layers),
                        experts->chosen);
    if (experts->shared_width > 0)
      text += fmt::format(" and a shared one of {}", experts->shared_width);
  }
  if (attention)
    text += attention->latent ? fmt::format(", {} heads of {} (values of {}) from latents of {}",
                                            attention->heads, attention->head_size,
                                            attention->latent->value_size, attention->latent->rank)
                              : fmt::format(", {} heads ({} key heads) of {}", attention->heads,
                                            attention->key_heads, attention->head_size);
  if (state_space)
    text += fmt::format(", state spaces of {} heads of {} in {} groups with {} states",
                        state_space->heads, state_space->head_size, state_space->groups,
                        state_space->states);
  if (shared_blocks > 0)
    text += fmt::format(", {} shared block{} used {} times", shared_blocks,
                        shared_blocks == 1 ? "" : "s", shared_uses);
  text += fmt::format(", vocabulary {}, {} positions", vocab_size, context_length);
  if (positions != Positions::none)
    text += positions == Positions::rotary ? ", rotary" : ", learned positions";
  if (headless) return text + ", no head";
  if (score_labels > 0)
    return text + fmt::format(", a head of {} scores{}", score_labels,
                              multi_label ? ", several of which apply to a text" : "");
  return text + (tied ? ", tied" : ", untied");
}

}  // namespace megatron::models
