#include "training/file_content.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "data/bin_file.h"
#include "data/index_cache.h"
#include "data/indexed_dataset.h"
#include "data/source_facts.h"
#include "resume/save_directory.h"
#include "training/model_source.h"

namespace megatron::training {
namespace {

namespace fs = std::filesystem;

std::string digest(std::span<const std::byte> bytes) {
  constexpr size_t kDigits = 16;
  return data::digest(bytes).substr(0, kDigits);
}
std::string digest(std::string_view text) {
  return digest(std::as_bytes(std::span(text.data(), text.size())));
}

// Digests the size and a few pieces. Files are not mapped, as with --no-mmap-bin-files.
std::string samples_of(const std::string& path) {
  constexpr int64_t kWhole = int64_t{8} << 20, kPieces = 32, kPiece = int64_t{64} << 10;
  const data::BinFile file(path, false);
  const int64_t size = file.size(), pieces = size <= kWhole ? 1 : kPieces;
  std::vector<std::byte> piece(static_cast<size_t>(pieces == 1 ? size : kPiece));
  std::string text = fmt::format("{}", size);
  for (int64_t i = 0; i < pieces; ++i) {
    file.read(pieces == 1 ? 0 : (size - kPiece) * i / (pieces - 1), piece);
    text += " " + digest(piece);
  }
  return text;
}

// Digest of the names and content of a model's files: configuration, tokenizer and weights.
std::string model_content(const std::string& directory) {
  constexpr std::array<std::string_view, 7> kRead = {".json",  ".safetensors", ".bin",  ".txt",
                                                     ".model", ".tiktoken",    ".jinja"};
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    const bool is_read = std::ranges::find(kRead, entry.path().extension()) != kRead.end();
    if (is_read && !name.starts_with("optimizer-") && entry.is_regular_file())
      names.push_back(name);
  }
  std::ranges::sort(names);
  std::string lines;
  for (const std::string& name : names)
    lines += fmt::format("{} {}\n", name, samples_of(fmt::format("{}/{}", directory, name)));
  return digest(lines);
}

// Step of the checkpoint that a run resumes from, or that is read as a model.
int64_t chosen_step(const resume::SaveDirectory& folder, const std::vector<int64_t>& steps,
                    std::optional<int64_t> step) {
  if (!step) try {
      step = folder.tracked();
    } catch (const Error&) {  // a tracker that names no step: the newest
    }
  const auto behind = std::ranges::upper_bound(steps, step.value_or(steps.back()));
  return behind == steps.begin() ? steps.front() : *(behind - 1);
}

}  // namespace

std::string file_content(const std::string& path) { return digest(read_file(path)); }

std::string sampled_content(std::span<const std::string> paths) {
  std::string lines;
  for (const std::string& path : paths) lines += samples_of(path) + "\n";
  return digest(lines);
}

std::string tokenizer_content(const std::string& path) {
  MG_CHECK(fs::exists(path), "{} does not exist", path);
  std::string lines;
  for (const NamedFiles& files : {tokenizer_files(path), chat_template_files(path)})
    for (const auto& [name, content] : files)
      lines += fmt::format("{} {}\n", name, digest(content));
  return digest(lines);
}

std::string token_files_content(const std::string& prefix,
                                const std::optional<std::string>& cache_path, ThreadPool& pool) {
  // Bytes up to which a cache entry costs more than reading again.
  constexpr size_t kSoonRead = size_t{64} << 20;
  const data::IndexedDataset set(prefix, {.map_tokens = false});
  data::SourceFacts facts(set, data::index_cache_directory(set.path(), cache_path));
  const std::string index = facts.content(pool);
  if (set.index_bytes().size() > kSoonRead) facts.remember();
  return digest(index + samples_of(set.path() + ".bin"));
}

std::string checkpoint_content(const std::string& path, std::optional<int64_t> step) {
  if (!fs::exists(path)) return "nothing";
  if (!fs::is_directory(path)) return "a file";
  if (fs::exists(fs::path(path) / "config.json")) return "content " + model_content(path);
  const resume::SaveDirectory folder(path);
  const std::vector<int64_t> steps = folder.iterations();
  if (steps.empty()) return "no checkpoint";
  const int64_t chosen = chosen_step(folder, steps, step);
  return fmt::format("iteration {} of {}, content {}", chosen, fmt::join(steps, ", "),
                     model_content(folder.iteration_path(chosen)));
}

}  // namespace megatron::training
