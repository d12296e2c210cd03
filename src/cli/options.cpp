#include "cli/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <utility>

#include "base/function_ref.h"
#include "cli/flags/foreign_flags.h"
#include "cli/help.h"
#include "settings/presets.h"
#include "settings/recipes.h"
#include "settings/rules.h"

namespace megatron::cli {
namespace {

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

// The error for a flag that does not exist. megatrons: the command takes Megatron-LM's flags
// besides its own.
std::string unknown_flag(const std::string& flag, const Fields& fields, bool megatrons) {
  const FlagTable table;
  constexpr std::array kContext = {"--context-parallel-size", "--cp-comm-type",
                                   "--hierarchical-context-parallel-sizes"};
  if (std::ranges::find(kContext, flag) != kContext.end() &&
      std::ranges::find(fields.all(), "tensor-model-parallel-size", &Field::name) !=
          fields.all().end()) {
    return fmt::format(
        "{} divides the tokens of sequences in training; this command divides a model by its heads "
        "and layers: use --tensor-model-parallel-size or --pipeline-model-parallel-size",
        flag);
  }
  if (table.find(flag) != nullptr) {
    return fmt::format(
        "{} is a flag of Megatron-LM that this command does not have; see --help for the flags it "
        "has",
        flag);
  }
  std::vector<std::string> known = {"help"};  // without the leading dashes
  for (const Field& field : fields.all()) known.push_back(field.name);
  if (megatrons) {
    for (const auto& rows : {table.today(), table.older()})
      for (const FlagRow& row : rows) known.emplace_back(row.flag.substr(2));
  }
  const std::string near =
      nearest(flag.substr(std::min(flag.find_first_not_of('-'), flag.size())), known);
  if (near.empty()) return fmt::format("there is no flag {}; see --help", flag);
  return fmt::format("there is no flag {}; did you mean --{}? See --help", flag, near);
}

// A flag of the command line with its values; either a field of the command or a row of the table
// of Megatron-LM's flags.
struct Item {
  Field* field;
  const FlagRow* row;
  std::vector<std::string> values;
};

// Cuts arguments into flags with their values, and sets fields from them. Throws Error for flags
// that do not exist, all in one; with `foreign`, ForeignFlags::finish() does.
class Parser {
 public:
  // foreign: null if the command accepts only its own fields and no other flags of Megatron-LM.
  Parser(Fields& fields, ForeignFlags* foreign, std::vector<Positional> positional)
      : fields_(fields), foreign_(foreign), positional_(std::move(positional)) {}

