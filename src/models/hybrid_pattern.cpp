#include "models/hybrid_pattern.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::models {
namespace {

constexpr char kBar = '|';
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
           "--hybrid-layer-pattern '{}' has attention (*) and multi-latent attention (+); a model "
           "has one of them",
           pattern);
  return letters;
}

std::string hybrid_layout(std::string_view pattern) {
  if (pattern.find(kBar) == pattern.npos) return {};
  std::string layout = "E";
  for (const char c : pattern) layout += c == kBar ? kBar : 't';
  return layout + "L";
}

}  // namespace megatron::models
