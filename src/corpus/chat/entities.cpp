#include "corpus/chat/entities.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/error.h"

namespace megatron::corpus {
namespace {

constexpr std::string_view kPrefixes = "BIES";

bool is_part(const std::string& name) {
  return name.size() > 2 && name[1] == '-' && kPrefixes.find(name[0]) != kPrefixes.npos;
}

double ratio(int64_t part, int64_t whole) {
  return whole == 0 ? std::numeric_limits<double>::quiet_NaN()
                    : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

double EntityCounts::Counts::precision() const { return ratio(right, predicted); }
double EntityCounts::Counts::recall() const { return ratio(right, real); }
double EntityCounts::Counts::f1() const { return ratio(2 * right, real + predicted); }

EntityCounts::Counts& EntityCounts::Counts::operator+=(const Counts& more) {
  real += more.real;
  predicted += more.predicted;
  right += more.right;
  return *this;
}

bool EntityCounts::are_parts(std::span<const std::string> names) {
  return std::ranges::any_of(names, is_part) &&
         std::ranges::all_of(names, [](const auto& name) { return name == "O" || is_part(name); });
}

EntityCounts::EntityCounts(std::span<const std::string> names) {
  MG_ASSERT(are_parts(names));
  for (const std::string& name : names) {
    if (name == "O") parts_.emplace_back();
    else parts_.push_back({name[0], name.substr(2)});
  }
}

std::vector<EntityCounts::Entity> EntityCounts::entities(std::span<const int32_t> classes) const {
  std::vector<Entity> all;
  const Part outside;
  const Part* before = &outside;
  for (size_t w = 0; w < classes.size(); ++w) {
    const Part& part = parts_[static_cast<size_t>(classes[w])];
    const bool goes_on = (part.prefix == 'I' || part.prefix == 'E') &&
                         (before->prefix == 'B' || before->prefix == 'I') &&
                         part.type == before->type;
    if (goes_on) all.back().last = w;
    else if (part.prefix != 'O') all.push_back({&part.type, w, w});
    before = &part;
  }
  return all;
}

void EntityCounts::add(std::span<const int32_t> real, std::span<const int32_t> predicted) {
  MG_ASSERT(real.size() == predicted.size());
  const std::vector<Entity> found = entities(predicted);
  for (const Entity& entity : found) ++by_type_[*entity.type].predicted;
  for (const Entity& entity : entities(real)) {
    Counts& counts = by_type_[*entity.type];
    ++counts.real;
    counts.right += std::ranges::find(found, entity) != found.end() ? 1 : 0;
  }
}

EntityCounts::Counts EntityCounts::all() const {
  Counts sum;
  for (const auto& [type, counts] : by_type_) sum += counts;
  return sum;
}

}  // namespace megatron::corpus
