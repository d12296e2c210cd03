#include "corpus/chat/packing.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <utility>

#include "base/error.h"

namespace megatron::corpus {
namespace {

constexpr int64_t kGroup = 1000;
constexpr std::array kNames = {std::pair{"bfd", Packing::bfd},
                               std::pair{"bfd_split", Packing::bfd_split},
                               std::pair{"wrapped", Packing::wrapped}};

// Documents [first, last), cut or split to the capacity, longest first.
std::vector<PackedPart> pieces_of(std::span<const int64_t> lengths, int64_t first, int64_t last,
                                  int64_t capacity, bool split) {
  std::vector<PackedPart> pieces;
  for (int64_t document = first; document < last; ++document) {
    const int64_t length = lengths[static_cast<size_t>(document)];
    for (int64_t begin = 0; begin < length; begin += capacity) {
      pieces.push_back({document, begin, std::min(capacity, length - begin)});
      if (!split) break;
    }
  }
  std::ranges::stable_sort(pieces, std::greater(), &PackedPart::length);
  return pieces;
}

// Each piece goes into the row with the least sufficient space, of several into the one that has
// had this space for longest.
void add_best_fit(const std::vector<PackedPart>& pieces, int64_t capacity,
                  std::vector<PackedRow>& rows) {
  std::map<int64_t, std::deque<size_t>> by_space;
  for (const PackedPart& piece : pieces) {
    auto found = by_space.lower_bound(piece.length);
    size_t row = rows.size();
    int64_t space = capacity;
    if (found == by_space.end()) {
      rows.emplace_back();
    } else {
      space = found->first;
      row = found->second.front();
      found->second.pop_front();
      if (found->second.empty()) by_space.erase(found);
    }
    rows[row].push_back(piece);
    if (space > piece.length) by_space[space - piece.length].push_back(row);
  }
}

void add_wrapped(std::span<const int64_t> lengths, int64_t first, int64_t last, int64_t capacity,
                 std::vector<PackedRow>& rows) {
  int64_t space = 0;
  for (int64_t document = first; document < last; ++document) {
    const int64_t length = lengths[static_cast<size_t>(document)];
    for (int64_t begin = 0; begin < length;) {
      if (space == 0) {
        rows.emplace_back();
        space = capacity;
      }
      const int64_t taken = std::min(space, length - begin);
      rows.back().push_back({document, begin, taken});
      begin += taken;
      space -= taken;
    }
  }
}

}  // namespace

std::string_view name(Packing packing) { return kNames[static_cast<size_t>(packing)].first; }

Packing packing_named(const std::string& name) {
  for (const auto& [known, packing] : kNames)
    if (name == known) return packing;
  fail("'{}' is not a way to pack: give bfd, bfd_split or wrapped", name);
}

std::vector<PackedRow> pack(std::span<const int64_t> lengths, int64_t capacity, Packing packing) {
  MG_ASSERT(capacity > 0);
  std::vector<PackedRow> rows;
  const auto documents = std::ssize(lengths);
  for (int64_t first = 0; first < documents; first += kGroup) {
    const int64_t last = std::min<int64_t>(first + kGroup, documents);
    if (packing == Packing::wrapped) {
      add_wrapped(lengths, first, last, capacity, rows);
    } else {
      add_best_fit(pieces_of(lengths, first, last, capacity, packing == Packing::bfd_split),
                   capacity, rows);
    }
  }
  return rows;
}

}  // namespace megatron::corpus
