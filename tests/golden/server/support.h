// A server in this process on a free port: a model with random weights over bytes.
#pragma once

#include <httplib.h>

#include <memory>
#include <optional>
#include <string>

#include "base/log.h"
#include "golden/inference/support.h"
#include "server/server.h"
#include "tokenizers/plain_codecs.h"

namespace megatron::testing {

constexpr int64_t kServedPositions = 96;

// ChatML with tools in Qwen's format, and reasoning if requested.
inline constexpr const char* kChatTemplate =
    "{% if tools %}[{% for t in tools %}{{ t.function.name }} {% endfor %}]<tool_call>{% endif %}"
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% if think %}<think></think>{% endif %}{% endif %}";

inline server::TextModel served_text_model(const std::string& chat_template = kChatTemplate,
                                           int64_t positions = kServedPositions,
                                           models::ModelFacts facts = {}) {
  server::TextModel::Parts parts{
      .name = "tiny",
      .tokenizer = tokenizers::Tokenizer(tokenizers::make_byte_codec(256)),
      .end_tokens = {0},
      .context = positions,
      .created = 1,
      .facts = std::move(facts)};
  if (!chat_template.empty()) parts.chat.set_template(chat_template, "test");
  return server::TextModel(std::move(parts));
}

inline server::ServerOptions served_options(int64_t positions = kServedPositions) {
  server::ServerOptions options;
  options.port = 0;
  options.engine = {.vocabulary = 256, .max_requests = 4, .max_length = positions};
  options.max_waiting = 8;
  return options;
}

inline server::ServedWeights borrowed(RandomModel& model) {
  return {std::shared_ptr<Runtime>(std::shared_ptr<void>(), &model.runtime),
          std::shared_ptr<models::Stage>(std::shared_ptr<void>(), &model.model)};
}

class ServedModel {
 public:
  explicit ServedModel(const server::ServerOptions& options = served_options(),
                       const std::string& chat_template = kChatTemplate,
                       const std::optional<models::ModelFlags>& shape = {})
      : text(served_text_model(
            chat_template, options.engine.max_length,
            shape ? models::model_from_flags(*shape, 0)->facts() : models::ModelFacts())),
        model(shape ? *shape : gpt2_shape(1, 16, 2, 256, options.engine.max_length), DType::f32,
              1) {
    log::set_level(log::Level::error);
    server = std::make_unique<server::Server>(text, borrowed(model), options);
  }

  httplib::Client client() const {
    httplib::Client client("127.0.0.1", server->port());
    client.set_read_timeout(60, 0);
    return client;
  }
  httplib::Result post(const std::string& path, const std::string& body,
                       const httplib::Headers& headers = {}) const {
    return client().Post(path, headers, body, "application/json");
  }
  // Returns a successful answer.
  Json get(const std::string& path, const std::string& body) const {
    const httplib::Result result = post(path, body);
    if (!result) throw Error("no answer");
    if (result->status != 200) throw Error(result->body);
    return Json::parse(result->body);
  }
  // Returns the events of a stream without the last, [DONE], which is checked.
  std::vector<Json> stream(const std::string& path, const std::string& body) const {
    const httplib::Result result = post(path, body);
    if (!result || result->status != 200) throw Error(result ? result->body : "no answer");
    EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream");
    std::vector<Json> events;
    const std::string text = result->body;
    bool done = false;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find("\n\n", begin);
      EXPECT_NE(end, text.npos);
      const std::string line = text.substr(begin, end - begin);
      EXPECT_TRUE(line.starts_with("data: ")) << line;
      EXPECT_FALSE(done) << line;
      done = line == "data: [DONE]";
      if (!done) events.push_back(Json::parse(line.substr(6)));
      begin = end + 2;
    }
    EXPECT_TRUE(done) << text;
    return events;
  }

  server::TextModel text;
  RandomModel model;
  std::unique_ptr<server::Server> server;  // uses both
};

}  // namespace megatron::testing
