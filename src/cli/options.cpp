#include "cli/options.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "cli/config_file.h"
#include "cli/flags/foreign_flags.h"

namespace megatron::cli {
namespace {

constexpr size_t kHelpColumn = 30, kHelpWidth = 100;

bool is_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error != std::errc::invalid_argument && end == text.data() + text.size();
}

// As in Python's argparse: "-1e-3", "-" and "- a list" are values; "--prompt=two words" is a flag.
bool is_flag(std::string_view argument) {
  return argument.size() > 1 && argument[0] == '-' && !is_number(argument) &&
         argument.substr(0, argument.find('=')).find_first_of(" \t\n") == argument.npos;
}

// megatrons: whether the command knows Megatron-LM's flags beside its own.
[[noreturn]] void unknown_flag(const std::string& flag, const Fields& fields, bool megatrons) {
  const FlagTable table;
  if (table.find(flag) != nullptr) {
    fail("{} is a flag of Megatron-LM that this command does not have; see --help for those it has",
         flag);
  }
  std::vector<std::string> known = {"--help"};
  for (const Field& field : fields.all()) known.push_back("--" + field.name);
  if (megatrons) {
    for (const auto& rows : {table.today(), table.older()})
      for (const FlagRow& row : rows) known.emplace_back(row.flag);
  }
  const std::string near = nearest(flag, known);
  if (near.empty()) fail("there is no flag {}; see --help", flag);
  fail("there is no flag {}; did you mean {}? See --help", flag, near);
}

std::string meaning_of(const Field& field) {
  std::string text = field.doc;
  for (size_t i = 0; i < field.choices.size(); ++i)
    text += (i == 0 ? " (" : ", ") + field.choices[i] + (i + 1 < field.choices.size() ? "" : ")");
  if (!field.is_switch && !field.initial.empty()) text += " [" + field.initial + "]";
  return text;
}

// "  label      meaning", the meaning cut at spaces and in one column.
void print_entry(const std::string& label, std::string_view meaning) {
  std::string line = "  " + label;
  if (line.size() + 1 >= kHelpColumn) {
    fmt::print("{}\n", line);
    line.clear();
  }
  while (!meaning.empty()) {
    line.resize(kHelpColumn, ' ');
    size_t end = meaning.size();
    if (end > kHelpWidth - kHelpColumn) {
      end = meaning.rfind(' ', kHelpWidth - kHelpColumn);
      if (end == meaning.npos) end = std::min(meaning.find(' '), meaning.size());
    }
    fmt::print("{}{}\n", line, meaning.substr(0, end));
    line.clear();
    meaning.remove_prefix(std::min(end + 1, meaning.size()));
  }
}

void print_help(const std::string& usage, const std::string& description, const Fields& fields,
                const std::vector<Positional>& positional) {
  fmt::print("{}\n\nUsage: {}\n", description, usage);
  if (!positional.empty()) fmt::print("\nPositionals:\n");
  for (const Positional& p : positional) print_entry(p.name + " ...", p.doc);
  fmt::print("\nOptions:\n");
  print_entry("-h,--help", "print this help");
  for (const Field& field : fields.all()) {
    const std::string flag = "--" + field.name;
    print_entry(field.type.empty() ? flag : flag + " " + field.type, meaning_of(field));
  }
}

// A flag of the command line with its values; either a field of the command or a row of the table
// of Megatron-LM's flags.
struct Item {
  Field* field;
  const FlagRow* row;
  std::vector<std::string> values;
};

// Cuts arguments into flags with their values, and sets fields from them.
class Parser {
 public:
  // foreign: null where the command takes none of Megatron-LM's flags but its own fields.
  Parser(Fields& fields, ForeignFlags* foreign, const std::vector<Positional>& positional)
      : fields_(fields), foreign_(foreign), positional_(positional) {}

  std::vector<Item> cut(const Arguments& arguments) {
    std::vector<Item> items;
    for (size_t at = 0; at < arguments.size();) {
      const std::string& argument = arguments[at++];
      if (argument == "--") {
        while (at < arguments.size()) take_positional(arguments[at++]);
      } else if (is_flag(argument)) {
        items.push_back(cut_flag(argument, arguments, at));
      } else {
        take_positional(argument);
      }
    }
    for (const Positional& p : positional_) {
      if (p.required && p.values->empty()) fail("{} is needed: {}; see --help", p.name, p.doc);
    }
    return items;
  }

  void set(const std::vector<Item>& items) {
    for (const Item& item : items) {
      if (item.field == nullptr) {
        foreign_->take(*item.row, item.values);
      } else if (item.field->many) {
        std::vector<std::string>& all = collected(item.field);
        all.insert(all.end(), item.values.begin(), item.values.end());
        item.field->assign(all);
      } else {
        item.field->assign(item.values);
      }
    }
  }

 private:
  Item cut_flag(const std::string& argument, const Arguments& arguments, size_t& at) const {
    const size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    Field* field = flag.starts_with("--") ? fields_.find(flag.substr(2)) : nullptr;
    Item item{field, nullptr, {}};
    if (field == nullptr && foreign_ != nullptr) item.row = foreign_->find(flag);
    if (field == nullptr && item.row == nullptr) unknown_flag(flag, fields_, foreign_ != nullptr);
    if (equals != argument.npos) {
      item.values.push_back(argument.substr(equals + 1));
    } else if (field != nullptr ? !field->is_switch : !item.row->is_switch()) {
      // How many values a refused flag takes does not matter; none may be left over.
      const bool many = field != nullptr
                            ? field->many
                            : item.row->many() || item.row->verdict == Verdict::refused;
      do {
        if (at == arguments.size() || is_flag(arguments[at])) break;
        item.values.push_back(arguments[at++]);
      } while (many);
      MG_CHECK(!item.values.empty(),
               "{} needs a value{}; one that begins with - is written {}=VALUE. See --help", flag,
               at == arguments.size() ? "" : fmt::format(" and is followed by {}", arguments[at]),
               flag);
    }
    return item;
  }

