#include "cli/flags/foreign_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text_parts.h"

namespace megatron::cli {
namespace {

constexpr std::string_view kWhen = "when ";

std::string name_of(const FlagRow& row) { return std::string(row.flag.substr(2)); }

// Throws Error unless Megatron-LM takes the values.
void check_values(const FlagRow& row, const std::vector<std::string>& values) {
  bool on = false;
  int64_t integer = 0;
  double number = 0;
  std::string text;
  Fields fields;
  const std::string name = name_of(row);
  if (row.is_switch()) {
    fields.add_switch(name, &on, true, "");
  } else if (!row.choices.empty()) {
    std::vector<std::string> choices;
    for (const std::string_view choice : split_list(row.choices, '|')) choices.emplace_back(choice);
    fields.add(name, &text, std::move(choices), "");
  } else if (row.value.starts_with("INT")) {
    fields.add(name, &integer, "");
  } else if (row.value.starts_with("FLOAT")) {
    fields.add(name, &number, "");
  } else {
    fields.add(name, &text, "");
  }
  if (row.many()) {
    for (const std::string& value : values) fields.all()[0].assign({value});
  } else {
    fields.all()[0].assign(values);
  }
}

// True if two texts denote the same value, as "1.0" and "1" do.
bool same_value(std::string_view a, std::string_view b) {
  if (a == b) return true;
  const auto x = parse_number<double>(a), y = parse_number<double>(b);
  return x && y && *x == *y;
}

bool is_off(const FlagRow& row, const std::vector<std::string>& values) {
  return row.is_switch() && values == std::vector<std::string>{"false"};
}

std::string shown(const FlagRow& row, const std::string& value) {
  return row.is_switch() ? std::string(row.flag) : fmt::format("{} {}", row.flag, value);
}

}  // namespace

void throw_together(const std::vector<std::string>& errors) {
  if (errors.empty()) return;
  if (errors.size() == 1) throw Error(errors[0]);
  throw Error(
      fmt::format("{} flags cannot be used:\n  {}", errors.size(), fmt::join(errors, "\n  ")));
}

void ForeignFlags::take(const FlagRow& row, const std::vector<std::string>& values) {
  if (row.verdict == Verdict::supported) return set_other_spelling(row, values);
  if (row.verdict == Verdict::ignored || row.is_switch()) check_values(row, values);
  const auto of_row = [&row](const Refused& r) { return r.row == &row; };
  std::erase(ignored_, &row);  // the last occurrence counts
  std::erase_if(refused_, of_row);
  std::erase_if(accepted_, of_row);
  if (is_off(row, values)) return;
  if (row.verdict == Verdict::ignored) return ignored_.push_back(&row);
  const std::string text = fmt::format("{}", fmt::join(values, " "));
  const auto accepted = split_list(row.detail, '|');
  const bool taken =
      std::ranges::any_of(accepted, [&](auto value) { return same_value(value, text); });
  (taken ? accepted_ : refused_).push_back({&row, place_ + shown(row, text)});
}

void ForeignFlags::set_other_spelling(const FlagRow& row, const std::vector<std::string>& values) {
  MG_CHECK(row.why.starts_with('='),
           "{} is a flag of megatron train, not of this command; see --help", row.flag);
  if (row.is_switch()) check_values(row, values);
  if (is_off(row, values)) return;
  const size_t space = row.why.find(' ');
  const std::string_view other = row.why.substr(1, space - 1);
  Field* field = fields_.find(other.substr(2));
  MG_CHECK(field != nullptr,
           "{} is an older spelling of {}, a flag of megatron train, not of this command; see "
           "--help",
           row.flag, other);
  std::vector<std::string> given = values;
  if (space != row.why.npos) given = {std::string(row.why.substr(space + 1))};
  const std::string before = field->given ? field->get() : "";
  field->assign(given);
  std::erase_if(spellings_, [&row](const Spelling& s) { return s.row == &row; });
  spellings_.push_back(
      {&row, field, shown(row, fmt::format("{}", fmt::join(values, " "))), field->get(), before});
}

void ForeignFlags::note_spellings() {
  for (const Spelling& s : spellings_) {
    if (!s.field->given) continue;  // another flag replaced it, which has its own line
    const std::string now = fmt::format("--{} {}", s.field->name, s.field->get());
    if (s.field->get() != s.set) {
      notes_.push_back(
          fmt::format("{} is an older spelling of --{} and is overridden by {}, which follows it",
                      s.shown, s.field->name, now));
    } else {
      const bool instead = !s.before.empty() && s.before != s.set;
      notes_.push_back(fmt::format("{} is an older spelling, read as {}{}", s.shown, now,
                                   instead ? ", instead of " + s.before + " given before it" : ""));
    }
  }
  for (const Refused& r : accepted_) {
    const auto older = table_.older();
    if (r.row >= older.data() && r.row < older.data() + older.size())
      notes_.push_back(r.shown + " is an older spelling for what this program does anyway");
    else if (r.row->detail.starts_with(kWhen))
      notes_.push_back(r.shown + " requests what this program does anyway");
  }
}

void ForeignFlags::note_ignored() {
  std::string text;
  for (const ReasonRow& reason : table_.reasons()) {
    std::string flags;
    for (const FlagRow* row : ignored_) {
      if (reason.verdict == Verdict::ignored && reason.id == row->why)
        flags += (flags.empty() ? "" : ", ") + std::string(row->flag);
    }
    if (!flags.empty())
      text += fmt::format("{}{} ({})", text.empty() ? "" : "; ", flags, reason.it);
  }
  if (!text.empty()) notes_.push_back("ignored, because they have no effect here: " + text);
}

// condition: "--position-embedding-type rope" or, of a switch, "--swiglu"
bool ForeignFlags::holds(std::string_view condition) const {
  const size_t space = condition.find(' ');
  const Field* field = fields_.find(condition.substr(2, space - 2));
  const std::string_view value = space == condition.npos ? "true" : condition.substr(space + 1);
  return field == nullptr ? value == "false" : field->get() == value;
}

void ForeignFlags::finish() {
  const auto holding =
      std::stable_partition(refused_.begin(), refused_.end(), [&](const Refused& r) {
        return !r.row->detail.starts_with(kWhen) || !holds(r.row->detail.substr(kWhen.size()));
      });
  accepted_.insert(accepted_.end(), holding, refused_.end());
  refused_.erase(holding, refused_.end());
  std::vector<std::string> errors;
  for (const Refused& r : refused_)
    errors.push_back(fmt::format("{} is refused: it {}", r.shown, table_.reason(*r.row)));
  errors.insert(errors.end(), unknown_.begin(), unknown_.end());
  throw_together(errors);
  note_spellings();
  note_ignored();
}

}  // namespace megatron::cli
