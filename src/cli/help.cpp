#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "cli/flags/table.h"
#include "cli/options.h"

namespace megatron::cli {
namespace {

constexpr size_t kWidth = 100, kColumn = 30, kShortColumn = 38;
constexpr size_t kFew = 22;  // up to this number, all flags are shown in one list

struct Group {
  std::string_view name, what;
};

// All groups, in the order in which the help lists them.
constexpr std::array kGroups = {
    Group{"input", "what is read"},
    Group{"prompts", "prompts to continue"},
    Group{"sampling", "sampling of tokens, end of generation"},
    Group{"model", "shape, initial weights, seed"},
    Group{"data", "data sets, tokenizer, masks, order of the samples"},
    Group{"preferences", "loss of --task dpo"},
    Group{"tokenizer", "files and type of the tokenizer"},
    Group{"batch", "batch size, sequence length, length of the run"},
    Group{"optimizer", "update rule, learning rate, weight decay, clipping"},
    Group{"adapters", "low-rank adapters (LoRA) in place of the model's parameters"},
    Group{"parallelism", "ranks, splitting and sharding of the model"},
    Group{"precision", "number formats, loss scale, NaN and infinity"},
    Group{"memory", "recomputation and offloading"},
    Group{"checkpoints", "saving, resuming, ending early"},
    Group{"evaluation", "what to evaluate, and when"},
    Group{"tasks", "multiple choice and generation, few-shot examples"},
    Group{"logging", "console, JSON lines, TensorBoard, W&B, samples, traces"},
    Group{"network", "address, API keys, allowed origins"},
    Group{"engine", "batch size, KV cache"},
    Group{"limits", "limits on requests, tokens, bytes and seconds"},
    Group{"device", "CPU or GPU, threads, CUDA graphs"},
    Group{"output", "output of the command"},
    Group{"measurement", "what to measure, and for how long"},
    Group{"configuration", "flags from files, help"},
};

struct Entry {
  std::string label, meaning;
};

bool is_help(std::string_view argument) {
  return argument == "-h" || argument == "--help" || argument.starts_with("--help=");
}

bool is_search(std::string_view argument) {
  return argument == "--help-search" || argument.starts_with("--help-search=");
}

std::string with_choices(std::string text, const Field& field) {
  for (size_t i = 0; i < field.choices.size(); ++i)
    text += (i == 0 ? " (" : ", ") + field.choices[i] + (i + 1 < field.choices.size() ? "" : ")");
  if (!field.is_switch && !field.initial.empty()) text += " [" + field.initial + "]";
  return text;
}

// Returns the end of the first clause of a text that is closed by one of `marks` outside
// parentheses.
size_t end_of_clause(std::string_view text, std::string_view marks) {
  constexpr size_t kShortest = 19;  // "auto: ..." is not a clause
  int depth = 0;
  for (size_t at = 0; at + 1 < text.size(); ++at) {
    if (text[at] == '(') ++depth;
    if (text[at] == ')') --depth;
    const bool ends = text[at + 1] == ' ' && (text[at] == ';' || at >= kShortest);
    if (depth == 0 && ends && marks.find(text[at]) != marks.npos) return at;
  }
  return text.size();
}

Entry whole(const Field& field) {
  return {"--" + field.name + (field.type.empty() ? "" : " " + field.type),
          with_choices(field.doc, field)};
}

// Shortens the entry to one line if a clause of its text is short enough.
Entry in_brief(const Field& field) {
  Entry entry{whole(field).label, {}};
  for (const std::string_view marks : {";:", ";:,"}) {
    entry.meaning = with_choices(field.doc.substr(0, end_of_clause(field.doc, marks)), field);
    if (entry.meaning.size() <= kWidth - kShortColumn) break;
  }
  return entry;
}

// Lines of at most `width`, cut at spaces.
std::vector<std::string_view> lines_of(std::string_view text, size_t width) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    if (end > width) {
      end = text.rfind(' ', width);
      if (end == text.npos) end = std::min(text.find(' '), text.size());
    }
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// "  label      meaning", the meaning in one column.
void print_entry(const Entry& entry, size_t column) {
  std::string line = "  " + entry.label;
  if (line.size() + 1 >= column) {
    fmt::print("{}\n", line);
    line.clear();
  }
  for (const std::string_view text : lines_of(entry.meaning, kWidth - column)) {
    line.resize(column, ' ');
    fmt::print("{}{}\n", line, text);
    line.clear();
  }
}

// Help flags of commands with many flags.
const std::array kHelpItself = {
    Entry{"-h,--help GROUP", "show the common flags, those of GROUP, or all"},
    Entry{"--help-search WORD", "show the flags with this word in their name or description"}};

class Printer {
 public:
  explicit Printer(const Help& help) : help_(help) {
    for (const Field& field : help.fields.all()) {
      const bool known = std::ranges::find(kGroups, field.group, &Group::name) != kGroups.end();
      MG_ASSERT(!grouped() || known);
    }
  }