  std::vector<Item> cut(const Arguments& arguments) {
    std::vector<Item> items;
    for (size_t at = 0; at < arguments.size();) {
      const std::string& argument = arguments[at++];
      if (argument == "--") {
        while (at < arguments.size()) take_positional(arguments[at++]);
      } else if (is_flag(argument)) {
        if (auto item = cut_flag(argument, arguments, at)) items.push_back(std::move(*item));
      } else {
        take_positional(argument);
      }
    }
    throw_together(unknown_);
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
  // Returns nothing for a flag that does not exist, and skips its values.
  std::optional<Item> cut_flag(const std::string& argument, const Arguments& arguments,
                               size_t& at) {
    const size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    Field* field = flag.starts_with("--") ? fields_.find(flag.substr(2)) : nullptr;
    Item item{field, nullptr, {}};
    if (field == nullptr && foreign_ != nullptr) item.row = foreign_->find(flag);
    if (field == nullptr && item.row == nullptr) {
      while (at < arguments.size() && !is_flag(arguments[at])) ++at;
      const std::string error = unknown_flag(flag, fields_, foreign_ != nullptr);
      if (foreign_ != nullptr) foreign_->refuse(error);
      else unknown_.push_back(error);
      return std::nullopt;
    }
    if (equals != argument.npos) {
      item.values.push_back(argument.substr(equals + 1));
    } else if (field != nullptr ? !field->is_switch : !item.row->is_switch()) {
      // A refused flag consumes all values that follow, so that none is left over.
      const bool many = field != nullptr
                            ? field->many
                            : item.row->many() || item.row->verdict == Verdict::refused;
      do {
        if (at == arguments.size() || is_flag(arguments[at])) break;
        item.values.push_back(arguments[at++]);
      } while (many);
      MG_CHECK(!item.values.empty(),
               "{} needs a value{}; write a value that begins with - as {}=VALUE. See --help", flag,
               at == arguments.size() ? "" : fmt::format(" and is followed by {}", arguments[at]),
               flag);
    }
    return item;
  }

  void take_positional(const std::string& text) {
    MG_CHECK(!positional_.empty(), "unexpected argument '{}'; see --help", text);
    positional_[std::min(taken_++, positional_.size() - 1)].values->push_back(text);
  }

  std::vector<std::string>& collected(const Field* field) {
    return collected_[static_cast<size_t>(field - &fields_.all()[0])];
  }

  Fields& fields_;
  ForeignFlags* foreign_;
  const std::vector<Positional> positional_;
  // Values by field, for fields with many.
  std::vector<std::vector<std::string>> collected_ =
      std::vector<std::vector<std::string>>(fields_.all().size());
  size_t taken_ = 0;
  std::vector<std::string> unknown_;  // an error for each unknown flag
};

// "True" of a YAML file as "true"; anything else as it is.
std::string lower_boolean(const std::string& text) {
  if (text == "True" || text == "TRUE") return "true";
  if (text == "False" || text == "FALSE") return "false";
  return text;
}

// The target of a file's key; at most one of the two is set.
struct Named {
  Field* field = nullptr;
  const FlagRow* row = nullptr;
};

Named named_by(const std::string& key, Fields& fields, const ForeignFlags& foreign) {
  if (Field* field = find_by_key(fields, key)) return {.field = field};
  std::string flag = "--" + key;
  const FlagRow* row = foreign.find(flag);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return {.row = row != nullptr ? row : foreign.find(flag)};
}

// Flags about configuration files themselves, and flags that are not settings.
constexpr std::array<std::string_view, 4> kOutsideOfFiles = {"config", "recipe", "print-config",
                                                             "help"};

void set_from_entry(const ConfigEntry& entry, Fields& fields, ForeignFlags& foreign) {
  std::vector<std::string> values = entry.values;
  std::string name = entry.name;
  std::replace(name.begin(), name.end(), '_', '-');
  for (const std::string_view outside : kOutsideOfFiles)
    MG_CHECK(name != outside, "'{}' cannot be set in a file; give --{} on the command line",
             entry.name, outside);
  const auto [field, row] = named_by(entry.name, fields, foreign);
  const bool known = field != nullptr || row != nullptr;
  if (entry.is_group) {
    MG_CHECK(
        !known,
        "'{}' is a flag and cannot name a group of flags; give it a value, or rename the group",
        entry.name);
    return;
  }
  if (!known) return foreign.refuse(entry.where + ": " + unknown_flag("--" + name, fields, true));
  const bool is_switch = field != nullptr ? field->is_switch : row->is_switch();
  const bool many =
      field != nullptr ? field->many : row->many() || row->verdict == Verdict::refused;
  MG_CHECK(!entry.is_list || many, "'{}' takes one value, but a list is given", entry.name);
  MG_CHECK(!values.empty(), "'{}' is an empty list; leave the key out for its default", entry.name);
  if (is_switch) values[0] = lower_boolean(values[0]);
  if (field != nullptr) {
    field->assign(values);
  } else {
    foreign.stand_in(entry.where);
    foreign.take(*row, values);
    foreign.stand_in("");
  }
}

void set_from_entries(const std::vector<ConfigEntry>& entries, Fields& fields,
                      ForeignFlags& foreign) {
  std::vector<std::pair<std::string, std::string>> seen;  // flag name and position
  for (const ConfigEntry& entry : entries) {
    const Field* field = find_by_key(fields, entry.name);
    std::string name = field != nullptr ? field->name : entry.name;
    std::replace(name.begin(), name.end(), field != nullptr ? '-' : '_', '-');
    for (const auto& [other, where] : seen) {
      MG_CHECK(other != name, "{}: '{}' is already set in {}; a file can set each flag only once",
               entry.where, entry.name, where);
    }
    if (!entry.is_group) seen.emplace_back(std::move(name), entry.where);
    try {
      set_from_entry(entry, fields, foreign);
    } catch (const Error& e) {
      fail("{}: {}", entry.where, e.what());
    }
    for (Field& set : fields.all())
      if (set.given && set.where.empty()) set.where = entry.where;
  }
}

// The flags that parse_training() adds to a command's.
struct ConfigFlags {
  std::string recipe;
  std::vector<std::string> files;
  bool print = false;

