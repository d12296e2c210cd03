#include "corpus/preprocess.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/median.h"
#include "base/progress.h"
#include "bench/bench.h"
#include "bench/temporary_folder.h"

namespace megatron::bench {
namespace {

struct Measurement {
  double seconds = 0, cpu_seconds = 0;
  corpus::PreprocessResult result;
};

Measurement measure(corpus::PreprocessSettings s, const std::string& folder, int64_t workers) {
  s.output_prefix = folder + "/out";
  s.overwrite = true;
  s.workers = workers;
  const double cpu_before = processor_seconds();
  const auto begin = std::chrono::steady_clock::now();
  auto results = corpus::preprocess(s);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  return {time.count(), processor_seconds() - cpu_before, std::move(results.at(0))};
}

double peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

}  // namespace

int measure_preprocess(const ReadFlags& read) {
  corpus::PreprocessSettings s;
  s.append_eod = true;
  std::vector<std::string> workers = {"1", "2"};
  std::string folder = "/tmp";
  int64_t rounds = 3;
  Fields f;
  f.add("input", &s.input, "JSON lines, as for `megatron preprocess`");
  s.TokenizerSettings::fields(f);
  f.add("vocab-size", &s.vocab_size, "vocabulary size, if the tokenizer's files do not give it");
  f.add("workers", &workers, "thread counts to measure; the first is the baseline");
  f.add("rounds", &rounds,
        "number of measurements of each thread count, taken in turn; the median is reported");
  f.add("folder", &folder, "folder for temporary token files");
  if (const auto code =
          read("megatron bench preprocess --input FILE --tokenizer-model DIR [flags]",
               "Times `megatron preprocess` end to end: opening the tokenizer, reading, parsing "
               "JSON, tokenizing with cold caches, writing, fsync, renaming. MB are 10^6 bytes "
               "of uncompressed JSON lines.",
               f)) {
    return *code;
  }
  MG_CHECK(rounds >= 1, "--rounds is {}; it must be at least 1", rounds);
  std::vector<int64_t> counts;
  for (const std::string& text : workers) {
    MG_CHECK(!text.empty() && text.size() <= 4 &&
                 text.find_first_not_of("0123456789") == text.npos && std::stoll(text) >= 1,
             "--workers contains '{}'; give numbers of threads", text);
    counts.push_back(std::stoll(text));
  }
  const TemporaryFolder place(folder, "megatron-bench", "--folder");
  std::vector<std::vector<double>> seconds(counts.size()), cpu(counts.size());
  corpus::PreprocessResult result;
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < counts.size(); ++i) {
      Measurement m = measure(s, place.path(), counts[i]);
      seconds[i].push_back(m.seconds);
      cpu[i].push_back(m.cpu_seconds);
      result = std::move(m.result);
    }
  }
  const auto bytes = static_cast<double>(result.bytes);
  fmt::print("{}: {} documents, {} tokens, {}; {} rounds\n", s.input.at(0), result.documents,
             result.tokens, format_bytes(bytes), rounds);
  for (size_t i = 0; i < counts.size(); ++i) {
    const double time = median(seconds[i]);
    const auto [least, most] = std::ranges::minmax(seconds[i]);
    fmt::print(
        "{:>3} {}: {:.2f} MB/s, {:.2f}M tokens/s; median {:.3f} s, {:.3f} to {:.3f} s, {:.3f} s "
        "of CPU time; {:.2f} times {} {}\n",
        counts[i], counts[i] == 1 ? "worker " : "workers", bytes / time * 1e-6,
        static_cast<double>(result.tokens) / time * 1e-6, time, least, most, median(cpu[i]),
        median(seconds[0]) / time, counts[0], counts[0] == 1 ? "worker" : "workers");
  }
  fmt::print("peak memory of the process: {}\n", format_bytes(peak_bytes()));
  return 0;
}

}  // namespace megatron::bench
