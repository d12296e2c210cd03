#include "checkpoint/file_list.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "checkpoint/checkpoint_directory.h"

namespace megatron::checkpoint {
namespace {

constexpr size_t kDigits = 16;
constexpr std::string_view kZeros = "0000000000000000";
constexpr std::string_view kBeforeSum = "\"xxh3\": \"", kAfterSum = "\"\n}\n";

// Parses a checksum of exactly 16 lower-case digits, so that no damage can turn it into another
// valid one.
bool read_sum(std::string_view digits, uint64_t& sum) {
  if (digits.size() != kDigits ||
      digits.find_first_not_of("0123456789abcdef") != std::string_view::npos)
    return false;
  return std::from_chars(digits.data(), digits.data() + digits.size(), sum, 16).ec == std::errc();
}

Json to_json(const ListedFile& file) {
  Json::Object entry = {{"bytes", Json(file.bytes)},
                        {file.has_tensors ? "header" : "xxh3", Json(hexadecimal(file.sum))}};
  if (file.has_tensors) {
    Json::Object tensors;
    for (const auto& [name, sum] : file.tensors) tensors.emplace_back(name, Json(hexadecimal(sum)));
    entry.emplace_back("tensors", Json(std::move(tensors)));
  }
  return Json(std::move(entry));
}

void check_format(const Json& state, const std::string& origin) {
  const Json* const format = state.find("format");
  MG_CHECK(format != nullptr && format->is_integer() && format->as_integer() >= 1,
           "'{}' has no \"format\" number: it was not written by this program, or it was changed",
           origin);
  if (format->as_integer() <= kFormat) return;
  const Json* const by = state.find("written_by");
  fail(
      "'{}' has format {}, written by {}, newer than this program, which reads formats up to {}: "
      "use that version or a later one",
      origin, format->as_integer(),
      by != nullptr && by->is_string() ? by->as_string().substr(0, 100) : "a program", kFormat);
}

void check_own_sum(std::string_view text, const std::string& origin) {
  const size_t size = kBeforeSum.size() + kDigits + kAfterSum.size();
  uint64_t found = 0;
  const bool sealed =
      text.size() > size && text.ends_with(kAfterSum) &&
      text.substr(text.size() - size).starts_with(kBeforeSum) &&
      read_sum(text.substr(text.size() - kAfterSum.size() - kDigits, kDigits), found);
  MG_CHECK(sealed,
           "'{}' does not end with its checksum: it was truncated or changed; use another "
           "checkpoint",
           origin);
  std::string zeroed(text);
  zeroed.replace(zeroed.size() - kAfterSum.size() - kDigits, kDigits, kZeros);
  const uint64_t sum = checksum(zeroed);
  MG_CHECK(sum == found,
           "'{}' is damaged or was changed: its checksum is {}, but {} was written; use another "
           "checkpoint",
           origin, hexadecimal(sum), hexadecimal(found));
}

// Reads one member of "files". `where` names it in errors.
class EntryReader {
 public:
  EntryReader(const Json& entry, std::string where) : entry_(entry), where_(std::move(where)) {
    MG_CHECK(entry_.is_object(), "{}: the entry is not an object", where_);
  }

  ListedFile read(const std::string& name) const {
    ListedFile file{.name = name, .has_tensors = entry_.contains("tensors")};
    for (const auto& [key, value] : entry_.as_object()) {
      if (key == "bytes") file.bytes = size(value);
      else if (key == (file.has_tensors ? "header" : "xxh3")) file.sum = sum(value, key);
      else if (key == "tensors") file.tensors = tensors(value);
      else fail("{}: unknown key '{}'", where_, key);
    }
    MG_CHECK(entry_.as_object().size() == (file.has_tensors ? 3u : 2u),
             "{}: the entry has no size or no checksum", where_);
    return file;
  }

 private:
  int64_t size(const Json& value) const {
    MG_CHECK(value.is_integer() && value.as_integer() >= 0,
             "{}: bytes is not an integer from 0 to 9223372036854775807", where_);
    return value.as_integer();
  }

  uint64_t sum(const Json& value, std::string_view key) const {
    uint64_t result = 0;
    MG_CHECK(value.is_string() && read_sum(value.as_string(), result),
             "{}: the checksum '{}' is not a string of 16 hexadecimal digits", where_, key);
    return result;
  }

  std::vector<std::pair<std::string, uint64_t>> tensors(const Json& value) const {
    MG_CHECK(value.is_object(), "{}: tensors is not an object", where_);
    std::vector<std::pair<std::string, uint64_t>> result;
    for (const auto& [name, digits] : value.as_object())
      result.emplace_back(name, sum(digits, name));
    return result;
  }

  const Json& entry_;
  std::string where_;
};

}  // namespace

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t checksum(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::string hexadecimal(uint64_t sum) { return fmt::format("{:016x}", sum); }

std::string seal(const Json& state, std::span<const ListedFile> files) {
  MG_CHECK(state.is_object(), "the trainer's state to save is not a JSON object");
  Json::Object members;
  if (!state.contains("format")) members.emplace_back("format", Json(kFormat));
  for (const auto& [key, value] : state.as_object()) {
    if (key != "files" && key != "xxh3") members.emplace_back(key, value);
  }
  Json::Object list;
  for (const ListedFile& file : files) list.emplace_back(file.name, to_json(file));
  members.emplace_back("files", Json(std::move(list)));
  members.emplace_back("xxh3", Json(kZeros));
  std::string text = Json(std::move(members)).dump(2, true) + "\n";
  MG_ASSERT(text.ends_with(kAfterSum));
  const std::string sum = hexadecimal(checksum(text));
  return text.replace(text.size() - kAfterSum.size() - kDigits, kDigits, sum);
}

Sealed unseal(std::string_view text, const std::string& origin) {
  Sealed result{Json::parse(text, origin), {}};
  MG_CHECK(result.state.is_object(), "'{}' is not a JSON object", origin);
  check_format(result.state, origin);
  check_own_sum(text, origin);
  const Json* const files = result.state.find("files");
  MG_CHECK(files != nullptr && files->is_object(), "'{}': \"files\" is missing or not an object",
           origin);
  for (const auto& [name, entry] : files->as_object()) {
    MG_CHECK(is_listable(name), "'{}' lists the file {}, which is not a plain file name", origin,
             Json(name).dump());
    result.files.push_back(
        EntryReader(entry, fmt::format("'{}': file '{}'", origin, name)).read(name));
  }
  return result;
}

bool is_listable(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name != kTrainerState &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

}  // namespace megatron::checkpoint
