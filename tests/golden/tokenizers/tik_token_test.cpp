// Settings of Megatron-LM's TikToken that no directory contains, compared with tiktoken 0.14.0.
#include "tokenizers/tik_token/tik_token.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "base/json.h"

namespace megatron::tokenizers {
namespace {

const std::string kTikToken = std::string(MEGATRON_GOLDEN) + "/tokenizers/tik_token/";

TEST(TikTokenGolden, PatternV1) {
  TikTokenOptions options;
  options.pattern = "v1";
  const auto codec = make_tik_token_list(read_file(kTikToken + "megatron_v2/vocab.json"), options);
  const std::string lines = read_file(kTikToken + "megatron_v1/lines.jsonl");
  int checked = 0;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = lines.find('\n', begin);
    const Json line = Json::parse(std::string_view(lines).substr(begin, end - begin));
    begin = end + 1;
    const std::string& text = line["text"].as_string();
    const auto wanted = [&](const char* key) {
      std::vector<int32_t> ids;
      for (const Json& id : line[line.contains(key) ? key : "ids"].as_array())
        ids.push_back(static_cast<int32_t>(id.as_integer()));
      return ids;
    };
    std::vector<int32_t> ids, ordinary;
    codec->encode(text, {}, ids, nullptr);
    codec->encode(text, {.find_special_tokens = false}, ordinary, nullptr);
    EXPECT_EQ(ids, wanted("ids")) << text;
    EXPECT_EQ(ordinary, wanted("ids_ordinary")) << text;
    EXPECT_EQ(codec->decode(ids, false), line["decoded"].as_string());
    ++checked;
  }
  EXPECT_EQ(checked, 320);
}

}  // namespace
}  // namespace megatron::tokenizers
