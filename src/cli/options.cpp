#include "cli/options.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "cli/megatron_flags.h"

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

[[noreturn]] void unknown_flag(const std::string& flag, const Fields& fields) {
  if (is_megatron_flag(std::string_view(flag).substr(std::min<size_t>(flag.size(), 2)))) {
    fail(
        "{} is a flag of Megatron-LM that this command does not support; see --help for those it "
        "has",
        flag);
  }
  std::vector<std::string> known = {"--help"};
  for (const Field& field : fields.all()) known.push_back("--" + field.name);
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

// Reads arguments from front to back; a field takes its value when its flag is met.
class Parser {
 public:
  Parser(Fields& fields, const std::vector<Positional>& positional, const Arguments& arguments)
      : fields_(fields), positional_(positional), arguments_(arguments) {}

  void read() {
    while (at_ < arguments_.size()) {
      const std::string& argument = arguments_[at_++];
      if (argument == "--") {
        while (at_ < arguments_.size()) take_positional(arguments_[at_++]);
      } else if (is_flag(argument)) {
        take_flag(argument);
      } else {
        take_positional(argument);
      }
    }
    for (const Positional& p : positional_) {
      if (p.required && p.values->empty()) fail("{} is needed: {}; see --help", p.name, p.doc);
    }
  }

 private:
  void take_flag(const std::string& argument) {
    const size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    Field* field = flag.starts_with("--") ? fields_.find(flag.substr(2)) : nullptr;
    if (field == nullptr) unknown_flag(flag, fields_);
    std::vector<std::string> values;
    if (equals != argument.npos) {
      values.push_back(argument.substr(equals + 1));
    } else if (!field->is_switch) {
      do {
        if (at_ == arguments_.size() || is_flag(arguments_[at_])) break;
        values.push_back(arguments_[at_++]);
      } while (field->many);
      MG_CHECK(
          !values.empty(),
          "{} needs a value{}; one that begins with - is written {}=VALUE. See --help", flag,
          at_ == arguments_.size() ? "" : fmt::format(" and is followed by {}", arguments_[at_]),
          flag);
    }
    if (field->many) {
      std::vector<std::string>& all = collected_[static_cast<size_t>(field - &fields_.all()[0])];
      all.insert(all.end(), values.begin(), values.end());
      values = all;
    }
    field->assign(values);
  }

  void take_positional(const std::string& text) {
    MG_CHECK(!positional_.empty(), "'{}' is one argument too many; see --help", text);
    positional_[std::min(taken_++, positional_.size() - 1)].values->push_back(text);
  }

  Fields& fields_;
  const std::vector<Positional>& positional_;
  const Arguments& arguments_;
  std::vector<std::vector<std::string>> collected_ =
      std::vector<std::vector<std::string>>(fields_.all().size());  // by field, for those of many
  size_t at_ = 0, taken_ = 0;
};

}  // namespace

std::optional<int> parse(const std::string& usage, const std::string& description, Fields& fields,
                         const std::vector<Positional>& positional, const Arguments& arguments) {
  const auto flags_end = std::find(arguments.begin(), arguments.end(), "--");
  for (auto argument = arguments.begin(); argument != flags_end; ++argument) {
    if (*argument != "--help" && *argument != "-h") continue;
    print_help(usage, description, fields, positional);
    return 0;
  }
  Parser(fields, positional, arguments).read();
  return std::nullopt;
}

}  // namespace megatron::cli
