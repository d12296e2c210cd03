#include "corpus/documents.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/progress.h"
#include "data/text_source.h"

namespace megatron::corpus {
namespace {

class TextDocuments final : public Documents {
 public:
  int64_t size() const override { return static_cast<int64_t>(entries_.size()); }
  int64_t tokens(int64_t document) const override {
    const size_t d = at(document);
    return (d + 1 < entries_.size() ? entries_[d + 1].begin : all_tokens()) - entries_[d].begin;
  }
  void read(int64_t document, int64_t begin, std::span<int64_t> out) const override {
    std::copy_n(ids_.begin() + entries_[at(document)].begin + begin, out.size(), out.begin());
  }
  std::string place(int64_t document) const override { return entries_[at(document)].place; }
  int64_t bytes(int64_t document) const override { return entries_[at(document)].bytes; }

  // Begins a document, whose ids are appended to ids() next.
  void begin(std::string place, int64_t bytes) {
    entries_.push_back({std::move(place), all_tokens(), bytes});
  }
  std::vector<int32_t>& ids() { return ids_; }
  int64_t all_tokens() const { return static_cast<int64_t>(ids_.size()); }

 private:
  struct Entry {
    std::string place;
    int64_t begin, bytes;
  };
  static size_t at(int64_t document) { return static_cast<size_t>(document); }

  std::vector<int32_t> ids_;
  std::vector<Entry> entries_;
};

void check_ids(std::span<const int32_t> ids, int64_t model_tokens, const std::string& place) {
  for (const int32_t id : ids) {
    MG_CHECK(id >= 0 && id < model_tokens,
             "{}: the tokenizer produces id {}, but the model's vocabulary has {} tokens: give the "
             "model's own tokenizer with --tokenizer-model",
             place, id, model_tokens);
  }
}

void add_document(const std::vector<std::string>& texts, const std::string& place,
                  const TextInput& input, const Vocabulary& vocabulary, int64_t model_tokens,
                  TextDocuments& out) {
  int64_t bytes = 0;
  for (const std::string& text : texts) bytes += static_cast<int64_t>(text.size());
  out.begin(place, bytes);
  std::vector<int32_t>& ids = out.ids();
  const size_t begin = ids.size();
  const auto eod = static_cast<int32_t>(vocabulary.eod);
  if (input.prepend_eod) ids.push_back(eod);
  const size_t first = ids.size();
  for (const std::string& text : texts) {
    try {
      vocabulary.tokenizer->encode(text, vocabulary.add_special_tokens, ids);
    } catch (const Error& error) {
      fail("{}: {}", place, error.what());
    }
  }
  if (input.append_eod && ids.size() > first) ids.push_back(eod);
  check_ids(std::span(ids).subspan(begin), model_tokens, place);
}

class StoredDocuments final : public Documents {
 public:
  StoredDocuments(std::vector<SplitTokens> parts, int64_t prepend)
      : parts_(std::move(parts)), prepend_(prepend) {
    for (size_t p = 0; p < parts_.size(); ++p) {
      const SplitTokens& part = parts_[p];
      for (int64_t d = 0; d < part.tokens->document_count(); ++d) {
        const auto [begin, end] = part.tokens->document(d);
        const int64_t first = std::max(begin, part.begin), last = std::min(end, part.end);
        if (first < last) entries_.push_back({p, d, first, last});
      }
    }
  }
  int64_t size() const override { return static_cast<int64_t>(entries_.size()); }
  int64_t tokens(int64_t document) const override {
    const Entry& e = entry(document);
    int64_t count = prepend_ >= 0 ? 1 : 0;
    for (int64_t s = e.first; s < e.last; ++s) count += source(e).length(s);
    return count;
  }
  void read(int64_t document, int64_t begin, std::span<int64_t> out) const override {
    const Entry& e = entry(document);
    if (prepend_ >= 0) {
      if (begin == 0 && !out.empty()) {
        out[0] = prepend_;
        out = out.subspan(1);
      }
      begin = std::max<int64_t>(0, begin - 1);
    }
    for (int64_t s = e.first; s < e.last && !out.empty(); ++s) {
      const int64_t length = source(e).length(s);
      const int64_t take = std::min(length - begin, static_cast<int64_t>(out.size()));
      if (take > 0) {
        source(e).read(s, begin, out.first(static_cast<size_t>(take)));
        out = out.subspan(static_cast<size_t>(take));
      }
      begin = std::max<int64_t>(0, begin - length);
    }
    MG_ASSERT(out.empty());
  }
  std::string place(int64_t document) const override {
    const Entry& e = entry(document);
    return fmt::format("{}, document {}", source(e).path(), e.number);
  }

 private:
  struct Entry {
    size_t part;
    int64_t number, first, last;  // number in its file; range of sequences
  };
  const Entry& entry(int64_t document) const { return entries_[static_cast<size_t>(document)]; }
  const data::IndexedDataset& source(const Entry& e) const { return *parts_[e.part].tokens; }

  std::vector<SplitTokens> parts_;
  int64_t prepend_;
  std::vector<Entry> entries_;
};

}  // namespace

std::unique_ptr<Documents> read_documents(const TextInput& input, const Vocabulary& vocabulary,
                                          int64_t model_tokens, bool show) {
  const data::TextSourceOptions options{.json_key = input.json_key,
                                        .whole_files = input.whole_files,
                                        .json_lines = input.format == "jsonl"};
  auto documents = std::make_unique<TextDocuments>();
  int64_t most = 0;
  std::vector<std::string> texts;
  std::string place;
  for (const std::string& path : input.paths) {
    data::TextSource source(path, options);
    std::optional<Progress> progress;
    if (show) progress.emplace("tokenizing", source.total_bytes(), "B");
    while (source.next(texts, place)) {
      add_document(texts, place, input, vocabulary, model_tokens, *documents);
      most = std::max(most, documents->tokens(documents->size() - 1));
      if (progress) progress->update(source.bytes_read());
    }
  }
  MG_CHECK(documents->all_tokens() > 0, "the input {} contains no text", input.paths[0]);
  MG_CHECK(most > 1,
           "no document of {} has two tokens, and a document's first token is never predicted: "
           "give more text, or --prepend-eod",
           input.paths[0]);
  return documents;
}

std::unique_ptr<Documents> stored_documents(std::vector<SplitTokens> parts, int64_t prepend) {
  return std::make_unique<StoredDocuments>(std::move(parts), prepend);
}

}  // namespace megatron::corpus
