#include "cli/inspect_checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "base/text_parts.h"
#include "resume/found_checkpoints.h"
#include "resume/resume.h"
#include "resume/save_directory.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorInfo;

std::string bytes_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

// "model.layers.3.mlp.weight": "model.layers.*.mlp.weight".
std::string layer_pattern(const std::string& name) {
  std::string pattern;
  for (const std::string_view part : split_text(name, '.')) {
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    if (part.data() != name.data()) pattern += '.';
    pattern += number ? "*" : part;
  }
  return pattern;
}

// A line for tensors of one pattern, type and shape, in the order of the first of each.
void print_groups(const std::vector<TensorInfo>& tensors) {
  struct Group {
    std::string pattern;
    const TensorInfo* first;
    int64_t count = 0, bytes = 0;
  };
  std::vector<Group> groups;
  std::map<std::string, size_t> places;
  int64_t elements = 0, bytes = 0;
  for (const TensorInfo& t : tensors) {
    std::string pattern = layer_pattern(t.name);
    const std::string key = fmt::format("{} {} {}", pattern, type_name(t), t.shape.str());
    const auto [place, is_new] = places.emplace(key, groups.size());
    if (is_new) groups.push_back({std::move(pattern), &t});
    Group& group = groups[place->second];
    ++group.count;
    group.bytes += t.end - t.begin;
    elements += t.shape.elements();
    bytes += t.end - t.begin;
  }
  for (const Group& g : groups) {
    fmt::print("  {:<56} {:<5} {:<20} {:>8}{}\n", g.count == 1 ? g.first->name : g.pattern,
               type_name(*g.first), g.first->shape.str(), bytes_text(g.bytes),
               g.count == 1 ? "" : fmt::format("  in {} tensors", g.count));
  }
  fmt::print("{} tensors, {} elements, {}{}\n", tensors.size(), elements, bytes_text(bytes),
             groups.size() < tensors.size() ? " (--tensors lists each)" : "");
}

// remark: text after a tensor that has its own line.
void print_tensors(const std::vector<TensorInfo>& tensors, bool all,
                   const std::function<std::string(const std::string& name)>& remark) {
  if (!all) return print_groups(tensors);
  int64_t elements = 0, bytes = 0;
  for (const TensorInfo& t : tensors) {
    fmt::print("  {:<56} {:<5} {:<20} {:>8}{}\n", t.name, type_name(t), t.shape.str(),
               bytes_text(t.end - t.begin), remark(t.name));
    elements += t.shape.elements();
    bytes += t.end - t.begin;
  }
  fmt::print("{} tensors, {} elements, {}\n", tensors.size(), elements, bytes_text(bytes));
}

models::Model print_shape(const checkpoint::ModelDirectory& directory) {
  const models::Model model = models::model_from_directory(directory.path());
  const int64_t positions = model->context_length();
  fmt::print("{}\n", model->facts().summary());
  fmt::print("{} parameters; {:.3g} FLOPs to train on a sequence of {} tokens\n",
             model->parameter_count(), model->training_flops(positions), positions);
  return model;
}

std::vector<TensorInfo> tensors_of(const checkpoint::ModelDirectory& directory) {
  std::vector<TensorInfo> tensors;
  for (const std::string& name : directory.tensor_names()) tensors.push_back(*directory.find(name));
  return tensors;
}

std::string text_of(const Json& value) {
  if (value.is_string()) return value.as_string();
  if (!value.is_object()) return value.dump();
  std::string text;
  for (const auto& [key, inner] : value.as_object())
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, text_of(inner));
  return text;
}

void print_state(const checkpoint::CheckpointDirectory& checkpoint) {
  constexpr std::array<std::string_view, 5> kShown = {"format", "iteration", "consumed_samples",
                                                      "written_by", "files"};
  const Json& state = checkpoint.trainer_state();
  const auto value_of = [&](std::string_view key) {
    const Json* value = state.find(key);
    return value == nullptr ? std::string("?") : text_of(*value);
  };
  fmt::print("{}: checkpoint of step {}, {} samples consumed, written by {}\n", checkpoint.path(),
             value_of("iteration"), value_of("consumed_samples"), value_of("written_by"));
  for (const auto& [key, value] : state.as_object()) {
    if (std::ranges::find(kShown, key) == kShown.end() && key != "xxh3")
      fmt::print("  {:<10} {}\n", key, text_of(value));
  }
}

