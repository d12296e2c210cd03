#include "tokenizers/vocabulary.h"

#include <functional>

#include "base/error.h"

namespace megatron::tokenizers {

std::string_view Vocabulary::text(int32_t id) const {
  const Token& token = tokens_[static_cast<size_t>(id)];
  return std::string_view(texts_).substr(token.begin, token.size);
}

size_t Vocabulary::slot_of(std::string_view text) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = std::hash<std::string_view>()(text) & mask;
  while (slots_[slot] >= 0 && this->text(slots_[slot]) != text) slot = (slot + 1) & mask;
  return slot;
}

void Vocabulary::grow() {
  slots_.assign(slots_.empty() ? 1024 : slots_.size() * 2, -1);
  for (int32_t id = 0; id < size(); ++id) {
    if (contains(id)) slots_[slot_of(text(id))] = id;
  }
}

void Vocabulary::add(std::string_view text, int64_t id) {
  MG_CHECK(id >= 0 && id <= kMaximumId, "token '{}' has id {}; ids are 0 to {}", text, id,
           kMaximumId);
  MG_CHECK(texts_.size() + text.size() < (uint64_t{1} << 31),
           "the vocabulary's texts take over 2 GB");
  if (slots_.size() < 2 * (static_cast<size_t>(count_) + 1)) grow();
  MG_CHECK(!contains(id), "id {} belongs to two tokens: '{}' and '{}'", id,
           this->text(static_cast<int32_t>(id)), text);
  const size_t slot = slot_of(text);
  MG_CHECK(slots_[slot] < 0, "token '{}' has two ids: {} and {}", text, slots_[slot], id);
  if (id >= size()) tokens_.resize(static_cast<size_t>(id) + 1);
  Token& token = tokens_[static_cast<size_t>(id)];
  token.begin = static_cast<uint32_t>(texts_.size());
  token.size = static_cast<uint32_t>(text.size()) & 0x7fffffffu;
  token.used = 1;
  texts_.append(text);
  slots_[slot] = static_cast<int32_t>(id);
  ++count_;
}

std::optional<int32_t> Vocabulary::find(std::string_view text) const {
  if (slots_.empty()) return std::nullopt;
  const int32_t id = slots_[slot_of(text)];
  if (id < 0) return std::nullopt;
  return id;
}

}  // namespace megatron::tokenizers
