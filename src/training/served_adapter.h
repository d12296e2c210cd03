// Adapters of a served model, of which each request chooses one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/model_directory.h"
#include "inference/adapter.h"

namespace megatron::training {

struct ServedAdaptersOptions {
  Device device;
  DType type = DType::f32;
  inference::EngineLayout layout;  // of the ranks that divide the model
  checkpoint::ReadingOptions reading = {};
  int64_t most = 8, max_rank = 64;
};

// A rank's part of the adapters that are served with one base model.
class ServedAdapters {
 public:
  // Reserves memory for options.most adapters and for one more, which may replace another. Each
  // gets the memory of an adapter of all linear layers and experts with rank options.max_rank, or
  // of the largest of `directories`, which will be loaded, if that is more. Collective over
  // `world`, which must outlive this and the adapters. Throws Error naming what does not fit.
  ServedAdapters(ServedAdaptersOptions options, std::string base,
                 const std::vector<std::string>& directories, comm::Group& world);

  // Returns memory for one adapter. Throws Error if all of it is in use, or with `waits`, waits.
  std::shared_ptr<Runtime> take(bool waits);
  // Loads the tensors of the adapter in a directory. number: inference::Adapter::number(). Throws
  // Error naming what does not fit the model or the memory, and tensors that the model does not
  // use.
  std::shared_ptr<const inference::Adapter> load(const std::string& directory,
                                                 std::shared_ptr<Runtime> memory, uint64_t number);
  const inference::AdapterMemory& memory() const { return *memory_; }

 private:
  void reserve(int64_t bytes);
  checkpoint::ModelDirectory open(const std::string& directory) const;
  void check_rank(const models::Stage& whole, const std::string& directory) const;

  const ServedAdaptersOptions options_;
  const std::string base_;  // the model's directory
  Json description_;        // of the model
  const inference::EngineGroups groups_;
  const bool tells_;  // whether this rank logs what is read
  std::unique_ptr<inference::AdapterMemory> memory_;
};

}  // namespace megatron::training
