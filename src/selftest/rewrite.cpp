#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "checkpoint/save.h"
#include "models/stage.h"
#include "selftest/verify.h"
#include "training/stored_names.h"

namespace megatron::selftest {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExpected = "expected.safetensors";
// Elements of a tensor that are processed at a time.
constexpr int64_t kElementsAtOnce = int64_t{1} << 20;

// Excludes torch files if safetensors files are read in their place.
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

// written: the tensor's name in `after`.
void compare_tensor(const checkpoint::ModelDirectory& before,
                    const checkpoint::ModelDirectory& after, const std::string& name,
                    const std::string& written, Report& report) {
  const checkpoint::TensorInfo &a = *before.find(name), *b = after.find(written);
  if (b == nullptr) return report.fail(fmt::format("{} was not written", name));
  if (a.dtype != b->dtype)
    return report.fail(fmt::format("{} was {} and is now {}", name, megatron::name(a.dtype),
                                   megatron::name(b->dtype)));
  if (!(a.shape == b->shape))
    return report.fail(fmt::format("{} was {} and is now {}", name, a.shape.str(), b->shape.str()));
  const std::string& from = before.shard_map().find(name)->second;
  const std::string& to = after.shard_map().find(written)->second;
  if (checkpoint::safetensors_name(from) != to)
    return report.fail(fmt::format("{} moved from {} to {}", name, from, to));
  int64_t different = 0;
  for (int64_t begin = 0; begin < a.shape.elements(); begin += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, a.shape.elements() - begin);
    const std::vector<std::byte> x = before.tensors().read(name, begin, count),
                                 y = after.tensors().read(written, begin, count);
    for (size_t i = 0; i < x.size(); ++i) different += x[i] != y[i];
  }
  report.compare("tensor bytes", name, static_cast<double>(different), 0);
}

}  // namespace

Report verify_rewrite(const std::string& directory, const std::string& out,
                      const checkpoint::ReadingOptions& reading) {
  Report report(fmt::format("{} written again as {}", directory, out));
  const checkpoint::ModelDirectory before(directory, reading);
  const std::vector<std::string> names = before.tensor_names();
  const models::Model definition = models::model_from_directory(directory);
  const bool wide = std::ranges::any_of(
      names, [&](const std::string& name) { return before.find(name)->dtype == DType::f64; });
  Runtime runtime({wide ? DeviceKind::reference : DeviceKind::cpu, 0}, 1);
  const auto model = definition.build(runtime, wide ? DType::f64 : DType::f32, 0);
  const std::vector<parallel::ParameterSpec*> tensors = models::tensors_of(*model);
  const training::WholeModel whole = training::whole_model(*model);
  training::load_weights(before, checkpoint::held(tensors), whole);
  const training::StoredNames stored(whole, before);
  checkpoint::save(
      out,
      {.config = before.config(),
       .model = checkpoint::held(tensors),
       .dtype = [&](const std::string& name) { return before.find(stored.of(name))->dtype; },
       .like = &before,
       .name_in_like = [&](const std::string& name) { return stored.of(name); },
       .copied_files = other_files(before)},
      runtime.stream());

  const checkpoint::ModelDirectory after(out);
  std::map<std::string, std::string> written;
  for (const checkpoint::WholeTensor& tensor : whole.weights)
    written.emplace(stored.of(tensor.name), tensor.name);
  const auto renamed =
      std::ranges::find_if(written, [](const auto& w) { return w.first != w.second; });
  if (renamed != written.end())
    report.note(fmt::format("tensors are written under the model's names: {} as {}", renamed->first,
                            renamed->second));
  std::map<std::string, std::string> dropped;
  for (const auto& one : stored.left_out()) dropped.emplace(one.name, one.reason);
  for (const std::string& name : names) {
    if (const auto found = written.find(name); found != written.end())
      compare_tensor(before, after, name, found->second, report);
    else
      report.note(fmt::format("{} {} and was dropped", name,
                              dropped.contains(name) ? dropped[name] : "is not in the model"));
  }
  for (const std::string& name : after.tensor_names())
    if (before.find(stored.of(name)) == nullptr) report.fail(fmt::format("{} is new", name));
  if (!(before.config() == after.config())) report.fail("config.json changed");
  const std::set<std::string> had = expected_files(before), has = file_names(after);
  for (const std::string& file : had)
    if (!has.contains(file)) report.fail(fmt::format("the file {} was not written", file));
  for (const std::string& file : has)
    if (!had.contains(file)) report.fail(fmt::format("the file {} is new", file));
  return report;
}

}  // namespace megatron::selftest
