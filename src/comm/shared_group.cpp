#include "comm/shared_group.h"

#include <algorithm>
#include <thread>

#include "base/error.h"

namespace megatron::comm {

namespace {

// Number of polls before a rank sleeps. Each yields the core, since compute threads share it.
constexpr int kPolls = 64;

}  // namespace

World::World(int ranks) : ended_(static_cast<size_t>(ranks)), left_(static_cast<size_t>(ranks)) {
  for (int r = 0; r < ranks; ++r) records_.push_back(std::make_unique<RankRecord>(r));
}

void World::fail(int rank, std::exception_ptr failure, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ == nullptr && (leaving_ < 0 || leaving_ == rank)) {
      failure_ = std::move(failure);
      reason_ = reason;
    }
    failed_.store(true, std::memory_order_release);
  }
  wake_all();
}

void World::leave(int rank) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ == nullptr && leaving_ < 0) {
      leaving_ = rank;
      reason_ = fmt::format("rank {} failed", rank);
    }
    failed_.store(true, std::memory_order_release);
  }
  wake_all();
}

void World::end(int rank) {
  ended_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
  wake_all();
}

void World::left(int rank) {
  left_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
}

double World::longest() const {
  double longest = 0;
  for (const auto& record : records_) longest = std::max(longest, record->longest());
  return longest;
}

std::vector<RankReport> World::reports() const {
  std::vector<RankReport> reports;
  for (const auto& record : records_) {
    RankReport& report = reports.emplace_back(record->report());
    if (ended(report.rank)) report.state = RankReport::State::has_ended;
  }
  return reports;
}

std::string World::reason() {
  const std::lock_guard lock(mutex_);
  return reason_;
}

void World::give_up(std::string_view call) {
  const std::lock_guard lock(mutex_);
  throw Error(fmt::format("'{}' was aborted: {}", call, reason_));
}

void World::rethrow() const {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  MG_CHECK(!failed(), "{}", reason_);
}

void World::add(const std::shared_ptr<SharedGroup>& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const std::weak_ptr<SharedGroup>& m) { return m.expired(); });
  groups_.push_back(group);
}

void World::wake_all() {
  std::vector<std::shared_ptr<SharedGroup>> groups;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : groups_) {
      if (auto group = weak.lock()) groups.push_back(std::move(group));
    }
  }
  for (const auto& group : groups) group->wake();
}

SharedGroup::SharedGroup(std::shared_ptr<World> world, std::vector<int> members, uint64_t id)
    : world_(std::move(world)),
      members_(std::move(members)),
      id_(id),
      entries_(members_.size()),
      present_(members_.size()),
      mailboxes_(members_.size() * members_.size()) {}

SharedGroup::Arrival SharedGroup::arrive(int rank) {
  const uint64_t generation = generation_.load(std::memory_order_relaxed);
  present_[static_cast<size_t>(rank)] = true;
  if (++arrived_ < size()) return {generation, false};
  arrived_ = 0;
  std::fill(present_.begin(), present_.end(), false);
  generation_.store(generation + 1, std::memory_order_release);
  return {generation, true};
}

bool SharedGroup::spin(uint64_t generation) const {
  for (int look = 0; look < kPolls; ++look) {
    if (over(generation)) return true;
    std::this_thread::yield();
  }
  return false;
}

void SharedGroup::begin(int rank) {
  const std::string& call = entry(rank).call;
  std::unique_lock lock(mutex_);
  if (world_->failed()) world_->give_up(call);
  const Arrival arrival = arrive(rank);
  lock.unlock();
  if (arrival.last) return changed_.notify_all();
  if (spin(arrival.generation)) return;

  lock.lock();
  changed_.wait(lock, [&] {
    return over(arrival.generation) || world_->failed() || missing_for_ever() >= 0;
  });
  if (over(arrival.generation)) return;
  const int missing = world_->failed() ? -1 : missing_for_ever();
  lock.unlock();
  if (missing >= 0) {
    const std::string text =
        fmt::format("rank {} has exited while rank {} is waiting for it in {}",
                    members_[static_cast<size_t>(missing)], members_[static_cast<size_t>(rank)],
                    describe(entry(rank)));
    world_->fail(members_[static_cast<size_t>(rank)], std::make_exception_ptr(Error(text)), text);
  }
  world_->give_up(call);
}

void SharedGroup::end(int rank) {
  std::unique_lock lock(mutex_);
  const Arrival arrival = arrive(rank);
  lock.unlock();
  if (arrival.last) return changed_.notify_all();
  if (spin(arrival.generation)) return;
  lock.lock();
  changed_.wait(lock, [&] { return over(arrival.generation); });
}

int SharedGroup::missing_for_ever() const {
  for (int r = 0; r < size(); ++r) {
    if (!present_[static_cast<size_t>(r)] && world_->ended(members_[static_cast<size_t>(r)]))
      return r;
  }
  return -1;
}

std::string SharedGroup::disagreement() const {
  return comm::disagreement(
      [this](int rank) -> const CallHeader& { return entries_[static_cast<size_t>(rank)]; },
      members_);
}

void SharedGroup::send(int from, int to, const Tensor& tensor, std::string_view call,
                       int64_t number) {
  std::unique_lock lock(mutex_);
  if (world_->failed()) world_->give_up(call);
  Message message = mailbox(from, to).take_spare(tensor);
  lock.unlock();
  pack(tensor, call, message);
  message.number = number;
  lock.lock();
  mailbox(from, to).push(std::move(message));
  lock.unlock();
  changed_.notify_all();
}

void SharedGroup::receive(int from, int to, Tensor& tensor, const CallHeader& header) {
  const int sender = members_[static_cast<size_t>(from)],
            receiver = members_[static_cast<size_t>(to)];
  std::unique_lock lock(mutex_);
  Mailbox& box = mailbox(from, to);
  changed_.wait(lock, [&] { return !box.empty() || world_->failed() || world_->ended(sender); });
  const bool came = !box.empty() && !world_->failed();
  Message message = came ? box.pop() : Message();
  lock.unlock();
  if (!came && world_->failed()) world_->give_up(header.call);
  const std::string wrong = came ? mismatch(message, header, sender, receiver)
                                 : fmt::format(
                                       "rank {} has exited while rank {} is waiting for "
                                       "it in {}",
                                       sender, receiver, describe(header));
  if (!wrong.empty()) {
    world_->fail(receiver, std::make_exception_ptr(Error(wrong)), wrong);
    world_->give_up(header.call);
  }
  unpack(message, tensor);
  lock.lock();
  box.give_back(std::move(message));
}

void SharedGroup::wake() {
  {
    const std::lock_guard lock(mutex_);
  }
  changed_.notify_all();
}

}  // namespace megatron::comm
