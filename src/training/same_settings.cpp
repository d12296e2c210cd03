#include "training/same_settings.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "base/machine_limits.h"
#include "base/version.h"
#include "data/blend_list.h"
#include "data/input_list.h"
#include "data/split.h"
#include "settings/runtime_settings.h"
#include "training/file_content.h"

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
};

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

// One setting a data set.
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
    read(0, 0);  // all threads read it
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
