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

// What keeps a directory from being this model.
class Differences {
 public:
  void compare(const ModelDirectory& directory, const Part& part, DType wanted) {
    const bool seen = !names_.insert(part.name).second;
    const TensorInfo* const info = directory.find(part.name);
    if (info == nullptr) {
      if (!seen) missing_.push_back(part.name);
    } else if (const Shape shape = part.stored_shape(); info->shape != shape) {
      if (!seen)
        shapes_.push_back(fmt::format("{}: {} there, {} in the model", part.name, info->shape.str(),
                                      shape.str()));
    } else if (!convertible(info->dtype, wanted)) {
      if (!seen)
        types_.push_back(fmt::format("{}: {} there, {} in the model", part.name, name(info->dtype),
                                     name(wanted)));
    }
  }

  void find_surplus(const ModelDirectory& directory, std::span<const std::string> ignored) {
    const std::set<std::string_view> known(ignored.begin(), ignored.end());
    for (std::string& name : directory.tensor_names()) {
      if (!names_.contains(name) && !known.contains(name)) surplus_.push_back(std::move(name));
    }
  }

  void check(const std::string& path) const {
    std::string text;
    const auto add = [&text](const std::vector<std::string>& names, std::string_view what) {
      if (!names.empty()) text += fmt::format("\n  {}: {}", what, counted(names));
    };
    add(missing_, "missing");
    add(surplus_, "not in the model");
    add(shapes_, "of another shape");
    add(types_, "of a type that cannot be converted");
    MG_CHECK(text.empty(),
             "the tensors of '{}' are not those of the model that its settings describe:{}", path,
             text);
  }

 private:
  std::set<std::string, std::less<>> names_;  // of the model
  std::vector<std::string> missing_, surplus_, shapes_, types_;
};

void fill(const ModelDirectory& directory, Placed& placed) {
  Tensor& value = placed.parameter.value;
  if (!value.device().has_data()) return;
  int64_t covered = 0;
  for (const Part& part : placed.placement.parts) covered += elements_of(part, value);
  MG_ASSERT(covered <= value.elements());
  // What no part covers is padding, which is zero.
  if (covered < value.elements()) std::memset(value.raw(), 0, static_cast<size_t>(value.bytes()));
  for (const Part& part : placed.placement.parts) {
    read_part(part, directory.bytes(part.name), directory.find(part.name)->dtype, value);
  }
}

}  // namespace

void load(const ModelDirectory& directory, std::span<Placed* const> parameters,
          std::span<const std::string> ignored) {
  Differences differences;
  for (const Placed* placed : parameters) {
    for (const Part& part : placed->placement.parts) {
      differences.compare(directory, part, placed->parameter.value.dtype());
    }
  }
  differences.find_surplus(directory, ignored);
  differences.check(directory.path());
  for (Placed* placed : parameters) fill(directory, *placed);
}

}  // namespace megatron::checkpoint
