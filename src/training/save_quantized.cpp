#include "training/save_quantized.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "base/divide.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/name_list.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/save_plan.h"
#include "checkpoint/staging.h"
#include "kernels/table.h"
#include "training/model_source.h"
#include "training/stored_names.h"

namespace megatron::training {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 128;

// Names in the directory of the matrices that training with blocks of 8 bits quantizes.
std::set<std::string> linear_weights(const models::Stage& stage, const StoredNames& names,
                                     const std::string& path) {
  std::set<std::string> found;
  for (const parallel::ParameterSpec* placed : stage.parameters()) {
    if (!placed->parameter.low_precision) continue;
    for (const parallel::CanonicalTensor& part : placed->placement.tensors) {
      MG_CHECK(
          !part.transposed && part.stored_shape().rank() == 2,
          "'{}': '{}' is stored transposed, or has several matrices, and FP8 is for one matrix "
          "[out,in] in each tensor: a {} cannot be stored so",
          path, part.name, stage.model()->family());
      found.insert(names.of(part.name));
    }
  }
  MG_CHECK(!found.empty(), "'{}' has no linear layers", path);
  return found;
}

// The tensors of the new directory, file by file.
class QuantizedFiles {
 public:
  QuantizedFiles(const checkpoint::ModelDirectory& directory, std::set<std::string> quantized,
                 int threads, const std::function<void(int64_t, int64_t)>& progress)
      : directory_(directory),
        quantized_(std::move(quantized)),
        runtime_({DeviceKind::cpu, 0}, threads),
        progress_(progress) {
    for (const std::string& name : directory.tensor_names()) add(name);
    for (const auto& [file, tensors] : files_)
      for (const checkpoint::TensorToWrite& tensor : tensors)
        result_.bytes_after += tensor.shape.elements() * size_of(tensor.dtype);
  }

  void write(const std::string& folder) {
    for (const auto& [file, tensors] : files_)
      write_safetensors(folder + "/" + file, tensors, directory_.metadata());
  }
  // The index, if there are several files.
  std::optional<Json> index() const {
    if (files_.size() == 1 && files_.begin()->first == checkpoint::kSingleFile) return {};
    Json::Object map;
    for (const auto& [file, tensors] : files_)
      for (const checkpoint::TensorToWrite& tensor : tensors) map.emplace_back(tensor.name, file);
    return Json::Object{{"metadata", Json::Object{{"total_size", result_.bytes_after}}},
                        {"weight_map", std::move(map)}};
  }
  // Modules whose matrices stay.
  const Json::Array& kept_modules() const { return kept_modules_; }
  const QuantizedSave& result() const { return result_; }
  // Tensors of types that this program does not have, which no model needs.
  const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  void add(const std::string& name) {
    const checkpoint::TensorInfo& info = *directory_.find(name);
    if (!info.foreign_type.empty()) return left_out_.push_back(name);
    std::vector<checkpoint::TensorToWrite>& tensors =
        files_[checkpoint::safetensors_name(directory_.shard_map().find(name)->second)];
    result_.bytes_before += info.shape.elements() * size_of(info.dtype);
    if (!quantized_.contains(name)) {
      ++result_.kept;
      constexpr std::string_view kWeight = ".weight";
      if (info.shape.rank() == 2 && name.ends_with(kWeight))
        kept_modules_.emplace_back(name.substr(0, name.size() - kWeight.size()));
      tensors.push_back({name, info.dtype, info.shape, [this, name](std::span<std::byte> out) {
                           const auto bytes = read(name);
                           std::memcpy(out.data(), bytes.data(), out.size());
                           tell(out.size());
                         }});
      return;
    }
    ++result_.quantized;
    const Shape grid{ceil_div(info.shape[0], kBlock), ceil_div(info.shape[1], kBlock)};
    tensors.push_back({name, DType::u8, info.shape,
                       [this, name](std::span<std::byte> out) { quantize(name, out); }, "F8_E4M3"});
    tensors.push_back({name + "_scale_inv", DType::f32, grid, [this](std::span<std::byte> out) {
                         std::memcpy(out.data(), scales_.raw(), out.size());
                         tell(out.size());
                       }});
  }

  std::vector<std::byte> read(const std::string& name) const {
    return directory_.tensors().read(name, 0, directory_.find(name)->shape.elements());
  }

