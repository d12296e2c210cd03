#include "models/hybrid_pattern.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace megatron::models {
namespace {

constexpr char kBar = '|', kStateSpace = 'M', kAttention = '*', kMlp = '-';
constexpr size_t kMostLetters = 1 << 16;

// The letters of Megatron-LM, and which of them are supported.
struct Letter {
  char letter;
  bool supported;
  std::string_view what;
};
constexpr Letter kLetters[] = {{'M', true, "a state space"},
                               {'*', true, "attention"},
                               {'+', true, "multi-latent attention"},
                               {'-', true, "an MLP"},
                               {'E', true, "experts"},
                               {'G', false, "a gated delta net"},
                               {'D', false, "sparse attention"},
                               {'/', false, "the layers of multi-token prediction"}};

// The modules of Megatron-LM's hybrid models, and what a script may take from them.
constexpr std::string_view kStackModules[] = {"megatron.core.models.mamba.mamba_layer_specs",
                                              "megatron.core.models.hybrid.hybrid_layer_specs"};
constexpr std::string_view kStacks[] = {"mamba_stack_spec", "mamba_inference_stack_spec",
                                        "hybrid_stack_spec", "hybrid_inference_stack_spec"};
constexpr std::string_view kLocalLayers = "local";

// Replaces a state space by `letter` after every `between` of them on average.
void spread(char letter, double between, std::string& letters) {
  double left = between;
  for (char& c : letters) {
    if (c != kStateSpace) continue;
    if (left < 0.5) {
      c = letter;
      left += between;
    } else {
      left -= 1;
    }
  }
}

}  // namespace

std::string hybrid_letters(std::string_view pattern) {
  std::string letters;
  for (const char c : pattern) {
    if (c == kBar) continue;
    const auto known = std::ranges::find(kLetters, c, &Letter::letter);
    MG_CHECK(known != std::end(kLetters) && known->supported,
             "--hybrid-layer-pattern '{}' has '{}'{}, which is not supported; supported are M "
             "(state space), * (attention), + (multi-latent attention), - (MLP), E (experts) and | "
             "between pipeline stages",
             pattern, c, known == std::end(kLetters) ? "" : fmt::format(", {}", known->what));
    letters += c;
  }
  MG_CHECK(!letters.empty() && letters.size() <= kMostLetters,
           "--hybrid-layer-pattern '{}' has {} layers; give a letter for each of 1 to {}, such as "
           "M-M*-",
           pattern.substr(0, 64), letters.size(), kMostLetters);
  MG_CHECK(letters.find('+') == letters.npos || letters.find('*') == letters.npos,
           "--hybrid-layer-pattern '{}' has both attention (*) and multi-latent attention (+); "
           "use only one of them",
           pattern);
  return letters;
}

std::string hybrid_layout(std::string_view pattern) {
  if (pattern.find(kBar) == pattern.npos) return {};
  std::string layout = "E";
  for (const char c : pattern) layout += c == kBar ? kBar : 't';
  return layout + "L";
}

std::string allocated_layers(int64_t layers, double attention_ratio, double mlp_ratio) {
  MG_CHECK(attention_ratio >= 0 && mlp_ratio >= 0 && attention_ratio + mlp_ratio <= 1,
           "--hybrid-attention-ratio is {} and --hybrid-mlp-ratio is {}; they are shares of the "
           "layers: from 0 on, and 1 at most together",
           attention_ratio, mlp_ratio);
  const auto count = static_cast<double>(layers);
  // Rounds to the nearest integer, ties to even, as Python's round() does.
  const double attention = std::nearbyint(count * attention_ratio),
               mlps = std::nearbyint(count * mlp_ratio);
  std::string letters(static_cast<size_t>(layers), kStateSpace);
  spread(kAttention, (count - attention) / (attention + 1), letters);
  if (mlps > 0) spread(kMlp, (count - attention - mlps) / mlps, letters);
  return letters;
}

bool names_hybrid_stack(const std::vector<std::string>& spec) {
  if (spec.empty() || (spec.size() == 1 && spec[0] == kLocalLayers)) return false;
  MG_CHECK(spec.size() == 2 &&
               std::ranges::find(kStackModules, spec[0]) != std::end(kStackModules) &&
               std::ranges::find(kStacks, spec[1]) != std::end(kStacks),
           "--spec {} names Python code, and there is no Python here; known are {} with one of {}, "
           "and local. Leave it out, and describe the model by its shape flags or by --model DIR",
           fmt::join(spec, " "), fmt::join(kStackModules, " or "), fmt::join(kStacks, ", "));
  return true;
}

}  // namespace megatron::models
