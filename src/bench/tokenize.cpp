#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/machine_limits.h"
#include "base/thread_pool.h"
#include "bench/bench.h"
#include "data/text_source.h"
#include "tokenizers/pre_tokenizers/pre_tokenizer.h"
#include "tokenizers/tokenizer.h"

namespace megatron::bench {
namespace {

constexpr size_t kBlock = size_t{256} << 10;  // bytes per thread at a time

struct Documents {
  std::vector<std::string> texts;
  std::vector<size_t> blocks = {0};  // indices in texts
  size_t bytes = 0;
};

Documents read_documents(const std::string& input, const std::string& key, double megabytes) {
  data::TextSourceOptions options;
  options.json_key = key;
  data::TextSource source(input, options);
  Documents documents;
  std::string text, place;
  size_t block_bytes = 0;
  while (static_cast<double>(documents.bytes) < megabytes * 1e6 && source.next(text, place)) {
    documents.bytes += text.size();
    block_bytes += text.size();
    documents.texts.push_back(text);
    if (block_bytes < kBlock) continue;
    documents.blocks.push_back(documents.texts.size());
    block_bytes = 0;
  }
  if (block_bytes > 0) documents.blocks.push_back(documents.texts.size());
  MG_CHECK(documents.bytes > 0, "--input {} contains no text", input);
  return documents;
}

template <class F>
double seconds_of(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

size_t encode_all(const tokenizers::Tokenizer& tokenizer, const Documents& documents,
                  ThreadPool& pool) {
  std::vector<size_t> tokens(static_cast<size_t>(pool.size()));
  std::vector<std::vector<int32_t>> ids(static_cast<size_t>(pool.size()));
  const auto blocks = static_cast<int64_t>(documents.blocks.size()) - 1;
  pool.parallel_for(blocks, [&](int64_t block, int thread) {
    const auto b = static_cast<size_t>(block);
    const auto t = static_cast<size_t>(thread);
    for (size_t i = documents.blocks[b]; i < documents.blocks[b + 1]; ++i) {
      ids[t].clear();
      tokenizer.encode(documents.texts[i], false, ids[t]);
      tokens[t] += ids[t].size();
    }
  });
  size_t all = 0;
  for (const size_t count : tokens) all += count;
  return all;
}

// Returns the pre-tokenizer of a tokenizer.json, or null if the tokenizer has none.
std::unique_ptr<tokenizers::PreTokenizer> cutter_of(const tokenizers::Tokenizer& tokenizer) {
  for (const auto& file : tokenizer.codec().files()) {
    if (file.name != "tokenizer.json") continue;
    return tokenizers::make_pre_tokenizer(Json::parse(file.content)["pre_tokenizer"]);
  }
  return nullptr;
}

struct Rates {
  std::vector<double> values;
  void add(size_t bytes, double seconds) {
    values.push_back(static_cast<double>(bytes) * 1e-6 / seconds);
  }
  std::string text() {
    if (values.empty()) return "n/a";
    std::ranges::sort(values);
    return fmt::format("{:.1f} MB/s ({:.1f} to {:.1f})", values[values.size() / 2], values.front(),
                       values.back());
  }
};

}  // namespace

int measure_tokenize(const ReadFlags& read) {
  std::string model, input, key = "text";
  double seconds = 10, megabytes = 30;
  std::optional<int64_t> threads;
  Fields f;
  f.add("tokenizer-model", &model, "tokenizer file, or its directory");
  f.add("input", &input, "JSON lines or plain text");
  f.add("json-key", &key, "key of the text in JSON lines");
  f.add("seconds", &seconds, "seconds to measure");
  f.add("megabytes", &megabytes, "MB of the input's text to read");
  f.add("threads", &threads, "threads for the multi-threaded measurement; default all cores");
  if (const auto code =
          read("megatron bench tokenize --tokenizer-model PATH --input FILE [flags]",
               "Measures the speed of tokenization alone, on documents in memory: the median of as "
               "many rounds as fit into the time, and the slowest and fastest round.",
               f)) {
    return *code;
  }
  MG_CHECK(!model.empty(), "--tokenizer-model is needed: the tokenizer's file or directory");
  MG_CHECK(!input.empty(), "--input is needed: a file of JSON lines or text");
  MG_CHECK(seconds > 0 && seconds <= 3600, "--seconds is {}; it must lie in (0, 3600]", seconds);
  MG_CHECK(megabytes > 0 && megabytes <= 10000, "--megabytes is {}; it must lie in (0, 10000]",
           megabytes);
  const int64_t cores = threads.value_or(available_processors());
  MG_CHECK(cores >= 1 && cores <= 1024, "--threads is {}; it must lie in [1, 1024]", cores);

  const Documents documents = read_documents(input, key, megabytes);
  const auto cutter = cutter_of(tokenizers::Tokenizer::load(model));
  ThreadPool one(1), all(static_cast<int>(cores));
  Rates cutting, first, warm, together;
  size_t tokens = 0, pieces = 0;
  double spent = 0;
  do {
    if (cutter) {
      tokenizers::RegexScratch scratch;
      pieces = 0;
      const double time = seconds_of([&] {
        for (const std::string& text : documents.texts) {
          if (text.empty()) continue;
          cutter->split({.bytes = text}, scratch, [&](tokenizers::TextView) { ++pieces; });
        }
      });
      cutting.add(documents.bytes, time);
      spent += time;
    }
    const auto fresh = tokenizers::Tokenizer::load(model);
    for (Rates* rates : {&first, &warm}) {
      const double time = seconds_of([&] { tokens = encode_all(fresh, documents, one); });
      rates->add(documents.bytes, time);
      spent += time;
    }
    const auto shared = tokenizers::Tokenizer::load(model);
    const double time = seconds_of([&] { encode_all(shared, documents, all); });
    together.add(documents.bytes, time);
    spent += time;
  } while (spent < seconds);
  fmt::print("{} documents, {:.1f} MB, {} tokens", documents.texts.size(),
             static_cast<double>(documents.bytes) * 1e-6, tokens);
  if (cutter) fmt::print(", {} pieces", pieces);
  fmt::print("\nsplitting, one thread:            {}\n", cutting.text());
  fmt::print("encoding, one thread, first pass: {}\n", first.text());
  fmt::print("encoding, one thread, again:      {}\n", warm.text());
  fmt::print("encoding, {} threads, first pass:  {}\n", cores, together.text());
  return 0;
}

}  // namespace megatron::bench
