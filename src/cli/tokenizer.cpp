#include "tokenizers/tokenizer.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>

#include "base/command_output.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "cli/command.h"
#include "corpus/vocabulary.h"
#include "data/input_list.h"
#include "data/text_source.h"
#include "tokenizers/trainer/bpe_trainer.h"

namespace megatron::cli {
namespace {

// True if the text is the beginning of a tokenizer.json or tokenizer_config.json.
bool is_tokenizer_file(std::string_view beginning) {
  const auto has = [=](std::string_view key) { return beginning.find(key) != beginning.npos; };
  return beginning.starts_with('{') &&
         (has("\"added_tokens") || has("\"tokenizer_class\"") || has("_token\""));
}

void check_files(const std::string& directory, bool overwrite,
                 const std::vector<std::string>& inputs) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    const std::string file = (std::filesystem::path(directory) / name).string();
    check_output({file, "--output", {"a tokenizer file", is_tokenizer_file}, overwrite}, inputs);
  }
}

void check_directory(const std::string& directory) {
  namespace fs = std::filesystem;
  MG_CHECK(!fs::exists(directory) || fs::is_directory(directory),
           "--output {} is not a directory; give another", directory);
  // Checked before the text is read, which may take long.
  fs::path existing = fs::absolute(directory);
  while (!fs::exists(existing)) existing = existing.parent_path();
  MG_CHECK(fs::is_directory(existing), "--output {} cannot be created: {} is a file", directory,
           existing.string());
  MG_CHECK(access(existing.c_str(), W_OK) == 0, "--output {} cannot be written: {}", directory,
           write_failure(errno));
}

void read_texts(const std::vector<std::string>& input, const data::TextSourceOptions& options,
                tokenizers::BpeTrainer& trainer) {
  std::vector<std::unique_ptr<data::TextSource>> sources;
  int64_t documents = 0, characters = 0, total = 0, before = 0;
  for (const std::string& path : input) {
    sources.push_back(std::make_unique<data::TextSource>(path, options));
    total += sources.back()->total_bytes();
  }
  Progress reading("reading", total, "B");
  for (const auto& source : sources) {
    std::string text, name;
    while (source->next(text, name)) {
      trainer.add(text);
      characters += static_cast<int64_t>(text.size());
      reading.update(before + source->bytes_read(), fmt::format("{} documents", ++documents));
    }
    before += source->total_bytes();
  }
  reading.finish(fmt::format("{} documents", documents));
  MG_CHECK(characters > 0, "--input {} contains no text: there is nothing to learn from",
           fmt::join(input, " "));
}

int train_tokenizer(const Arguments& arguments) {
  std::vector<std::string> input;
  std::string format = "auto", key = "text", pattern = "gpt2";
  std::optional<std::string> output;
  std::optional<int64_t> threads;
  tokenizers::BpeTrainerOptions options;
  bool overwrite = false;
  Fields f;
  f.add("input", &input,
        "files, directories or quoted patterns: .jsonl or plain text, optionally compressed with "
        "gzip or zstd");
  f.add("input-format", &format, {"auto", "jsonl"},
        "auto: by file name; jsonl: every file is JSON lines");
  f.add("json-key", &key, "key of the text in a .jsonl record");
  f.add("output", &output, "directory for tokenizer.json and tokenizer_config.json");
  f.add("vocab-size", &options.vocabulary_size,
        "number of tokens, including special tokens and "
        "the 256 bytes");
  f.add("min-frequency", &options.min_frequency, "minimum count of a pair to be merged");
  f.add("max-token-length", &options.max_token_length,
        "merged tokens must have fewer bytes than this; 0: no limit");
  f.add("special-tokens", &options.special_tokens, "special tokens, which get the first ids");
  f.add("split-pattern", &pattern, {"gpt2", "llama3", "qwen2"},
        "pattern that splits text into "
        "words");
  f.add("threads", &threads, "threads for counting; default all cores");
  f.add_switch("overwrite", &overwrite, true,
               "overwrite an existing tokenizer; other files are "
               "left alone");
  if (const auto code =
          parse("megatron tokenizer train --input PATH --output DIR [flags]",
                "Trains a byte-level BPE tokenizer, with the same merges as Hugging Face's "
                "trainer.",
                f, {}, arguments)) {
    return *code;
  }
  MG_CHECK(!input.empty(), "--input PATH is needed");
  MG_CHECK(output.has_value(), "--output DIR is needed");
  check_directory(*output);
  const data::TextSourceOptions source{.json_key = key, .json_lines = format == "jsonl"};
  std::vector<std::string> files;
  for (const auto& entry : data::list_inputs(input, source.kind())) files.push_back(entry.path);
  check_files(*output, overwrite, files);
  MG_CHECK(!threads || (*threads > 0 && *threads <= 1024),
           "--threads is {}; it must lie in [1, 1024]", *threads);
  options.pattern = pattern;
  options.threads = static_cast<int>(threads.value_or(available_processors()));
  tokenizers::BpeTrainer trainer(options);
  read_texts(input, source, trainer);
  Progress merging("learning", options.vocabulary_size, "tokens");
  const tokenizers::Tokenizer tokenizer =
      trainer.train([&](int64_t done, int64_t) { merging.update(done); });
  merging.finish();
  tokenizer.save(*output);
  if (tokenizer.vocabulary_size() < options.vocabulary_size) {
    log::warning("--vocab-size is {}, but only {} tokens were learned: {}", options.vocabulary_size,
                 tokenizer.vocabulary_size(),
                 options.min_frequency > 1
                     ? fmt::format("no other pair occurs {} times (--min-frequency); lower it, or "
                                   "give more text",
                                   options.min_frequency)
                     : "every word of the text is already one token; give more text");
  }
  fmt::print("{}/tokenizer.json: {} tokens\n", *output, tokenizer.vocabulary_size());
  return 0;
}