void print_files(const checkpoint::CheckpointDirectory& checkpoint, bool all) {
  int64_t bytes = 0;
  for (const checkpoint::ListedFile& file : checkpoint.files()) {
    if (all)
      fmt::print("  {:<56} {:>34}  {}\n", file.name, bytes_text(file.bytes),
                 file.has_tensors ? fmt::format("{} tensors", file.tensors.size())
                                  : checkpoint::hexadecimal(file.sum));
    bytes += file.bytes;
  }
  fmt::print("{} files, {}\n", checkpoint.files().size(), bytes_text(bytes));
}

void print_reasons(const resume::FoundCheckpoint& found) {
  for (const std::string& reason : found.reasons) fmt::print("    {}\n", reason);
}

// Returns the first of the steps to try that is in a condition, or null.
const resume::FoundCheckpoint* first(const std::vector<resume::FoundCheckpoint>& found,
                                     resume::Condition condition,
                                     const resume::SaveDirectory& directory,
                                     const std::vector<int64_t>& steps) {
  for (const int64_t step : steps) {
    const auto at =
        std::ranges::find(found, directory.iteration_path(step), &resume::FoundCheckpoint::path);
    if (at != found.end() && at->condition == condition) return &*at;
  }
  return nullptr;
}

}  // namespace

void inspect_tensors(const std::string& path, bool tensors) {
  print_tensors(checkpoint::open_tensor_file(path)->tensors(), tensors,
                [](const std::string&) { return std::string(); });
}

void inspect_model(const std::string& path, bool tensors) {
  const checkpoint::ModelDirectory directory(path);
  fmt::print("{}: Hugging Face model of type {}{}\n", path,
             directory.config()["model_type"].as_string(),
             directory.is_torch() ? ", in torch.save files" : "");
  if (!directory.disagreement().empty()) fmt::print("{}\n", directory.disagreement());
  print_shape(directory);
  print_tensors(tensors_of(directory), tensors, [](const std::string&) { return std::string(); });
}

bool inspect_checkpoint(const std::string& path, bool verify, bool tensors) {
  if (verify) {
    ThreadPool pool(available_processors());
    const resume::FoundCheckpoint found = resume::look_at_checkpoint(path, true, pool);
    if (found.condition == resume::Condition::damaged) {
      fmt::print("{}: damaged\n", path);
      print_reasons(found);
      return false;
    }
  }
  const checkpoint::CheckpointDirectory checkpoint(path);
  print_state(checkpoint);
  const models::Model model = print_shape(checkpoint.model());
  std::map<std::string, std::string> places;
  for (auto& [tensor, place] : resume::tensor_places(model)) places[tensor] = std::move(place);
  print_tensors(tensors_of(checkpoint.model()), tensors, [&](const std::string& tensor) {
    return fmt::format("  {}  {}", checkpoint.checksum(tensor), places[tensor]);
  });
  if (checkpoint.has_optimizer()) {
    fmt::print("optimizer:\n");
    print_tensors(checkpoint.optimizer_tensors(), tensors,
                  [&](const std::string& tensor) { return "  " + checkpoint.checksum(tensor); });
  }
  print_files(checkpoint, tensors);
  if (verify) fmt::print("all checksums match\n");
  return true;
}

bool is_save_directory(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::path(path) / "latest_checkpointed_iteration.txt", error) ||
         !resume::SaveDirectory(path).iterations().empty();
}

bool inspect_save_directory(const std::string& path, bool verify, bool tensors) {
  ThreadPool pool(available_processors());
  const resume::SaveDirectory directory(path);
  const auto found = resume::find_checkpoints(path, verify, pool);
  std::vector<int64_t> steps;
  try {
    steps = resume::steps_to_try(directory);
  } catch (const Error& error) {
    log::warning("{}", error.what());
  }
  const auto* const next = first(found, resume::Condition::whole, directory, steps);
  fmt::print("{}: --save directory with {} {}{}\n", path, found.size(),
             found.size() == 1 ? "checkpoint" : "checkpoints",
             verify ? ", all checksums verified" : "");
  bool whole = true;
  for (const resume::FoundCheckpoint& one : found) {
    fmt::print("  {:<24} {:>10}  {}{}\n", fs::path(one.path).filename().string(),
               bytes_text(one.bytes), resume::name(one.condition),
               &one == next ? "  <- a run resumes from here" : "");
    print_reasons(one);
    whole = whole && one.condition != resume::Condition::damaged;
  }
  std::error_code error;
  if (fs::exists(fs::path(path) / "log.jsonl", error)) inspect_run(path);
  if (verify && !whole) return false;
  if (next != nullptr) return inspect_checkpoint(next->path, false, tensors);
  const auto* const model = first(found, resume::Condition::model, directory, steps);
  if (model == nullptr) {
    fmt::print("a run cannot resume from here: none of the checkpoints is intact\n");
    return false;
  }
  inspect_model(model->path, tensors);
  return true;
}

}  // namespace megatron::cli
