// The ranks that serve a model: rank 0 answers requests, and every rank holds a part of the
// weights.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cli/model_rank.h"
#include "server/engines.h"
#include "training/served_adapter.h"

namespace megatron::cli {

// Each set of loaded weights has its own groups, so that engines with earlier weights keep running
// meanwhile. On ranks above 0, one thread per set follows its engines.
class ServingRanks {
 public:
  ServingRanks(const ModelRankOptions& options, comm::Group& world);  // both are borrowed
  ~ServingRanks();  // rank 0: stops serving, so that follow() returns on the others
  ServingRanks(const ServingRanks&) = delete;
  ServingRanks& operator=(const ServingRanks&) = delete;

  // Called on rank 0; thread-safe. If a rank cannot read its part, no rank keeps any: throws Error,
  // naming the rank if it is another one. The results must be destroyed before this object.
  server::ServedWeights load(const checkpoint::ModelDirectory& directory);
  // The same for adapters of the model in the directory `base`, for which every rank reserves
  // memory first (training::ServedAdapters). Returns the memory that rank 0 has reserved.
  const inference::AdapterMemory& reserve_adapters(const std::string& base, int64_t most,
                                                   int64_t max_rank,
                                                   const std::vector<std::string>& directories);
  std::shared_ptr<const inference::Adapter> load_adapter(const std::string& directory);
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

  // What rank 0 tells the others to do. end: follow() returns.
  struct Order {
    enum class Kind : uint8_t { end, weights, reserve, adapter } kind = Kind::end;
    std::string directory, base;
    std::vector<std::string> directories;  // of adapters
    int64_t most = 0, max_rank = 0;
    uint64_t number = 0;             // of the adapter
    std::vector<uint64_t> released;  // adapters that rank 0 has no more
  };
  // Numbers of adapters that rank 0 has released since it last gave an order.
  struct Released {
    std::mutex mutex;
    std::vector<uint64_t> numbers;
  };

  void give(Order order);
  Order receive();
  template <class F>
  void on_all(const F& step);
  std::shared_ptr<ModelRank> make(const Order& order);
  void reserve(const Order& order);
  std::shared_ptr<const inference::Adapter> make_adapter(const Order& order,
                                                         std::shared_ptr<Runtime> memory);
  void require_all(std::exception_ptr own);
  void receive_orders();
  void load_and_follow(const Order& order);
  void follow(Followed& one);

  const ModelRankOptions options_;
  comm::Group& world_;
  Runtime host_;  // for calls on host memory
  std::mutex ordering_;
  std::unique_ptr<training::ServedAdapters> adapters_;  // null: none are served by name
  inference::AdaptersByNumber by_number_;               // on ranks above 0
  const std::shared_ptr<Released> released_ = std::make_shared<Released>();

  std::list<Followed> followed_;
  std::mutex mutex_;  // guards the members below
  std::exception_ptr error_;
};

}  // namespace megatron::cli
