// A server in this process for a model with random weights, on a free local port.
#pragma once

#include <memory>
#include <string>

#include "models/stage.h"
#include "server/server.h"

namespace megatron::bench {

class RandomServer {
 public:
  // Its tokens are numbers in decimal. options: host and port are set here.
  RandomServer(const models::Model& model, const std::string& name, Device device, int threads,
               DType type, server::ServerOptions options);

  std::string url() const;

 private:
  const server::TextModel text_;
  std::unique_ptr<server::Server> server_;
};

}  // namespace megatron::bench
