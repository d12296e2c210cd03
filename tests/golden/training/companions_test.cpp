// Files next to a model's weights stay with them: every directory that a run saves has the
// tokenizer, the chat template and the generation settings.
#include "base/files.h"
#include "golden/training/support.h"
#include "unit/models/family_models.h"

namespace megatron::training {
namespace {

constexpr const char* kTokenizer = R"({
  "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
  "post_processor": null, "decoder": null,
  "model": {"type": "BPE", "unk_token": null, "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []}
})";

class Companions : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::copy(testing::family_directory("llama"), folder_ / "model");
    put("model/tokenizer.json", kTokenizer);
    put("model/tokenizer_config.json",
        R"({"eos_token": "c", "chat_template": "{{ messages[0].content }}"})");
    put("model/special_tokens_map.json", R"({"eos_token": "c"})");
    put("model/chat_template.jinja", "{{ bos_token }}");
    put("model/notes.txt", "of no use to a reader of the model");
  }
  void put(const std::string& name, const std::string& content) const {
    write_file(folder_ / name, content);
  }
  settings::TrainSettings settings() const {
    settings::TrainSettings s = tiny_llama();
    s.shape = {};
    s.run.model = folder_ / "model";
    s.checkpoint.finetune = true;
    s.checkpoint.save = folder_ / "run";
    s.checkpoint.save_interval = 2;
    s.batch.train_iters = 3;
    return s;
  }
  // Expects each checkpoint of a run to have exactly these files with these contents, besides
  // configuration, state and weights.
  void expect_saved(const settings::TrainSettings& s,
                    const std::map<std::string, std::string>& wanted) const {
    std::filesystem::remove_all(*s.checkpoint.save);
    train(s, {.peak = 1e12});
    for (const char* step : {"iter_0000002", "iter_0000003"}) {
      std::map<std::string, std::string> found;
      for (const auto& entry :
           std::filesystem::directory_iterator(*s.checkpoint.save + "/" + step)) {
        const std::string name = entry.path().filename().string();
        const bool own = name == "config.json" || name == "trainer_state.json" ||
                         entry.path().extension() == ".safetensors";
        if (!own) found[name] = read_file(entry.path().string());
      }
      EXPECT_EQ(found, wanted) << step;
    }
  }
  std::string of_model(const std::string& name) const {
    return read_file(folder_ / "model/" + name);
  }
  std::map<std::string, std::string> all_of_model() const {
    std::map<std::string, std::string> files;
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                             "chat_template.jinja", "generation_config.json"})
      files[name] = of_model(name);
    return files;
  }

  const TemporaryDirectory folder_;
};

TEST_F(Companions, OfTheModelAreInEveryCheckpoint) {
  settings::TrainSettings s = settings();
  expect_saved(s, all_of_model());
  s.data.tokenizer_model = *s.run.model;
  expect_saved(s, all_of_model());
  // The same holds for a run that starts from a checkpoint of that run.
  settings::TrainSettings next = settings();
  next.run.model = folder_ / "run/iter_0000003";
  next.checkpoint.save = folder_ / "next";
  expect_saved(next, all_of_model());
}

// The tokenizer and its chat template come from the other directory, and generation settings from
// the model's.
TEST_F(Companions, OfAnotherTokenizerTakeItsPlace) {
  std::filesystem::create_directory(folder_ / "other");
  put("other/tokenizer.json", kTokenizer);
  put("other/chat_template.json", R"({"chat_template": "{{ eos_token }}"})");
  put("other/generation_config.json", "{}");
  settings::TrainSettings s = settings();
  s.data.tokenizer_model = folder_ / "other";
  expect_saved(s, {{"tokenizer.json", kTokenizer},
                   {"chat_template.json", read_file(folder_ / "other/chat_template.json")},
                   {"generation_config.json", of_model("generation_config.json")}});
  std::filesystem::remove(folder_ / "model/generation_config.json");
  s.data.tokenizer_model = folder_ / "other/tokenizer.json";
  expect_saved(s, {{"tokenizer.json", kTokenizer},
                   {"chat_template.json", read_file(folder_ / "other/chat_template.json")},
                   {"generation_config.json", "{}"}});
}

// A tokenizer changed by flags is written again; its directory's other settings are kept.
TEST_F(Companions, OfATokenizerWithMoreTokens) {
  settings::TrainSettings s = settings();
  s.data.tokenizer_model = *s.run.model;
  s.data.tokenizer_special_tokens = {"<think>"};
  std::filesystem::remove_all(*s.checkpoint.save);
  const std::string saved = train(s, {.peak = 1e12}).saved;
  EXPECT_NE(read_file(saved + "/tokenizer.json").find("<think>"), std::string::npos);
  EXPECT_EQ(Json::read(saved + "/tokenizer_config.json")["chat_template"].as_string(),
            "{{ messages[0].content }}");
  for (const char* name : {"chat_template.jinja", "generation_config.json"})
    EXPECT_EQ(read_file(saved + "/" + name), of_model(name)) << name;
}

}  // namespace
}  // namespace megatron::training
