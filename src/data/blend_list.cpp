#include "data/blend_list.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "data/split.h"

namespace megatron::data {
namespace {

constexpr std::string_view kSpace = " \t\n\r\f\v";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::optional<double> as_weight(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::invalid_argument || end != text.data() + text.size()) return {};
  return error == std::errc() ? value : HUGE_VAL;
}

void check_list(const BlendList& list, std::string_view flag) {
  MG_CHECK(static_cast<int64_t>(list.prefixes.size()) <= kMaxBlendedSets,
           "{} names {} data sets; a blend has at most {}: merge some (megatron merge)", flag,
           list.prefixes.size(), kMaxBlendedSets);
  for (size_t i = 0; i < list.prefixes.size(); ++i) {
    MG_CHECK(!list.prefixes[i].empty(), "{}: data set {} has an empty name", flag, i + 1);
    if (!list.weighted()) continue;
    MG_CHECK(list.weights[i] > 0 && std::isfinite(list.weights[i]),
             "{}: the weight of {} is {}; it must be a number above 0 (leave out data sets you "
             "do not want)",
             flag, list.prefixes[i], list.weights[i]);
  }
}

BlendList list_of(const Json& items, std::string_view flag) {
  constexpr std::string_view kWanted =
      "{} must be a list of prefixes, or of weights and prefixes, such as [\"0.7\", \"a\", "
      "\"0.3\", \"b\"]";
  MG_CHECK(items.is_array(), kWanted, flag);
  std::vector<std::string> texts;
  for (const Json& item : items.as_array()) {
    MG_CHECK(item.is_number() || item.is_string(), kWanted, flag);
    texts.push_back(item.is_number() ? item.dump() : item.as_string());
  }
  return parse_blend_list(texts, flag);
}

}  // namespace

BlendList parse_blend_list(std::span<const std::string> items, std::string_view flag) {
  MG_CHECK(!items.empty(), "{} does not list any data set", flag);
  BlendList list;
  std::vector<std::optional<double>> weights;
  for (size_t i = 0; items.size() % 2 == 0 && i < items.size(); i += 2)
    weights.push_back(as_weight(items[i]));
  const auto first_missing = std::find(weights.begin(), weights.end(), std::nullopt);
  if (first_missing == weights.end() && !weights.empty()) {
    for (size_t i = 0; i < weights.size(); ++i) {
      list.weights.push_back(*weights[i]);
      list.prefixes.emplace_back(trimmed(items[2 * i + 1]));
    }
  } else {
    for (auto later = first_missing; later != weights.end(); ++later) {
      MG_CHECK(!later->has_value(),
               "{}: '{}' is not a weight, but '{}' is; alternate weights and prefixes, or give "
               "prefixes only",
               flag, items[2 * static_cast<size_t>(first_missing - weights.begin())],
               items[2 * static_cast<size_t>(later - weights.begin())]);
    }
    list.prefixes.assign(items.begin(), items.end());
  }
  check_list(list, flag);
  return list;
}

BlendList read_blend_list(const std::string& path, std::string_view flag) {
  const std::string text = read_file(path);
  std::vector<std::string> items;
  for (size_t at = text.find_first_not_of(kSpace); at != text.npos;) {
    const size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    items.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(kSpace, end);
  }
  return parse_blend_list(items, fmt::format("{} {}", flag, path));
}

std::array<std::optional<BlendList>, 3> read_split_blend_lists(const std::string& path,
                                                               std::string_view flag) {
  const Json file = Json::read(path);
  MG_CHECK(file.is_object(), "{} {} must be an object with the keys train, valid and test", flag,
           path);
  std::array<std::optional<BlendList>, 3> lists;
  for (const auto& [key, items] : file.as_object()) {
    size_t split = 0;
    while (split < lists.size() && name(static_cast<Split>(split)) != key) ++split;
    MG_CHECK(split < lists.size(), "{} {}: unknown key '{}'; the keys are train, valid and test",
             flag, path, key);
    if (!items.is_null()) lists[split] = list_of(items, fmt::format("{} {}: {}", flag, path, key));
  }
  return lists;
}

}  // namespace megatron::data
