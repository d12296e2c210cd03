#include "checkpoint/integrity.h"

#include <algorithm>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/safetensors.h"

namespace megatron::checkpoint {
namespace {

// The range that one checksum covers.
struct Checked {
  const ListedFile* file;
  std::string_view tensor;  // "" for the header, or for a whole file
  std::span<const std::byte> bytes;
  uint64_t written;
};

// The regions that caller `part` checks: assigned in order of decreasing size, each to the caller
// with the fewest bytes.
std::vector<size_t> share(const std::vector<Checked>& regions, int part, int parts) {
  std::vector<size_t> order(regions.size()), mine;
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return regions[a].bytes.size() > regions[b].bytes.size();
  });
  std::vector<size_t> loads(static_cast<size_t>(parts));
  for (const size_t i : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += regions[i].bytes.size() + 1;
    if (least - loads.begin() == part) mine.push_back(i);
  }
  return mine;
}

}  // namespace

std::string Damage::text() const {
  return fmt::format("{}: {} checksum {}; expected {}", file,
                     tensor.empty() ? "it has the" : fmt::format("tensor '{}' has the", tensor),
                     hexadecimal(found), hexadecimal(written));
}

std::vector<Damage> find_damage(const std::string& directory, std::span<const ListedFile> files,
                                ThreadPool& pool, int part, int parts) {
  MG_ASSERT(part >= 0 && part < parts);
  std::vector<MappedFile> texts;
  texts.reserve(files.size());
  std::vector<std::unique_ptr<SafetensorsFile>> tensor_files;
  std::vector<Checked> regions;
  for (const ListedFile& file : files) {
    const std::string name = directory + "/" + file.name;
    if (!file.has_tensors) {
      regions.push_back({&file, "", texts.emplace_back(name).bytes(), file.sum});
      continue;
    }
    const auto& tensors = *tensor_files.emplace_back(std::make_unique<SafetensorsFile>(name));
    regions.push_back({&file, "", tensors.head(), file.sum});
    for (const auto& [tensor, sum] : file.tensors) {
      const TensorInfo* const info = tensors.find(tensor);
      MG_CHECK(info != nullptr, "'{}' lacks the tensor '{}', which was written to it", name,
               tensor);
      regions.push_back({&file, tensor, tensors.bytes(*info), sum});
    }
  }

  const std::vector<size_t> mine = share(regions, part, parts);
  std::vector<uint64_t> found(regions.size());
  pool.parallel_for(static_cast<int64_t>(mine.size()), [&](int64_t block, int) {
    const size_t i = mine[static_cast<size_t>(block)];
    found[i] = checksum(regions[i].bytes);
  });
  std::vector<Damage> damage;
  for (const size_t i : std::set<size_t>(mine.begin(), mine.end())) {
    const Checked& region = regions[i];
    if (found[i] != region.written)
      damage.push_back({region.file->name, std::string(region.tensor), found[i], region.written});
  }
  return damage;
}

}  // namespace megatron::checkpoint
