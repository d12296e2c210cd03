// Helpers for tests of constrained output: matchers over bytes, random texts, random schemas and an
// independent validator.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "inference/constraint/matcher.h"
#include "tokenizers/plain_codecs.h"
#include "tokenizers/tokenizer.h"

namespace megatron::inference {

// A vocabulary of the 256 single-byte tokens.
inline const std::shared_ptr<const TokenBytes>& byte_tokens() {
  static const auto tokens =
      std::make_shared<const TokenBytes>(tokenizers::Tokenizer(tokenizers::make_byte_codec(256)));
  return tokens;
}

// Reads a text byte by byte. Returns 1 if the grammar has this text, 0 if it has longer texts that
// begin so, and -1 if it has no text that begins so.
inline int reads(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Matcher matcher(grammar, byte_tokens());
  std::vector<uint64_t> mask(byte_tokens()->words());
  bool complete = false;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    matcher.allowed(mask, complete);
    if ((mask[byte / 64] >> (byte % 64) & 1) == 0) return -1;
    matcher.accept(byte);
  }
  matcher.allowed(mask, complete);
  return complete ? 1 : 0;
}

inline bool is_set(const std::vector<uint64_t>& mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
}

inline std::string text_of(const TokenBytes& tokens, const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += tokens.bytes(id);
  return text;
}

// Draws allowed tokens until the text ends. After `patience` tokens it prefers those that close
// open brackets and strings. Returns nothing if the text does not end soon after that, or if no
// token is allowed although the text may not end.
class RandomText {
 public:
  RandomText(std::shared_ptr<const TokenBytes> tokens, std::mt19937_64& random)
      : tokens_(std::move(tokens)), random_(random), mask_(tokens_->words()), bytes_(256) {
    for (int32_t id = 0; id < tokens_->size(); ++id) {
      if (tokens_->bytes(id).size() == 1)
        bytes_[static_cast<uint8_t>(tokens_->bytes(id)[0])].push_back(id);
    }
  }

  std::optional<std::vector<int32_t>> draw(Matcher matcher, int patience) {
    std::vector<int32_t> ids;
    for (int i = 0; i < patience + 20'000; ++i) {
      bool complete = false;
      matcher.allowed(mask_, complete);
      if (complete && (matcher.must_end() || i >= patience || random_() % 4 == 0)) return ids;
      const int32_t id = i < patience ? any() : closing();
      if (id < 0) return std::nullopt;
      matcher.accept(id);
      ids.push_back(id);
    }
    return std::nullopt;
  }

 private:
  int32_t any() {
    size_t count = 0;
    for (const uint64_t word : mask_) count += static_cast<size_t>(std::popcount(word));
    if (count == 0) return -1;
    size_t rank = random_() % count;
    for (size_t w = 0;; ++w) {
      uint64_t word = mask_[w];
      const auto here = static_cast<size_t>(std::popcount(word));
      if (rank >= here) {
        rank -= here;
        continue;
      }
      for (; rank > 0; --rank) word &= word - 1;
      return static_cast<int32_t>(64 * w) + std::countr_zero(word);
    }
  }

  // Returns a one-byte token: the quote, usually one that closes something or is short, or another.
  int32_t closing() {
    const int32_t quote = of_bytes("\"");
    if (quote >= 0) return quote;
    const int32_t closes = random_() % 8 == 0 ? -1 : of_bytes("]}n10");
    if (closes >= 0) return closes;
    std::vector<int32_t> others;
    for (uint8_t byte = 0; byte < 0x80; ++byte) {
      for (const int32_t id : bytes_[byte]) {
        if (is_set(mask_, id)) others.push_back(id);
      }
    }
    return others.empty() ? any() : others[random_() % others.size()];
  }

  // The first of these tokens that is allowed.
  int32_t of_bytes(std::string_view bytes) const {
    for (const char byte : bytes) {
      for (const int32_t id : bytes_[static_cast<uint8_t>(byte)]) {
        if (is_set(mask_, id)) return id;
      }
    }
    return -1;
  }

  std::shared_ptr<const TokenBytes> tokens_;
  std::mt19937_64& random_;
  std::vector<uint64_t> mask_;
  std::vector<std::vector<int32_t>> bytes_;  // one-byte tokens
};

}  // namespace megatron::inference
