#include "server/server.h"

namespace megatron::server {

Server::Server(const TextModel& model, const models::Stage& stage, Runtime& runtime,
               const ServerOptions& options)
    : engine_(stage, runtime, options.engine, options.max_waiting, metrics_),
      service_({model, engine_, std::chrono::duration<double>(options.request_timeout)}, metrics_,
               options.service),
      http_(options.http, service_),
      port_(http_.start(options.host, static_cast<int>(options.port))) {}

Server::~Server() { drain(0); }

bool Server::drain(double seconds) {
  service_.refuse_more();
  const bool finished = engine_.drain(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                         std::chrono::duration<double>(seconds)));
  http_.stop();
  return finished;
}

}  // namespace megatron::server
