#include "tasks/task_file.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/fields.h"
#include "data/input_file.h"
#include "tasks/extraction.h"
#include "tasks/format.h"
#include "tokenizers/unicode/utf8.h"

namespace megatron::tasks {
namespace {

namespace fs = std::filesystem;

std::vector<Item> read_items(const std::string& path) {
  const std::string text = data::read_unpacked(path);
  std::vector<Item> items;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string place = fmt::format("{} line {}", path, number);
    tokenizers::check_utf8(line, place);
    items.emplace_back(line, place);
  }
  MG_CHECK(!items.empty(), "{} has no line; a task has one example a line", path);
  return items;
}

// The file's name without what says that it holds JSON lines, and maybe compressed ones.
std::string name_of(const fs::path& path) {
  const std::string suffix = path.extension().string();
  const bool packed = suffix == ".gz" || suffix == ".zst";
  return (packed ? path.stem().stem() : path.stem()).string();
}

bool is_header(const Item& item) { return item.has("task") && item.json()["task"].is_object(); }

std::vector<Filter> read_filters(const Item& header) {
  const Json& list = header.json()["filters"];
  if (!list.is_array()) header.refuse("filters", "is no list of objects");
  std::vector<Filter> filters;
  for (const Json& one : list.as_array()) {
    const Item item(one, header.place() + ", field 'filters'");
    Filter filter{.name = item.text("name"), .pattern = item.text("regex_pattern")};
    if (item.has("group_select")) filter.group_select = item.integer("group_select", -1000, 1000);
    for (const Filter& other : filters)
      if (other.name == filter.name) item.refuse("name", "is that of two filters");
    filters.push_back(std::move(filter));
  }
  return filters;
}

constexpr int64_t kMostShots = 1000, kMostTokens = 1 << 20;

// Keys of a header, and what each sets.
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
                       Task& task) { task.num_fewshot = h.integer(name, 0, kMostShots); }},
    {"fewshot_file", [](const Item&, std::string_view, Task&) {}},
    {"fewshot_sampler",
     [](const Item& h, std::string_view name, Task& task) {
       const std::string& sampler = h.text(name);
       if (sampler != "first_n" && sampler != "random")
         h.refuse(name, "is '" + sampler + "'; it must be first_n or random");
       task.sampler = sampler == "random" ? Sampler::random : Sampler::first_n;
     }},
    {"target_delimiter", [](const Item& h, std::string_view name,
                            Task& task) { task.target_delimiter = h.text(name); }},
    {"fewshot_delimiter", [](const Item& h, std::string_view name,
                             Task& task) { task.fewshot_delimiter = h.text(name); }},
    {"until",
     [](const Item& h, std::string_view name, Task& task) {
       task.until = h.texts(name);
       if (std::ranges::find(task.until, "") != task.until.end())
         h.refuse(name, "has an empty text, at which every text would end");
     }},
    {"max_gen_toks", [](const Item& h, std::string_view name,
                        Task& task) { task.max_gen_toks = h.integer(name, 1, kMostTokens); }},
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
      header.refuse(name, "is no setting of a task" +
                              (near.empty() ? "" : " (did you mean '" + near + "'?)"));
    }
    setting->set(header, name, task);
  }
}

const Format& named_format(const Item& header) {
  const Format* format = find_format(header.text("format"));
  if (format != nullptr) return *format;
  std::string known;
  for (const Format& one : formats()) known += (known.empty() ? "" : ", ") + std::string(one.name);
  header.refuse("format", "is '" + header.text("format") + "'; it must be one of " + known);
}

std::vector<Example> examples_of(std::span<const Item> items, const Format& format) {
  std::vector<Example> examples;
  for (const Item& item : items) examples.push_back(read_example(format, item));
  return examples;
}

std::vector<Example> read_shots(const std::string& path, const Format& format) {
  const std::vector<Item> items = read_items(path);
  return examples_of(std::span(items).subspan(is_header(items[0]) ? 1 : 0), format);
}

}  // namespace

Task read_task(const std::string& path) {
  const std::vector<Item> items = read_items(path);
  std::span<const Item> lines(items);
  Task task{.name = name_of(path), .path = path};
  std::optional<Item> header;
  if (is_header(items[0])) {
    header.emplace(items[0].json()["task"], items[0].place() + ", field 'task'");
    lines = lines.subspan(1);
    MG_CHECK(!lines.empty(), "{} has settings, but no example behind them", path);
  }
  const Format& format =
      header && header->has("format") ? named_format(*header) : format_of(lines[0]);
  task.kind = format.kind;
  if (header &&
      header->has("fewshot_delimiter"))  // which ends a text, unless `until` says otherwise
    task.fewshot_delimiter = header->text("fewshot_delimiter");
  format.defaults(task);
  if (header) apply(*header, task);
  task.examples = examples_of(lines, format);
  if (header && header->has("fewshot_file")) {
    task.shots_path = (fs::path(path).parent_path() / header->text("fewshot_file")).string();
    task.shots = read_shots(task.shots_path, format);
  }
  if (header && task.kind != TaskKind::generation)
    for (const char* name :
         {"until", "max_gen_toks", "filters", "regexes_to_ignore", "ignore_case"})
      if (header->has(name))
        header->refuse(name, fmt::format("is a setting of generation; {} is not", format.name));
  check_patterns(task);
  return task;
}

}  // namespace megatron::tasks
