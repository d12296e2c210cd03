// 100,000 request bodies with a few wrong bytes: each gets an answer, and none an internal error.
#include <map>

#include "golden/server/support.h"

namespace megatron::testing {
namespace {

TEST(BadRequests, AHundredThousand) {
  const ServedModel served;
  auto client = served.client();
  client.set_keep_alive(true);
  const std::pair<std::string, std::string> good[] = {
      {"/v1/completions",
       R"({"model": "tiny", "prompt": ["ab", [65, 66]], "max_tokens": 3, "temperature": 0.5, "n": 1,
           "stop": ["x"], "logprobs": 2, "echo": true, "seed": 7, "stream": false})"},
      {"/v1/chat/completions",
       R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "hé"}]},
                        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function",
                         "function": {"name": "f", "arguments": "{\"a\": [1]}"}}]}],
           "max_tokens": 2, "tools": [{"type": "function", "function": {"name": "f"}}]})"},
      {"/tokenize", R"({"prompt": "text", "add_special_tokens": true})"},
      {"/detokenize", R"({"tokens": [65, 66, 67]})"}};
  const RandomStream random(5, "bad requests");
  std::map<int, int> statuses;
  uint64_t at = 0;
  const auto below = [&](uint64_t n) { return random.bits(at++) % n; };
  for (int i = 0; i < 100'000; ++i) {
    auto [path, body] = good[below(std::size(good))];
    for (uint64_t changes = 1 + below(3); changes > 0 && !body.empty(); --changes) {
      const size_t place = below(body.size());
      switch (below(4)) {
        case 0: body[place] = static_cast<char>(below(256)); break;
        case 1: body.erase(place, 1 + below(8)); break;
        case 2: body.insert(place, std::string(1 + below(3), "0\"{}[],:-e9\\ "[below(13)])); break;
        default: body.resize(place + 1);
      }
    }
    const httplib::Result result = client.Post(path, body, "application/json");
    ASSERT_TRUE(result) << body;
    ASSERT_LT(result->status, 500) << body << "\n" << result->body;
    ++statuses[result->status];
  }
  EXPECT_GT(statuses[400], 50'000);
  EXPECT_GT(statuses[200], 1'000) << "some changes do no harm";
  EXPECT_EQ(served.server->counts().running, 0);
}

}  // namespace
}  // namespace megatron::testing
