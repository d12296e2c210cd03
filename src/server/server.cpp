#include "server/server.h"

namespace megatron::server {

Server::Server(const TextModel& model, ServedWeights weights, const ServerOptions& options)
    : adapters_(model, options.adapters),  // before the caches, which share the memory that is left
      engines_(std::move(weights), options, metrics_),
      service_({model, engines_, adapters_, std::chrono::duration<double>(options.request_timeout)},
               metrics_, options.service),
      http_(options.http, service_),
      port_(http_.start(options.host, static_cast<int>(options.port))) {}

Server::~Server() { drain(0); }

bool Server::drain(double seconds) {
  service_.refuse_more();
  const bool finished = engines_.drain(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                          std::chrono::duration<double>(seconds)));
  http_.stop();
  return finished;
}

}  // namespace megatron::server
