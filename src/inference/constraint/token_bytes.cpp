#include "inference/constraint/token_bytes.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "tokenizers/byte_level.h"

namespace megatron::inference {

using tokenizers::Joining;

TokenBytes::TokenBytes(const tokenizers::Tokenizer& tokenizer)
    : joining_(tokenizer.codec().joining()) {
  MG_CHECK(joining_ != Joining::by_neighbors,
           "a schema or pattern cannot be enforced with this tokenizer, because the text of a "
           "token depends on its neighbors (as in WordPiece); byte-level BPE, SentencePiece and "
           "TikToken are supported");
  const tokenizers::Codec& codec = tokenizer.codec();
  const auto unknown = codec.role("unk");
  for (int32_t id = 0; id < codec.size(); ++id) {
    begins_.push_back(static_cast<uint32_t>(texts_.size()));
    if (codec.contains(id) && !codec.is_special(id) && id != unknown)
      codec.append_bytes(id, texts_);
  }
  begins_.push_back(static_cast<uint32_t>(texts_.size()));
  build_trie();
  find_not_first(codec);
}

std::string_view TokenBytes::bytes(int32_t id) const {
  if (id < 0 || id >= size()) return {};
  const size_t begin = begins_[static_cast<size_t>(id)], end = begins_[static_cast<size_t>(id) + 1];
  return std::string_view(texts_).substr(begin, end - begin);
}

void TokenBytes::build_trie() {
  std::vector<int32_t> order(static_cast<size_t>(size()));
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int32_t id) { return bytes(id).empty(); });
  std::ranges::sort(order, [&](int32_t a, int32_t b) {
    const int c = bytes(a).compare(bytes(b));
    return c != 0 ? c < 0 : a < b;
  });
  std::vector<uint32_t> open;  // nodes from the root to the last one
  const auto close = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back())
      nodes_[open.back()].end = static_cast<uint32_t>(nodes_.size());
  };
  std::string_view last;
  for (const int32_t id : order) {
    const std::string_view text = bytes(id);
    const auto same = static_cast<size_t>(std::ranges::mismatch(last, text).in1 - last.begin());
    close(same);
    for (size_t i = same; i < text.size(); ++i) {
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<uint32_t>(i) + 1, static_cast<uint32_t>(tokens_.size()),
                        static_cast<uint8_t>(text[i])});
    }
    tokens_.push_back(id);
    longest_ = std::max(longest_, static_cast<uint32_t>(text.size()));
    if (text.size() == 1) single_.set(static_cast<uint8_t>(text[0]));
    last = text;
  }
  close(0);
  nodes_.push_back(
      {static_cast<uint32_t>(nodes_.size()) + 1, 0, static_cast<uint32_t>(tokens_.size()), 0});
}

void TokenBytes::find_not_first(const tokenizers::Codec& codec) {
  for (int32_t id = 0; id < size(); ++id) {
    const std::string_view text = bytes(id);
    if (text.empty()) continue;
    bool hides = false;
    if (joining_ == Joining::leading_spaces) hides = text.starts_with("  ");
    if (joining_ == Joining::first_token_spaces) hides = text.find(' ', 1) != text.npos;
    // Some decoders keep a leading space that is spelt as a byte, others drop it.
    if (joining_ != Joining::plain && text == " ")
      hides = tokenizers::byte_of_token(codec.token(id)) >= 0;
    if (hides) not_first_.push_back(id);
  }
}

}  // namespace megatron::inference
