#include "training/same_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <span>

#include "base/error.h"
#include "comm/texts.h"
#include "comm/values.h"
#include "data/source_facts.h"

namespace megatron::training {
namespace {

constexpr const char* kCall = "same settings";

// Each setting as three texts that end in a zero byte.
std::string packed(const std::vector<ComparedSetting>& settings) {
  std::string bytes;
  for (const ComparedSetting& s : settings)
    for (const std::string* text : {&s.name, &s.value, &s.shown}) bytes.append(*text) += '\0';
  return bytes;
}

std::vector<ComparedSetting> unpacked(const std::string& bytes) {
  std::vector<ComparedSetting> settings;
  size_t at = 0;
  const auto next = [&] {
    const size_t end = std::min(bytes.find('\0', at), bytes.size());
    std::string text = bytes.substr(at, end - at);
    at = end + 1;
    return text;
  };
  while (at < bytes.size()) {
    ComparedSetting& s = settings.emplace_back();
    s.name = next();
    s.value = next();
    s.shown = next();
  }
  return settings;
}

std::string values_of(const std::vector<ComparedSetting>& settings) {
  std::string bytes;
  for (const ComparedSetting& s : settings) bytes.append(s.name + '\0' + s.value + '\0');
  return bytes;
}

// Reduces the 128-bit digest as four numbers and their negatives by maximum. Both maxima have the
// same magnitude only if all ranks have the same number.
bool are_same(comm::Group& ranks, Stream& stream, const std::vector<ComparedSetting>& own) {
  constexpr size_t kParts = 4, kDigits = 8;
  const std::string bytes = values_of(own), digest = data::digest(std::as_bytes(std::span(bytes)));
  std::array<double, 2 * kParts> numbers{};
  for (size_t i = 0; i < kParts; ++i) {
    uint32_t part = 0;
    const char* const begin = digest.data() + i * kDigits;
    std::from_chars(begin, begin + kDigits, part, 16);
    numbers[i] = part;
    numbers[kParts + i] = -numbers[i];
  }
  comm::largest(ranks, stream, numbers, kCall);
  for (size_t i = 0; i < kParts; ++i)
    if (numbers[i] != -numbers[kParts + i]) return false;
  return true;
}

// Returns the settings of `own` that differ from rank 0's or that rank 0 lacks, then those that
// only rank 0 has, marked as not given.
std::vector<ComparedSetting> others(const std::vector<ComparedSetting>& own,
                                    const std::vector<ComparedSetting>& first) {
  std::map<std::string, const ComparedSetting*> of_first;
  for (const ComparedSetting& s : first) of_first[s.name] = &s;
  std::vector<ComparedSetting> different;
  for (const ComparedSetting& s : own) {
    const auto found = of_first.find(s.name);
    if (found == of_first.end() || found->second->value != s.value) different.push_back(s);
    if (found != of_first.end()) of_first.erase(found);
  }
  for (const auto& [name, unused] : of_first) different.push_back({name, "", ""});
  return different;
}

// "ranks 0, 2-3".
std::string rank_list(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    if (last > i) text += fmt::format("-{}", ranks[last]);
    i = last + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

// The values of a setting on all ranks.
struct Row {
  std::string name;
  std::vector<ComparedSetting> by_rank;
  bool differs = false;
};

std::string sentence(const Row& row) {
  constexpr size_t kMaxValues = 4;
  // Ranks with equal values.
  std::vector<std::pair<const ComparedSetting*, std::vector<int>>> groups;
  size_t untold = 0;
  for (size_t r = 0; r < row.by_rank.size(); ++r) {
    const ComparedSetting& own = row.by_rank[r];
    auto group = std::ranges::find_if(
        groups, [&](const auto& known) { return known.first->value == own.value; });
    if (group == groups.end() && groups.size() == kMaxValues) {
      ++untold;
      continue;
    }
    if (group == groups.end()) group = groups.insert(group, {&own, {}});
    group->second.push_back(static_cast<int>(r));
  }
  std::string text;
  for (const auto& [setting, ranks] : groups)
    text += fmt::format("{}{} on {}", text.empty() ? "" : "; ",
                        setting->shown.empty() ? "not given" : setting->shown, rank_list(ranks));
  if (untold > 0) text += fmt::format("; other values on {} ranks", untold);
  return row.name + " differs between ranks: " + text;
}

// different: by rank, the packed settings that differ from rank 0's.
std::vector<Row> differing_rows(const std::vector<ComparedSetting>& first,
                                const std::vector<std::string>& different) {
  std::vector<Row> rows;
  for (const ComparedSetting& s : first)
    rows.push_back({s.name, std::vector<ComparedSetting>(different.size(), s)});
  for (size_t r = 0; r < different.size(); ++r) {
    for (const ComparedSetting& s : unpacked(different[r])) {
      auto row = std::ranges::find(rows, s.name, &Row::name);
      if (row == rows.end())
        row = rows.insert(row, {s.name, {different.size(), ComparedSetting{s.name, "", ""}}});
      row->by_rank[r] = s;
      row->differs = true;
    }
  }
  std::erase_if(rows, [](const Row& row) { return !row.differs; });
  return rows;
}

[[noreturn]] void refuse(const std::vector<ComparedSetting>& first,
                         const std::vector<std::string>& different) {
  constexpr size_t kMaxNamed = 6;
  const std::vector<Row> rows = differing_rows(first, different);
  MG_ASSERT(!rows.empty());
  const std::string command = first.front().name;
  if (rows[0].name == command) fail("{}; start all ranks with the same command", sentence(rows[0]));
  std::string text;
  for (size_t i = 0; i < std::min(rows.size(), kMaxNamed); ++i)
    text += (i == 0 ? "" : ". ") + sentence(rows[i]);
  if (rows.size() > kMaxNamed)
    text += fmt::format(". {} more settings differ", rows.size() - kMaxNamed);
  fail("{}; start all ranks with the same settings", text);
}

}  // namespace

void require_same(comm::Group& ranks, Stream& stream, const std::vector<ComparedSetting>& own) {
  if (ranks.size() == 1 || are_same(ranks, stream, own)) return;
  std::string of_first = packed(own);
  comm::broadcast(ranks, stream, of_first, 0, kCall);
  const std::vector<ComparedSetting> first = unpacked(of_first);
  refuse(first, comm::gather_texts(ranks, stream, packed(others(own, first)), kCall));
}

}  // namespace megatron::training
