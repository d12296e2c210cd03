#include <fmt/core.h>

#include <algorithm>

#include "base/progress.h"
#include "base/shell_line.h"
#include "base/shorten.h"
#include "report/figures.h"
#include "report/markup.h"
#include "report/tables.h"

namespace megatron::report {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;  // in log order

constexpr size_t kShownSessions = 200, kLongestValue = 4000, kMaxValues = 2000;

std::string shown(std::string_view text) { return cut_short(text, kLongestValue, " …"); }

std::string value_text(std::string_view key, const Json& value) {
  if (value.is_string()) return shown(value.as_string());
  if (value.is_number() && key.ends_with("_bytes")) return format_bytes(value.as_number());
  if (value.is_number() && key.ends_with("_flops")) return flops(value.as_number());
  if (value.is_integer()) return grouped(value.as_integer());
  return shown(value.dump());
}

void flatten(const std::string& prefix, const Json& record, Values& values) {
  for (const auto& [key, value] : record.as_object()) {
    const std::string name = prefix.empty() ? key : prefix + " · " + key;
    if (values.size() == kMaxValues) return;
    if (value.is_object() && prefix.size() < 100) {
      flatten(name, value, values);
    } else {
      values.emplace_back(name, value_text(key, value));
    }
  }
}

Values flags_of(const Json& run) {
  Values values;
  const Json* flags = run.find("flags");
  if (flags == nullptr || !flags->is_object()) return values;
  for (const auto& [key, value] : flags->as_object())
    if (values.size() < kMaxValues) values.emplace_back("--" + key, value_text("", value));
  return values;
}

Values environment_of(const Json& run) {
  Values values;
  for (const char* key :
       {"version", "host", "machine", "threads", "precision", "layout", "parameters", "model",
        "seq_length", "train_iters", "peak_flops", "flop_formula"}) {
    const Json* value = run.find(key);
    if (value == nullptr || value->is_null()) continue;
    Values one;
    flatten("", Json(Json::Object{{key, *value}}), one);
    values.insert(values.end(), one.begin(), one.end());
  }
  return values;
}

const std::string* find(const Values& values, const std::string& key) {
  for (const auto& [name, value] : values)
    if (name == key) return &value;
  return nullptr;
}

// Flags and environment of each run. An entry of the environment that any run sets by a flag is
// listed only as that flag: "train_iters" as --train-iters.
std::vector<Values> settings_of(const std::vector<const Json*>& runs) {
  std::vector<Values> all;
  for (const Json* run : runs) all.push_back(flags_of(*run));
  std::vector<Values> flags = all;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (auto& [key, value] : environment_of(*runs[i])) {
      std::string flag = "--" + key;
      std::replace(flag.begin(), flag.end(), '_', '-');
      const bool given = std::ranges::any_of(
          flags, [&](const Values& values) { return find(values, flag) != nullptr; });
      if (!given) all[i].emplace_back(key, std::move(value));
    }
  }
  return all;
}

// Keys as rows, runs as columns; `missing` is shown if a run has no such key.
std::string comparison(const std::string& label, const std::vector<RunHistory>& histories,
                       const std::vector<Values>& all, bool only_different,
                       const std::string& missing) {
  std::vector<std::string> keys;
  for (const Values& values : all)
    for (const auto& [key, value] : values)
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  std::vector<std::vector<std::string>> rows;
  for (const std::string& key : keys) {
    std::vector<std::string> row = {"<code>" + html(key) + "</code>"};
    bool different = false;
    const std::string* first = find(all[0], key);
    for (const Values& values : all) {
      const std::string* value = find(values, key);
      different |= (value == nullptr) != (first == nullptr) ||
                   (value != nullptr && first != nullptr && *value != *first);
      row.push_back(value == nullptr ? "<i class=\"missing\">" + missing + "</i>" : html(*value));
    }
    if (different || !only_different) rows.push_back(std::move(row));
  }
  if (rows.empty())
    return fmt::format("<p class=\"aside\">{}</p>\n", only_different ? "Nothing." : "None.");
  std::vector<std::string> head = {label};
  for (size_t i = 0; i < histories.size(); ++i)
    head.push_back(histories.size() > 1 ? swatch(i) + html(histories[i].name) : "Value");
  return table(label, head, rows, "long settings");
}

