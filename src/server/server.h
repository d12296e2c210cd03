// A served model: engine, API and HTTP put together.
#pragma once

#include <string>

#include "server/http/http_server.h"
#include "server/service.h"

namespace megatron::server {

struct ServerOptions : EnginesOptions {
  std::string host = "127.0.0.1";
  int64_t port = 5000;           // 0: any free port
  double request_timeout = 600;  // seconds
  HttpLimits http;
  ServiceOptions service;
  AdapterOptions adapters;
};

// The model must outlive it.
class Server {
 public:
  // The server listens when the constructor returns. Throws Error naming the flag.
  Server(const TextModel& model, ServedWeights weights, const ServerOptions& options);
  ~Server();  // cancels running requests

  int port() const { return port_; }
  // Refuses new requests, gives running ones `seconds` to finish, then stops everything. Returns
  // true if all requests finished.
  bool drain(double seconds);

  EngineCounts counts() const { return engines_.counts(); }
  std::vector<EngineCounts> replica_counts() const { return engines_.replica_counts(); }

 private:
  Metrics metrics_;
  Adapters adapters_;
  Engines engines_;
  Service service_;
  HttpServer http_;
  int port_ = 0;
};

}  // namespace megatron::server