  void take_positional(const std::string& text) {
    MG_CHECK(!positional_.empty(), "'{}' is one argument too many; see --help", text);
    positional_[std::min(taken_++, positional_.size() - 1)].values->push_back(text);
  }

  std::vector<std::string>& collected(const Field* field) {
    return collected_[static_cast<size_t>(field - &fields_.all()[0])];
  }

  Fields& fields_;
  ForeignFlags* foreign_;
  const std::vector<Positional>& positional_;
  std::vector<std::vector<std::string>> collected_ =
      std::vector<std::vector<std::string>>(fields_.all().size());  // by field, for those of many
  size_t taken_ = 0;
};

bool asks_for_help(const Arguments& arguments) {
  const auto flags_end = std::find(arguments.begin(), arguments.end(), "--");
  return std::any_of(arguments.begin(), flags_end, [](const std::string& argument) {
    return argument == "--help" || argument == "-h";
  });
}

// "True" of a YAML file as "true"; anything else as it is.
std::string lower_boolean(const std::string& text) {
  if (text == "True" || text == "TRUE") return "true";
  if (text == "False" || text == "FALSE") return "false";
  return text;
}

void set_from_entry(const ConfigEntry& entry, Fields& fields, ForeignFlags& foreign) {
  std::vector<std::string> values = entry.values;
  Field* field = find_by_key(fields, entry.name);
  const FlagRow* row = nullptr;
  if (field == nullptr) {
    std::string flag = "--" + entry.name;
    row = foreign.find(flag);
    if (row == nullptr) {
      std::replace(flag.begin(), flag.end(), '_', '-');
      row = foreign.find(flag);
    }
    if (row == nullptr) unknown_flag(flag, fields, true);
  }
  const bool is_switch = field != nullptr ? field->is_switch : row->is_switch();
  const bool many =
      field != nullptr ? field->many : row->many() || row->verdict == Verdict::refused;
  MG_CHECK(!entry.is_list || many, "'{}' takes one value, and a list is given", entry.name);
  MG_CHECK(!values.empty(), "'{}' is an empty list; leave the key out for its default", entry.name);
  if (is_switch) values[0] = lower_boolean(values[0]);
  if (field != nullptr) {
    field->assign(values);
  } else {
    foreign.take(*row, values);
  }
}

void read_config_file(const std::string& path, Fields& fields, ForeignFlags& foreign) {
  std::vector<std::pair<std::string, std::string>> seen;  // name of the flag, where
  for (const ConfigEntry& entry : read_config(path)) {
    const Field* field = find_by_key(fields, entry.name);
    std::string name = field != nullptr ? field->name : entry.name;
    std::replace(name.begin(), name.end(), field != nullptr ? '-' : '_', '-');
    for (const auto& [other, where] : seen) {
      MG_CHECK(other != name, "{}: '{}' stands in {} already; a flag stands once in a file",
               entry.where, entry.name, where);
    }
    seen.emplace_back(std::move(name), entry.where);
    try {
      set_from_entry(entry, fields, foreign);
    } catch (const Error& e) {
      fail("{}: {}", entry.where, e.what());
    }
  }
}

// The flags that parse_training() adds to a command's.
struct ConfigFlags {
  std::vector<std::string> files;
  bool print = false;

  void fields(Fields& f) {
    f.add("config", &files,
          "YAML file of flags (num-layers: 12), read before those of the command line, which win; "
          "${NAME} in a value is a variable of the environment");
    f.add_switch("print-config", &print, true,
                 "print the resulting configuration as such a file, and end");
  }
};

}  // namespace

std::optional<int> parse(const std::string& usage, const std::string& description, Fields& fields,
                         const std::vector<Positional>& positional, const Arguments& arguments) {
  if (asks_for_help(arguments)) {
    print_help(usage, description, fields, positional);
    return 0;
  }
  Parser parser(fields, nullptr, positional);
  parser.set(parser.cut(arguments));
  return std::nullopt;
}

std::optional<int> parse_training(const std::string& usage, const std::string& description,
                                  Fields& fields, const Arguments& arguments,
                                  std::vector<std::string>& notes) {
  ConfigFlags config;
  const size_t own = fields.all().size();
  Fields all = fields;
  config.fields(all);
  if (asks_for_help(arguments)) {
    print_help(usage, description, all, {});
    return 0;
  }
  ForeignFlags foreign(fields);
  const std::vector<Positional> no_positional;
  Parser parser(all, &foreign, no_positional);
  std::vector<Item> items = parser.cut(arguments);
  const auto of_config = [&](const Item& item) {
    return item.field != nullptr && item.field - &all.all()[0] >= static_cast<std::ptrdiff_t>(own);
  };
  const auto rest = std::stable_partition(items.begin(), items.end(), of_config);
  parser.set({items.begin(), rest});
  for (const std::string& path : config.files) read_config_file(path, fields, foreign);
  parser.set({rest, items.end()});
  for (size_t i = 0; i < own; ++i) fields.all()[i].given |= all.all()[i].given;
  foreign.finish();
  notes = foreign.notes();
  if (!config.print) return std::nullopt;
  std::vector<std::string> heads = {usage.substr(0, usage.find(" [")) +
                                    ": every setting; a file for --config"};
  heads.insert(heads.end(), notes.begin(), notes.end());
  fmt::print("{}", config_text(fields, heads));
  return 0;
}

}  // namespace megatron::cli