  // of_run: the command takes the flags of `megatron train`.
  void fields(Fields& f, bool of_run) {
    f.begin_group("configuration");
    if (of_run) {
      f.add("recipe", &recipe,
            fmt::format(
                "predefined run: all flags except data and tokenizer, read before the files of "
                "--config: {}; twins/NAME: a small version of the run that fits on any machine",
                fmt::join(settings::recipe_names(), ", ")));
      f.common({"recipe"});
    }
    f.add("config", &files,
          "YAML file of flags (num-layers: 12), which flags of the command line override; ${NAME} "
          "in a value is replaced by that environment variable");
    f.add_switch("print-config", &print, true,
                 "print the resulting configuration as a file for --config, and exit");
    f.common({"config", "print-config"});
  }
};

// Sets fields from a file or the command line, overriding earlier layers.
class Layers {
 public:
  explicit Layers(Fields& fields) : fields_(fields) {}

  // set: assigns the fields of this layer. Earlier flags that conflict with them are dropped
  // (Fields::replace()).
  void add(FunctionRef<void()> set) {
    std::vector<Field>& all = fields_.all();
    std::vector<bool> before;  // for each field, whether an earlier layer set it
    for (Field& field : all) before.push_back(std::exchange(field.given, false));
    set();
    for (const Field& field : all) {
      if (!field.given || (field.is_switch && field.get() == "false")) continue;
      for (const Field::Replaced& other : field.replaces)
        if (other.when(field)) give_way(other.name, field, before);
    }
    for (size_t i = 0; i < all.size(); ++i) all[i].given = all[i].given || before[i];
  }

  // One line per dropped flag: "run.yaml:3: train-samples 800 gives way to --train-iters".
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void give_way(const std::string& name, const Field& to, std::vector<bool>& before) {
    Field& field = *fields_.find(name);
    const auto at = static_cast<size_t>(&field - &fields_.all()[0]);
    if (field.given || !before[at]) return;
    const std::string value = field.get(), where = field.where;
    field.unset();
    before[at] = false;
    if (field.get() == value) return;
    notes_.push_back(
        field.is_switch
            ? fmt::format("{}: {} is overridden by --{}", where, name, to.name)
            : fmt::format("{}: {} {} is overridden by --{}", where, name, value, to.name));
  }

  Fields& fields_;
  std::vector<std::string> notes_;
};

// Sets the fields of a command from its preset, recipe, files of --config and command line, each
// over what came before it.
class Reading {
 public:
  // all: the `own` fields of the command, and those of ConfigFlags.
  Reading(Fields& all, size_t own, const Arguments& arguments)
      : all_(all), own_(own), arguments_(arguments) {}

  // config: the command line sets it.
  void read(const ConfigFlags& config) {
    read_layers(config, "");
    const Field* const preset = all_.find("preset");
    if (preset == nullptr || preset->get().empty()) return foreign_->finish();
    const std::string name = preset->get();
    MG_CHECK(!preset->given || config.recipe.empty(),
             "--recipe {} and --preset {} both set the model and its batch size; drop one",
             config.recipe, name);
    for (Field& field : all_.all()) field.unset();
    read_layers(config, name);
    foreign_->finish();
    notes_.push_back(preset_note(name));
  }

  // Lines for the log; fields: those of the command.
  std::vector<std::string> notes(const Fields& fields) const {
    std::vector<std::string> lines = foreign_->notes();
    for (const auto& more : {idle_notes(fields), notes_})
      lines.insert(lines.end(), more.begin(), more.end());
    return lines;
  }

