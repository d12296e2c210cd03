// The ranks that serve a model: rank 0 answers requests, and all have a part of the weights.
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

// Weights that are loaded have groups of their own, so that engines with earlier ones run on meanwhile. On ranks above
// 0 a thread follows the engines of each.
class ServingRanks {
 public:
  ServingRanks(const ModelRankOptions& options, comm::Group& world);  // borrowed
  ~ServingRanks();  // of rank 0, when it serves no more: the others' follow() returns
  ServingRanks(const ServingRanks&) = delete;
  ServingRanks& operator=(const ServingRanks&) = delete;

  // On rank 0, one at a time. Where a rank cannot read its part, none has any: throws Error, naming the rank if it is
  // another. What is returned is gone before this.
  server::ServedWeights load(const std::string& directory);
  // On the other ranks: loads what rank 0 loads. Throws what ends one of the engines.
  void follow();

  int count() const { return world_.size(); }
  // Why the ranks are lost; empty: they are not. Any thread may ask.
  std::string failure() const;

 private:
  struct Followed {
    std::shared_ptr<ModelRank> rank;
    std::thread thread;
    std::atomic<bool> ended = false;
  };

  std::shared_ptr<ModelRank> make(const std::string& directory);
  void require_all(std::exception_ptr own);
  void receive_loads();
  void follow(Followed& one);

  const ModelRankOptions options_;
  comm::Group& world_;
  Runtime host_;  // for calls on its memory

  std::list<Followed> followed_;
  std::mutex mutex_;  // of what follows
  std::exception_ptr error_;
};

}  // namespace megatron::cli
