#include "inference/constraint/characters.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/utf8.h"

namespace megatron::inference {
namespace {

using tokenizers::CharacterSet;

struct ByteRange {
  uint8_t first, last;
  auto operator<=>(const ByteRange&) const = default;
};
using Sequence = std::vector<ByteRange>;  // one range per byte

std::string utf8_of(char32_t c) {
  std::string bytes;
  append_character(c, bytes);
  return bytes;
}

// Splits [first, last], all of one length in UTF-8, where the bytes after the first differing one
// do not cover all of their values.
void add_sequences(char32_t first, char32_t last, std::vector<Sequence>& out) {
  const size_t length = utf8_of(first).size();
  for (size_t behind = length - 1; behind > 0; --behind) {
    const char32_t low = (char32_t{1} << (6 * behind)) - 1;  // bits of the trailing bytes
    if ((first & ~low) == (last & ~low)) continue;
    if ((first & low) != 0) {
      add_sequences(first, first | low, out);
      return add_sequences((first | low) + 1, last, out);
    }
    if ((last & low) != low) {
      add_sequences(first, (last & ~low) - 1, out);
      return add_sequences(last & ~low, last, out);
    }
    break;
  }
  const std::string a = utf8_of(first), b = utf8_of(last);
  Sequence sequence;
  for (size_t i = 0; i < length; ++i)
    sequence.push_back({static_cast<uint8_t>(a[i]), static_cast<uint8_t>(b[i])});
  out.push_back(std::move(sequence));
}

void add_escape(char32_t c, std::vector<Sequence>& out) {
  static constexpr std::pair<char32_t, char> kShort[] = {
      {'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};
  std::string text = fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  for (const auto& [character, letter] : kShort) {
    if (c == character) text = {'\\', letter};
  }
  Sequence sequence;
  for (const char byte : text)
    sequence.push_back({static_cast<uint8_t>(byte), static_cast<uint8_t>(byte)});
  out.push_back(std::move(sequence));
}

std::vector<Sequence> sequences_of(CharacterSet set, Spelling spelling) {
  std::vector<Sequence> out;
  CharacterSet unusual(0xd800, 0xdfff);
  if (spelling == Spelling::json) {
    unusual.add(0, 0x1f);
    unusual.add('"', '"');
    unusual.add('\\', '\\');
    for (const auto [first, last] : unusual.ranges()) {
      for (char32_t c = first; c <= last && c < 0x80; ++c) {
        if (set.contains(c)) add_escape(c, out);
      }
    }
  }
  unusual.complement();
  set.intersect(unusual);
  for (const auto [first, last] : set.ranges()) {
    char32_t begin = first;
    for (const char32_t end : {0x7fu, 0x7ffu, 0xffffu, 0x10ffffu}) {
      if (begin > end || begin > last) continue;
      add_sequences(begin, std::min(last, end), out);
      begin = end + 1;
    }
  }
  std::ranges::sort(out);
  return out;
}

// States of rests of sequences; equal rests share one.
class Tails {
 public:
  Tails(Network& network, int32_t to) : network_(network), to_(to) {}

  // sequences [first, last) share their first `depth` bytes.
  void add(int32_t from, const Sequence* first, const Sequence* last, size_t depth) {
    while (first != last) {
      const ByteRange lead = (*first)[depth];
      const Sequence* end = first;
      std::vector<Sequence> rests;
      bool ends = false;
      for (; end != last && (*end)[depth] == lead; ++end) {
        rests.emplace_back(end->begin() + static_cast<std::ptrdiff_t>(depth) + 1, end->end());
        ends |= rests.back().empty();
      }
      network_.add_bytes(from, ends ? to_ : state_of(rests, first, end, depth + 1), lead.first,
                         lead.last);
      first = end;
    }
  }

 private:
  int32_t state_of(const std::vector<Sequence>& rests, const Sequence* first, const Sequence* last,
                   size_t depth) {
    const auto found = known_.find(rests);
    if (found != known_.end()) return found->second;
    const int32_t state = network_.add_state();
    known_.emplace(rests, state);
    add(state, first, last, depth);
    return state;
  }

  Network& network_;
  int32_t to_;
  std::map<std::vector<Sequence>, int32_t> known_;
};

}  // namespace

void add_characters(Network& network, int32_t from, int32_t to, const CharacterSet& set,
                    Spelling spelling) {
  const std::vector<Sequence> sequences = sequences_of(set, spelling);
  Tails(network, to).add(from, sequences.data(), sequences.data() + sequences.size(), 0);
}

}  // namespace megatron::inference
