#include "tokenizers/text.h"

#include <algorithm>

#include "base/utf8.h"

namespace megatron::tokenizers {

std::vector<Range> character_ranges(std::string_view bytes, uint32_t base) {
  std::vector<Range> ranges(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const auto size = static_cast<size_t>(character_size(bytes[i]));
    const Range whole{base + static_cast<uint32_t>(i), base + static_cast<uint32_t>(i + size)};
    for (size_t k = 0; k < size; ++k) ranges[i + k] = whole;
    i += size;
  }
  return ranges;
}

TextEdit::TextEdit(Text& text) : text_(text) {
  bytes_.reserve(text.bytes().size() + 16);
  if (text.aligned()) origins_.reserve(text.bytes().size() + 16);
}

TextEdit::~TextEdit() {
  const bool aligned = text_.aligned();
  text_.bytes_ = std::move(bytes_);
  text_.view_.bytes = text_.bytes_;
  text_.view_.head = head_;
  if (!aligned) return;
  text_.origins_ = std::move(origins_);
  static constexpr Range kNone;
  text_.view_.origins = text_.origins_.empty() ? &kNone : text_.origins_.data();
}

void TextEdit::append(std::string_view bytes, Range origin, bool in_head) {
  bytes_.append(bytes);
  if (in_head) head_ = bytes_.size();
  if (text_.aligned()) origins_.insert(origins_.end(), bytes.size(), origin);
}

void TextEdit::skip_character() { at_ += static_cast<size_t>(character_size(text_.bytes()[at_])); }

void TextEdit::keep(size_t bytes) {
  const TextView old = text_.view();
  if (bytes > 0 && at_ < old.head) head_ = bytes_.size() + std::min(bytes, old.head - at_);
  bytes_.append(old.bytes.substr(at_, bytes));
  if (old.origins) origins_.insert(origins_.end(), old.origins + at_, old.origins + at_ + bytes);
  at_ += bytes;
}

void TextEdit::insert(std::string_view characters) {
  if (characters.empty()) return;
  const TextView old = text_.view();
  if (at_ == 0) return append(characters, {text_.start_, text_.start_}, text_.begins_input_);
  const bool in_head = at_ < old.head + 4 && character_start_before(old.bytes, at_) < old.head;
  append(characters, old.origins ? old.origins[at_ - 1] : Range{}, in_head);
}

void TextEdit::replace(std::string_view characters) {
  const TextView old = text_.view();
  const auto first =
      characters.empty() ? size_t{0} : static_cast<size_t>(character_size(characters[0]));
  append(characters.substr(0, first), old.origins ? old.origins[at_] : Range{},
         first > 0 && at_ < old.head);
  skip_character();
  insert(characters.substr(first));
}

void TextEdit::write(char32_t character, int change) {
  std::string bytes;
  append_character(character, bytes);
  if (change > 0 || at_end()) return insert(bytes);
  replace(bytes);
  for (; change < 0 && !at_end(); ++change) skip_character();
}

void prepend(Text& text, std::string_view prefix) {
  if (text.bytes().empty()) return;
  const std::string_view first =
      text.bytes().substr(0, static_cast<size_t>(character_size(text.bytes()[0])));
  TextEdit edit(text);
  edit.replace(prefix);
  edit.insert(first);
  edit.keep_all();
}

}  // namespace megatron::tokenizers
