#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/progress.h"
#include "bench/bench.h"
#include "bench/temporary_folder.h"
#include "data/gpt_dataset.h"
#include "data/indexed_dataset.h"

namespace megatron::bench {
namespace {

namespace fs = std::filesystem;

struct IndexBench {
  int64_t documents = 100'000'000;
  int64_t longest = 4096;
  int64_t seq_length = 4096;
  int64_t epochs = 1;
  int64_t threads = 0;
  std::string directory = fs::temp_directory_path().string();
  std::optional<std::string> cache_path;
  bool keep = false;
};

// Token files of documents with 1 to `longest` tokens; .bin has a length, but no contents. Returns
// the bytes of .idx.
int64_t write_token_files(const std::string& prefix, const IndexBench& bench) {
  constexpr size_t kBlock = 1 << 20;
  constexpr int64_t kItem = 2;
  const auto append = [](AtomicFile& file, const auto& value) {
    file.write(std::string_view(reinterpret_cast<const char*>(&value), sizeof value));
  };
  AtomicFile idx(prefix + ".idx");
  idx.write(std::string_view("MMIDIDX\0\0", 9));
  append(idx, uint64_t{1});
  append(idx, uint8_t{8});
  append(idx, static_cast<uint64_t>(bench.documents));
  append(idx, static_cast<uint64_t>(bench.documents + 1));
  const auto length = [&](int64_t i) {  // of document i: a hash (splitmix64, Steele et al. 2014)
    uint64_t z = (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return static_cast<int32_t>(1 + (z ^ z >> 31) % static_cast<uint64_t>(bench.longest));
  };
  const auto table = [&]<class T>(int64_t count, T, auto value) {
    std::vector<T> block;
    for (int64_t i = 0; i < count; ++i) {
      block.push_back(value(i));
      if (block.size() < kBlock && i + 1 < count) continue;
      idx.write(std::as_bytes(std::span<const T>(block)));
      block.clear();
    }
  };
  int64_t pointer = 0;
  table(bench.documents, int32_t{}, length);
  table(bench.documents, int64_t{},
        [&](int64_t i) { return std::exchange(pointer, pointer + kItem * length(i)); });
  table(bench.documents + 1, int64_t{}, [](int64_t i) { return i; });
  idx.commit();
  std::ofstream(prefix + ".bin").close();
  fs::resize_file(prefix + ".bin", static_cast<uintmax_t>(pointer));
  return static_cast<int64_t>(fs::file_size(prefix + ".idx"));
}

double status_bytes(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return 1024 * std::stod(line.substr(key.size() + 1));
  }
  return 0;
}

// Peaks since construction: resident memory including mapped files, as counted by the kernel, and
// its part that is not files, sampled every few milliseconds.
class MemoryPeaks {
 public:
  MemoryPeaks() : watch_([this] { watch(); }) {
    std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
  }
  ~MemoryPeaks() {
    done_ = true;
    watch_.join();
  }
  double resident() const { return status_bytes("VmHWM:"); }
  double anonymous() const { return anonymous_; }

