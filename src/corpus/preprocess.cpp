#include "corpus/preprocess.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/machine_limits.h"
#include "corpus/preprocess_pipeline.h"
#include "corpus/vocabulary.h"
#include "data/indexed_dataset.h"
#include "data/input_list.h"
#include "data/text_blocks.h"

namespace megatron::corpus {
namespace {

namespace fs = std::filesystem;

std::string prefix_of(const PreprocessSettings& s, const std::string& key) {
  return *s.output_prefix + "_" + key + (s.split_sentences ? "_sentence" : "_document");
}

data::TextSourceOptions source_of(const PreprocessSettings& s) {
  return {.json_key = {}, .whole_files = s.whole_files, .json_lines = s.input_format == "jsonl"};
}

void check_outputs(const PreprocessSettings& s) {
  std::vector<std::string> inputs;
  for (const auto& entry : data::list_inputs(s.input, source_of(s).kind()))
    inputs.push_back(entry.path);
  for (const std::string& key : s.json_keys)
    data::check_dataset_output(prefix_of(s, key), s.overwrite, inputs);
}

void check(const PreprocessSettings& s) {
  MG_CHECK(!s.input.empty(), "--input PATH is needed");
  MG_CHECK(s.output_prefix.has_value(), "--output-prefix is needed");
  MG_CHECK(!s.json_keys.empty(), "--json-keys lists no keys");
  MG_CHECK(!s.workers || (*s.workers > 0 && *s.workers <= 1024),
           "--workers is {}; it must lie in [1, 1024]", *s.workers);
  MG_CHECK(s.partitions > 0 && s.partitions <= 1024, "--partitions is {}; it must lie in [1, 1024]",
           s.partitions);
  MG_CHECK(!s.log_interval || *s.log_interval > 0,
           "--log-interval is {}; it must be at least 1 document", *s.log_interval);
  MG_CHECK(s.split_sentences || (!s.keep_newlines && s.lang == "english"),
           "--keep-newlines and --lang need --split-sentences");
  for (const std::string& key : s.json_keys) {
    MG_CHECK(std::ranges::count(s.json_keys, key) == 1, "--json-keys lists '{}' twice", key);
  }
}

// The process whose temporary file `name` is (base/files.h: FILE.PROCESS.NUMBER.tmp), or 0 if it
// does not belong to the pair `base`.
pid_t writer_of(std::string_view name, std::string_view base) {
  if (!name.starts_with(base) || !name.ends_with(".tmp")) return 0;
  name.remove_prefix(base.size());
  if (!name.starts_with(".bin.") && !name.starts_with(".idx.")) return 0;
  name.remove_prefix(5);
  pid_t process = 0;
  const auto [stop, code] = std::from_chars(name.data(), name.data() + name.size(), process);
  return code == std::errc() && *stop == '.' && process > 0 ? process : 0;
}

void remove_leftovers(const std::string& prefix) {
  const fs::path path(prefix);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string base = path.filename().string();
  std::error_code error;
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    const pid_t process = writer_of(at->path().filename().string(), base);
    if (process == 0 || kill(process, 0) == 0 || errno != ESRCH) continue;
    std::error_code kept;
    if (fs::remove(at->path(), kept))
      log::info("removed {}, left by an interrupted run", at->path().string());
  }
}

DocumentRules rules_of(const PreprocessSettings& s, const Vocabulary& vocabulary) {
  DocumentRules rules;
  rules.json_keys = s.json_keys;
  rules.token_type = data::token_type_for_vocabulary(vocabulary.size);
  rules.append_eod = s.append_eod;
  rules.include_special_tokens = vocabulary.add_special_tokens;
  rules.split_sentences = s.split_sentences;
  rules.keep_newlines = s.keep_newlines;
  rules.language = s.lang;
  // Concatenating consecutive partitions gives the same output as a single partition.
  rules.partitions = s.keep_sequential_samples ? 1 : s.partitions;
  rules.skip_bad = s.on_bad_line == "skip";
  return rules;
}

void report_bad_lines(const PipelineTotals& totals) {
  if (totals.bad_count == 0) return;
  for (const std::string& line : totals.bad) log::warning("skipped {}", line);
  const auto named = static_cast<int64_t>(totals.bad.size());
  log::warning(
      "skipped {} bad {} (--on-bad-line skip){}", totals.bad_count,
      totals.bad_count == 1 ? "line" : "lines",
      totals.bad_count > named ? fmt::format("; the first {} are listed above", named) : "");
}

}  // namespace

