#include "bench/serve/random_server.h"

#include <fmt/core.h>

#include "tokenizers/plain_codecs.h"

namespace megatron::bench {
namespace {

server::TextModel::Parts text_parts(const models::Model& model, const std::string& name,
                                    int64_t max_length) {
  const int64_t positions = model->context_length();
  return {.name = name,
          .tokenizer = tokenizers::Tokenizer(tokenizers::make_null_codec(model->vocab_size(), 0)),
          .end_tokens = {0},
          .context = max_length > 0 ? std::min(max_length, positions) : positions,
          .created = 0};
}

}  // namespace

RandomServer::RandomServer(const models::Model& model, const std::string& name, Device device,
                           int threads, DType type, server::ServerOptions options)
    : text_(text_parts(model, name, options.engine.max_length)) {
  auto runtime = std::make_shared<Runtime>(device, threads);
  const std::shared_ptr<models::Stage> stage = model.build(*runtime, type, 1);
  models::initialize(*stage, 1, runtime->stream());
  options.host = "127.0.0.1";
  options.port = 0;
  options.engine.vocabulary = text_.vocabulary();
  options.engine.max_length = text_.context();
  server_ = std::make_unique<server::Server>(
      text_, server::ServedWeights{.runtime = runtime, .stage = stage}, options);
}

std::string RandomServer::url() const {
  return fmt::format("http://127.0.0.1:{}", server_->port());
}

}  // namespace megatron::bench
