#include "training/preprocess.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <thread>

#include "base/error.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "data/indexed_dataset.h"
#include "data/text_source.h"
#include "training/corpus.h"

namespace megatron::training {
namespace {

constexpr size_t kTextsAtOnce = 512;

std::vector<int32_t> null_tokenize(const std::string& text, int64_t vocabulary) {
  std::vector<int32_t> ids;
  size_t at = 0;
  while ((at = text.find_first_not_of(" \t\r\n", at)) != std::string::npos) {
    const size_t end = std::min(text.find_first_of(" \t\r\n", at), text.size());
    const std::string word = text.substr(at, end - at);
    int64_t value = -1;
    if (word.find_first_not_of("0123456789") == std::string::npos && word.size() < 10)
      value = std::stoll(word);
    MG_CHECK(value >= 0 && value < vocabulary,
             "'{}' is no token id in [0, {}); --tokenizer-type NullTokenizer reads numbers",
             word.substr(0, 40), vocabulary);
    ids.push_back(static_cast<int32_t>(value));
    at = end;
  }
  return ids;
}

// Documents on their way: the texts of all of them, and where each document ends.
struct Documents {
  std::vector<std::string> texts, names;
  std::vector<size_t> ends;
  std::vector<std::vector<int32_t>> ids;
  void clear() {
    texts.clear();
    names.clear();
    ends.clear();
    ids.clear();
  }
};

class Pipeline {
 public:
  Pipeline(const PreprocessSettings& settings, const Vocabulary& vocabulary, ThreadPool& pool,
           data::IndexedDatasetBuilder& out)
      : settings_(settings), vocabulary_(vocabulary), pool_(pool), out_(out) {}

  void read(data::TextSource& source, Progress& progress, int64_t bytes_before) {
    std::vector<std::string> texts;
    std::string name;
    while (source.next(texts, name)) {
      for (std::string& text : texts) {
        batch_.texts.push_back(std::move(text));
        batch_.names.push_back(name);
      }
      batch_.ends.push_back(batch_.texts.size());
      if (batch_.texts.size() >= kTextsAtOnce) write();
      progress.update(bytes_before + source.bytes_read(),
                      fmt::format("{} documents", out_.document_count()));
    }
    write();
  }

 private:
  void write() {
    batch_.ids.resize(batch_.texts.size());
    pool_.parallel_for(static_cast<int64_t>(batch_.texts.size()), [this](int64_t block, int) {
      const auto i = static_cast<size_t>(block);
      try {
        batch_.ids[i] = vocabulary_.tokenizer ? vocabulary_.tokenizer->encode(batch_.texts[i], true)
                                              : null_tokenize(batch_.texts[i], vocabulary_.size);
      } catch (const Error& e) {
        fail("{}: {}", batch_.names[i], e.what());
      }
    });
    size_t begin = 0;
    for (const size_t end : batch_.ends) {
      write_document(std::span(batch_.ids).subspan(begin, end - begin));
      begin = end;
    }
    batch_.clear();
  }

  // A text without tokens gives no sequence; the last one that has any takes the end-of-document
  // token.
  void write_document(std::span<std::vector<int32_t>> texts) {
    std::vector<int32_t>* last = nullptr;
    for (std::vector<int32_t>& ids : texts) {
      if (!ids.empty()) last = &ids;
    }
    if (settings_.append_eod && last != nullptr)
      last->push_back(static_cast<int32_t>(vocabulary_.eod));
    for (const std::vector<int32_t>& ids : texts) {
      if (!ids.empty()) out_.add_item(std::span<const int32_t>(ids));
    }
    out_.end_document();
  }

