// Documents that are scored individually, from text or from token files.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "corpus/corpus.h"
#include "corpus/vocabulary.h"

namespace megatron::corpus {

// Const members are thread-safe.
class Documents {
 public:
  virtual ~Documents() = default;
  virtual int64_t size() const = 0;
  virtual int64_t tokens(int64_t document) const = 0;
  // Reads tokens [begin, begin + out.size()) of a document.
  virtual void read(int64_t document, int64_t begin, std::span<int64_t> out) const = 0;
  virtual std::string place(int64_t document) const = 0;  // "stories.jsonl:12", for messages
  virtual int64_t bytes(int64_t /*document*/) const { return -1; }  // size of its text; -1: unknown
};

// Text input, read as in `preprocess`.
struct TextInput {
  std::vector<std::string> paths;  // files, directories or patterns
  std::string format = "auto";     // auto | jsonl
  std::string json_key = "text";
  bool whole_files = false;
  bool append_eod = false;   // each document ends with the end-of-document token
  bool prepend_eod = false;  // each document begins with the end-of-document token
};

// Tokenizes all documents and holds the ids, which are those that `preprocess` would write.
// model_tokens: upper bound (exclusive) of ids. show: a progress bar. Throws Error naming the place
// of text that cannot be read or tokenized, and for text without tokens.
std::unique_ptr<Documents> read_documents(const TextInput& input, const Vocabulary& vocabulary,
                                          int64_t model_tokens, bool show);

// The documents of a split. A document that the split's border cuts is included up to the border.
// prepend: an id placed before each document, or -1.
std::unique_ptr<Documents> stored_documents(std::vector<SplitTokens> parts, int64_t prepend = -1);

}  // namespace megatron::corpus
