// A served model: engine, API and HTTP put together.
#pragma once

#include <string>

#include "server/http/http_server.h"
#include "server/service.h"

namespace megatron::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int64_t port = 5000;  // 0: a free one
  inference::EngineOptions engine;
  int64_t max_waiting = 64;      // texts that may wait for a place
  double request_timeout = 600;  // seconds
  HttpLimits http;
  ServiceOptions service;
};

// Model, stage and runtime must outlive it; stage and runtime are used by no one else.
class Server {
 public:
  // Listens when it returns. Throws Error naming the flag.
  Server(const TextModel& model, const models::Stage& stage, Runtime& runtime,
         const ServerOptions& options);
  ~Server();  // what runs is stopped

  int port() const { return port_; }
  // New requests are refused, and what runs may take so many seconds to finish; then all is
  // stopped. Whether all was finished.
  bool drain(double seconds);

  EngineCounts counts() const { return engine_.counts(); }

 private:
  Metrics metrics_;
  EngineThread engine_;
  Service service_;
  HttpServer http_;
  int port_ = 0;
};

}  // namespace megatron::server