struct TokenizerFlags {
  settings::TokenizerSettings settings;
  std::optional<int64_t> vocab_size;

  void fields(Fields& f) {
    settings.fields(f);
    f.add("vocab-size", &vocab_size, "vocabulary size, for tokenizers without a file");
  }
  std::shared_ptr<const tokenizers::Tokenizer> open() const {
    MG_CHECK(settings.tokenizer_model || settings.tokenizer_type,
             "--tokenizer-model DIR is needed, or a --tokenizer-type with its files");
    return corpus::open_vocabulary(settings, vocab_size).tokenizer;
  }
};

int encode(const Arguments& arguments) {
  TokenizerFlags flags;
  std::vector<std::string> text;
  bool special = false, show = false, show_offsets = false;
  Fields f;
  flags.fields(f);
  f.add_switch("add-special-tokens", &special, true,
               "add the tokens that the tokenizer puts around a text (BOS, EOS)");
  f.add_switch("show-tokens", &show, true, "print one line per token: id and text");
  f.add_switch("show-offsets", &show_offsets, true,
               "like --show-tokens, plus the code-point range of the text each token covers");
  if (const auto code =
          parse("megatron tokenizer encode --tokenizer-model DIR [TEXT]",
                "Prints the token ids of a text.", f,
                {{"text", "text to encode; default standard input", &text, false}}, arguments)) {
    return *code;
  }
  const auto opened = flags.open();
  const tokenizers::Tokenizer& tokenizer = *opened;
  std::string joined = text.empty() ? read_standard_input() : std::string();
  for (size_t i = 0; i < text.size(); ++i) joined += (i == 0 ? "" : " ") + text[i];
  std::vector<int32_t> ids;
  std::vector<tokenizers::Range> offsets;
  tokenizer.codec().encode(joined, {.add_special_tokens = special}, ids,
                           show_offsets ? &offsets : nullptr);
  if (!show && !show_offsets) {
    fmt::print("{}\n", fmt::join(ids, " "));
    return 0;
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (show_offsets) {
      fmt::print("{:>8}  {:>6}-{:<6}  {}\n", ids[i], offsets[i].begin, offsets[i].end,
                 tokenizer.token(ids[i]));
    } else {
      fmt::print("{:>8}  {}\n", ids[i], tokenizer.token(ids[i]));
    }
  }
  return 0;
}

int decode(const Arguments& arguments) {
  TokenizerFlags flags;
  std::vector<std::string> words;
  bool skip = false;
  Fields f;
  flags.fields(f);
  f.add_switch("skip-special-tokens", &skip, true, "omit special tokens");
  if (const auto code =
          parse("megatron tokenizer decode --tokenizer-model DIR [ID...]",
                "Prints the text of token ids.", f,
                {{"ids", "token ids; default standard input", &words, false}}, arguments)) {
    return *code;
  }
  const auto opened = flags.open();
  const tokenizers::Tokenizer& tokenizer = *opened;
  std::string text = words.empty() ? read_standard_input() : std::string();
  for (const std::string& word : words) text += word + " ";
  std::vector<int32_t> ids;
  size_t at = 0;
  while ((at = text.find_first_not_of(" \t\r\n,", at)) != std::string::npos) {
    const size_t end = std::min(text.find_first_of(" \t\r\n,", at), text.size());
    const std::string word = text.substr(at, end - at);
    MG_CHECK(word.size() < 10 && word.find_first_not_of("0123456789") == std::string::npos,
             "'{}' is not a token id", word.substr(0, 40));
    ids.push_back(std::stoi(word));
    MG_CHECK(ids.back() < tokenizer.vocabulary_size(), "token id {} is outside [0, {})", ids.back(),
             tokenizer.vocabulary_size());
    at = end;
  }
  fmt::print("{}\n", tokenizer.decode(ids, skip));
  return 0;
}

constexpr Subcommand kTokenizerCommands[] = {
    {"train", "train a byte-level BPE tokenizer on text", train_tokenizer},
    {"encode", "text to token ids", encode},
    {"decode", "token ids to text", decode},
    {"chat", "a list of messages to text, with the model's chat template", tokenizer_chat},
    {"verify", "compare with test vectors of the original tokenizer", tokenizer_verify},
};

}  // namespace

int tokenizer(const Arguments& arguments) {
  return dispatch("megatron tokenizer", "Trains, runs and checks tokenizers; renders chats.",
                  kTokenizerCommands, arguments);
}

}  // namespace megatron::cli
