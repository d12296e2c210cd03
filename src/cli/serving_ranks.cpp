#include "cli/serving_ranks.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "comm/member.h"
#include "comm/texts.h"
#include "comm/values.h"
#include "inference/follow.h"

namespace megatron::cli {
namespace {

constexpr const char *kLoad = "serve.load", *kLoaded = "serve.loaded";

std::string text_of(const std::exception_ptr& error) {
  if (error == nullptr) return {};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

// The model on rank 0. The other ranks follow its engines until its weights are released.
struct LeadingRank {
  explicit LeadingRank(std::shared_ptr<ModelRank> made)
      : rank(std::move(made)), followers(rank->ranks) {}

  const std::shared_ptr<ModelRank> rank;
  const inference::Followers followers;
};

}  // namespace

ServingRanks::ServingRanks(const ModelRankOptions& options, comm::Group& world)
    : options_(options), world_(world), host_({DeviceKind::cpu, 0}, 1) {}

ServingRanks::~ServingRanks() {
  if (world_.rank() > 0 || !failure().empty()) return;
  try {
    std::string end;
    comm::broadcast(world_, host_.stream(), end, 0, kLoad);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a rank has failed, and so does
                                     // the run
  }
}

std::string ServingRanks::failure() const {
  return world_.member() == nullptr ? "" : world_.member()->failure();
}

server::ServedWeights ServingRanks::load(const checkpoint::ModelDirectory& directory) {
  std::string path = directory.path(), base = directory.is_adapter() ? directory.base_path() : "";
  comm::broadcast(world_, host_.stream(), path, 0, kLoad);
  comm::broadcast(world_, host_.stream(), base, 0, kLoad);
  const auto lead = std::make_shared<LeadingRank>(make(path, base));
  return {.runtime = {lead, &lead->rank->runtime},
          .stage = {lead, lead->rank->stage.get()},
          .ranks = lead->rank->ranks};
}

// Collective. Throws on all ranks if one of them has an error.
void ServingRanks::require_all(std::exception_ptr own) {
  const auto errors = comm::gather_texts(world_, host_.stream(), text_of(own), kLoaded);
  if (own != nullptr) std::rethrow_exception(own);
  for (size_t r = 0; r < errors.size(); ++r)
    MG_CHECK(errors[r].empty(), "rank {}: {}", r, errors[r]);
}

std::shared_ptr<ModelRank> ServingRanks::make(const std::string& directory,
                                              const std::string& base) {
  std::optional<checkpoint::ModelDirectory> files;
  models::Model model;
  std::shared_ptr<ModelRank> rank;
  const auto on_all = [this](const auto& step) {
    std::exception_ptr error;
    try {
      step();
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    require_all(error);
  };
  on_all([&] {
    checkpoint::ReadingOptions reading = options_.reading;
    reading.base = base;
    files.emplace(directory, reading);
    model = models::model_of(*files);
    if (options_.max_length > 0) model = model->with({.context_length = options_.max_length});
  });
  on_all([&] { rank = std::make_shared<ModelRank>(options_, *files, model, world_); });
  return rank;
}

void ServingRanks::follow() {
  std::exception_ptr error;
  try {
    receive_loads();
  } catch (...) {
    error = std::current_exception();
  }
  for (Followed& one : followed_) one.thread.join();
  followed_.clear();
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (error != nullptr) std::rethrow_exception(error);
}

void ServingRanks::receive_loads() {
  for (;;) {
    std::string directory, base;
    comm::broadcast(world_, host_.stream(), directory, 0, kLoad);
    if (directory.empty()) return;
    comm::broadcast(world_, host_.stream(), base, 0, kLoad);
    followed_.remove_if([](Followed& one) {
      if (one.ended) one.thread.join();
      return one.ended.load();
    });
    std::shared_ptr<ModelRank> rank;
    try {
      rank = make(directory, base);
    } catch (const std::exception&) {
      if (!failure().empty()) throw;
      continue;  // rank 0 reports the reason
    }
    Followed& one = followed_.emplace_back();
    one.rank = std::move(rank);
    one.thread = std::thread([this, &one] { follow(one); });
  }
}

void ServingRanks::follow(Followed& one) {
  try {
    inference::follow(*one.rank->stage, one.rank->runtime, one.rank->ranks);
    one.rank = nullptr;
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      if (error_ == nullptr) error_ = std::current_exception();
    }
    world_.give_up();
  }
  one.ended = true;
}

}  // namespace megatron::cli
