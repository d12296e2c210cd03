#include "tokenizers/tik_token/tik_token_file.h"

#include <simdjson.h>

#include "base/error.h"
#include "base/text_parts.h"
#include "base/utf8.h"
#include "tokenizers/base64.h"
#include "tokenizers/byte_level.h"

namespace megatron::tokenizers {
namespace {

namespace dom = simdjson::dom;

constexpr size_t kLongestToken = 1024;
// The beginning of a file's contents, for an error.
std::string shown(std::string_view bytes) {
  std::string text;
  append_lossy(bytes.substr(0, 40), true, text);
  return text;
}

void add_token(std::string_view base64, int64_t id, std::string_view place, int64_t number,
               Vocabulary& vocabulary) {
  std::string bytes;
  MG_CHECK(append_base64(base64, bytes), "{} {}: '{}' is not base64", place, number, shown(base64));
  MG_CHECK(!bytes.empty() && bytes.size() <= kLongestToken,
           "{} {}: a token has {} bytes; it must have 1 to {}", place, number, bytes.size(),
           kLongestToken);
  MG_CHECK(id >= 0 && id <= Vocabulary::kMaximumId, "{} {}: the id is {}; ids are 0 to {}", place,
           number, id, Vocabulary::kMaximumId);
  const auto same = vocabulary.find(bytes);
  MG_CHECK(!same, "{} {}: duplicate token '{}', which already has id {}", place, number, base64,
           same.value_or(0));
  MG_CHECK(!vocabulary.contains(id), "{} {}: duplicate id {}", place, number, id);
  vocabulary.add(bytes, id);
}

void check_bytes(const Vocabulary& vocabulary) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(static_cast<unsigned char>(byte));
    MG_CHECK(vocabulary.find({&c, 1}),
             "there is no token for the byte {}; each of the 256 bytes needs one",
             byte_token(static_cast<unsigned char>(byte)));
  }
}

}  // namespace

Vocabulary parse_tik_token_lines(std::string_view lines) {
  Vocabulary vocabulary;
  for (int64_t number = 1; !lines.empty(); ++number) {
    std::string_view line = take_until(lines, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = std::min(line.find(' '), line.size());
    const std::string_view rank = line.substr(std::min(space + 1, line.size()));
    const auto id = parse_number<int64_t>(rank);
    MG_CHECK(space < line.size() && id, "line {}: '{}' is not base64, a space and a number", number,
             shown(line));
    add_token(line.substr(0, space), *id, "line", number, vocabulary);
  }
  check_bytes(vocabulary);
  return vocabulary;
}

Vocabulary parse_tik_token_list(std::string_view json, int64_t first_id, int64_t limit) {
  Vocabulary vocabulary;
  try {
    dom::parser parser;
    const dom::array list = parser.parse(simdjson::padded_string(json)).value();
    int64_t number = 0;
    for (const dom::element entry : list) {
      if (number == limit) break;
      dom::element rank, bytes, text;
      MG_CHECK(entry.is_object() && entry["rank"].get(rank) == simdjson::SUCCESS &&
                   entry["token_bytes"].get(bytes) == simdjson::SUCCESS && rank.is_int64() &&
                   bytes.is_string(),
               "entry {} is not {{\"rank\": number, \"token_bytes\": base64, \"token_str\": text}}",
               number);
      MG_CHECK(int64_t{rank} == number, "entry {} has the rank {}; ranks must count up from 0",
               number, int64_t{rank});
      add_token(std::string_view(bytes), first_id + number, "entry", number, vocabulary);
      const std::string_view token = vocabulary.text(static_cast<int32_t>(first_id + number));
      MG_CHECK(
          number >= 256 || (token.size() == 1 && static_cast<unsigned char>(token[0]) == number),
          "entry {} is not the byte {}; the first 256 are the bytes in order", number, number);
      ++number;
    }
  } catch (const simdjson::simdjson_error& error) {
    fail("{}", error.what());
  }
  check_bytes(vocabulary);
  return vocabulary;
}

}  // namespace megatron::tokenizers
