#include "tokenizers/added_tokens.h"

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizers/limits.h"
#include "tokenizers/unicode/unicode.h"

namespace megatron::tokenizers {
namespace {

// Returns the index, at least `first`, at which the white space before `end` begins.
size_t spaces_begin(std::string_view text, size_t first, size_t end) {
  while (end > first) {
    const size_t start = character_start_before(text, end);
    if (!is_white_space(character_at(text, start))) break;
    end = start;
  }
  return end;
}

size_t spaces_end(std::string_view text, size_t begin) {
  while (begin < text.size() && is_white_space(character_at(text, begin))) {
    begin += static_cast<size_t>(character_size(text[begin]));
  }
  return begin;
}

bool is_alone(std::string_view text, size_t begin, size_t end) {
  const bool word_before =
      begin > 0 && is_word_character(character_at(text, character_start_before(text, begin)));
  return !word_before && !(end < text.size() && is_word_character(character_at(text, end)));
}

}  // namespace

int32_t AddedTokens::child(int32_t node, unsigned char byte) const {
  int32_t next = nodes_[static_cast<size_t>(node)].child;
  while (next >= 0 && nodes_[static_cast<size_t>(next)].byte != byte)
    next = nodes_[static_cast<size_t>(next)].sibling;
  return next;
}

void AddedTokens::add(std::string_view text, int32_t id, const AddedToken& token) {
  if (text.empty()) return;
  MG_CHECK(text.size() <= kLongestToken, "an added token ('{}...') has {} bytes; the limit is {}",
           text.substr(0, 16), text.size(), kLongestToken);
  starts_[static_cast<unsigned char>(text[0])] = true;
  int32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({byte, -1, nodes_[static_cast<size_t>(node)].child, -1});
      nodes_[static_cast<size_t>(node)].child = next;
    }
    node = next;
  }
  Node& last = nodes_[static_cast<size_t>(node)];
  if (last.entry >= 0) return;
  last.entry = static_cast<int32_t>(entries_.size());
  entries_.push_back({id, token.single_word, token.lstrip, token.rstrip, token.special});
}

int32_t AddedTokens::longest_at(std::string_view text, size_t position, size_t& size) const {
  int32_t node = 0, found = -1;
  for (size_t i = position; i < text.size(); ++i) {
    node = child(node, static_cast<unsigned char>(text[i]));
    if (node < 0) break;
    const int32_t entry = nodes_[static_cast<size_t>(node)].entry;
    if (entry >= 0) found = entry, size = i + 1 - position;
  }
  return found;
}

void AddedTokens::split(TextView view, bool find_special, FunctionRef<void(TextView)> on_text,
                        FunctionRef<void(int32_t id, TextView found)> on_token) const {
  const std::string_view text = view.bytes;
  size_t done = 0;
  const auto flush = [&](size_t end) {
    if (done < end) on_text(view.part(done, end));
  };
  for (size_t position = entries_.empty() ? text.size() : 0; position < text.size();) {
    size_t size = 0;
    if (!starts_[static_cast<unsigned char>(text[position])]) {
      ++position;
      continue;
    }
    const int32_t found = longest_at(text, position, size);
    if (found < 0) {
      ++position;
      continue;
    }
    const Entry& entry = entries_[static_cast<size_t>(found)];
    size_t begin = position, end = position + size;
    position = end;
    if (entry.single_word && !is_alone(text, begin, end)) continue;
    if (entry.special && !find_special) continue;
    if (entry.lstrip) begin = begin > done ? spaces_begin(text, done, begin) : done;
    if (begin >= end) continue;  // white space that the previous token included
    // done: end of the same run
    if (entry.rstrip) end = done >= end ? done : spaces_end(text, end);
    flush(begin);
    on_token(entry.id, view.part(begin, end));
    done = end;
  }
  flush(text.size());
}

}  // namespace megatron::tokenizers