 private:
  void watch() {
    while (!done_) {
      anonymous_ = std::max(anonymous_.load(), status_bytes("RssAnon:"));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::atomic<double> anonymous_{0};
  std::atomic<bool> done_{false};
  std::thread watch_;
};

// Seconds for a plain write of `bytes` bytes, including the time until they are on disk.
double write_seconds(const std::string& path, int64_t bytes) {
  const std::vector<std::byte> block(8 << 20, std::byte{0x5a});
  const double begin = now_seconds();
  AtomicFile file(path);
  for (int64_t done = 0; done < bytes; done += static_cast<int64_t>(block.size()))
    file.write(block);
  file.commit();
  const double seconds = now_seconds() - begin;
  fs::remove(path);
  return seconds;
}

struct Opened {
  double seconds = 0;
  bool from_cache = false;
  int64_t samples = 0, bytes = 0;
};

Opened open_set(const std::string& prefix, const std::string& cache, const IndexBench& bench,
                int64_t tokens) {
  const double begin = now_seconds();
  data::GptDatasetConfig config;
  config.sequence_length = bench.seq_length;
  config.split = "1,0,0";
  config.cache_path = cache;
  config.threads = static_cast<int>(bench.threads);
  std::optional<int64_t> samples;
  if (bench.epochs > 1) samples = ((bench.epochs - 1) * tokens) / bench.seq_length + 1;
  const data::GptDataset set(std::make_shared<data::IndexedDataset>(prefix), config,
                             data::Split::train, samples);
  return {now_seconds() - begin, set.from_cache(), set.size(), data::index_bytes(set.plan())};
}

int run_bench(const IndexBench& bench) {
  const std::string name = "megatron-bench-index";
  const TemporaryFolder place(bench.directory, name, "--directory", bench.keep);
  const TemporaryFolder stored(bench.cache_path.value_or(bench.directory), name,
                               bench.cache_path ? "--data-cache-path" : "--directory", bench.keep);
  const std::string prefix = place.path() + "/tokens", cache = stored.path() + "/cache";
  const int64_t idx_bytes = write_token_files(prefix, bench);
  const int64_t tokens = static_cast<int64_t>(fs::file_size(prefix + ".bin")) / 2;
  fmt::print("{} documents of 1 to {} tokens, {} tokens in all; .idx has {}\n", bench.documents,
             bench.longest, tokens, format_bytes(static_cast<double>(idx_bytes)));
  {
    const MemoryPeaks peaks;
    const double processor = processor_seconds();
    const Opened cold = open_set(prefix, cache, bench, tokens);
    MG_CHECK(!cold.from_cache, "{} already contains indices", prefix);
    fmt::print(
        "cold: {:.3f} s ({:.2f} s of CPU time) for {} samples of {} tokens ({} of indices, "
        "{:.0f} MB/s, to disk); peak memory {} resident, {} of it anonymous\n",
        cold.seconds, processor_seconds() - processor, cold.samples, bench.seq_length,
        format_bytes(static_cast<double>(cold.bytes)),
        static_cast<double>(cold.bytes) * 1e-6 / cold.seconds, format_bytes(peaks.resident()),
        format_bytes(peaks.anonymous()));
  }
  std::vector<double> opened;
  for (int i = 0; i < 9; ++i) {
    const Opened again = open_set(prefix, cache, bench, tokens);
    MG_CHECK(again.from_cache, "the cache {} was not reused", cache);
    opened.push_back(again.seconds * 1e3);
    if (i == 0) {
      const double floor = write_seconds(stored.path() + "/plain", again.bytes);
      fmt::print("writing the same number of bytes to disk: {:.3f} s\n", floor);
    }
  }
  const double first = opened[0];
  std::ranges::sort(opened);
  fmt::print("cached: first {:.2f} ms, median {:.2f} ms, {:.2f} to {:.2f} ms\n", first, opened[4],
             opened.front(), opened.back());
  if (bench.keep) fmt::print("kept: {}.idx and {}\n", prefix, cache);
  return 0;
}

}  // namespace

int measure_index(const ReadFlags& read) {
  IndexBench bench;
  Fields f;
  f.add("documents", &bench.documents,
        "documents of the synthetic data set; .idx takes 20 bytes each");
  f.add("longest", &bench.longest, "tokens of the longest document; the shortest has 1");
  f.add("seq-length", &bench.seq_length, "tokens per sample");
  f.add("epochs", &bench.epochs, "epochs over the documents");
  f.add("num-dataset-builder-threads", &bench.threads,
        "threads that build the indices; 0: all "
        "cores");
  f.add("directory", &bench.directory, "folder for the token files");
  f.add("data-cache-path", &bench.cache_path, "folder for the indices; default: the same");
  f.add_switch("keep", &bench.keep, true, "keep the files instead of removing them");
  if (const auto code = read("megatron bench index [flags]",
                             "Builds the sample indices of a synthetic data set (its .idx in the "
                             "page cache), writes them to disk, and opens them again.",
                             f)) {
    return *code;
  }
  MG_CHECK(bench.documents >= 1 && bench.documents < int64_t{1} << 31,
           "--documents is {}; it must lie in [1, 2147483647]", bench.documents);
  MG_CHECK(bench.longest >= 1 && bench.longest < int64_t{1} << 31,
           "--longest is {}; it must lie in [1, 2147483647]", bench.longest);
  MG_CHECK(bench.epochs >= 1 && bench.epochs <= 1000, "--epochs is {}; it must lie in [1, 1000]",
           bench.epochs);
  MG_CHECK(bench.threads >= 0 && bench.threads <= 1024,
           "--num-dataset-builder-threads is {}; it must lie in [0, 1024]", bench.threads);
  return run_bench(bench);
}

}  // namespace megatron::bench
