#include <cstring>
#include <set>

#include "base/error.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/name_list.h"
#include "checkpoint/part_copy.h"

namespace megatron::checkpoint {
namespace {

using parallel::Part;
using parallel::Placed;

// What keeps the files from being what is asked for.
class Differences {
 public:
  explicit Differences(std::string_view owner) : owner_(owner) {}

  void compare(const TensorFiles& files, const std::string& stored, const Part& part,
               DType wanted) {
    if (!names_.insert(stored).second) return;
    const TensorInfo* const info = files.find(stored);
    if (info == nullptr) {
      missing_.push_back(stored);
    } else if (const Shape shape = part.stored_shape(); info->shape != shape) {
      shapes_.push_back(
          fmt::format("{}: {} there, {} in {}", stored, info->shape.str(), shape.str(), owner_));
    } else if (!convertible(info->dtype, wanted)) {
      types_.push_back(
          fmt::format("{}: {} there, {} in {}", stored, name(info->dtype), name(wanted), owner_));
    }
  }

  void find_surplus(const TensorFiles& files, std::span<const std::string> ignored) {
    const std::set<std::string_view> known(ignored.begin(), ignored.end());
    for (std::string& name : files.tensor_names()) {
      if (!names_.contains(name) && !known.contains(name)) surplus_.push_back(std::move(name));
    }
  }

  void check(const std::string& path) const {
    std::string text;
    const auto add = [&text](const std::vector<std::string>& names, std::string_view what) {
      if (!names.empty()) text += fmt::format("\n  {}: {}", what, counted(names));
    };
    add(missing_, "missing");
    add(surplus_, fmt::format("not in {}", owner_));
    add(shapes_, "of another shape");
    add(types_, "of a type that cannot be converted");
    MG_CHECK(text.empty(), "the tensors of '{}' are not those of {} that its settings describe:{}",
             path, owner_, text);
  }

 private:
  std::string_view owner_;
  std::set<std::string, std::less<>> names_;  // asked for
  std::vector<std::string> missing_, surplus_, shapes_, types_;
};

void fill(const TensorFiles& files, const HeldTensor& tensor) {
  const Tensor& value = tensor.value;
  if (!value.device().has_data()) return;
  int64_t covered = 0;
  for (const Part& part : tensor.placement->parts) covered += elements_of(part, value);
  MG_ASSERT(covered <= value.elements());
  // What no part covers is padding, which is zero.
  if (covered < value.elements()) std::memset(value.raw(), 0, static_cast<size_t>(value.bytes()));
  for (const Part& part : tensor.placement->parts) {
    const std::string stored = tensor.prefix + part.name;
    read_part(part, files.bytes(stored), files.find(stored)->dtype, value);
  }
}

}  // namespace

std::vector<HeldTensor> held(std::span<Placed* const> parameters) {
  std::vector<HeldTensor> tensors;
  for (const Placed* placed : parameters)
    tensors.push_back({"", &placed->placement, placed->parameter.value});
  return tensors;
}

void load(const TensorFiles& files, std::span<const HeldTensor> tensors,
          std::span<const std::string> ignored, std::string_view owner) {
  Differences differences(owner);
  for (const HeldTensor& tensor : tensors) {
    for (const Part& part : tensor.placement->parts)
      differences.compare(files, tensor.prefix + part.name, part, tensor.value.dtype());
  }
  differences.find_surplus(files, ignored);
  differences.check(files.folder());
  for (const HeldTensor& tensor : tensors) fill(files, tensor);
}

void load(const ModelDirectory& directory, std::span<Placed* const> parameters,
          std::span<const std::string> ignored) {
  load(directory.tensors(), held(parameters), ignored, "the model");
}

}  // namespace megatron::checkpoint
