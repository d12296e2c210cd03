#include "cli/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "base/files.h"
#include "settings/yaml_document.h"

namespace megatron::cli {
namespace {

constexpr size_t kLargestFile = 1 << 20, kMaxEntries = 10000, kDeepestGroup = 16;

// Replaces ${NAME} in a text by environment variables.
std::string with_environment(std::string_view text, const std::string& where) {
  std::string result;
  while (!text.empty()) {
    if (text.starts_with("$${")) {
      result += "${";
      text.remove_prefix(3);
    } else if (text.starts_with("${")) {
      const size_t end = text.find('}');
      MG_CHECK(end != text.npos, "{}: '{}' has no closing brace; a plain ${{ is written $${{",
               where, text);
      const std::string name(text.substr(2, end - 2));
      const char* value = std::getenv(name.c_str());
      MG_CHECK(value != nullptr,
               "{}: the environment variable {} is not set; set it, or write $${{ for a plain ${{",
               where, name);
      result += value;
      text.remove_prefix(end + 1);
    } else {
      result += text.front();
      text.remove_prefix(1);
    }
  }
  return result;
}

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  void read(const YAML::Node& map, size_t depth) {
    MG_CHECK(depth <= kDeepestGroup, "{}: groups are nested more than {} deep", where(map),
             kDeepestGroup);
    for (const auto& entry : map) {
      MG_CHECK(++seen_ <= kMaxEntries, "{} has more than {} keys", path_, kMaxEntries);
      MG_CHECK(entry.first.IsScalar(),
               "{}: a key must be the name of a flag or of a group of flags", where(entry.first));
      take(entry.first, entry.second, depth);
    }
  }

  std::vector<ConfigEntry> entries;

 private:
  std::string where(const YAML::Node& node) const {
    return fmt::format("{}:{}", path_, node.Mark().line + 1);
  }

  void take(const YAML::Node& key, const YAML::Node& value, size_t depth) {
    ConfigEntry entry{.name = key.Scalar(), .where = where(key)};
    if (value.IsMap()) {
      entry.is_group = true;
      entries.push_back(std::move(entry));
      return read(value, depth + 1);
    }
    MG_CHECK(!value.IsNull(),
             "{}: '{}' has no value; give one, or leave the key out for its default", entry.where,
             entry.name);
    if (value.IsScalar()) {
      entry.values.push_back(with_environment(value.Scalar(), entry.where));
    } else {
      entry.is_list = true;
      for (const YAML::Node& item : value) {
        MG_CHECK(++seen_ <= kMaxEntries, "{} has more than {} keys", path_, kMaxEntries);
        MG_CHECK(item.IsScalar(), "{}: the list of '{}' may contain only numbers and strings",
                 where(item), entry.name);
        entry.values.push_back(with_environment(item.Scalar(), where(item)));
      }
    }
    entries.push_back(std::move(entry));
  }

  const std::string& path_;
  size_t seen_ = 0;
};

std::string with_dashes(std::string key) {
  std::ranges::replace(key, '_', '-');
  return key;
}

// Quotes the text unless every reader takes it for exactly this text.
std::string scalar(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos &&
      text.find_first_of("-.") != 0 && text != "null" && text != "Null" && text != "NULL") {
    return std::string(text);
  }
  std::string quoted = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (text.substr(i).starts_with("${")) quoted += '$';
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

std::string value_of(const Field& field) {
  if (!field.many) return scalar(field.get());
  std::string list;
  for (const std::string& value : field.get_all())
    list += (list.empty() ? "" : ", ") + scalar(value);
  return '[' + list + ']';
}

}  // namespace

std::vector<ConfigEntry> read_config(const std::string& path) {
  return parse_config(read_file(path, kLargestFile), path);
}

std::vector<ConfigEntry> parse_config(std::string content, const std::string& path) {
  const auto root = settings::load_yaml(std::move(content), path);
  if (!root) return {};
  Reader reader(path);
  try {
    MG_CHECK(root->IsMap(), "{}: a configuration file contains lines such as num-layers: 12", path);
    reader.read(*root, 0);
  } catch (const YAML::Exception& e) {
    fail("{}:{}: not valid YAML: {}", path, e.mark.line + 1, e.msg);
  }
  return std::move(reader.entries);
}

Field* find_by_key(Fields& fields, const std::string& key) {
  if (Field* field = fields.find(key)) return field;
  return fields.find(with_dashes(key));
}

std::string config_text(const Fields& fields, size_t count, const std::vector<std::string>& heads) {
  std::string text;
  for (const std::string& head : heads) text += "# " + head + "\n";
  for (const Field& field : std::span(fields.all()).first(count)) {
    const bool empty = field.many ? field.get_all().empty() : field.get().empty();
    if (empty && !field.given) {
      text += fmt::format("# {}: not set\n", field.name);
    } else {
      text +=
          fmt::format("{}: {}{}\n", field.name, value_of(field), field.given ? "" : "  # default");
    }
  }
  return text;
}

std::string with_places(std::string text, const Fields& fields) {
  const auto names = [&text](const std::string& flag) {
    for (size_t at = text.find(flag); at != text.npos; at = text.find(flag, at + 1)) {
      const size_t end = at + flag.size();
      if (end == text.size() || (text[end] != '-' && !is_letter(text[end]))) return true;
    }
    return false;
  };
  std::string places;
  for (const Field& field : fields.all()) {
    if (field.where.empty() || !names("--" + field.name)) continue;
    places +=
        fmt::format("{}--{} is set in {}", places.empty() ? "" : ", ", field.name, field.where);
  }
  return places.empty() ? text : fmt::format("{} ({})", text, places);
}

}  // namespace megatron::cli
