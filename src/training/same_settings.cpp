#include "training/same_settings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/machine_limits.h"
#include "base/version.h"
#include "data/bin_file.h"
#include "data/blend_list.h"
#include "data/index_cache.h"
#include "data/indexed_dataset.h"
#include "data/input_list.h"
#include "data/source_facts.h"
#include "data/split.h"
#include "resume/save_directory.h"
#include "settings/runtime_settings.h"
#include "training/model_source.h"

namespace megatron::training {
namespace {

namespace fs = std::filesystem;

struct Rule {
  std::string_view flag;
  Comparison comparison;
};

// docs/running.md has the same list for users.
constexpr Rule kRules[] = {
    {"preset", Comparison::nothing},  // its flags are compared
    {"ranks", Comparison::nothing},   // each process compares it with the number of processes
    {"threads", Comparison::nothing},
    {"instruction-set", Comparison::nothing},  // results have the same bits
    {"num-dataset-builder-threads", Comparison::nothing},
    {"no-mmap-bin-files", Comparison::nothing},
    {"data-cache-path", Comparison::nothing},
    {"measure-peak", Comparison::nothing},
    {"distributed-notice-seconds", Comparison::nothing},
    {"log-jsonl", Comparison::nothing},
    {"profile-dir", Comparison::nothing},
    {"wandb-project", Comparison::nothing},
    {"wandb-exp-name", Comparison::nothing},
    {"wandb-entity", Comparison::nothing},
    {"wandb-save-dir", Comparison::nothing},
    // Only rank 0 uses these.
    {"prompt-file", Comparison::nothing},
    {"output", Comparison::nothing},
    {"host", Comparison::nothing},
    {"port", Comparison::nothing},
    {"api-key-file", Comparison::nothing},
    {"chat-template", Comparison::nothing},
    {"served-model-name", Comparison::nothing},
    {"json", Comparison::nothing},
    // Their presence, not their value, changes the kind of steps or evaluations.
    {"tensorboard-dir", Comparison::presence},
    {"per-document", Comparison::presence},
    {"save", Comparison::path},
    {"device", Comparison::device},
    {"vocab-file", Comparison::file},
    {"merge-file", Comparison::file},
    {"model-config", Comparison::file},
    {"heterogeneous-layers-config-path", Comparison::file},
    {"te-precision-config-file", Comparison::file},
    {"input", Comparison::texts},
    {"tokenizer-model", Comparison::tokenizer},
    {"data-path", Comparison::token_files},
    {"train-data-path", Comparison::token_files},
    {"valid-data-path", Comparison::token_files},
    {"test-data-path", Comparison::token_files},
    {"data-args-path", Comparison::token_files},
    {"per-split-data-args-path", Comparison::token_files},
    {"load", Comparison::checkpoint},
    {"pretrained-checkpoint", Comparison::checkpoint},
    {"model", Comparison::checkpoint},
    {"reference-model", Comparison::checkpoint},
};

// --- Short texts that identify the content of files named by settings: equal for equal content,
// whatever the paths. A digest is XXH3, 16 hexadecimal digits. All throw Error naming what cannot
// be read.

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
  if (!step) step = folder.tracked_if_valid(nullptr);  // none: the newest
  const auto behind = std::ranges::upper_bound(steps, step.value_or(steps.back()));
  return behind == steps.begin() ? steps.front() : *(behind - 1);
}

// Digest of all bytes.
std::string file_content(const std::string& path) { return digest(read_file(path)); }

// Digest of the size and a few pieces of each file, in the order given; of all bytes of files up to
// 1 MiB.
std::string sampled_content(std::span<const std::string> paths) {
  std::string lines;
  for (const std::string& path : paths) lines += samples_of(path) + "\n";
  return digest(lines);
}

// Digest of the tokenizer's files and the chat template in a directory, or of a tokenizer's file.
std::string tokenizer_content(const std::string& path) {
  MG_CHECK(fs::exists(path), "{} does not exist", path);
  std::string lines;
  for (const NamedFiles& files : {tokenizer_files(path), chat_template_files(path)})
    for (const auto& [name, content] : files)
      lines += fmt::format("{} {}\n", name, digest(content));
  return digest(lines);
}

// Digest of token files: all of .idx, from the cache if an earlier run has read it
// (data/source_facts.h), and the size and a few pieces of .bin.
std::string token_files_content(const std::string& prefix,
                                const std::optional<std::string>& cache_path, ThreadPool& pool) {
  // Bytes up to which a cache entry costs more than reading again.
  constexpr size_t kSoonRead = size_t{64} << 20;
  if (fs::is_regular_file(prefix)) return samples_of(prefix);  // a file of chats
  const data::IndexedDataset set(prefix, {.map_tokens = false});
  data::SourceFacts facts(set, data::index_cache_directory(set.path(), cache_path));
  const std::string index = facts.content(pool);
  if (set.index_bytes().size() > kSoonRead) facts.remember();
  return digest(index + samples_of(set.path() + ".bin"));
}

// The checkpoint or model at a path: "iteration 4 of 2, 4, content 5d41402abc4b2a76" in a folder of
// checkpoints, "content ..." of a model directory, "no checkpoint" or "nothing". A model's content
// covers its small files and weights; optimizer files are covered by the checksums of a checkpoint.
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

// --- Comparisons.

std::string text_of(const Fields& fields, std::string_view flag) {
  const auto found = std::ranges::find(fields.all(), flag, &Field::name);
  return found == fields.all().end() ? "" : found->get();
}

std::optional<std::string> given_text(const Fields& fields, std::string_view flag) {
  std::string text = text_of(fields, flag);
  return text.empty() ? std::nullopt : std::optional(std::move(text));
}

// "PATH (content 5d41402abc4b2a76)".
ComparedSetting content_of(const std::string& name, const std::string& path,
                           const std::string& content) {
  return {name, content, fmt::format("{} ({})", path, content)};
}

// Adds one setting per data set.
void add_list(const std::string& name, const data::BlendList& list, const Fields& fields,
              std::vector<ComparedSetting>& settings) {
  const std::optional<std::string> cache = given_text(fields, "data-cache-path");
  ThreadPool pool(available_processors());
  std::vector<std::string> contents(list.prefixes.size());
  const auto read = [&](int64_t i, int) {
    const auto at = static_cast<size_t>(i);
    try {
      contents[at] = "content " + token_files_content(list.prefixes[at], cache, pool);
    } catch (const Error& error) {
      contents[at] = error.what();
    }
  };
  if (contents.size() == 1) {
    read(0, 0);  // on the calling thread, so that the file is read with all threads of the pool
  } else {
    pool.parallel_for(static_cast<int64_t>(contents.size()), read);
  }
  for (size_t i = 0; i < contents.size(); ++i) {
    ComparedSetting one = content_of(i == 0 ? name : fmt::format("{}, data set {}", name, i + 1),
                                     list.prefixes[i], contents[i]);
    const std::string weight = list.weighted() ? fmt::format("{} x ", list.weights[i]) : "";
    settings.push_back({one.name, weight + one.value, weight + one.shown});
  }
}

void add_token_files(const Field& field, const Fields& fields,
                     std::vector<ComparedSetting>& settings) {
  const std::string flag = "--" + field.name;
  if (field.many)
    return add_list(flag, data::parse_blend_list(field.get_all(), flag), fields, settings);
  if (field.name == "data-args-path")
    return add_list(flag, data::read_blend_list(field.get(), flag), fields, settings);
  const auto lists = data::read_split_blend_lists(field.get(), flag);
  for (size_t i = 0; i < lists.size(); ++i)
    if (lists[i])
      add_list(fmt::format("{}, {}", flag, data::name(static_cast<data::Split>(i))), *lists[i],
               fields, settings);
}

std::string device_of(const Fields& fields, int ranks) {
  settings::RuntimeSettings runtime;
  runtime.device = text_of(fields, "device");
  runtime.distributed_backend = given_text(fields, "distributed-backend").value_or("auto");
  runtime.ranks = ranks;
  return std::string(name(runtime.device_kind()));
}

std::string texts_content(const Field& field, const Fields& fields) {
  const data::TextKind kind = text_of(fields, "input-format") == "jsonl"
                                  ? data::TextKind::json_lines
                                  : data::TextKind::automatic;
  std::vector<std::string> paths;
  for (const auto& entry : data::list_inputs(field.get_all(), kind)) paths.push_back(entry.path);
  return fmt::format("{} files, content {}", paths.size(), sampled_content(paths));
}

std::optional<int64_t> step_of(const Fields& fields) {
  const std::string text = text_of(fields, "ckpt-step");
  int64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  return error == std::errc() ? std::optional(step) : std::nullopt;
}

void add(const Field& field, const Fields& fields, int ranks,
         std::vector<ComparedSetting>& settings) {
  const std::string flag = "--" + field.name, text = field.get();
  const Comparison comparison = comparison_of(field.name);
  const auto plain = [&](const std::string& value) { settings.push_back({flag, value, value}); };
  const auto content = [&](const std::string& value) {
    settings.push_back(content_of(flag, text, value));
  };
  if (comparison == Comparison::nothing) return;
  if (comparison == Comparison::value || text.empty()) return plain(text);
  std::error_code error;
  switch (comparison) {
    case Comparison::presence: return plain("given");
    case Comparison::path: return plain(fs::absolute(text, error).lexically_normal().string());
    case Comparison::device: return plain(device_of(fields, ranks));
    case Comparison::file:
      if (!fs::is_regular_file(text, error)) return plain(text);
      return content("content " + file_content(text));
    case Comparison::texts: return content(texts_content(field, fields));
    case Comparison::tokenizer: return content("content " + tokenizer_content(text));
    case Comparison::token_files: return add_token_files(field, fields, settings);
    case Comparison::checkpoint:
      return content(
          checkpoint_content(text, field.name == "load" ? step_of(fields) : std::nullopt));
    case Comparison::value:
    case Comparison::nothing: return;
  }
}

}  // namespace

Comparison comparison_of(std::string_view flag) {
  const auto found = std::ranges::find(kRules, flag, &Rule::flag);
  return found == std::end(kRules) ? Comparison::value : found->comparison;
}

std::vector<std::string_view> flags_with_own_comparison() {
  std::vector<std::string_view> flags;
  for (const Rule& rule : kRules) flags.push_back(rule.flag);
  return flags;
}

std::vector<ComparedSetting> compared_settings(std::string_view command, const Fields& fields,
                                               int ranks) {
  const std::string program = fmt::format("megatron {} {}", version(), command);
  std::vector<ComparedSetting> settings = {{"the command", program, program}};
  for (const Field& field : fields.all()) {
    try {
      add(field, fields, ranks, settings);
    } catch (const std::exception& error) {
      settings.push_back({"--" + field.name, error.what(), error.what()});
    }
  }
  return settings;
}

}  // namespace megatron::training
