#include "cli/serving_ranks.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "comm/member.h"
#include "comm/texts.h"
#include "comm/values.h"
#include "inference/byte_stream.h"
#include "inference/follow.h"

namespace megatron::cli {
namespace {

constexpr const char *kOrder = "serve.order", *kDone = "serve.done";

template <class Bytes, class O>
void visit(Bytes& bytes, O& order) {
  bytes.fields(order.kind, order.directory, order.base, order.most, order.max_rank, order.number,
               order.released);
  bytes.each(order.directories, [&](auto& directory) { bytes.fields(directory); });
}

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
    give({.kind = Order::Kind::end});
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a rank has failed, and so does
                                     // the run
  }
}

void ServingRanks::give(Order order) {
  {
    const std::lock_guard lock(released_->mutex);
    order.released = std::exchange(released_->numbers, {});
  }
  inference::ByteWriter bytes;
  visit(bytes, order);
  std::string all = bytes.take();
  comm::broadcast(world_, host_.stream(), all, 0, kOrder);
}

ServingRanks::Order ServingRanks::receive() {
  std::string all;
  comm::broadcast(world_, host_.stream(), all, 0, kOrder);
  inference::ByteReader bytes(all);
  Order order;
  visit(bytes, order);
  return order;
}

std::string ServingRanks::failure() const {
  return world_.member() == nullptr ? "" : world_.member()->failure();
}

server::ServedWeights ServingRanks::load(const checkpoint::ModelDirectory& directory) {
  const std::lock_guard one(ordering_);
  const Order order{.kind = Order::Kind::weights,
                    .directory = directory.path(),
                    .base = directory.is_adapter() ? directory.base_path() : ""};
  give(order);
  const auto lead = std::make_shared<LeadingRank>(make(order));
  return {.runtime = {lead, &lead->rank->runtime},
          .stage = {lead, lead->rank->stage.get()},
          .ranks = lead->rank->ranks};
}

const inference::AdapterMemory& ServingRanks::reserve_adapters(
    const std::string& base, int64_t most, int64_t max_rank,
    const std::vector<std::string>& directories) {
  const std::lock_guard one(ordering_);
  const Order order{.kind = Order::Kind::reserve,
                    .base = base,
                    .directories = directories,
                    .most = most,
                    .max_rank = max_rank};
  give(order);
  reserve(order);
  return adapters_->memory();
}

std::shared_ptr<const inference::Adapter> ServingRanks::load_adapter(const std::string& directory) {
  const std::lock_guard one(ordering_);
  std::shared_ptr<Runtime> memory = adapters_->take(false);
  const Order order{.kind = Order::Kind::adapter,
                    .directory = directory,
                    .number = inference::Adapter::next_number()};
  give(order);
  std::shared_ptr<const inference::Adapter> adapter = make_adapter(order, std::move(memory));
  const inference::Adapter* const made = adapter.get();
  // The other ranks keep theirs until this one is gone and they are told so.
  return {made, [adapter, number = order.number, released = released_](const auto*) mutable {
            adapter = nullptr;
            const std::lock_guard lock(released->mutex);
            released->numbers.push_back(number);
          }};
}

// Collective. Throws on all ranks if one of them has an error.
void ServingRanks::require_all(std::exception_ptr own) {
  const auto errors = comm::gather_texts(world_, host_.stream(), text_of(own), kDone);
  if (own != nullptr) std::rethrow_exception(own);
  for (size_t r = 0; r < errors.size(); ++r)
    MG_CHECK(errors[r].empty(), "rank {}: {}", r, errors[r]);
}

template <class F>
void ServingRanks::on_all(const F& step) {
  std::exception_ptr error;
  try {
    step();
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  require_all(error);
}

std::shared_ptr<ModelRank> ServingRanks::make(const Order& order) {
  std::optional<checkpoint::ModelDirectory> files;
  models::Model model;
  std::shared_ptr<ModelRank> rank;
  on_all([&] {
    checkpoint::ReadingOptions reading = options_.reading;
    reading.base = order.base;
    files.emplace(order.directory, reading);
    model = models::model_of(*files);
    if (options_.max_length > 0) model = model->with({.context_length = options_.max_length});
  });
  on_all([&] { rank = std::make_shared<ModelRank>(options_, *files, model, world_); });
  return rank;
}

void ServingRanks::reserve(const Order& order) {
  on_all([&] {
    adapters_ = std::make_unique<training::ServedAdapters>(
        training::ServedAdaptersOptions{.device = options_.runtime.device_value(world_.rank()),
                                        .type = options_.type,
                                        .layout = options_.ranks.layout(),
                                        .reading = options_.reading,
                                        .most = order.most,
                                        .max_rank = order.max_rank},
        order.base, order.directories, world_);
  });
}

std::shared_ptr<const inference::Adapter> ServingRanks::make_adapter(
    const Order& order, std::shared_ptr<Runtime> memory) {
  std::shared_ptr<const inference::Adapter> adapter;
  on_all([&] {
    adapter = adapters_->load(order.directory, std::move(memory), order.number);
    // Once all ranks have it, rank 0 may send requests with it.
    if (world_.rank() > 0) by_number_.add(adapter);
  });
  return adapter;
}

void ServingRanks::follow() {
  std::exception_ptr error;
  try {
    receive_orders();
  } catch (...) {
    error = std::current_exception();
  }
  for (Followed& one : followed_) one.thread.join();
  followed_.clear();
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (error != nullptr) std::rethrow_exception(error);
}

void ServingRanks::receive_orders() {
  for (;;) {
    const Order order = receive();
    for (const uint64_t number : order.released) by_number_.remove(number);
    try {
      switch (order.kind) {
        case Order::Kind::end: return;
        case Order::Kind::weights: load_and_follow(order); break;
        case Order::Kind::reserve: reserve(order); break;
        case Order::Kind::adapter: make_adapter(order, adapters_->take(true)); break;
      }
    } catch (const std::exception&) {
      if (!failure().empty()) throw;
      by_number_.remove(order.number);  // rank 0 reports the reason
    }
  }
}

void ServingRanks::load_and_follow(const Order& order) {
  followed_.remove_if([](Followed& one) {
    if (one.ended) one.thread.join();
    return one.ended.load();
  });
  std::shared_ptr<ModelRank> rank = make(order);
  Followed& one = followed_.emplace_back();
  one.rank = std::move(rank);
  one.thread = std::thread([this, &one] { follow(one); });
}

void ServingRanks::follow(Followed& one) {
  try {
    inference::EngineRanks ranks = one.rank->ranks;
    ranks.adapters = &by_number_;
    inference::follow(*one.rank->stage, one.rank->runtime, ranks);
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
