#include "base/utf8.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace megatron {
namespace {

// Content at `position`: a whole character, an invalid part, or the start of a character that the
// end of the text truncates.
struct Part {
  size_t size;
  enum { whole, broken, cut } kind;
};

Part part_at(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[position + i]); };
  const size_t left = text.size() - position;
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, Part::whole};
  if (lead < 0xc2 || lead > 0xf4) return {1, Part::broken};
  const size_t size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  unsigned low = 0x80, high = 0xbf;
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  for (size_t i = 1; i < size; ++i) {
    if (i == left) return {i, Part::cut};
    if (byte(i) < low || byte(i) > high) return {i, Part::broken};
    low = 0x80, high = 0xbf;
  }
  return {size, Part::whole};
}

size_t ascii_prefix(std::string_view text, size_t position) {
  while (text.size() - position >= 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + position, 8);
    if (word & 0x8080808080808080ull) break;
    position += 8;
  }
  while (position < text.size() && static_cast<unsigned char>(text[position]) < 0x80) ++position;
  return position;
}

}  // namespace

bool is_utf8(std::string_view text) { return simdjson::validate_utf8(text.data(), text.size()); }

size_t first_invalid_byte(std::string_view text) {
  if (is_utf8(text)) return text.size();
  size_t position = 0;
  while ((position = ascii_prefix(text, position)) < text.size()) {
    const Part part = part_at(text, position);
    if (part.kind != Part::whole) return position;
    position += part.size;
  }
  return text.size();
}

void check_utf8(std::string_view text, std::string_view what) {
  const size_t bad = first_invalid_byte(text);
  if (bad == text.size()) return;
  fail("{} is not valid UTF-8: byte 0x{:02x} at offset {} of {}; convert it to UTF-8 first", what,
       static_cast<unsigned char>(text[bad]), bad, text.size());
}

size_t append_lossy(std::string_view bytes, bool last, std::string& out) {
  size_t position = 0;
  while (position < bytes.size()) {
    const Part part = part_at(bytes, position);
    if (part.kind == Part::cut && !last) break;
    if (part.kind == Part::whole) {
      out.append(bytes.substr(position, part.size));
    } else {
      out.append("\xef\xbf\xbd");
    }
    position += part.size;
  }
  return position;
}

char32_t character_at(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) -> char32_t {
    return static_cast<unsigned char>(text[position + i]);
  };
  switch (character_size(text[position])) {
    case 1: return byte(0);
    case 2: return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3: return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 |
             (byte(3) & 0x3f);
  }
}

size_t character_start_before(std::string_view text, size_t position) {
  do {
    --position;
  } while (continues_character(text[position]));
  return position;
}

char32_t next_character(std::string_view text, size_t& position) {
  const Part part = part_at(text, position);
  const char32_t c = part.kind == Part::whole ? character_at(text, position) : 0xfffd;
  position += part.size;
  return c;
}

int64_t count_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return !continues_character(c); });
}

size_t character_offset(std::string_view text, int64_t index) {
  size_t at = 0;
  while (at < text.size() && (continues_character(text[at]) || index-- != 0)) ++at;
  return at;
}

std::string_view whole_characters(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && continues_character(text[most])) --most;
  return text.substr(0, most);
}

void append_character(char32_t c, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6), put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12), put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18), put(0x80 | (c >> 12 & 0x3f)), put(0x80 | (c >> 6 & 0x3f)),
        put(0x80 | (c & 0x3f));
  }
}

std::string json_escape(char32_t c) {
  const auto code = static_cast<uint32_t>(c);
  if (code < 0x10000) return fmt::format("\\u{:04x}", code);
  return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((code - 0x10000) >> 10),
                     0xdc00 + (code & 0x3ff));
}

std::optional<char32_t> joined_surrogates(char32_t high, char32_t low) {
  if (high >> 10 != 0xd800 >> 10 || low >> 10 != 0xdc00 >> 10) return std::nullopt;
  return 0x10000 + ((high & 0x3ff) << 10 | (low & 0x3ff));
}

}  // namespace megatron