std::string changes(const Json& before, const Json& after) {
  const std::vector<Values> settings = settings_of({&before, &after});
  const Values &a = settings[0], &b = settings[1];
  std::string result;
  const auto tell = [&result](const std::string& key, const std::string& from,
                              const std::string& to) {
    result += fmt::format("{}<code>{}</code> {} → {}", result.empty() ? "" : "<br>", html(key),
                          html(from), html(to));
  };
  for (const auto& [key, value] : b) {
    const std::string* earlier = find(a, key);
    if (earlier == nullptr || *earlier != value)
      tell(key, earlier == nullptr ? "not given" : *earlier, value);
  }
  for (const auto& [key, value] : a)
    if (find(b, key) == nullptr) tell(key, value, "not given");
  return result.empty() ? "nothing" : result;
}

std::string end_of(const Session& session) {
  if (!session.end) return "no end in the log";
  const std::string reason = text_of(*session.end, "reason"), text = text_of(*session.end, "text");
  return html(text.empty() || text == reason ? reason : reason + ": " + text);
}

std::string command_of(const Json& run) {
  const Json* command = run.find("command");
  if (command == nullptr || !command->is_array()) return "";
  std::vector<std::string> words;
  for (const Json& word : command->as_array())
    if (word.is_string()) words.push_back(shown(word.as_string()));
  return shell_line(words);
}

std::string sessions(const std::vector<RunHistory>& histories) {
  std::vector<std::vector<std::string>> rows;
  const bool several = histories.size() > 1;
  for (size_t i = 0; i < histories.size(); ++i) {
    const std::vector<Session>& all = histories[i].sessions;
    for (size_t k = all.size() - std::min(all.size(), kShownSessions); k < all.size(); ++k) {
      std::vector<std::string> row;
      if (several) row.push_back(swatch(i) + html(histories[i].name));
      row.insert(row.end(), {time_cell(all[k].time), grouped(all[k].iteration), end_of(all[k]),
                             k == 0 ? "" : changes(all[k - 1].run, all[k].run)});
      rows.push_back(std::move(row));
    }
  }
  std::vector<std::string> head = {"Began (UTC)", "From iteration", "Ended",
                                   "Changed since the previous session"};
  if (several) head.insert(head.begin(), "Run");
  return table("Sessions", head, rows, "long events");
}

std::string commands(const std::vector<RunHistory>& histories) {
  std::string result;
  for (size_t i = 0; i < histories.size(); ++i) {
    const std::string line = command_of(histories[i].sessions.back().run);
    if (line.empty()) continue;
    if (histories.size() > 1)
      result += "<p class=\"bar-name\">" + swatch(i) + html(histories[i].name) + "</p>";
    result += "<pre class=\"command\" tabindex=\"0\">" + html(line) + "</pre>\n";
  }
  return result.empty() ? result : "<h3>Command</h3>\n" + result;
}

}  // namespace

std::string configuration(const std::vector<RunHistory>& histories) {
  std::vector<const Json*> runs;
  std::vector<Values> flags, environment;
  for (const RunHistory& h : histories) {
    runs.push_back(&h.sessions.back().run);
    flags.push_back(flags_of(*runs.back()));
    environment.push_back(environment_of(*runs.back()));
  }
  std::string result;
  if (histories.size() > 1)
    result += "<h3>What differs</h3>\n" +
              comparison("Setting", histories, settings_of(runs), true, "not given");
  result += commands(histories);
  result += "<h3>Sessions</h3>\n" + sessions(histories);
  result += "<details><summary>All flags that differ from their defaults</summary>\n" +
            comparison("Flag", histories, flags, false, "default") + "</details>\n";
  result += "<details open><summary>Environment</summary>\n" +
            comparison("Name", histories, environment, false, "–") + "</details>\n";
  return result;
}

}  // namespace megatron::report