  const PreprocessSettings& settings_;
  const Vocabulary& vocabulary_;
  ThreadPool& pool_;
  data::IndexedDatasetBuilder& out_;
  Documents batch_;
};

std::string prefix_of(const PreprocessSettings& s, const std::string& key) {
  return *s.output_prefix + "_" + key + "_document";
}

// All inputs, as one pair of files. Gives the bytes read.
int64_t tokenize(const PreprocessSettings& s, const std::string& key, const Vocabulary& vocabulary,
                 ThreadPool& pool, data::IndexedDatasetBuilder& out) {
  std::vector<std::unique_ptr<data::TextSource>> sources;
  int64_t total = 0, before = 0;
  for (const std::string& input : s.input) {
    const data::TextSourceOptions options{.json_key = key,
                                          .manual_pages = s.input_format == "manpages",
                                          .whole_files = s.whole_files};
    sources.push_back(std::make_unique<data::TextSource>(input, options));
    total += sources.back()->total_bytes();
  }
  Progress progress("tokenizing", total, "B");
  Pipeline pipeline(s, vocabulary, pool, out);
  for (const auto& source : sources) {
    pipeline.read(*source, progress, before);
    before += source->total_bytes();
  }
  progress.update(total);
  progress.finish(fmt::format("{} documents, {} tokens", out.document_count(),
                              format_count(static_cast<double>(out.token_count()))));
  return total;
}

}  // namespace

void PreprocessSettings::fields(Fields& f) {
  f.add("input", &input,
        "files or directories: .jsonl with a text a line, else plain text, cut into documents of "
        "2 to 8 kB between paragraphs; .gz of either");
  f.add_switch("whole-files", &whole_files, true, "a plain text file is one document");
  f.add("input-format", &input_format, {"auto", "manpages"},
        "manpages: troff sources of manual pages, as plain text");
  f.add("json-keys", &json_keys, "keys of a .jsonl record to take; one pair of files each");
  f.add("output-prefix", &output_prefix, "files are <prefix>_<key>_document.bin and .idx");
  f.add("tokenizer-type", &tokenizer_type,
        "HuggingFaceTokenizer, or NullTokenizer (the text is token ids)");
  f.add("tokenizer-model", &tokenizer_model, "tokenizer.json or its directory");
  f.add("vocab-size", &vocab_size, "number of tokens, for NullTokenizer");
  f.add_switch("append-eod", &append_eod, true, "end each document with the end-of-document token");
  f.add("workers", &workers, "threads; default all cores");
  f.add_switch("overwrite", &overwrite, true, "replace output files that exist");
}

std::vector<PreprocessResult> preprocess(const PreprocessSettings& s) {
  MG_CHECK(!s.input.empty(), "--input PATH is needed");
  MG_CHECK(s.output_prefix.has_value(), "--output-prefix is needed");
  MG_CHECK(!s.workers || (*s.workers > 0 && *s.workers <= 1024),
           "--workers is {}; it must lie in [1, 1024]", *s.workers);
  for (const std::string& key : s.json_keys) {
    MG_CHECK(std::ranges::count(s.json_keys, key) == 1, "--json-keys names '{}' twice", key);
    const std::string prefix = prefix_of(s, key);
    for (const char* suffix : {".bin", ".idx"}) {
      MG_CHECK(s.overwrite || !std::filesystem::exists(prefix + suffix),
               "{}{} exists; give --overwrite to replace it, or another --output-prefix", prefix,
               suffix);
    }
  }
  DataSettings tokenizer;
  tokenizer.tokenizer_type = s.tokenizer_type;
  tokenizer.tokenizer_model = s.tokenizer_model;
  const Vocabulary vocabulary = open_vocabulary(tokenizer, s.vocab_size);
  MG_CHECK(!s.append_eod || vocabulary.eod >= 0,
           "--append-eod: the tokenizer {} names no end-of-document token", vocabulary.directory);
  ThreadPool pool(
      static_cast<int>(s.workers.value_or(std::max(1u, std::thread::hardware_concurrency()))));
  std::vector<PreprocessResult> results;
  std::vector<std::unique_ptr<data::IndexedDatasetBuilder>> outputs;
  for (const std::string& key : s.json_keys) {
    auto out = std::make_unique<data::IndexedDatasetBuilder>(
        prefix_of(s, key), data::token_type_for_vocabulary(vocabulary.size));
    const int64_t bytes = tokenize(s, key, vocabulary, pool, *out);
    MG_CHECK(out->token_count() > 0, "the input {} has no text{}: nothing to write", s.input[0],
             s.json_keys.size() > 1 ? " under the key " + key : "");
    results.push_back({prefix_of(s, key), out->document_count(), out->token_count(), bytes});
    outputs.push_back(std::move(out));
  }
  for (const auto& out : outputs) out->finalize();
  return results;
}

}  // namespace megatron::training
