// Fill in the middle: rearranges documents so that a model of next tokens learns to write the text
// between a prefix and a suffix (Bavarian et al., 2022). A document is cut at two random characters
// and becomes, with the tokens PRE, SUF and MID of InfillingTokens,
//
//   PSM  PRE prefix SUF suffix MID middle
//   SPM  PRE SUF suffix MID prefix middle
//
// With megatron_data_order the draws and tokens are those of Megatron-LM's GPTFIMDataset;
// docs/data.md lists where the default differs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/random_state.h"
#include "tokenizers/tokenizer.h"

namespace megatron::data {

struct InfillingTokens {
  int64_t prefix = -1, middle = -1, suffix = -1;
  int64_t pad = -1;              // fills the end of a sample that became shorter
  int64_t eod = -1;              // ends a document
  std::optional<int64_t> split;  // ends a fragment of a document, such as a file of a repository
};

struct InfillingConfig {
  InfillingTokens tokens;
  double rate = 0.5;      // share of the documents that are rearranged
  double spm_rate = 0.5;  // share of the rearranged ones that are SPM
  // Share of the fragments that are rearranged, in the share `rate` of the documents with a split
  // token. Must be given if there is such a token.
  std::optional<double> fragment_rate;
  std::string no_prefix;            // texts that begin with it stay as they are; "": none
  bool add_special_tokens = false;  // around each part; megatron_data_order only
  bool megatron_data_order = false;
};

// Const members are thread-safe.
class Infilling {
 public:
  // Throws Error naming the flag of a rate outside [0, 1], or two tokens that are the same; without
  // megatron_data_order also for a tokenizer that changes texts (lower case, spaces).
  Infilling(std::shared_ptr<const tokenizers::Tokenizer> tokenizer, InfillingConfig config);

  // Appends a sample's tokens with its documents, which eod separates, rearranged. The result may
  // be longer or shorter than `tokens`.
  void append(std::span<const int64_t> tokens, RandomState& random,
              std::vector<int64_t>& out) const;

  const InfillingConfig& config() const { return config_; }

 private:
  using Ids = std::vector<int32_t>;
  class Text;

  void find_prefix();
  void check_tokenizer() const;
  void add_document(std::span<const int64_t> tokens, RandomState& random,
                    std::vector<int64_t>& out) const;
  void add_fragment(std::span<const int64_t> tokens, double rate, RandomState& random,
                    std::vector<int64_t>& out) const;
  Text read(std::span<const int64_t> tokens) const;
  bool is_text(int64_t token) const;
  void add_run(Ids run, Text& text) const;
  std::string decode(const Ids& ids) const;
  void encode(std::string_view text, std::vector<int64_t>& out) const;

  std::shared_ptr<const tokenizers::Tokenizer> tokenizer_;
  InfillingConfig config_;
  // Text, and its ids, which goes before each text while that is encoded or decoded, if the
  // tokenizer treats the beginning of a text differently; else "".
  std::string before_;
  Ids before_ids_;
};

}  // namespace megatron::data
