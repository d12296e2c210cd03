#include "checkpoint/save_plan.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/region.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_copy.h"

namespace megatron::checkpoint {
namespace {

using Metadata = std::vector<std::pair<std::string, std::string>>;

// The tensors of all ranks; if none are given, those that this rank holds are all.
std::vector<PlannedTensor> planned(std::span<const WholeTensor> whole,
                                   std::span<const HeldTensor> held,
                                   const std::function<DType(const std::string&)>& dtype) {
  const std::vector<WholeTensor> here =
      whole.empty() ? whole_tensors(held) : std::vector<WholeTensor>{};
  std::vector<PlannedTensor> tensors;
  for (const WholeTensor& tensor : whole.empty() ? here : whole) {
    PlannedTensor& added = tensors.emplace_back();
    added.name = tensor.name;
    added.shape = tensor.shape;
    added.dtype = dtype ? dtype(tensor.name) : tensor.dtype;
  }
  return tensors;
}

void attach(PlannedTensor& tensor, const HeldTensor& held, const parallel::CanonicalTensor& part) {
  const Shape stored = part.stored_shape();
  MG_CHECK(stored == tensor.shape,
           "cannot save tensor '{}': this rank has it with shape {}, but its shape is {}",
           tensor.name, stored.str(), tensor.shape.str());
  MG_CHECK(convertible(held.value.dtype(), tensor.dtype),
           "tensor '{}' is {} and cannot be saved as {}", tensor.name, name(held.value.dtype()),
           name(tensor.dtype));
  MG_ASSERT(held.value.device().has_data());
  for (const Block& block : blocks_of(part, held.shape, held.begin, held.value.elements()))
    tensor.pieces.push_back({held.value, block});
}

void attach(std::span<PlannedFile> files, std::span<const HeldTensor> held) {
  std::map<std::string_view, PlannedTensor*> by_name;
  for (PlannedFile& file : files) {
    for (PlannedTensor& tensor : file.tensors) by_name.emplace(tensor.name, &tensor);
  }
  for (const HeldTensor& h : held) {
    for (const parallel::CanonicalTensor& part : h.placement->tensors) {
      const std::string stored = h.prefix + part.name;
      const auto found = by_name.find(stored);
      MG_CHECK(found != by_name.end(),
               "cannot save tensor '{}' of one rank: it is not in the list of tensors that all "
               "ranks agreed on",
               stored);
      attach(*found->second, h, part);
    }
  }
}

// Determines whether it is held whole, and checks that no element is held twice.
void check_pieces(PlannedTensor& tensor) {
  const int64_t wanted = tensor.shape.elements();
  int64_t elements = 0;
  std::vector<HeldRegion> regions;
  for (const Piece& piece : tensor.pieces) {
    regions.push_back({region_of(piece.block)});
    elements += piece.block.elements();
  }
  if (regions.size() > 1) {
    const Coverage::Stretch most = coverage(regions, wanted).most;
    MG_CHECK(most.times <= 1,
             "cannot assemble tensor '{}': one rank has elements [{}, {}) of its {} twice",
             tensor.name, most.begin, most.end, wanted);
  }
  tensor.whole = elements == wanted;
}

// The original library's order within a file: types by decreasing size, then names.
bool library_order(const PlannedTensor& a, const PlannedTensor& b) {
  constexpr std::array kTypes = {DType::i64, DType::f64, DType::f32, DType::i32, DType::bf16,
                                 DType::f16, DType::u16, DType::i16, DType::i8,  DType::u8};
  const auto rank = [&](DType type) {
    return std::find(kTypes.begin(), kTypes.end(), type) - kTypes.begin();
  };
  return std::pair(rank(a.dtype), std::string_view(a.name)) <
         std::pair(rank(b.dtype), std::string_view(b.name));
}

// Fills files with tensors in the given order; starts a new file if the next tensor does not fit,
// and gives a tensor above the limit its own file. The caller sets the names.
std::vector<PlannedFile> shards(std::vector<PlannedTensor> tensors, int64_t limit) {
  std::vector<PlannedFile> files;
  PlannedFile current;
  int64_t bytes = 0;
  for (PlannedTensor& tensor : tensors) {
    const int64_t size = tensor.bytes();
    if (size > limit) {
      files.emplace_back().tensors.push_back(std::move(tensor));
      continue;
    }
    if (size > limit - bytes) {
      files.push_back(std::move(current));
      current = {};
      bytes = 0;
    }
    current.tensors.push_back(std::move(tensor));
    bytes += size;
  }
  if (!current.tensors.empty()) files.push_back(std::move(current));
  for (PlannedFile& file : files)
    std::sort(file.tensors.begin(), file.tensors.end(), library_order);
  return files;
}

std::string shard_name(std::string_view kind, size_t index, size_t count) {
  return fmt::format("{}-{:05d}-of-{:05d}.safetensors", kind, index + 1, count);
}

// The files and the order of `like`; tensors absent from it come last in its last file.
std::vector<PlannedFile> files_like(std::vector<PlannedTensor> tensors, const ModelDirectory& like,
                                    const std::function<std::string(const std::string&)>& name_in) {
  const auto name_of = [&](const PlannedTensor& tensor) {
    return name_in ? name_in(tensor.name) : tensor.name;
  };
  std::map<std::string, PlannedTensor*, std::less<>> remaining;
  for (PlannedTensor& tensor : tensors) remaining.emplace(name_of(tensor), &tensor);
  std::vector<PlannedFile> files;
  std::string last(kSingleFile);
  for (const std::string& name : like.tensor_names()) {
    last = safetensors_name(like.shard_map().find(name)->second);
    const auto found = remaining.find(name);
    if (found == remaining.end()) continue;
    if (files.empty() || files.back().name != last) files.push_back({.name = last});
    files.back().tensors.push_back(*found->second);
    remaining.erase(found);
  }
  if (remaining.empty()) return files;
  if (files.empty() || files.back().name != last) files.push_back({.name = last});
  for (const PlannedTensor& tensor : tensors) {
    if (remaining.contains(name_of(tensor))) files.back().tensors.push_back(tensor);
  }
  return files;
}

std::vector<PlannedFile> model_files(const Contents& contents) {
  std::vector<PlannedTensor> tensors =
      planned(contents.whole_model, contents.model, contents.dtype);
  MG_CHECK(!tensors.empty(), "there are no tensors to save");
  if (contents.like != nullptr)
    return files_like(std::move(tensors), *contents.like, contents.name_in_like);
  if (contents.is_adapter) return {{.name = std::string(kAdapterFile), .tensors = tensors}};
  std::vector<PlannedFile> files = shards(std::move(tensors), contents.shard_bytes);
  for (size_t i = 0; i < files.size(); ++i)
    files[i].name =
        files.size() == 1 ? std::string(kSingleFile) : shard_name("model", i, files.size());
  return files;
}

std::vector<PlannedFile> optimizer_files(const Contents& contents) {
  std::vector<PlannedFile> files =
      shards(planned(contents.whole_optimizer, contents.optimizer, nullptr), contents.shard_bytes);
  for (size_t i = 0; i < files.size(); ++i)
    files[i].name = shard_name("optimizer", i, files.size());
  return files;
}

void lay_out(PlannedFile& file, const Metadata& metadata) {
  std::vector<TensorInfo> infos;
  for (const PlannedTensor& tensor : file.tensors)
    infos.push_back({tensor.name, tensor.dtype, tensor.shape});
  file.head = safetensors_head(file.name, infos, metadata);
  const int64_t begin = static_cast<int64_t>(file.head.size());
  for (size_t i = 0; i < infos.size(); ++i) file.tensors[i].offset = begin + infos[i].begin;
  file.bytes = begin + (infos.empty() ? 0 : infos.back().end);
}

Json index_of(std::span<const PlannedFile> files) {
  std::map<std::string_view, const PlannedFile*> file_of;
  int64_t elements = 0, bytes = 0;
  for (const PlannedFile& file : files) {
    for (const PlannedTensor& tensor : file.tensors) {
      file_of.emplace(tensor.name, &file);
      elements += tensor.shape.elements();
      bytes += tensor.bytes();
    }
  }
  Json::Object weight_map;
  for (const auto& [name, file] : file_of) weight_map.emplace_back(std::string(name), file->name);
  return Json(Json::Object{
      {"metadata", Json(Json::Object{{"total_parameters", elements}, {"total_size", bytes}})},
      {"weight_map", Json(std::move(weight_map))}});
}

std::vector<PlannedText> texts_of(const Contents& contents, std::span<const PlannedFile> model) {
  MG_CHECK(contents.config.is_object(), "the configuration to save is not a JSON object");
  std::vector<PlannedText> texts;
  const bool adapter = contents.is_adapter;
  texts.push_back({std::string(adapter ? kAdapterConfig : kConfig),
                   contents.config.dump(2, true) + (adapter ? "" : "\n"), ""});
  if (!adapter && (model.size() > 1 || model.front().name != kSingleFile))
    texts.push_back({std::string(kIndex), index_of(model).dump(2, true) + "\n", ""});
  for (const std::string& source : contents.copied_files)
    texts.push_back({std::filesystem::path(source).filename().string(), "", source});
  for (const auto& [name, content] : contents.written_files) texts.push_back({name, content, ""});
  return texts;
}

void check_names(const SavePlan& plan) {
  std::set<std::string_view> names;
  for (const PlannedFile& file : plan.files)
    MG_CHECK(names.insert(file.name).second, "cannot write '{}' twice", file.name);
  for (const PlannedText& text : plan.texts) {
    const std::string& source = text.source.empty() ? text.name : text.source;
    MG_CHECK(is_listable(text.name),
             "cannot put '{}' next to the weights: it is not a plain "
             "file name",
             source);
    MG_CHECK(names.insert(text.name).second,
             "cannot put '{}' next to the weights: there is already a file of that name", source);
  }
}

}  // namespace

int64_t PlannedText::bytes() const {
  if (source.empty()) return static_cast<int64_t>(content.size());
  std::error_code error;
  const auto size = std::filesystem::file_size(source, error);
  MG_CHECK(!error, "cannot copy '{}': {}", source, error.message());
  return static_cast<int64_t>(size);
}

std::vector<PlannedTensor*> SavePlan::tensors() {
  std::vector<PlannedTensor*> result;
  for (PlannedFile& file : files) {
    for (PlannedTensor& tensor : file.tensors) result.push_back(&tensor);
  }
  return result;
}

std::vector<ListedFile> SavePlan::list() const {
  std::vector<ListedFile> result;
  for (const PlannedFile& file : files) {
    ListedFile listed{.name = file.name, .bytes = file.bytes, .has_tensors = true};
    for (const PlannedTensor& tensor : file.tensors) listed.tensors.emplace_back(tensor.name, 0);
    result.push_back(std::move(listed));
  }
  for (const PlannedText& text : texts)
    result.push_back({.name = text.name, .bytes = text.bytes()});
  return result;
}

int64_t SavePlan::bytes(const std::optional<Json>& trainer_state) const {
  const std::vector<ListedFile> listed = list();
  int64_t total = 0;
  for (const ListedFile& file : listed) total += file.bytes;
  if (trainer_state.has_value()) total += static_cast<int64_t>(seal(*trainer_state, listed).size());
  return total;
}

SavePlan plan_save(const Contents& contents) {
  MG_CHECK(contents.shard_bytes > 0, "the size limit of a shard is {} bytes; it must be at least 1",
           contents.shard_bytes);
  const Metadata plain = {{"format", "pt"}};
  SavePlan plan;
  plan.files = model_files(contents);
  plan.model_files = plan.files.size();
  plan.texts = texts_of(contents, plan.files);
  for (PlannedFile& file : plan.files)
    lay_out(file, contents.like != nullptr ? contents.like->metadata() : plain);
  for (PlannedFile& file : optimizer_files(contents)) {
    lay_out(file, plain);
    plan.files.push_back(std::move(file));
  }
  check_names(plan);
  return plan;
}

void attach_pieces(SavePlan& plan, const Contents& contents) {
  const std::span<PlannedFile> files = plan.files;
  attach(files.first(plan.model_files), contents.model);
  attach(files.subspan(plan.model_files), contents.optimizer);
  for (PlannedTensor* tensor : plan.tensors()) check_pieces(*tensor);
}

int64_t Contents::total_bytes() const { return plan_save(*this).bytes(trainer_state); }

}  // namespace megatron::checkpoint
