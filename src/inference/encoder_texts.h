// The texts that the encoder of an encoder-decoder has read for running requests, and the pages
// with the keys and values that cross attention sees of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "inference/block_cache.h"
#include "inference/request.h"

namespace megatron::inference {

struct EncoderText {
  std::vector<int32_t> tokens;
  std::shared_ptr<const Adapter> adapter;  // of the requests; null: none
  uint64_t number = 0;                     // from 1; no other text ever has it
  SequenceBlocks blocks;                   // its pages, once they are reserved
  bool read = false;                       // the pages hold all of it

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t unread() const { return read ? 0 : length(); }
};

// Sequences with equal texts and the same adapter share one, which is read once. Its pages are free
// when the last of them lets it go; the text is then read again for the next that has it.
class EncoderTexts {
 public:
  // options: of a single group. Outlives the texts.
  explicit EncoderTexts(const BlockCacheOptions& options) : cache_(options) {}
  EncoderTexts(const EncoderTexts&) = delete;
  EncoderTexts& operator=(const EncoderTexts&) = delete;

  // Returns the text of a request's prompt, new if no sequence holds it.
  std::shared_ptr<EncoderText> hold(const Request& request);
  // Allocates the text's pages unless it has them. Returns false, and takes none, if too few are
  // free.
  bool reserve(EncoderText& text);
  bool has_room(const EncoderText& text) const;
  // All texts have to be read again, since the weights have changed.
  void forget();

  int64_t pages() const { return cache_.pages(); }
  int64_t used() const { return cache_.used(); }  // pages of texts

 private:
  void release(EncoderText* text);

  BlockCache cache_;
  std::unordered_multimap<size_t, std::weak_ptr<EncoderText>> held_;  // by a hash of the tokens
  uint64_t last_ = 0;                                                 // number of a text
};

}  // namespace megatron::inference
