// The ranks that serve a model: rank 0 answers requests, and every rank holds a part of the
// weights.
#pragma once

#include <atomic>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "cli/model_rank.h"
#include "server/engines.h"

namespace megatron::cli {

// Each set of loaded weights has its own groups, so that engines with earlier weights keep running
// meanwhile. On ranks above 0, one thread per set follows its engines.
class ServingRanks {
 public:
  ServingRanks(const ModelRankOptions& options, comm::Group& world);  // both are borrowed
  ~ServingRanks();  // rank 0: stops serving, so that follow() returns on the others
  ServingRanks(const ServingRanks&) = delete;
  ServingRanks& operator=(const ServingRanks&) = delete;

  // Called on rank 0, one call at a time. If a rank cannot read its part, no rank keeps any: throws
  // Error, naming the rank if it is another one. The result must be destroyed before this object.
  server::ServedWeights load(const checkpoint::ModelDirectory& directory);
  // Called on the other ranks: loads what rank 0 loads. Throws the error that ends one of the
  // engines.
  void follow();

  int count() const { return world_.size(); }
  // Returns the reason why the ranks are lost, or "" if they are not. Thread-safe.
  std::string failure() const;

 private:
  struct Followed {
    std::shared_ptr<ModelRank> rank;
    std::thread thread;
    std::atomic<bool> ended = false;
  };

  std::shared_ptr<ModelRank> make(const std::string& directory, const std::string& base);
  void require_all(std::exception_ptr own);
  void receive_loads();
  void follow(Followed& one);

  const ModelRankOptions options_;
  comm::Group& world_;
  Runtime host_;  // for calls on host memory

  std::list<Followed> followed_;
  std::mutex mutex_;  // guards the members below
  std::exception_ptr error_;
};

}  // namespace megatron::cli