  // Writes the codes of a matrix, and keeps its scales for the tensor after it.
  void quantize(const std::string& name, std::span<std::byte> codes) {
    const checkpoint::TensorInfo& info = *directory_.find(name);
    Arena& arena = runtime_.arena(MemoryClass::activations);
    Stream& stream = runtime_.stream();
    const kernels::Table& kernels = kernels::table(stream);
    Tensor x = Tensor::empty(arena, info.shape, info.dtype, "quantized.x");
    copy_bytes_from(x, read(name));
    if (info.dtype == DType::f16 || info.dtype == DType::f64) {
      const Tensor wide = Tensor::empty(arena, info.shape, DType::f32, "quantized.wide");
      kernels.copy({.x = x, .out = wide}, stream);
      x = wide;
    }
    scales_ =
        Tensor::empty(arena, {ceil_div(info.shape[0], kBlock), ceil_div(info.shape[1], kBlock)},
                      DType::f32, "quantized.scales");
    const Tensor out = Tensor::empty(arena, info.shape, DType::u8, "quantized.codes");
    kernels.quantize({.format = LowFormat::e4m3,
                      .rule = kernels::BlockScale::power_of_two,
                      .x = x,
                      .out = {.rows = kBlock, .columns = kBlock, .codes = out, .scales = scales_}},
                     stream);
    std::memcpy(codes.data(), out.raw(), codes.size());
    tell(codes.size());
  }

  void tell(size_t bytes) {
    written_ += static_cast<int64_t>(bytes);
    if (progress_) progress_(written_, result_.bytes_after);
  }

  const checkpoint::ModelDirectory& directory_;
  std::set<std::string> quantized_;
  Runtime runtime_;
  const std::function<void(int64_t, int64_t)>& progress_;
  std::map<std::string, std::vector<checkpoint::TensorToWrite>> files_;
  Json::Array kept_modules_;
  std::vector<std::string> left_out_;
  QuantizedSave result_;
  Tensor scales_;
  int64_t written_ = 0;
};

Json config_of(const checkpoint::ModelDirectory& directory, const Json::Array& kept) {
  Json config = directory.config();
  config.set("quantization_config",
             Json::Object{{"activation_scheme", "dynamic"},
                          {"fmt", "e4m3"},
                          {"modules_to_not_convert", kept},
                          {"quant_method", "fp8"},
                          {"weight_block_size", Json::Array{kBlock, kBlock}}});
  return config;
}

void warn_of_sizes(const checkpoint::ModelDirectory& directory,
                   const std::set<std::string>& quantized) {
  std::vector<std::string> uneven;
  for (const std::string& name : quantized) {
    const Shape& shape = directory.find(name)->shape;
    if (shape[0] % kBlock != 0 || shape[1] % kBlock != 0) uneven.push_back(name);
  }
  if (!uneven.empty())
    log::warning(
        "sizes of {} are not multiples of {}: this program can read them, other programs may not",
        checkpoint::counted(uneven), kBlock);
}

}  // namespace

QuantizedSave save_quantized(const checkpoint::ModelDirectory& directory, const std::string& path,
                             int threads, const std::function<void(int64_t, int64_t)>& progress) {
  MG_CHECK(!directory.is_adapter(),
           "'{}' is an adapter: merge it into its base model first (megatron merge-adapter)",
           directory.path());
  const models::Model model = models::model_from_config_json(
      directory.config(), directory.path() + "/" + std::string(checkpoint::kConfig));
  for (const std::string& name : directory.tensor_names())
    MG_CHECK(directory.tensors().packed(name) == nullptr,
             "'{}' is quantized already: tensor '{}'; use the directory that it was made from",
             directory.path(), name);
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const LowPrecisionLayers blocks{.formats = {.recipe = LowPrecisionRecipe::blockwise}};
  const auto stage = model->with({.low_precision = blocks})
                         .build(shapes_only, DType::f32, 0, {.layers = model->num_layers()}, {});
  const WholeModel whole = whole_model(*stage);
  const StoredNames names(whole, directory);
  load_weights(directory, {}, whole);  // reads nothing, but compares names, shapes and types
  const std::set<std::string> quantized = linear_weights(*stage, names, directory.path());
  warn_of_sizes(directory, quantized);
  QuantizedFiles files(directory, quantized, threads, progress);
  if (!files.left_out().empty())
    log::info("left out, since no model needs them: {}", checkpoint::counted(files.left_out()));
  checkpoint::Staging staging(path, false, system_files());
  staging.clear();
  checkpoint::check_room(folder_of(staging.path()), files.result().bytes_after, system_files(),
                         "free some space or write somewhere else");
  staging.make();
  files.write(staging.folder());
  for (const std::string& companion : companion_files(directory.path()))
    write_file(staging.folder() + "/" + fs::path(companion).filename().string(),
               read_file(companion));
  write_file(staging.folder() + "/" + std::string(checkpoint::kConfig),
             config_of(directory, files.kept_modules()).dump(2, true) + "\n");
  if (const auto index = files.index())
    write_file(staging.folder() + "/" + std::string(checkpoint::kIndex),
               index->dump(2, true) + "\n");
  staging.publish();
  return files.result();
}

}  // namespace megatron::training
