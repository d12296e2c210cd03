#include "comm/rank_record.h"

#include <algorithm>
#include <numeric>

#include "base/clock.h"
#include "base/json.h"
#include "comm/mixed.h"

namespace megatron::comm {

namespace {

int64_t& of_peer(std::vector<int64_t>& counts, int peer, const GroupRecord& group) {
  if (counts.empty()) counts.resize(group.members.size());
  return counts[static_cast<size_t>(peer)];
}

template <class T>
Json array_of(const std::vector<T>& values) {
  Json::Array array;
  for (const T value : values) array.emplace_back(value);
  return array;
}

template <class T>
std::vector<T> vector_of(const Json& json) {
  std::vector<T> values;
  for (const Json& value : json.as_array()) values.push_back(static_cast<T>(value.as_integer()));
  return values;
}

uint64_t id_of(const Json& json) { return static_cast<uint64_t>(json["group"].as_integer()); }
int int_of(const Json& json) { return static_cast<int>(json.as_integer()); }

}  // namespace

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

uint64_t GroupRecord::id_of_part(int color) const {
  const uint64_t number = mixed(static_cast<uint64_t>(calls) << 32 ^ static_cast<uint64_t>(color));
  return mixed(id ^ number) >> 1;  // fits a JSON number
}

OpenCall::OpenCall(RankRecord& record, GroupRecord& group, CallHeader& header, int peer)
    : record_(record), group_(group), header_(header), peer_(peer), began_(now_seconds()) {
  record_.begin(*this, group, header);
}

OpenCall::~OpenCall() { record_.end(*this); }

std::shared_ptr<GroupRecord> RankRecord::add_group(uint64_t id, std::string_view name,
                                                   std::vector<int> members) {
  auto group = std::make_shared<GroupRecord>();
  group->id = id;
  group->name = name;
  group->members = std::move(members);
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
  return group;
}

void RankRecord::set_name(GroupRecord& group, std::string_view name) {
  const std::lock_guard lock(mutex_);
  group.name = name;
}

int64_t RankRecord::sent(GroupRecord& group, int to) {
  const std::lock_guard lock(mutex_);
  return ++of_peer(group.sent, to, group);
}

void RankRecord::begin(OpenCall& call, GroupRecord& group, CallHeader& header) {
  const std::lock_guard lock(mutex_);
  header.group = group.name;
  header.number = call.peer_ < 0 ? ++group.calls : ++of_peer(group.received, call.peer_, group);
  open_.push_back(&call);
}

void RankRecord::end(OpenCall& call) {
  const double now = now_seconds();
  const std::lock_guard lock(mutex_);
  std::erase(open_, &call);
  last_.operation = call.header_.operation;
  last_.call.assign(call.header_.call);
  last_.group.assign(call.group_.name);
  last_.number = call.header_.number;
  last_.ended = now;
}

double RankRecord::longest() const {
  const double now = now_seconds();
  const std::lock_guard lock(mutex_);
  double longest = 0;
  for (const OpenCall* call : open_) longest = std::max(longest, now - call->began_);
  return longest;
}

RankReport RankRecord::report() const {
  const double now = now_seconds();
  RankReport report;
  report.rank = rank_;
  report.doing = doing_.state();
  const std::lock_guard lock(mutex_);
  for (const OpenCall* call : open_) {
    const std::vector<int>& members = call->group_.members;
    const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
    report.calls.push_back({call->group_.id, members, call->header_.number, static_cast<int>(place),
                            call->peer_, describe(call->header_), now - call->began_});
  }
  for (const auto& group : groups_) report.groups.push_back({group->id, group->calls, group->sent});
  if (last_.number == 0) return report;
  CallHeader last = {.operation = last_.operation, .call = last_.call};
  last.group = last_.group;
  last.number = last_.number;
  report.last_call = short_text(last);
  report.last_seconds = now - last_.ended;
  return report;
}

std::string RankReport::packed() const {
  Json::Array call_array, group_array;
  for (const CallReport& c : calls) {
    call_array.push_back(Json::Object{{"group", static_cast<int64_t>(c.group)},
                                      {"members", array_of(c.members)},
                                      {"number", c.number},
                                      {"place", c.place},
                                      {"peer", c.peer},
                                      {"text", c.text},
                                      {"seconds", c.seconds}});
  }
  for (const GroupProgress& g : groups) {
    group_array.push_back(Json::Object{
        {"group", static_cast<int64_t>(g.group)}, {"calls", g.calls}, {"sent", array_of(g.sent)}});
  }
  return Json(Json::Object{{"rank", rank},
                           {"state", static_cast<int>(state)},
                           {"phase", doing.phase},
                           {"layer", doing.layer},
                           {"step", doing.step},
                           {"micro_batch", doing.micro_batch},
                           {"may_be_long", doing.may_be_long},
                           {"calls", std::move(call_array)},
                           {"groups", std::move(group_array)},
                           {"last_call", last_call},
                           {"last_seconds", last_seconds}})
      .dump();
}

RankReport RankReport::unpacked(std::string_view bytes) {
  const Json json = Json::parse(bytes, "a rank's report");
  RankReport report;
  report.rank = int_of(json["rank"]);
  report.state = static_cast<State>(int_of(json["state"]));
  report.doing = {json["phase"].as_string(), json["layer"].as_string(), json["step"].as_integer(),
                  json["micro_batch"].as_integer(), json["may_be_long"].as_bool()};
  for (const Json& c : json["calls"].as_array()) {
    report.calls.push_back({id_of(c), vector_of<int>(c["members"]), c["number"].as_integer(),
                            int_of(c["place"]), int_of(c["peer"]), c["text"].as_string(),
                            c["seconds"].as_number()});
  }
  for (const Json& g : json["groups"].as_array())
    report.groups.push_back({id_of(g), g["calls"].as_integer(), vector_of<int64_t>(g["sent"])});
  report.last_call = json["last_call"].as_string();
  report.last_seconds = json["last_seconds"].as_number();
  return report;
}

}  // namespace megatron::comm
