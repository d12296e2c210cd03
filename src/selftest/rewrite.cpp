#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "checkpoint/save.h"
#include "models/stage.h"
#include "selftest/verify.h"
#include "training/whole_model.h"

namespace megatron::selftest {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExpected = "expected.safetensors";
constexpr int64_t kElementsAtOnce = int64_t{1} << 20;  // elements of a tensor

// Without torch's files where safetensors are read in their place.
std::set<std::string> file_names(const checkpoint::ModelDirectory& directory) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory.path())) {
    const std::string name = entry.path().filename().string();
    if (name != kExpected && (directory.is_torch() || !checkpoint::is_torch_weights(name)))
      names.insert(name);
  }
  return names;
}

bool is_weights(const checkpoint::ModelDirectory& directory, const std::string& name) {
  const std::vector<std::string>& files = directory.tensors().names();
  return name == checkpoint::kIndex || name.ends_with(".safetensors") ||
         checkpoint::is_torch_weights(name) || std::ranges::find(files, name) != files.end();
}

// Files that are neither weights nor their index nor the configuration.
std::vector<std::string> other_files(const checkpoint::ModelDirectory& directory) {
  std::vector<std::string> files;
  for (const std::string& name : file_names(directory)) {
    const std::string path = directory.path() + "/" + name;
    if (name != checkpoint::kConfig && !is_weights(directory, name) && fs::is_regular_file(path))
      files.push_back(path);
  }
  return files;
}

// The files that `out` should have.
std::set<std::string> expected_files(const checkpoint::ModelDirectory& before) {
  std::set<std::string> names;
  for (const std::string& name : file_names(before))
    names.insert(is_weights(before, name) ? checkpoint::safetensors_name(name) : name);
  return names;
}

// Why a stored tensor is not written again; "" for those that are. prefix: which its names lack.
std::string reason_to_drop(const models::Model& model, const std::string& prefix,
                           const std::string& name) {
  if (model->is_surplus(prefix + name)) return "is not needed";
  if (!model->prediction_layer(prefix + name).empty()) return "predicts tokens beyond the next";
  const auto tied = model->tied_output();
  if (tied && name == tied->output) return fmt::format("is {}", tied->table);
  return "";
}

void compare_tensor(const checkpoint::ModelDirectory& before,
                    const checkpoint::ModelDirectory& after, const std::string& prefix,
                    const std::string& name, Report& report) {
  const checkpoint::TensorInfo &a = *before.find(name), *b = after.find(prefix + name);
  if (b == nullptr) return report.fail(fmt::format("{} was not written", name));
  if (a.dtype != b->dtype)
    return report.fail(fmt::format("{} was {} and is {}", name, megatron::name(a.dtype),
                                   megatron::name(b->dtype)));
  if (!(a.shape == b->shape))
    return report.fail(fmt::format("{} was {} and is {}", name, a.shape.str(), b->shape.str()));
  const std::string& from = before.shard_map().find(name)->second;
  const std::string& to = after.shard_map().find(prefix + name)->second;
  if (checkpoint::safetensors_name(from) != to)
    return report.fail(fmt::format("{} moved from {} to {}", name, from, to));
  int64_t different = 0;
  for (int64_t begin = 0; begin < a.shape.elements(); begin += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, a.shape.elements() - begin);
    const std::vector<std::byte> x = before.tensors().read(name, begin, count),
                                 y = after.tensors().read(prefix + name, begin, count);
    for (size_t i = 0; i < x.size(); ++i) different += x[i] != y[i];
  }
  report.compare("tensor bytes", name, static_cast<double>(different), 0);
}

}  // namespace

Report verify_rewrite(const std::string& directory, const std::string& out) {
  Report report(fmt::format("{} written again as {}", directory, out));
  const checkpoint::ModelDirectory before(directory);
  const std::vector<std::string> names = before.tensor_names();
  const models::Model definition = models::model_from_directory(directory);
  const std::string prefix = training::lacking_prefix(definition, before);
  const auto stored = [&](const std::string& name) {
    const checkpoint::TensorInfo* info = before.find(name);
    if (info == nullptr && name.starts_with(prefix)) info = before.find(name.substr(prefix.size()));
    MG_CHECK(info != nullptr, "'{}' has no tensor '{}'", before.path(), name);
    return info->dtype;
  };
  const bool wide = std::ranges::any_of(
      names, [&](const std::string& name) { return stored(name) == DType::f64; });
  Runtime runtime({wide ? DeviceKind::reference : DeviceKind::cpu, 0}, 1);
  const auto model = definition.build(runtime, wide ? DType::f64 : DType::f32, 0);
  const std::vector<parallel::ParameterSpec*> tensors = models::tensors_of(*model);
  const training::WholeModel whole = training::whole_model(*model);
  training::load_weights(before, checkpoint::held(tensors), whole, {});
  checkpoint::save(out,
                   {.config = before.config(),
                    .model = checkpoint::held(tensors),
                    .dtype = stored,
                    .like = &before,
                    .copied_files = other_files(before)},
                   runtime.stream());

  const checkpoint::ModelDirectory after(out);
  for (const std::string& name : names) {
    const std::string reason = reason_to_drop(definition, prefix, name);
    if (reason.empty()) compare_tensor(before, after, prefix, name, report);
    else report.note(fmt::format("{} {} and was dropped", name, reason));
  }
  if (!prefix.empty()) report.note(fmt::format("names are written with {} before them", prefix));
  for (const std::string& name : after.tensor_names()) {
    const bool known = before.find(name) != nullptr ||
                       (name.starts_with(prefix) && before.find(name.substr(prefix.size())));
    if (!known) report.fail(fmt::format("{} is new", name));
  }
  if (!(before.config() == after.config())) report.fail("config.json changed");
  const std::set<std::string> had = expected_files(before), has = file_names(after);
  for (const std::string& file : had)
    if (!has.contains(file)) report.fail(fmt::format("the file {} was not written", file));
  for (const std::string& file : has)
    if (!had.contains(file)) report.fail(fmt::format("the file {} is new", file));
  return report;
}

}  // namespace megatron::selftest
