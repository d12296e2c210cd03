// A data set of texts and what becomes of them: an encoder reads the one, a decoder writes the
// other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/thread_pool.h"
#include "corpus/chat/example_dataset.h"
#include "corpus/chat/sources.h"
#include "data/t5_tokens.h"
#include "tokenizers/text_ends.h"

namespace megatron::corpus {

// How pairs of texts become tokens.
struct TextPairReading {
  int64_t encoder_length = 0, decoder_length = 0;  // of rows, in tokens
  std::string input_key, target_key;               // "": text_pair_of() finds them
  bool keep_start = true;                          // which part of an input that is cut stays
  bool ends = true;                      // inputs have the tokenizer's tokens around a text
  tokenizers::TextEnds input_ends = {};  // these tokens, which stay if an input is cut
  data::DecoderTokens around = {};       // of targets
};

struct InputAndTarget {
  std::string input, target;
};
// The texts under the given keys; without them under the first of these pairs that the record has:
// input and target, inputs and targets, prompt and completion. Throws Error naming the place: no
// such key, no text.
InputAndTarget text_pair_of(const Json& record, const std::string& place,
                            const TextPairReading& reading);

// The tokens of a pair: what the encoder reads; and the target's own with the end after them,
// which are the decoder's labels. It reads the begin and all of them but the end.
struct TextPairTokens {
  std::vector<int32_t> input, target;
  bool cut = false;  // the input is longer than the encoder reads
};
// Throws Error naming the place for a target that the decoder has no room for, and for an input
// without tokens.
TextPairTokens text_pair_tokens(const InputAndTarget& pair, const tokenizers::Tokenizer& tokenizer,
                                const TextPairReading& reading, const std::string& place);

// Tokens of many pairs, one after the other.
struct TextPairStore {
  std::vector<int32_t> inputs, targets;          // TextPairTokens
  std::vector<int64_t> input_ends, target_ends;  // of each pair in them
  Sources sources = {};
  int64_t cut = 0;  // inputs longer than the limit
  TextPairReading reading = {};

  int64_t size() const { return std::ssize(input_ends); }
  std::span<const int32_t> input(int64_t pair) const { return part(inputs, input_ends, pair); }
  std::span<const int32_t> target(int64_t pair) const { return part(targets, target_ends, pair); }

 private:
  static std::span<const int32_t> part(const std::vector<int32_t>& all,
                                       const std::vector<int64_t>& ends, int64_t pair) {
    const auto at = static_cast<size_t>(pair);
    const auto begin = static_cast<size_t>(pair == 0 ? 0 : ends[at - 1]);
    return std::span(all).subspan(begin, static_cast<size_t>(ends[at]) - begin);
  }
};

// Reads the files (chat_reader.h), in their order, on the pool's threads. Shows its progress under
// `label`. Throws Error naming file and line of a bad record.
TextPairStore read_text_pairs(const std::vector<std::string>& paths,
                              const tokenizers::Tokenizer& tokenizer,
                              const TextPairReading& reading, ThreadPool& pool,
                              const std::string& label);

// Rows with several pairs, in both of whose texts they fit: of 1000 consecutive pairs, those that
// fill the largest share of a text come first, and each goes into the row that it leaves the least
// room in. parts of a row: pairs by number, and the lengths of their targets.
std::vector<PackedRow> pack_text_pairs(std::span<const int64_t> inputs,
                                       std::span<const int64_t> targets, int64_t encoder_length,
                                       int64_t decoder_length);

// The loss mask is 1 at targets and their ends. Pairs of a row do not attend to each other, neither
// in their texts nor across them; padding of the decoder sees the first token of the encoder's
// text.
class TextPairDataset final : public ExampleDataset {
 public:
  // examples: which pairs of the store belong to the set. packing absent: a row for each. The other
  // arguments are those of PackedRows, and the padding's token.
  TextPairDataset(std::shared_ptr<const TextPairStore> store, std::vector<int64_t> examples,
                  std::optional<Packing> packing, int64_t encoder_length, int32_t padding,
                  std::optional<int64_t> seed, std::optional<int64_t> samples);

  std::string length_text() const override;
  double filled() const override;

 private:
  void fill(const PackedRow& row, data::Sample& sample) const override;

  std::shared_ptr<const TextPairStore> store_;
  int32_t padding_;
};

}  // namespace megatron::corpus
