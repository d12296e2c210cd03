#include "inference/encoder_texts.h"

#include <algorithm>
#include <functional>
#include <string_view>

namespace megatron::inference {
namespace {

size_t hash_of(std::span<const int32_t> tokens) {
  return std::hash<std::string_view>()(
      {reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
}

}  // namespace

std::shared_ptr<EncoderText> EncoderTexts::hold(const Request& request) {
  const size_t hash = hash_of(request.prompt);
  const auto [begin, end] = held_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    auto text = at->second.lock();
    if (text != nullptr && text->adapter == request.adapter && text->tokens == request.prompt)
      return text;
  }
  std::shared_ptr<EncoderText> text(new EncoderText{.tokens = request.prompt,
                                                    .adapter = request.adapter,
                                                    .number = ++last_,
                                                    .blocks = {},
                                                    .read = false},
                                    [this](EncoderText* released) { release(released); });
  held_.emplace(hash, text);
  return text;
}

void EncoderTexts::release(EncoderText* text) {
  const auto [begin, end] = held_.equal_range(hash_of(text->tokens));
  held_.erase(std::find_if(begin, end, [](const auto& held) { return held.second.expired(); }));
  cache_.release(text->blocks);
  delete text;
}

bool EncoderTexts::reserve(EncoderText& text) { return cache_.extend(text.blocks, text.length()); }

bool EncoderTexts::has_room(const EncoderText& text) const {
  return cache_.has_room(text.blocks, text.length(), text.length());
}

void EncoderTexts::forget() {
  for (const auto& [hash, held] : held_)
    if (const auto text = held.lock()) text->read = false;
}

}  // namespace megatron::inference
