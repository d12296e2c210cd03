// A server's metrics and its web page.
#include "golden/server/support.h"
#include "hang_limit.h"
#include "text.h"

namespace megatron::testing {
namespace {

TEST(ServedMetrics, CountWhatWasDone) {
  const ServedModel served;
  served.get("/v1/completions",
             R"({"prompt": "abc", "max_tokens": 5, "n": 2, "ignore_eos": true})");
  served.post("/v1/completions", "{");
  served.client().Get("/../../etc/passwd");
  const std::vector<std::string> lines = {
      "megatron_http_requests_total{endpoint=\"/v1/completions\",status=\"200\"} 1\n",
      "megatron_http_requests_total{endpoint=\"/v1/completions\",status=\"400\"} 1\n",
      "megatron_http_requests_total{endpoint=\"other\",status=\"404\"} 1\n",
      "megatron_texts_total{reason=\"length\"} 2\n",
      "megatron_generated_tokens_total{replica=\"0\"} 10\n",
      "megatron_requests_running{replica=\"0\"} 0\n",
      "megatron_requests_waiting{replica=\"0\"} 0\n",
      "megatron_time_to_first_token_seconds_count 2\n",
      "megatron_time_between_tokens_seconds_count 8\n"};
  // The engine's and the connections' threads update their counts after they have answered.
  httplib::Result result = served.client().Get("/metrics");
  const auto lacks = [&](const std::string& line) { return !has(result->body, line); };
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kHangSeconds);
       result && std::ranges::any_of(lines, lacks) && std::chrono::steady_clock::now() < end;
       result = served.client().Get("/metrics"))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const std::string& line : lines)
    EXPECT_FALSE(lacks(line)) << line << " is not in\n" << result->body;
}

// The page is one file that loads nothing else.
TEST(ServedPage, IsWhole) {
  const ServedModel served;
  const httplib::Result page = served.client().Get("/");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_EQ(page->get_header_value("Content-Type"), "text/html; charset=utf-8");
  EXPECT_TRUE(has(page->get_header_value("Content-Security-Policy"), "default-src 'none'"));
  EXPECT_TRUE(page->body.starts_with("<!doctype html>"));
  EXPECT_TRUE(page->body.ends_with("</html>\n"));
  for (const char* part : {"http:", "https:", "//cdn", "src=", "@import", "@CHAT"})
    EXPECT_FALSE(has(page->body, part)) << part;
  // APIs through which model output could become part of the page's code.
  for (const char* part : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                           "eval(", "DOMParser", "setHTML", "createContextualFragment", "onclick"})
    EXPECT_FALSE(has(page->body, part)) << part;
  for (const char* part : {"dir=\"auto\"", "overflow-wrap: anywhere", "prefers-color-scheme"})
    EXPECT_TRUE(has(page->body, part)) << part;
}

}  // namespace
}  // namespace megatron::testing