void PreprocessSettings::fields(Fields& f) {
  f.begin_group("input");
  f.add("input", &input,
        "files, directories or quoted patterns (*, ?, [...], {a,b}): .jsonl with one document "
        "per line, else plain text, split at paragraph breaks into documents of 2 to 8 kB; gzip "
        "and zstd are detected");
  f.add_switch("whole-files", &whole_files, true, "treat each plain text file as one document");
  f.add("input-format", &input_format, {"auto", "jsonl"},
        "auto: by file name; jsonl: every file is JSON lines");
  f.add("json-keys", &json_keys,
        "keys of a record to tokenize, each a string or a list of sentences; each key gets its "
        "own pair of files");
  f.add_switch("split-sentences", &split_sentences, true,
               "make one sequence per sentence instead of one per text; sentences are split by "
               "this program's own rules, not by Punkt as in Megatron-LM, so most boundaries "
               "agree but not all");
  f.add("lang", &lang, "language for --split-sentences: english");
  f.add_switch("keep-newlines", &keep_newlines, true, "keep the white space after a sentence");
  f.begin_group("output");
  f.add("output-prefix", &output_prefix,
        "prefix of the files: <prefix>_<key>_document.bin and .idx (_sentence with "
        "--split-sentences)");
  f.begin_group("tokenizer");
  settings::TokenizerSettings::fields(f);
  f.add("vocab-size", &vocab_size, "vocabulary size, if the tokenizer's files do not give it");
  f.begin_group("output");
  f.add_switch("append-eod", &append_eod, true,
               "append the end-of-document token to each "
               "document");
  f.begin_group("input");
  f.add("on-bad-line", &on_bad_line, {"fail", "skip"},
        "fail: stop at a line that is not a record with these keys; skip: skip such lines and "
        "count them");
  f.begin_group("device");
  f.add("workers", &workers, "number of threads; default all cores");
  f.begin_group("output");
  f.add("partitions", &partitions,
        "deal documents round-robin to this many partitions and write one partition after the "
        "other, the order Megatron-LM produces");
  f.add_switch("keep-sequential-samples", &keep_sequential_samples, true,
               "make partitions contiguous, which keeps the order of the input");
  f.begin_group("logging");
  f.add("log-interval", &log_interval,
        "documents between progress lines when standard error is not a terminal; default one "
        "line every 5 s");
  f.begin_group("output");
  f.add_switch("overwrite", &overwrite, true,
               "overwrite existing token files; other files are "
               "left alone");
  f.common({"input", "json-keys", "split-sentences", "tokenizer-model", "tokenizer-type",
            "vocab-file", "merge-file", "output-prefix", "append-eod", "overwrite", "on-bad-line",
            "workers"});
}

std::vector<PreprocessResult> preprocess(const PreprocessSettings& s) {
  check(s);
  check_outputs(s);
  const Vocabulary vocabulary = open_vocabulary(s, s.vocab_size);
  MG_CHECK(!s.append_eod || vocabulary.eod >= 0,
           "--append-eod: the tokenizer {} has no end-of-document token", vocabulary.directory);
  const DocumentRules rules = rules_of(s, vocabulary);
  data::SentenceSplitter(s.lang, s.keep_newlines);  // throws now if the language is not supported
  data::TextBlocks blocks(s.input, source_of(s));
  std::vector<std::unique_ptr<data::IndexedDatasetBuilder>> outputs;
  std::vector<data::IndexedDatasetBuilder*> pointers;
  for (const std::string& key : s.json_keys) {
    remove_leftovers(prefix_of(s, key));
    outputs.push_back(
        std::make_unique<data::IndexedDatasetBuilder>(prefix_of(s, key), rules.token_type));
    pointers.push_back(outputs.back().get());
  }
  const PipelineOptions options{
      .workers = static_cast<int>(s.workers.value_or(available_processors())),
      .block_bytes = s.block_bytes,
      .log_interval = s.log_interval};
  const PipelineTotals totals =
      PreprocessPipeline(rules, vocabulary, blocks, pointers, options).run();
  report_bad_lines(totals);
  std::vector<PreprocessResult> results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& key = s.json_keys[i];
    MG_CHECK(outputs[i]->token_count() > 0, "the input {} contains no text{}: nothing to write",
             s.input[0], s.json_keys.size() > 1 ? " under the key " + key : "");
    results.push_back({prefix_of(s, key), outputs[i]->document_count(), outputs[i]->token_count(),
                       totals.text_bytes, totals.bad_count});
  }
  for (const auto& output : outputs) output->finalize();
  return results;
}

}  // namespace megatron::corpus
