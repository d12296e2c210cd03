#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/part_copy.h"
#include "checkpoint/staged_directory.h"

namespace megatron::checkpoint {
namespace {

using parallel::Part;
using parallel::Placed;
using parallel::Slice;

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

// What one parameter holds of a tensor.
struct Piece {
  const Part* part = nullptr;
  const Tensor* value = nullptr;
};

struct Canonical {
  std::string name;
  Shape shape;  // as on disk
  DType dtype = DType::f32;
  std::vector<Piece> pieces;

  int64_t bytes() const { return shape.elements() * size_of(dtype); }
};

struct File {
  std::string name;
  std::vector<const Canonical*> tensors;
};

// Every element of the tensor is held exactly once.
void check_coverage(const Canonical& tensor) {
  const Part& first = *tensor.pieces.front().part;
  std::vector<Slice> slices;
  for (const Piece& piece : tensor.pieces) {
    const Part& part = *piece.part;
    MG_CHECK(
        part.global == first.global && part.axis == first.axis &&
            part.transposed == first.transposed,
        "cannot put tensor '{}' together: parameters tell different shapes, axes or orders of it",
        tensor.name);
    slices.insert(slices.end(), part.slices.begin(), part.slices.end());
  }
  std::sort(slices.begin(), slices.end(),
            [](const Slice& a, const Slice& b) { return a.global_begin < b.global_begin; });
  const int64_t length = first.global.rank() == 0 ? 1 : first.global[first.axis];
  int64_t end = 0;
  slices.push_back({length, 0, 0});
  for (const Slice& slice : slices) {
    MG_CHECK(slice.global_begin <= end,
             "cannot put tensor '{}' together: [{}, {}) of the {} along its axis {} are held by no "
             "parameter here",
             tensor.name, end, slice.global_begin, length, first.axis);
    MG_CHECK(slice.global_begin >= end || slice.size == 0,
             "cannot put tensor '{}' together: index {} of its axis {} is held twice", tensor.name,
             slice.global_begin, first.axis);
    end += slice.size;
  }
}

std::vector<Canonical> collect(std::span<Placed* const> parameters, const SaveOptions& options) {
  std::vector<Canonical> tensors;
  std::map<std::string_view, size_t> index_of;
  for (const Placed* placed : parameters) {
    const Tensor& value = placed->parameter.value;
    MG_ASSERT(value.defined() && value.device().has_data());
    for (const Part& part : placed->placement.parts) {
      const auto [at, is_new] = index_of.emplace(part.name, tensors.size());
      if (is_new) {
        const DType dtype = options.dtype ? options.dtype(part.name) : value.dtype();
        tensors.push_back({part.name, part.stored_shape(), dtype, {}});
      }
      Canonical& tensor = tensors[at->second];
      MG_CHECK(convertible(value.dtype(), tensor.dtype),
               "tensor '{}' is {} and cannot be saved as {}", part.name, name(value.dtype()),
               name(tensor.dtype));
      tensor.pieces.push_back({&part, &value});
    }
  }
  MG_CHECK(!tensors.empty(), "there are no tensors to save");
  for (const Canonical& tensor : tensors) check_coverage(tensor);
  return tensors;
}

// The original library's order within a file: types by falling size, then names.
bool library_order(const Canonical* a, const Canonical* b) {
  constexpr std::array kTypes = {DType::i64, DType::f64, DType::f32, DType::i32, DType::bf16,
                                 DType::f16, DType::u16, DType::i16, DType::i8,  DType::u8};
  const auto rank = [&](DType type) {
    return std::find(kTypes.begin(), kTypes.end(), type) - kTypes.begin();
  };
  return std::pair(rank(a->dtype), std::string_view(a->name)) <
         std::pair(rank(b->dtype), std::string_view(b->name));
}

// Tensors in the order of the model; a new file where the next would not fit, and one of its own
// for a tensor above the limit.
std::vector<File> shards(const std::vector<Canonical>& tensors, int64_t limit) {
  MG_CHECK(limit > 0, "the size limit of a shard is {} bytes; it must be at least 1", limit);
  std::vector<File> files;
  File current;
  int64_t bytes = 0;
  for (const Canonical& tensor : tensors) {
    if (tensor.bytes() > limit) {
      files.push_back({"", {&tensor}});
      continue;
    }
    if (tensor.bytes() > limit - bytes) {
      files.push_back(std::move(current));
      current = {};
      bytes = 0;
    }
    current.tensors.push_back(&tensor);
    bytes += tensor.bytes();
  }
  if (!current.tensors.empty()) files.push_back(std::move(current));
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].name = files.size() == 1
                        ? std::string(kSingle)
                        : fmt::format("model-{:05d}-of-{:05d}.safetensors", i + 1, files.size());
    std::sort(files[i].tensors.begin(), files[i].tensors.end(), library_order);
  }
  return files;
}

