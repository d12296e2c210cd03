// Tokenizes one block of documents.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "corpus/vocabulary.h"
#include "data/json_lines.h"
#include "data/sentence_splitter.h"
#include "data/text_blocks.h"

namespace megatron::corpus {

// Processing rules for every document.
struct DocumentRules {
  std::vector<std::string> json_keys;
  DType token_type = DType::i32;
  bool append_eod = false;
  bool include_special_tokens = true;  // those added by the tokenizer's post-processor
  bool split_sentences = false, keep_newlines = false;
  std::string language = "english";
  int64_t partitions = 1;  // documents are distributed over them in turn
  bool skip_bad = false;   // if false, the first bad line ends the block
};

// Documents of one key and partition, in the form that IndexedDatasetBuilder::add_documents takes.
struct TokenizedDocuments {
  std::vector<std::byte> tokens;
  std::vector<int32_t> lengths, sequences;
};

struct TokenizedBlock {
  static constexpr size_t kNamed = 5;

  std::vector<TokenizedDocuments> documents;  // [key * partitions + partition]
  std::vector<std::string> bad;               // the first kNamed bad lines: place and reason
  int64_t bad_count = 0, document_count = 0, token_count = 0, text_bytes = 0;
  std::exception_ptr error;  // the block could not be read or tokenized
};

// Used by a single thread.
class BlockTokenizer {
 public:
  // Both must outlive it.
  BlockTokenizer(const DocumentRules& rules, const Vocabulary& vocabulary);

  // A text without tokens gives no sequence; the end-of-document token is appended to a document's
  // last sequence. A document that cannot be parsed or tokenized is omitted for all keys and listed
  // under `bad`.
  TokenizedBlock tokenize(const data::TextBlock& block);

 private:
  struct Ids {  // of one key and partition
    std::vector<int32_t> tokens, lengths, sequences;
    std::array<size_t, 3> marked{};

    void mark() { marked = {tokens.size(), lengths.size(), sequences.size()}; }
    void go_back() {
      tokens.resize(marked[0]);
      lengths.resize(marked[1]);
      sequences.resize(marked[2]);
    }
  };
  void add_lines(const data::TextBlock& block, TokenizedBlock& out);
  void add_pieces(const data::TextBlock& block, TokenizedBlock& out);
  bool add_record(int64_t record, const data::TextBlock& block, int64_t line, std::string_view text,
                  TokenizedBlock& out);
  void add_document(std::span<const std::string_view> texts, Ids& ids);
  void add_text(std::string_view text, Ids& ids);
  void encode(Ids& ids, TokenizedDocuments& out) const;

  const DocumentRules& rules_;
  const Vocabulary& vocabulary_;
  data::JsonLineParser parser_;
  data::SentenceSplitter splitter_;
  std::vector<Ids> ids_;
  std::vector<std::string_view> sentences_;
};

}  // namespace megatron::corpus
