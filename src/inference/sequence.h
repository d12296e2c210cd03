// A running request: the tokens read so far and their location in the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "inference/beam_search.h"
#include "inference/block_cache.h"
#include "inference/constraint/matcher.h"
#include "inference/encoder_texts.h"
#include "inference/request.h"

namespace megatron::inference {

using RequestId = uint64_t;  // numbers the requests of one engine in order of submission, from 1

// Priority of a request: the lowest value is served first, ties by the order of submission.
using Due = std::pair<int64_t, RequestId>;

struct Sequence;

// The running beams of a request, each read by a sequence of its own, which share the pages of what
// they have in common. They exist while the prompt is in pages; before that, and after a
// preemption, the request's own sequence reads the prompt, and the beams then continue from there.
struct BeamGroup {
  explicit BeamGroup(BeamSearch of_request) : search(std::move(of_request)) {}

  BeamSearch search;
  std::vector<std::unique_ptr<Sequence>> sequences;
  // The next tokens of each beam that has been read, and the number of the others, for which the
  // search waits.
  std::vector<std::vector<Draw>> next = std::vector<std::vector<Draw>>(1);
  size_t missing = 1;
  std::string error;      // the reason why a beam has no next token
  bool searched = false;  // the search has made a step that `sequences` do not follow yet
  int64_t given = 0;      // tokens that have been returned
};

struct Sequence {
  RequestId id = 0;
  Request request;
  Due due;
  std::vector<int32_t> tokens;  // prompt and text so far; of an encoder-decoder, the decoder's
  int64_t given = 0;            // leading tokens that are not generated
  int64_t longest = 0;          // maximum length of tokens
  int64_t read = 0;             // number of leading tokens whose keys and values are in pages
  int64_t context_class = 0;    // context class of those
  int64_t scored = 0;           // prompt log-probabilities that have been reported
  int64_t routed = 0;           // tokens whose experts have been reported
  bool begun = false;
  uint64_t turn = 0;  // number of its last pass
  std::optional<Matcher> matcher;
  SequenceBlocks blocks;
  // The encoder's text, while the sequence runs; null: the model has no encoder.
  std::shared_ptr<EncoderText> encoder;
  std::unique_ptr<BeamGroup> beams;  // of a request with beams
  Sequence* whole = nullptr;         // of a beam: its request's sequence
  size_t beam = 0;                   // and its number

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t unread() const { return length() - read; }
  // True if the next pass reads only the token that was generated last.
  bool decodes() const { return unread() == 1 && (encoder == nullptr || encoder->read); }
  // Tokens of the longest text that is read after this one.
  int64_t context() const { return length() + (beams == nullptr ? 0 : beams->search.length()); }
  // The sequence of its request: this one, unless it reads a beam.
  const Sequence& of_request() const { return whole == nullptr ? *this : *whole; }
  Sequence& of_request() { return whole == nullptr ? *this : *whole; }
  // Number of requested log-probabilities of the prompt.
  int64_t scores() const { return request.logprobs < 0 ? 0 : given - 1; }
};

}  // namespace megatron::inference
