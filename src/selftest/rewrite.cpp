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

std::set<std::string> file_names(const std::string& directory) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name != kExpected) names.insert(name);
  }
  return names;
}

// Files that are neither weights nor their index nor the configuration.
std::vector<std::string> other_files(const std::string& directory) {
  std::vector<std::string> files;
  for (const std::string& name : file_names(directory)) {
    if (name == "config.json" || name == "model.safetensors.index.json" ||
        name.ends_with(".safetensors"))
      continue;
    const std::string path = directory + "/" + name;
    if (fs::is_regular_file(path)) files.push_back(path);
  }
  return files;
}

void compare_tensor(const checkpoint::ModelDirectory& before,
                    const checkpoint::ModelDirectory& after, const std::string& name,
                    Report& report) {
  const checkpoint::TensorInfo &a = *before.find(name), *b = after.find(name);
  if (b == nullptr) return report.fail(fmt::format("{} was not written", name));
  if (a.dtype != b->dtype)
    return report.fail(fmt::format("{} was {} and is {}", name, megatron::name(a.dtype),
                                   megatron::name(b->dtype)));
  if (!(a.shape == b->shape))
    return report.fail(fmt::format("{} was {} and is {}", name, a.shape.str(), b->shape.str()));
  if (before.shard_map().find(name)->second != after.shard_map().find(name)->second) {
    return report.fail(fmt::format("{} moved from {} to {}", name,
                                   before.shard_map().find(name)->second,
                                   after.shard_map().find(name)->second));
  }
  const std::span<const std::byte> x = before.bytes(name), y = after.bytes(name);
  int64_t different = 0;
  for (size_t i = 0; i < x.size(); ++i) different += x[i] != y[i];
  report.compare("tensor bytes", name, static_cast<double>(different), 0);
}

}  // namespace

Report verify_rewrite(const std::string& directory, const std::string& out) {
  Report report(fmt::format("{} written again as {}", directory, out));
  const checkpoint::ModelDirectory before(directory);
  const std::vector<std::string> names = before.tensor_names();
  const auto stored = [&before](const std::string& name) {
    const checkpoint::TensorInfo* info = before.find(name);
    MG_CHECK(info != nullptr, "'{}' has no tensor '{}'", before.path(), name);
    return info->dtype;
  };
  const bool wide = std::ranges::any_of(
      names, [&](const std::string& name) { return stored(name) == DType::f64; });
  Runtime runtime({wide ? DeviceKind::reference : DeviceKind::cpu, 0}, 1);
  const auto model = models::model_from_config_json(before.config())
                         .build(runtime, wide ? DType::f64 : DType::f32, 0);
  const std::vector<parallel::ParameterSpec*> tensors = models::tensors_of(*model);
  const training::WholeModel whole = training::whole_model(*model);
  training::load_weights(before, checkpoint::held(tensors), whole, {});
  checkpoint::save(out,
                   {.config = before.config(),
                    .model = checkpoint::held(tensors),
                    .dtype = stored,
                    .like = &before,
                    .copied_files = other_files(directory)},
                   runtime.stream());

  const checkpoint::ModelDirectory after(out);
  for (const std::string& name : names) {
    if (whole.model->is_surplus(name)) {
      report.note(fmt::format("{} is not needed and was dropped", name));
    } else {
      compare_tensor(before, after, name, report);
    }
  }
  for (const std::string& name : after.tensor_names()) {
    if (before.find(name) == nullptr) report.fail(fmt::format("{} is new", name));
  }
  if (!(before.config() == after.config())) report.fail("config.json changed");
  const std::set<std::string> had = file_names(directory), has = file_names(out);
  for (const std::string& file : had)
    if (!has.contains(file)) report.fail(fmt::format("the file {} was not written", file));
  for (const std::string& file : has)
    if (!had.contains(file)) report.fail(fmt::format("the file {} is new", file));
  return report;
}

}  // namespace megatron::selftest