 private:
  void read_layers(const ConfigFlags& config, const std::string& preset) {
    foreign_.emplace(all_);
    notes_.clear();
    Parser parser(all_, &*foreign_, {});
    std::vector<Item> items = parser.cut(arguments_);
    const auto of_config = [&](const Item& item) {
      return item.field != nullptr &&
             item.field - &all_.all()[0] >= static_cast<std::ptrdiff_t>(own_);
    };
    const auto rest = std::stable_partition(items.begin(), items.end(), of_config);
    parser.set({items.begin(), rest});
    Layers layers(all_);
    if (!preset.empty()) layers.add([&] { set_preset(preset); });
    const auto read = [&](const std::vector<ConfigEntry>& entries) {
      layers.add([&] { set_from_entries(entries, all_, *foreign_); });
    };
    if (!config.recipe.empty())
      read(parse_config(std::string(settings::recipe_text(config.recipe)),
                        "recipe " + config.recipe));
    for (const std::string& path : config.files) read(read_config(path));
    layers.add([&] { parser.set({rest, items.end()}); });
    if (!preset.empty()) leave_vocabulary_to_tokenizer(preset);
    for (const std::string& note : layers.notes())
      if (!note.starts_with("--preset ")) notes_.push_back(note);
  }

  void set_preset(const std::string& name) {
    Parser parser(all_, nullptr, {});
    const std::vector<Item> items = parser.cut(settings::preset_flags(name));
    parser.set(items);
    for (const Item& item : items) item.field->where = place_of(name);
  }

  // If tokenizer files are given, they determine the number of tokens.
  void leave_vocabulary_to_tokenizer(const std::string& preset) {
    Field& size = *all_.find("vocab-size");
    if (size.where == place_of(preset) &&
        (all_.find("tokenizer-model")->given || all_.find("vocab-file")->given))
      size.unset();
  }

  static std::string place_of(const std::string& preset) { return "--preset " + preset; }

  // Lists the preset's flags that are kept, and those that were overridden.
  std::string preset_note(const std::string& name) {
    std::string kept, changed;
    for (const Item& item : Parser(all_, nullptr, {}).cut(settings::preset_flags(name))) {
      const bool stands = item.field->where == place_of(name);
      const std::string flag = " --" + item.field->name;
      if (!stands) changed += flag;
      else kept += item.field->is_switch ? flag : flag + " " + item.field->get();
    }
    return fmt::format("--preset {} sets{}{}", name, kept.empty() ? " nothing" : kept,
                       changed.empty() ? "" : "; overridden by other flags:" + changed);
  }

  Fields& all_;
  const size_t own_;
  const Arguments& arguments_;
  std::optional<ForeignFlags> foreign_;
  std::vector<std::string> notes_;
};

}  // namespace

std::optional<int> parse(const std::string& usage, const std::string& description, Fields& fields,
                         const std::vector<Positional>& positional, const Arguments& arguments) {
  const Help help{usage, description, fields, positional};
  if (const auto code = print_help(help, arguments)) return code;
  Parser parser(fields, nullptr, positional);
  parser.set(parser.cut(arguments));
  return std::nullopt;
}

std::optional<int> parse_training(const std::string& usage, const std::string& description,
                                  Fields& fields, const Arguments& arguments,
                                  std::vector<std::string>& notes, const PrintConfig& print) {
  ConfigFlags config;
  const size_t own = fields.all().size();
  Fields all = fields;
  config.fields(all, fields.find("train-iters") != nullptr);
  const std::vector<Positional> no_positional;
  Help help{usage, description, all, no_positional, true};
  if (fields.find("train-iters") != nullptr) help.rules = settings::rule_sentences();
  if (const auto code = print_help(help, arguments)) return code;
  Reading reading(all, own, arguments);
  reading.read(config);
  for (size_t i = 0; i < own; ++i) {
    fields.all()[i].given = all.all()[i].given;
    fields.all()[i].where = all.all()[i].where;
  }
  notes = reading.notes(fields);
  if (print.recipe != nullptr) *print.recipe = config.recipe;
  if (!config.print) return std::nullopt;
  std::vector<std::string> heads = {usage.substr(0, usage.find(" [")) +
                                    ": all settings, as a file for --config"};
  heads.insert(heads.end(), notes.begin(), notes.end());
  fmt::print("{}", config_text(fields, std::min(print.fields, own), heads));
  std::fflush(stdout);
  naming_places(fields, print.check);
  return 0;
}

}  // namespace megatron::cli