  bool grouped() const { return help_.fields.all().size() > kFew; }

  void print_head() const {
    for (const std::string_view line : lines_of(help_.description, kWidth))
      fmt::print("{}\n", line);
    fmt::print("\nUsage: {}\n", help_.usage);
    if (!help_.positional.empty()) fmt::print("\nPositionals:\n");
    for (const Positional& p : help_.positional) print_entry({p.name + " ...", p.doc}, kColumn);
    fmt::print("\n");
  }

  void print_list() const {
    print_head();
    fmt::print("Options:\n");
    print_entry({"-h,--help", "print this help"}, kColumn);
    for (const Field& field : help_.fields.all()) print_entry(whole(field), kColumn);
  }

  void print_common() const {
    print_head();
    size_t flags = 0;
    for_each_group([&](const Group& group, const std::vector<const Field*>& fields) {
      flags += fields.size();
      std::vector<const Field*> shown;
      std::ranges::copy_if(fields, std::back_inserter(shown), &Field::common);
      const size_t more = fields.size() - shown.size();
      fmt::print("{}: {}{}\n", group.name, group.what,
                 more == 0 ? "" : fmt::format(" ({} more: --help {})", more, group.name));
      for (const Field* field : shown) print_entry(in_brief(*field), kShortColumn);
      if (group.name == "configuration")
        for (const Entry& entry : kHelpItself) print_entry(entry, kShortColumn);
    });
    fmt::print("\n{} flags: --help all prints them all, --help GROUP those of one group.\n", flags);
  }

  void print_group(std::string_view name) const {
    for_each_group([&](const Group& group, const std::vector<const Field*>& fields) {
      if (group.name == name) print_whole(group, fields);
    });
    if (name == kRules) print_rules();
  }

  void print_all() const {
    print_head();
    bool first = true;
    for_each_group([&](const Group& group, const std::vector<const Field*>& fields) {
      if (!std::exchange(first, false)) fmt::print("\n");
      print_whole(group, fields);
    });
    if (!help_.rules.empty()) fmt::print("\n");
    print_rules();
  }

  std::vector<std::string> groups() const {
    std::vector<std::string> names;
    for_each_group([&](const Group& group, const auto&) { names.emplace_back(group.name); });
    if (!help_.rules.empty()) names.emplace_back(kRules);
    return names;
  }

 private:
  using Body = std::function<void(const Group&, const std::vector<const Field*>&)>;

  // Visits the groups that have fields, and the group of the help itself.
  void for_each_group(const Body& body) const {
    for (const Group& group : kGroups) {
      std::vector<const Field*> fields;
      for (const Field& field : help_.fields.all())
        if (field.group == group.name) fields.push_back(&field);
      if (!fields.empty() || group.name == "configuration") body(group, fields);
    }
  }

  void print_whole(const Group& group, const std::vector<const Field*>& fields) const {
    fmt::print("{}: {}\n", group.name, group.what);
    for (const Field* field : fields) print_entry(whole(*field), kColumn);
    if (group.name != "configuration") return;
    for (const Entry& entry : kHelpItself) print_entry(entry, kColumn);
  }

  void print_rules() const {
    if (!help_.rules.empty()) fmt::print("{}: flags that exclude or need each other\n", kRules);
    for (const std::string& rule : help_.rules) print_entry({"-", rule}, 5);
  }

