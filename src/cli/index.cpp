#include <fmt/core.h>

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/command_output.h"
#include "base/error.h"
#include "base/files.h"
#include "base/text_parts.h"
#include "cli/command.h"
#include "data/gpt_dataset.h"
#include "data/indexed_dataset.h"
#include "data/npy.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;

struct IndexSettings {
  std::vector<std::string> data_path;
  std::string split = "969, 30, 1", samples = ",,";
  std::optional<int64_t> seq_length;
  int64_t seed = 1234, threads = 0;
  std::optional<std::string> output, cache_path;
};

using Samples = std::array<std::optional<int64_t>, 3>;

// "1000,50,": an empty number is none.
Samples parse_samples(const std::string& text) {
  Samples samples;
  const std::vector<std::string_view> parts = split_text(text, ',');
  MG_CHECK(parts.size() == samples.size(),
           "--samples is '{}'; it must be TRAIN,VALID,TEST with two commas (an empty number means "
           "one epoch)",
           text);
  for (size_t i = 0; i < samples.size(); ++i) {
    if (parts[i].empty()) continue;
    samples[i] = parse_number<int64_t>(parts[i]);
    MG_CHECK(samples[i].value_or(-1) >= 0, "--samples is '{}'; '{}' is not a number of samples",
             text, parts[i]);
  }
  return samples;
}

std::string output_file(const std::string& directory, data::Split split, std::string_view what) {
  return fmt::format("{}/{}-{}_index.npy", directory, data::name(split), what);
}

void check_outputs(const std::string& directory, const std::string& prefix) {
  for (const auto split : {data::Split::train, data::Split::valid, data::Split::test})
    for (const char* what : {"document", "sample", "shuffle"})
      check_output(
          {output_file(directory, split, what), "--output", {"a NumPy array", data::is_npy}},
          {prefix + ".bin", prefix + ".idx"});
}

// The nine files of --output, which get their final names once all of them are on disk.
class OutputFiles {
 public:
  void add(const std::string& directory, data::Split split, const data::GptIndices& indices) {
    const auto write = [&](const char* what, const data::IntegerArray& index) {
      files_.push_back(std::make_unique<AtomicFile>(output_file(directory, split, what)));
      index.write(*files_.back());
    };
    write("document", indices.document);
    write("sample", indices.sample);
    write("shuffle", indices.shuffle);
  }
  void commit() {
    for (auto& file : files_) file->sync();
    for (auto& file : files_) file->commit();
  }

 private:
  std::vector<std::unique_ptr<AtomicFile>> files_;
};

void build(const IndexSettings& s, const std::string& prefix, const Samples& samples) {
  MG_CHECK(data::indexed_dataset_exists(prefix),
           "{}.idx and {}.bin cannot be read: --data-path takes prefixes of token files, as "
           "`megatron preprocess` writes them",
           prefix, prefix);
  if (s.output) check_outputs(*s.output, prefix);
  const auto source = std::make_shared<const data::IndexedDataset>(prefix);
  data::GptDatasetConfig config;
  config.sequence_length = *s.seq_length;
  config.seed = s.seed;
  config.split = s.split;
  config.threads = static_cast<int>(s.threads);
  config.cache = !s.output || s.cache_path;
  config.cache_path = s.cache_path;
  const data::SplitMatrix shares = data::parse_split(s.split);
  // Checks all splits before the first one is built.
  for (size_t i = 0; i < shares.size(); ++i) {
    if (!shares[i]) continue;
    const auto [first, last] = data::split_range(*shares[i], source->sequence_count());
    MG_CHECK(first < last,
             "{}: the {} split gets none of the {} sequences (--split {}): give it a larger share, "
             "weight 0, or more data",
             prefix, data::name(static_cast<data::Split>(i)), source->sequence_count(), s.split);
  }
  OutputFiles files;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (!shares[i]) continue;
    const auto split = static_cast<data::Split>(i);
    const double begin = now_seconds();
    const data::GptDataset set(source, config, split, samples[i]);
    fmt::print("{} {}: {} samples of {} tokens, {} epochs of {} sequences{}, {} in {:.2f} s\n",
               prefix, data::name(split), set.size(), *s.seq_length, set.plan().epochs,
               set.request().sequences,
               set.plan().separate_final_epoch ? " (the last one shuffled separately)" : "",
               set.from_cache() ? "found" : "built", now_seconds() - begin);
    if (config.cache) {
      const std::string cached = set.cache_file("json");
      MG_CHECK(fs::exists(cached),
               "{} could not be written (see above), so a run would rebuild the indices: give a "
               "--data-cache-path you have write permission for",
               cached);
      fmt::print("  {}\n", cached);
    }
    if (s.output) files.add(*s.output, split, set.indices());
  }
  files.commit();
}

}  // namespace

int index(const Arguments& arguments) {
  IndexSettings s;
  Fields f;
  f.add("data-path", &s.data_path, "prefixes of token files (.bin/.idx); only one with --output");
  f.add("split", &s.split, "shares of train, valid and test");
  f.add("seq-length", &s.seq_length, "tokens per sample");
  f.add("seed", &s.seed, "random seed of the order");
  f.add("samples", &s.samples, "TRAIN,VALID,TEST: number of samples of each; empty: one epoch");
  f.add("output", &s.output,
        "directory for train-document_index.npy, train-sample_index.npy, train-shuffle_index.npy "
        "and so on; without it the index cache is filled");
  f.add("data-cache-path", &s.cache_path,
        "directory of the index cache; default: index_cache next to the token files");
  f.add("num-dataset-builder-threads", &s.threads, "threads that build the indices; 0: all cores");
  if (const auto code = parse("megatron index --data-path P --seq-length S [flags]",
                              "Builds the sample indices of GPT data sets ahead of training: "
                              "document, sample and shuffle index, identical to Megatron-LM's.",
                              f, {}, arguments)) {
    return *code;
  }
  MG_CHECK(!s.data_path.empty(), "there is no data: give --data-path PREFIX");
  MG_CHECK(s.seq_length.has_value(), "--seq-length is needed: the tokens per sample");
  MG_CHECK(
      !s.output || s.data_path.size() == 1,
      "--output takes the indices of one data set, but --data-path has {} entries: give one, or "
      "drop --output to fill the cache",
      s.data_path.size());
  MG_CHECK(s.threads >= 0 && s.threads <= 1024,
           "--num-dataset-builder-threads is {}; it must lie in [0, 1024]", s.threads);
  const Samples samples = parse_samples(s.samples);
  for (const std::string& prefix : s.data_path) build(s, prefix, samples);
  return 0;
}

}  // namespace megatron::cli
