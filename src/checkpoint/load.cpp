#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/name_list.h"
#include "checkpoint/tensor_copy.h"

namespace megatron::checkpoint {
namespace {

using parallel::CanonicalTensor;
using parallel::ParameterSpec;

// Differences between the files and the requested tensors.
class Differences {
 public:
  explicit Differences(std::string_view owner) : owner_(owner) {}

  void compare(const TensorFiles& files, const WholeTensor& wanted) {
    names_.insert(wanted.name);
    const TensorInfo* const info = files.find(wanted.name);
    if (info == nullptr) {
      missing_.push_back(wanted.name);
    } else if (info->shape != wanted.shape) {
      shapes_.push_back(fmt::format("{}: {} in the file, {} in {}", wanted.name, info->shape.str(),
                                    wanted.shape.str(), owner_));
    } else if (!info->foreign_type.empty() || !convertible(info->dtype, wanted.dtype)) {
      types_.push_back(fmt::format("{}: {} in the file, {} in {}", wanted.name, type_name(*info),
                                   name(wanted.dtype), owner_));
    }
  }

  void find_surplus(const TensorFiles& files, std::span<const std::string> ignored) {
    const std::set<std::string_view> known(ignored.begin(), ignored.end());
    for (std::string& name : files.tensor_names()) {
      if (!names_.contains(name) && !known.contains(name)) surplus_.push_back(std::move(name));
    }
  }

  // Returns the names of the surplus tensors and clears them, so that they are not an error.
  std::vector<std::string> take_surplus() { return std::exchange(surplus_, {}); }

  // advice: how to handle surplus tensors.
  void check(const std::string& path, std::string_view advice = "") const {
    std::string text;
    const auto add = [&text](const std::vector<std::string>& names, std::string_view what) {
      if (!names.empty()) text += fmt::format("\n  {}: {}", what, counted(names));
    };
    add(missing_, "missing");
    add(surplus_, fmt::format("not in {}", owner_));
    if (!surplus_.empty()) text += advice;
    add(shapes_, "with a different shape");
    add(types_, "with a type that cannot be converted (f64, f32, bf16 and f16 can)");
    MG_CHECK(text.empty(), "the tensors of '{}' do not match {} described by its settings:{}", path,
             owner_, text);
  }

 private:
  std::string_view owner_;
  std::set<std::string, std::less<>> names_;  // requested names
  std::vector<std::string> missing_, surplus_, shapes_, types_;
};

// Checks that this rank's tensors belong to the tensors of all ranks.
void check_held(std::span<const HeldTensor> tensors, std::span<const WholeTensor> whole,
                std::string_view owner) {
  std::map<std::string_view, const Shape*> shapes;
  for (const WholeTensor& tensor : whole) shapes.emplace(tensor.name, &tensor.shape);
  for (const HeldTensor& tensor : tensors) {
    for (const CanonicalTensor& part : tensor.placement->tensors) {
      const std::string stored = tensor.prefix + part.name;
      const auto found = shapes.find(stored);
      MG_CHECK(found != shapes.end(), "a rank has the tensor '{}', which is not part of {}", stored,
               owner);
      MG_CHECK(*found->second == part.stored_shape(),
               "a rank has the tensor '{}' with shape {}; in {} its shape is {}", stored,
               part.stored_shape().str(), owner, found->second->str());
    }
  }
}

void fill(const TensorFiles& files, const HeldTensor& tensor) {
  const Tensor& value = tensor.value;
  if (!value.device().has_data()) return;
  if (!value.device().is_host()) {
    HeldTensor here = tensor;
    here.value = on_host(value, tensor.keeps_rest);
    fill(files, here);
    return copy_bytes_from(value, bytes_of(here.value));
  }
  int64_t covered = 0;
  for (const CanonicalTensor& part : tensor.placement->tensors) {
    for (const Block& block : blocks_of(part, tensor.shape, tensor.begin, value.elements()))
      covered += block.elements();
  }
  MG_ASSERT(covered <= value.elements());
  // Elements that no part covers are padding, which is zero.
  if (covered < value.elements() && !tensor.keeps_rest)
    std::memset(value.raw(), 0, static_cast<size_t>(value.bytes()));
  for (const CanonicalTensor& part : tensor.placement->tensors) {
    const std::string stored = tensor.prefix + part.name;
    if (const PackedTensor* packed = files.packed(stored)) read_part(part, *packed, tensor);
    else read_part(part, files.bytes(stored), files.find(stored)->dtype, tensor);
  }
}

void fill_all(const TensorFiles& files, std::span<const HeldTensor> tensors,
              std::span<const WholeTensor> whole, std::string_view owner,
              const std::function<void(int64_t)>& progress) {
  check_held(tensors, whole, owner);
  int64_t filled = 0;
  for (const HeldTensor& tensor : tensors) {
    fill(files, tensor);
    if (progress) progress(++filled);
  }
}

}  // namespace

void load(const TensorFiles& files, std::span<const HeldTensor> tensors,
          std::span<const WholeTensor> whole, std::span<const std::string> ignored,
          std::string_view owner, const std::function<void(int64_t)>& progress) {
  Differences differences(owner);
  for (const WholeTensor& tensor : whole) differences.compare(files, tensor);
  differences.find_surplus(files, ignored);
  differences.check(files.folder());
  fill_all(files, tensors, whole, owner, progress);
}

std::vector<std::string> load(const ModelDirectory& directory, std::span<const HeldTensor> tensors,
                              std::span<const WholeTensor> whole,
                              std::span<const std::string> ignored,
                              const std::function<void(int64_t)>& progress) {
  constexpr std::string_view kOwner = "the model";
  const TensorFiles& files = directory.tensors();
  Differences differences(kOwner);
  for (const WholeTensor& tensor : whole) {
    const std::string* const trouble = directory.trouble(tensor.name);
    MG_CHECK(trouble == nullptr,
             "'{}' does not have the tensor '{}', which the model needs: {}; download the "
             "directory again",
             directory.path(), tensor.name, *trouble);
    differences.compare(files, tensor);
  }
  differences.find_surplus(files, ignored);
  std::vector<std::string> surplus;
  if (directory.options().ignore_surplus) surplus = differences.take_surplus();
  differences.check(directory.path(),
                    "; if the model does not need them, skip them with --ignore-surplus-tensors");
  fill_all(files, tensors, whole, kOwner, progress);
  return surplus;
}

void load(const ModelDirectory& directory, std::span<ParameterSpec* const> parameters,
          std::span<const std::string> ignored) {
  const std::vector<HeldTensor> all = held(parameters);
  load(directory, all, whole_tensors(all), ignored);
}

}  // namespace megatron::checkpoint