  static constexpr std::string_view kRules = "rules";
  const Help& help_;
};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

bool contains(std::string_view text, const std::string& word) {
  return lower(text).find(word) != std::string::npos;
}

// Prints Megatron-LM's flags that are not fields, by their status.
size_t print_megatrons(const Fields& fields, const std::string& word) {
  const FlagTable table;
  size_t found = 0;
  for (const ReasonRow& reason : table.reasons()) {
    std::string flags;
    for (const auto& rows : {table.today(), table.older()}) {
      for (const FlagRow& row : rows) {
        const bool of_reason = row.verdict == reason.verdict && row.why == reason.id;
        if (!of_reason || !contains(row.flag, word)) continue;
        flags += (flags.empty() ? "" : ", ") + std::string(row.flag);
        ++found;
      }
    }
    if (flags.empty()) continue;
    for (const std::string_view line : lines_of(flags, kWidth)) fmt::print("{}\n", line);
    print_entry({fmt::format("{}:", reason.verdict == Verdict::refused ? "refused" : "ignored"),
                 "it " + std::string(reason.it)},
                kColumn);
  }
  for (const auto& rows : {table.today(), table.older()}) {
    for (const FlagRow& row : rows) {
      if (!row.why.starts_with('=') || !contains(row.flag, word)) continue;
      const std::string_view taken = row.why.substr(1);
      if (std::ranges::none_of(fields.all(), [&](const Field& f) {
            return taken.substr(2, taken.find(' ') - 2) == f.name;
          }))
        continue;
      fmt::print("{}\n", row.flag);
      print_entry({"taken as:", std::string(taken)}, kColumn);
      ++found;
    }
  }
  return found;
}

int print_search(const Help& help, const std::string& given) {
  const std::string word =
      lower(given.substr(std::min(given.find_first_not_of('-'), given.size())));
  MG_CHECK(!word.empty(), "--help-search needs a word, such as --help-search dropout");
  size_t found = 0;
  for (const Field& field : help.fields.all()) {
    const Entry entry = whole(field);
    if (!contains(field.name, word) && !contains(entry.meaning, word)) continue;
    print_entry(entry, kColumn);
    ++found;
  }
  const bool own = found > 0;
  for (const std::string& rule : help.rules)
    if (rule.find("--" + word) != rule.npos) print_entry({"-", rule}, 5);
  if (help.megatrons) {
    std::fflush(stdout);
    found += print_megatrons(help.fields, word);
  }
  if (found > 0) return 0;
  std::vector<std::string> names;
  for (const Field& field : help.fields.all()) names.push_back(field.name);
  const std::string near = nearest(word, names);
  fmt::print("no flag has '{}' in its name or description{}\n", word,
             own || near.empty() ? "" : fmt::format("; did you mean --{}?", near));
  return 1;
}

}  // namespace

bool asks_for_help(const std::vector<std::string>& arguments) {
  const auto end = std::ranges::find(arguments, "--");
  return std::any_of(arguments.begin(), end,
                     [](const std::string& a) { return is_help(a) || is_search(a); });
}

std::optional<int> print_help(const Help& help, const std::vector<std::string>& arguments) {
  if (!asks_for_help(arguments)) return std::nullopt;
  const auto asks = std::ranges::find_if(
      arguments, [](const std::string& a) { return is_help(a) || is_search(a); });
  const size_t equals = asks->find('=');
  std::string word;
  if (equals != asks->npos) word = asks->substr(equals + 1);
  else if (asks + 1 != arguments.end() && (is_search(*asks) || !(asks + 1)->starts_with('-')))
    word = *(asks + 1);
  if (is_search(*asks)) return print_search(help, word);
  const Printer printer(help);
  if (!printer.grouped()) {
    printer.print_list();
  } else if (word.empty()) {
    printer.print_common();
  } else if (word == "all") {
    printer.print_all();
  } else {
    const std::vector<std::string> groups = printer.groups();
    MG_CHECK(std::ranges::find(groups, word) != groups.end(),
             "--help {}: there is no such group; give one of {}, or all", word,
             fmt::join(groups, ", "));
    printer.print_group(word);
  }
  return 0;
}

}  // namespace megatron::cli