// The files and the order of `like`; tensors that it does not have come last in its last file.
std::vector<File> files_like(const std::vector<Canonical>& tensors, const ModelDirectory& like) {
  std::map<std::string_view, const Canonical*> remaining;
  for (const Canonical& tensor : tensors) remaining.emplace(tensor.name, &tensor);
  std::vector<File> files;
  std::string_view last;
  for (const std::string& name : like.tensor_names()) {
    const std::string& file = like.shard_map().find(name)->second;
    last = file;
    const auto found = remaining.find(name);
    if (found == remaining.end()) continue;
    if (files.empty() || files.back().name != file) files.push_back({file, {}});
    files.back().tensors.push_back(found->second);
    remaining.erase(found);
  }
  if (remaining.empty()) return files;
  if (files.empty() || files.back().name != last)
    files.push_back({last.empty() ? std::string(kSingle) : std::string(last), {}});
  for (const Canonical& tensor : tensors) {
    if (remaining.contains(tensor.name)) files.back().tensors.push_back(&tensor);
  }
  return files;
}

void write_weights(const std::string& path, const File& file,
                   std::span<const std::pair<std::string, std::string>> metadata) {
  std::vector<TensorToWrite> tensors;
  for (const Canonical* tensor : file.tensors) {
    tensors.push_back(
        {tensor->name, tensor->dtype, tensor->shape, [tensor](std::span<std::byte> out) {
           for (const Piece& piece : tensor->pieces) {
             write_part(*piece.part, *piece.value, out, tensor->dtype);
           }
         }});
  }
  write_safetensors(path, tensors, metadata);
}

Json index_of(const std::vector<File>& files) {
  std::map<std::string_view, const File*> file_of;
  int64_t elements = 0, bytes = 0;
  for (const File& file : files) {
    for (const Canonical* tensor : file.tensors) {
      file_of.emplace(tensor->name, &file);
      elements += tensor->shape.elements();
      bytes += tensor->bytes();
    }
  }
  Json::Object weight_map;
  for (const auto& [name, file] : file_of) weight_map.emplace_back(std::string(name), file->name);
  return Json(Json::Object{
      {"metadata", Json(Json::Object{{"total_parameters", elements}, {"total_size", bytes}})},
      {"weight_map", Json(std::move(weight_map))}});
}

void write_json(const std::string& path, const Json& value) {
  write_file(path, value.dump(2, true) + "\n");
}

}  // namespace

void save(const std::string& path, const Json& config, std::span<Placed* const> parameters,
          const SaveOptions& options) {
  using Metadata = std::vector<std::pair<std::string, std::string>>;
  MG_CHECK(config.is_object(), "the configuration to save in '{}' is not a JSON object", path);
  const std::vector<Canonical> tensors = collect(parameters, options);
  const std::vector<File> files = options.like != nullptr ? files_like(tensors, *options.like)
                                                          : shards(tensors, options.shard_bytes);
  const Metadata metadata =
      options.like != nullptr ? options.like->metadata() : Metadata{{"format", "pt"}};

  StagedDirectory directory(path);
  std::set<std::string, std::less<>> names = {std::string(kConfig)};
  write_json(directory / std::string(kConfig), config);
  for (const File& file : files) {
    names.insert(file.name);
    write_weights(directory / file.name, file, metadata);
  }
  if (files.size() > 1 || files.front().name != kSingle) {
    names.insert(std::string(kIndex));
    write_json(directory / std::string(kIndex), index_of(files));
  }
  const auto put_beside = [&](const std::string& name, const std::string& source,
                              std::string_view content) {
    MG_CHECK(names.insert(name).second,
             "cannot copy '{}' into '{}': a file of that name is there already", source, path);
    write_file(directory / name, content);
  };
  for (const std::string& source : options.copied_files)
    put_beside(std::filesystem::path(source).filename().string(), source, read_file(source));
  for (const auto& [name, content] : options.written_files) put_beside(name, name, content);
  directory.commit();
}

}  // namespace megatron::checkpoint
