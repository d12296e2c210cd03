#include "tokenizers/transformers/added_token_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace megatron::tokenizers {

int64_t AddedTokenList::new_id(const AddedToken& token) const {
  if (const auto known = vocabulary_.find(token.content)) return *known;
  const int64_t next = std::max<int64_t>(vocabulary_.count(), largest_ + 1);
  if (!vocabulary_.contains(next)) return next;
  const bool is_free = token.id >= vocabulary_.size() && token.id > largest_;
  MG_CHECK(is_free,
           "the vocabulary has gaps: the added token '{}' would get the id {}, which belongs to "
           "'{}'; give it an id in tokenizer.json's added_tokens",
           token.content, next, vocabulary_.text(static_cast<int32_t>(next)));
  return token.id;
}

void AddedTokenList::add(AddedToken token) {
  if (token.content.empty()) return;
  const auto [place, is_new] = places_.emplace(token.content, tokens_.size());
  const int64_t given = token.id;
  if (!is_new) {
    AddedToken& before = tokens_[place->second];
    token.id = before.id;
    token.special = token.special || before.special;
    before = std::move(token);
  } else {
    token.id = new_id(token);
    largest_ = std::max(largest_, token.id);
    tokens_.push_back(std::move(token));
  }
  const AddedToken& kept = tokens_[place->second];
  if (given < 0 || given == kept.id) return;
  if (moved_.empty()) moved_ = fmt::format("'{}' has {}, not {}", kept.content, kept.id, given);
  all_moved_.insert(kept.content);
}

std::vector<AddedToken> AddedTokenList::take() {
  if (!moved_.empty()) {
    log::warning(
        "Hugging Face numbers added tokens after the vocabulary and ignores the ids in the file: "
        "{}{}",
        moved_, all_moved_.size() > 1 ? fmt::format(", and {} more", all_moved_.size() - 1) : "");
  }
  std::ranges::stable_sort(tokens_, {}, &AddedToken::id);
  return std::move(tokens_);
}

}  // namespace megatron::tokenizers
