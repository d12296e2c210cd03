#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"

namespace megatron::cli {
namespace {

[[noreturn]] void unknown_argument(const std::string& argument, const Fields& fields) {
  if (!argument.starts_with("-")) fail("'{}' is one argument too many; see --help", argument);
  const std::string flag = argument.substr(0, argument.find('='));
  std::vector<std::string> known = {"--help"};
  for (const Field& field : fields.all()) known.push_back("--" + field.name);
  const std::string near = nearest(flag, known);
  if (near.empty()) fail("there is no flag {}; see --help", flag);
  fail("there is no flag {}; did you mean {}? See --help", flag, near);
}

std::string help_of(const Field& field) {
  std::string text = field.doc;
  if (!field.choices.empty()) {
    text += " (";
    for (size_t i = 0; i < field.choices.size(); ++i)
      text += (i == 0 ? "" : ", ") + field.choices[i];
    text += ")";
  }
  if (!field.is_switch && !field.initial.empty()) text += " [" + field.initial + "]";
  return text;
}

}  // namespace

std::optional<int> parse(const std::string& usage, const std::string& description, Fields& fields,
                         const std::vector<Positional>& positional, const Arguments& arguments) {
  CLI::App app(description, usage);
  app.set_help_flag("--help,-h", "print this help");
  std::vector<std::pair<Field*, CLI::Option*>> options;
  std::vector<std::vector<std::string>> values(fields.all().size());
  size_t index = 0;
  for (Field& field : fields.all()) {
    const std::string flag = "--" + field.name;
    if (field.is_switch) {
      options.emplace_back(&field, app.add_flag_function(flag, [](int64_t) {}, help_of(field)));
    } else {
      CLI::Option* option = app.add_option(flag, values[index], help_of(field));
      option->type_name(field.type)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
      if (field.many) {
        option->expected(1, 1 << 20);
      } else {
        option->expected(1)->allow_extra_args(false);
      }
      options.emplace_back(&field, option);
    }
    ++index;
  }
  for (const Positional& p : positional) {
    CLI::Option* option = app.add_option(p.name, *p.values, p.doc);
    if (p.required) option->required();
  }
  try {
    app.parse(Arguments(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ExtrasError&) {
    unknown_argument(app.remaining().front(), fields);
  } catch (const CLI::ParseError& e) {
    fail("{}; see --help", e.what());
  }
  index = 0;
  for (const auto& [field, option] : options) {
    if (option->count() > 0) {
      // A flag given twice counts as given last, as with Python's argparse.
      if (!field->many && values[index].size() > 1) values[index] = {values[index].back()};
      field->assign(field->is_switch ? std::vector<std::string>{} : values[index]);
    }
    ++index;
  }
  return std::nullopt;
}

}  // namespace megatron::cli
