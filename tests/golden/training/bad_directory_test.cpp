// Directories whose tensors do not match the model, and models that a family cannot represent: an
// error before the first step, and nothing saved.
#include "base/error.h"
#include "base/files.h"
#include "dist/training/runs.h"
#include "unit/models/family_models.h"

namespace megatron::training {
namespace {

// Rewrites the header of a safetensors file and keeps the contents of its tensors.
void change_header(const std::string& path, const std::function<void(Json&)>& change) {
  const std::string file = read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const std::string data = file.substr(sizeof length + length);
  Json header = Json::parse(file.substr(sizeof length, length));
  change(header);
  const std::string text = header.dump();
  length = text.size();
  write_file(path,
             std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data);
}

struct Bad {
  const char* family;
  void (*change)(Json& header);
  std::vector<const char*> parts;
};

void rename(Json& header, const char* from, const char* to) {
  for (auto& [name, info] : header.as_object())
    if (name == from) name = to;
}
void set(Json& header, const char* tensor, const char* key, const char* value) {
  Json info = header[tensor];
  info.set(key, Json::parse(value));
  header.set(tensor, info);
}

class BadDirectory : public ::testing::Test {
 protected:
  settings::TrainSettings settings(const std::string& family) const {
    std::filesystem::remove_all(folder_ / "model");
    std::filesystem::copy(testing::family_directory(family), folder_ / "model");
    settings::TrainSettings s = tiny_llama();
    s.shape = {};
    s.run.model = folder_ / "model";
    s.checkpoint.finetune = true;
    s.checkpoint.save = folder_ / "run";
    s.batch.train_iters = 1;
    return s;
  }
  // Expects that no step is made and no checkpoint is begun.
  void expect_refused(const settings::TrainSettings& s, const std::vector<std::string>& parts) {
    int steps = 0;
    TrainHooks hooks{.peak = 1e12};
    hooks.after_step = [&](const IterationReport&) { ++steps; };
    try {
      train(s, hooks);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      const std::string text = error.what();
      for (const std::string& part : parts)
        EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
    }
    EXPECT_EQ(steps, 0);
    if (!std::filesystem::exists(folder_ / "run")) return;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "run"))
      EXPECT_FALSE(entry.is_directory()) << entry.path();
  }

  const TemporaryDirectory folder_;
};

TEST_F(BadDirectory, NamesTensorsThatAreNotTheModels) {
  const std::vector<Bad> all = {
      {"gemma3_text",
       [](Json& h) {
         rename(h, "model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.norm");
       },
       {"missing: 1 (model.layers.1.self_attn.q_norm.weight",
        "not in the model: 1 (model.layers.1.self_attn.norm"}},
      {"phi3",
       [](Json& h) { set(h, "model.layers.0.self_attn.qkv_proj.weight", "shape", "[48, 96]"); },
       {"with a different shape: 1 (model.layers.0.self_attn.qkv_proj.weight", "[48, 96]",
        "[96, 48]"}},
      {"falcon",
       [](Json& h) { set(h, "transformer.h.2.ln_mlp.bias", "dtype", "\"I32\""); },
       {"type", "transformer.h.2.ln_mlp.bias", "i32", "f32", "bf16"}},
      {"olmo2",
       [](Json& h) { set(h, "model.norm.weight", "dtype", "\"U32\""); },
       {"type", "model.norm.weight", "U32 in the file", "f32", "bf16"}},
      {"cohere2",
       [](Json& h) { set(h, "model.norm.weight", "shape", "[47]"); },
       {"model.norm.weight", "47"}}};
  for (const auto& [family, change, parts] : all) {
    SCOPED_TRACE(family);
    const settings::TrainSettings s = settings(family);
    change_header(folder_ / "model/model.safetensors", change);
    std::vector<std::string> wanted(parts.begin(), parts.end());
    wanted.push_back(folder_ / "model");
    expect_refused(s, wanted);
  }
}

// For a bad key of config.json, the error names the file with its path.
TEST_F(BadDirectory, NamesTheFileOfABadKey) {
  const settings::TrainSettings s = settings("nemotron");
  Json config = Json::read(folder_ / "model/config.json");
  config.set("hidden_act", "mish");
  write_file(folder_ / "model/config.json", config.dump());
  expect_refused(s, {folder_ / "model/config.json", "hidden_act", "mish", "relu2"});
}

// The run asks for a feature for which the directory's family has no key.
TEST_F(BadDirectory, NamesWhatItsFamilyCannotHold) {
  settings::TrainSettings s = settings("gemma2");
  s.shape.hidden_dropout = 0.1;
  expect_refused(s, {"config.json of a gemma2", "--hidden-dropout 0.1", "--hidden-dropout 0"});
}

}  // namespace
}  // namespace megatron::training
