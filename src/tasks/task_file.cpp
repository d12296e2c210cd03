#include "tasks/task_file.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/fields.h"
#include "base/text_parts.h"
#include "base/utf8.h"
#include "data/input_file.h"
#include "tasks/extraction.h"
#include "tasks/format.h"

namespace megatron::tasks {
namespace {

namespace fs = std::filesystem;

std::vector<Item> read_items(const std::string& path) {
  const std::string text = data::read_unpacked(path);
  std::vector<Item> items;
  int64_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = take_until(rest, '\n');
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string place = fmt::format("{} line {}", path, number);
    check_utf8(line, place);
    items.emplace_back(line, place);
  }
  MG_CHECK(!items.empty(), "{} is empty; a task file has one example per line", path);
  return items;
}

// The file's name without the extensions for JSON lines and for compression.
std::string name_of(const fs::path& path) {
  const std::string suffix = path.extension().string();
  const bool packed = suffix == ".gz" || suffix == ".zst";
  return (packed ? path.stem().stem() : path.stem()).string();
}

// Returns the settings if the first line has any, and removes that line, which is not an example.
std::optional<Item> take_header(std::vector<Item>& items, const std::string& path) {
  const Json* const settings = items[0].json().find("task");
  if (settings == nullptr || !settings->is_object()) return std::nullopt;
  Item header(*settings, items[0].place() + ", field 'task'");
  items.erase(items.begin());
  MG_CHECK(!items.empty(), "{} has settings, but no examples after them", path);
  return header;
}

std::vector<Filter> read_filters(const Item& header) {
  const Json& list = header.json()["filters"];
  if (!list.is_array()) header.refuse("filters", "is not a list of objects");
  std::vector<Filter> filters;
  for (const Json& one : list.as_array()) {
    const Item item(one, header.place() + ", field 'filters'");
    Filter filter{.name = item.text("name"), .pattern = item.text("regex_pattern")};
    if (item.has("group_select")) filter.group_select = item.integer("group_select", -1000, 1000);
    for (const Filter& other : filters)
      if (other.name == filter.name) item.refuse("name", "is used by two filters");
    filters.push_back(std::move(filter));
  }
  return filters;
}

constexpr int64_t kMaxShots = 1000, kMaxTokens = 1 << 20;

// Keys of a header, and the setting of each.
struct Setting {
  std::string_view name;
  void (*set)(const Item& header, std::string_view name, Task& task);
};
constexpr Setting kSettings[] = {
    {"task", [](const Item& h, std::string_view name, Task& task) { task.name = h.text(name); }},
    {"format", [](const Item&, std::string_view, Task&) {}},
    {"description",
     [](const Item& h, std::string_view name, Task& task) { task.description = h.text(name); }},
    {"num_fewshot", [](const Item& h, std::string_view name,
                       Task& task) { task.num_fewshot = h.integer(name, 0, kMaxShots); }},
    {"fewshot_file", [](const Item&, std::string_view, Task&) {}},
    {"fewshot_sampler",
     [](const Item& h, std::string_view name, Task& task) {
       const std::string& sampler = h.text(name);
       if (sampler != "first_n" && sampler != "random")
         h.refuse(name, "is '" + sampler + "'; it must be first_n or random");
       task.sampler = sampler == "random" ? Sampler::random : Sampler::first_n;
     }},
    {"labels_file", [](const Item&, std::string_view, Task&) {}},
    {"target_delimiter", [](const Item& h, std::string_view name,
                            Task& task) { task.target_delimiter = h.text(name); }},
    {"fewshot_delimiter", [](const Item& h, std::string_view name,
                             Task& task) { task.fewshot_delimiter = h.text(name); }},
    {"until",
     [](const Item& h, std::string_view name, Task& task) {
       task.until = h.texts(name);
       if (std::ranges::find(task.until, "") != task.until.end())
         h.refuse(name, "contains an empty string, at which every text would end");
     }},
    {"max_gen_toks", [](const Item& h, std::string_view name,
                        Task& task) { task.max_gen_toks = h.integer(name, 1, kMaxTokens); }},
    {"filters",
     [](const Item& h, std::string_view, Task& task) { task.filters = read_filters(h); }},
    {"regexes_to_ignore", [](const Item& h, std::string_view name,
                             Task& task) { task.regexes_to_ignore = h.texts(name); }},
    {"ignore_case",
     [](const Item& h, std::string_view name, Task& task) { task.ignore_case = h.boolean(name); }},
};

void apply(const Item& header, Task& task) {
  for (const auto& [name, value] : header.json().as_object()) {
    const auto setting = std::ranges::find(kSettings, name, &Setting::name);
    if (setting == std::end(kSettings)) {
      std::vector<std::string> known;
      for (const Setting& one : kSettings) known.emplace_back(one.name);
      const std::string near = nearest(name, known);
      header.refuse(name, "is not a setting of a task" +
                              (near.empty() ? "" : " (did you mean '" + near + "'?)"));
    }
    setting->set(header, name, task);
  }
}

const Format& named_format(const Item& header) {
  const Format* format = find_format(header.text("format"));
  if (format != nullptr) return *format;
  header.refuse("format",
                "is '" + header.text("format") + "'; it must be one of " + format_names());
}

// Fills in missing labels from the file of labels, in the order of the lines.
void add_labels(std::span<Item> lines, const Format& format, const std::string& path,
                const std::optional<Item>& header) {
  if (format.labels.empty() || lines[0].has(format.labels)) return;
  const bool named = header && header->has("labels_file");
  const std::string name = named ? header->text("labels_file") : name_of(path) + "-labels.lst";
  const std::string file = (fs::path(path).parent_path() / name).string();
  MG_CHECK(
      named || fs::exists(file),
      "{}: field '{}' is missing, and there is no file {} with the labels of all lines; put it "
      "there, or name it in the first line: {{\"task\": {{\"labels_file\": NAME}}}}",
      lines[0].place(), format.labels, file);
  std::istringstream labels(data::read_unpacked(file));
  std::vector<std::string> all;
  for (std::string label; labels >> label;) all.push_back(label);
  MG_CHECK(all.size() == lines.size(), "{} has {} labels, but {} has {} lines; each needs one",
           file, all.size(), path, lines.size());
  for (size_t i = 0; i < all.size(); ++i) lines[i].set(format.labels, all[i]);
}

std::vector<Example> examples_of(std::span<const Item> items, const Format& format) {
  std::vector<Example> examples;
  for (const Item& item : items) examples.push_back(read_example(format, item));
  return examples;
}

std::vector<Example> read_shots(const std::string& path, const Format& format) {
  std::vector<Item> items = read_items(path);
  const std::optional<Item> header = take_header(items, path);
  add_labels(items, format, path, header);
  return examples_of(items, format);
}

// File of "FORMAT=FILE"; sets the format. A file whose whole name has that form is used as a file.
std::string file_of(const std::string& given, const Format** format) {
  const size_t equals = given.find('=');
  if (equals == given.npos || fs::exists(given)) return given;
  *format = find_format(given.substr(0, equals));
  MG_CHECK(*format != nullptr, "--tasks {}: there is no such file, and no task '{}'; tasks are {}",
           given, given.substr(0, equals), format_names());
  return given.substr(equals + 1);
}

}  // namespace

