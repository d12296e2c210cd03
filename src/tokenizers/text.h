// A text that passes through normalizers and pre-tokenizers: its bytes and, if offsets are
// requested, the bytes of the input that each of them represents.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::tokenizers {

struct Range {
  uint32_t begin = 0, end = 0;
  bool operator==(const Range&) const = default;
};

// Part of a text; valid while the text lives.
struct TextView {
  std::string_view bytes;          // valid UTF-8
  const Range* origins = nullptr;  // range of input bytes for each byte; may be null
  // Number of bytes that represent the very beginning of the input, up to a character's start: 1 in
  // a text as it was read, 0 in one that starts after its first character.
  size_t head = 1;

  TextView part(size_t begin, size_t end) const {
    return {bytes.substr(begin, end - begin), origins ? origins + begin : nullptr,
            begin < head ? head - begin : 0};
  }
  // True if this text begins the input. It must not be empty.
  bool begins_input() const { return head > 0; }
  // The range of input that bytes [begin, end) represent: from the first one's beginning to the
  // last one's end.
  Range origin(size_t begin, size_t end) const {
    return {origins[begin].begin, origins[end - 1].end};
  }
};

// One origin per byte: the range of the whole character that the byte belongs to. `base`: offset of
// `bytes` in the input.
std::vector<Range> character_ranges(std::string_view bytes, uint32_t base);

// A copy-on-write text.
class Text {
 public:
  explicit Text(TextView view)
      : view_(view),
        start_(view.origins && !view.bytes.empty() ? view.origins[0].begin : 0),
        begins_input_(view.begins_input()) {}
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;

  TextView view() const { return view_; }
  std::string_view bytes() const { return view_.bytes; }
  bool aligned() const { return view_.origins != nullptr; }

 private:
  friend class TextEdit;
  TextView view_;
  uint32_t start_;     // start in the input
  bool begins_input_;  // at the start
  std::string bytes_;
  std::vector<Range> origins_;
};

// Rewrites a text from front to back. Origins follow Hugging Face's tokenizers, so that offsets are
// equal: a character that replaces another takes its origin; an inserted one takes that of the
// character before the reading position (none at the beginning of the text).
class TextEdit {
 public:
  explicit TextEdit(Text& text);
  ~TextEdit();  // discards unread text and installs the new text
  TextEdit(const TextEdit&) = delete;
  TextEdit& operator=(const TextEdit&) = delete;

  bool at_end() const { return at_ == text_.bytes().size(); }
  size_t position() const { return at_; }  // bytes of the old text that have been read
  std::string_view remaining() const { return text_.bytes().substr(at_); }

  void keep(size_t bytes);  // copies whole characters
  void keep_all() { keep(text_.bytes().size() - at_); }
  void skip(size_t bytes) { at_ += bytes; }  // drops whole characters
  void insert(std::string_view characters);
  // The first of `characters` replaces the next character, the others are inserted after it. With
  // no characters, the next one is dropped.
  void replace(std::string_view characters);
  // Same arguments as Hugging Face's transform: a positive change inserts the character; otherwise
  // it replaces the next one, and -change characters after that are dropped.
  void write(char32_t character, int change);

 private:
  void append(std::string_view bytes, Range origin, bool in_head);
  void skip_character();

  Text& text_;
  size_t at_ = 0;
  size_t head_ = 0;
  std::string bytes_;
  std::vector<Range> origins_;
};

// Puts `prefix` before a text that is not empty; its origin is the first character's.
void prepend(Text& text, std::string_view prefix);

}  // namespace megatron::tokenizers
