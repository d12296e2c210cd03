#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/save.h"
#include "models/adapters/lora_config.h"
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
    if (name != directory.config_file() && !is_weights(directory, name) &&
        fs::is_regular_file(path))
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

void compare_file_names(const checkpoint::ModelDirectory& before,
                        const checkpoint::ModelDirectory& after, Report& report) {
  const std::set<std::string> had = expected_files(before), has = file_names(after);
  for (const std::string& file : had)
    if (!has.contains(file)) report.fail(fmt::format("the file {} was not written", file));
  for (const std::string& file : has)
    if (!had.contains(file)) report.fail(fmt::format("the file {} is new", file));
}

// The tensors that the adapter's own file has, by their names there.
class TensorsOfAdapter {
 public:
  TensorsOfAdapter(std::span<parallel::ParameterSpec* const> tensors,
                   const training::StoredNames& names,
                   const checkpoint::ModelDirectory& directory) {
    placements_.reserve(tensors.size());  // held tensors point into it
    for (checkpoint::HeldTensor& tensor : checkpoint::held(tensors)) {
      parallel::Placement& own = placements_.emplace_back();
      for (parallel::CanonicalTensor part : tensor.placement->tensors) {
        part.name = names.of(part.name);
        if (!part.name.starts_with(checkpoint::kAdapterPrefix)) continue;
        MG_CHECK(
            directory.find(part.name) != nullptr,
            "'{}' has no {}: its adapters of experts are parameters of all experts of a layer, "
            "which --rewrite cannot write again",
            directory.path(), part.name);
        own.tensors.push_back(part);
      }
      tensor.placement = &own;
      if (!own.tensors.empty()) held_.push_back(tensor);
    }
  }
  const std::vector<checkpoint::HeldTensor>& held() const { return held_; }

 private:
  std::vector<parallel::Placement> placements_;
  std::vector<checkpoint::HeldTensor> held_;
};

// PEFT writes no newline at the end of adapter_config.json; editors do.
std::string without_last_newline(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

// Writes the loaded adapter to `out` and compares every byte of its files.
void rewrite_adapter(const checkpoint::ModelDirectory& before, const models::LoraConfig& config,
                     const TensorsOfAdapter& tensors, const std::string& out, Stream& stream,
                     Report& report) {
  checkpoint::save(out,
                   {.config = models::to_json(config),
                    .is_adapter = true,
                    .model = tensors.held(),
                    .dtype = [&](const std::string& name) { return before.find(name)->dtype; },
                    .like = &before,
                    .copied_files = other_files(before)},
                   stream);
  const checkpoint::ModelDirectory after(out, {.base = before.base_path()});
  for (const std::string& name : before.tensor_names())
    if (name.starts_with(checkpoint::kAdapterPrefix))
      compare_tensor(before, after, name, name, report);
  for (const std::string_view name : {checkpoint::kAdapterConfig, checkpoint::kAdapterFile}) {
    const std::string file = fmt::format("/{}", name);
    if (!fs::exists(before.path() + file)) continue;  // in torch.save's format
    const bool same = without_last_newline(read_file(before.path() + file)) ==
                      without_last_newline(read_file(out + file));
    report.compare("files", std::string(name), same ? 0 : 1, 0);
  }
  compare_file_names(before, after, report);
}

}  // namespace

Report verify_rewrite(const std::string& directory, const std::string& out,
                      const checkpoint::ReadingOptions& reading) {
  Report report(fmt::format("{} written again as {}", directory, out));
  const checkpoint::ModelDirectory before(directory, reading);
  const std::vector<std::string> names = before.tensor_names();
  const models::Model definition = models::model_of(before);
  const bool wide = std::ranges::any_of(
      names, [&](const std::string& name) { return before.find(name)->dtype == DType::f64; });
  Runtime runtime({wide ? DeviceKind::reference : DeviceKind::cpu, 0}, 1);
  const auto model = definition.build(runtime, wide ? DType::f64 : DType::f32, 0);
  const std::vector<parallel::ParameterSpec*> tensors = models::tensors_of(*model);
  const training::WholeModel whole = training::whole_model(*model);
  training::load_weights(before, checkpoint::held(tensors), whole);
  const training::StoredNames stored(whole, before);
  if (before.is_adapter()) {
    rewrite_adapter(before, *definition->adapter(), {tensors, stored, before}, out,
                    runtime.stream(), report);
    return report;
  }
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
  compare_file_names(before, after, report);
  return report;
}

}  // namespace megatron::selftest