Task read_task(const std::string& given) {
  const Format* format = nullptr;
  const std::string path = file_of(given, &format);
  Task task{.name = name_of(path), .path = path};
  if (format != nullptr) task.name = task.named_format = format->name;
  std::vector<Item> lines = read_items(path);
  const std::optional<Item> header = take_header(lines, path);
  if (format == nullptr)
    format = header && header->has("format") ? &named_format(*header) : &format_of(lines[0]);
  task.kind = format->kind;
  if (header && header->has("fewshot_delimiter"))  // it ends a text, unless `until` is given
    task.fewshot_delimiter = header->text("fewshot_delimiter");
  format->defaults(task);
  if (header) apply(*header, task);
  add_labels(lines, *format, path, header);
  task.examples = examples_of(lines, *format);
  if (header && header->has("fewshot_file")) {
    task.shots_path = (fs::path(path).parent_path() / header->text("fewshot_file")).string();
    task.shots = read_shots(task.shots_path, *format);
  }
  if (header && task.kind != TaskKind::generation)
    for (const char* name :
         {"until", "max_gen_toks", "filters", "regexes_to_ignore", "ignore_case"})
      if (header->has(name))
        header->refuse(
            name, fmt::format("applies only to generation tasks, but {} is not one", format->name));
  check_patterns(task);
  return task;
}

}  // namespace megatron::tasks
