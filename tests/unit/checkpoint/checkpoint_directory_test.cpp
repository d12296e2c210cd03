#include "checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <fstream>
#include <random>

#include "checkpoint/safetensors.h"
#include "trained_model.h"

namespace megatron::checkpoint {
namespace {

namespace fs = std::filesystem;

const std::string kState(kTrainerState);
constexpr int64_t kShard = 1600;

// Does not use AtomicFile, which would flush.
void put(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

class Checkpoint : public ::testing::Test {
 protected:
  Checkpoint() {
    save(path(), model_.contents(7, kShard), model_.stream());
    for (const std::string& name : names()) files_[name] = read_file(path() + "/" + name);
  }

  std::string path() const { return folder_ / "iter_0000007"; }
  std::string file(const std::string& name) const { return path() + "/" + name; }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path()))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string optimizer_shard(size_t index) const {
    const auto first = files_.lower_bound("optimizer-");
    return std::next(first, static_cast<std::ptrdiff_t>(index))->first;
  }

  // Opens, verifies and loads the checkpoint, and compares the loaded values.
  void read() {
    TrainedModel loaded(DType::bf16, false, 5);
    const CheckpointDirectory directory(path());
    directory.verify(loaded.pool());
    loaded.load(directory);
    EXPECT_EQ(loaded.bits(), model_.bits());
  }

  std::string error() {
    return error_of([&] { read(); });
  }

  void restore() {
    for (const std::string& name : names()) {
      if (!files_.contains(name)) fs::remove(file(name));
    }
    for (const auto& [name, text] : files_) put(file(name), text);
  }

  // Writes trainer_state.json after `change`, with its new checksum.
  void put_state(const std::function<void(Json&)>& change) {
    Json state = Json::parse(files_[kState]);
    change(state);
    state.set("xxh3", Json("0000000000000000"));
    std::string text = state.dump(2, true) + "\n";
    const std::string sum = hexadecimal(checksum(text));
    put(file(kState), text.replace(text.size() - 4 - sum.size(), sum.size(), sum));
  }

  // Like put_state, for the entry of one file.
  void put_entry(const std::string& name, const std::function<void(Json&)>& change) {
    put_state([&](Json& state) {
      Json files = state["files"];
      Json entry = files[name];
      change(entry);
      files.set(name, entry);
      state.set("files", files);
    });
  }

  TemporaryDirectory folder_;
  TrainedModel model_{DType::bf16, false, 1};
  std::map<std::string, std::string> files_;
};

TEST_F(Checkpoint, ComesBackInEveryBit) {
  read();
  const CheckpointDirectory directory(path());
  EXPECT_EQ(directory.trainer_state()["iteration"].as_integer(), 7);
  EXPECT_EQ(directory.path(), path());
  EXPECT_TRUE(directory.has_optimizer());
  EXPECT_TRUE(is_checkpoint(path()));
  EXPECT_FALSE(is_checkpoint(folder_.path()));
  EXPECT_EQ(directory.optimizer_tensors().size(), 3 * directory.model().tensor_names().size());
  EXPECT_TRUE(optimizer_shard(0).starts_with("optimizer-00001-of-000"));
  EXPECT_TRUE(optimizer_shard(4).starts_with("optimizer-00005-of-000"));
  EXPECT_EQ(files_.count("model-00001-of-00002.safetensors"), 1u);
}

TEST_F(Checkpoint, ListsChecksumsOfTensorsHeadersAndFiles) {
  const CheckpointDirectory directory(path());
  const std::string name = "exp_avg.transformer.h.1.ln_1.weight";
  for (const ListedFile& listed : directory.files()) {
    EXPECT_EQ(listed.bytes, static_cast<int64_t>(files_[listed.name].size()));
    if (!listed.has_tensors) {
      EXPECT_EQ(listed.sum, checksum(files_[listed.name])) << listed.name;
      continue;
    }
    const SafetensorsFile tensors(file(listed.name));
    EXPECT_EQ(listed.sum, checksum(tensors.head()));
    ASSERT_EQ(listed.tensors.size(), tensors.tensors().size());
    for (const auto& [tensor, sum] : listed.tensors) {
      EXPECT_EQ(sum, checksum(tensors.bytes(*tensors.find(tensor)))) << tensor;
      EXPECT_EQ(directory.checksum(tensor), hexadecimal(sum));
    }
  }
  EXPECT_EQ(directory.files().size() + 1, files_.size());
  EXPECT_EQ(directory.checksum(name).size(), 16u);
  EXPECT_EQ(directory.checksum("absent"), "");
}

TEST_F(Checkpoint, SizeIsKnownBefore) {
  int64_t bytes = 0;
  for (const auto& [name, text] : files_) bytes += static_cast<int64_t>(text.size());
  EXPECT_EQ(model_.contents(7, kShard).total_bytes(), bytes);
}

TEST_F(Checkpoint, EveryTensorIsVerifiedByOneOfSeveralCallers) {
  const CheckpointDirectory directory(path());
  for (const ListedFile& listed : directory.files()) {
    if (listed.name == kConfig || listed.name == kIndex) continue;  // read when it is opened
    std::string text = files_[listed.name];
    text.back() ^= 1;
    put(file(listed.name), text);
    const CheckpointDirectory damaged(path());
    for (const int parts : {1, 2, 3, 50}) {
      int found = 0;
      for (int part = 0; part < parts; ++part) {
        const std::string said = error_of([&] { damaged.verify(model_.pool(), part, parts); });
        found += contains(said, "' is damaged: " + listed.name + ": ");
      }
      EXPECT_EQ(found, 1) << listed.name << " of " << parts;
    }
    put(file(listed.name), files_[listed.name]);
  }
}

TEST_F(Checkpoint, NamesTheTensorThatIsDamaged) {
  const std::string name = optimizer_shard(0);
  std::string text = files_[name];
  text.back() ^= 0x40;
  put(file(name), text);
  const std::string last = SafetensorsFile(file(name)).tensors().back().name;
  EXPECT_TRUE(
      contains(error(), "' is damaged: " + name + ": tensor '" + last + "' has the checksum"))
      << error();
  EXPECT_TRUE(contains(error(), "use another checkpoint"));
}

TEST_F(Checkpoint, TellsWhatIsMissingOrTooMuch) {
  const std::string shard = optimizer_shard(2), surplus = "optimizer-00099-of-00099.safetensors";
  fs::remove(file(shard));
  EXPECT_TRUE(contains(error(), "is missing files of the checkpoint: 1 (" + shard + ")"))
      << error();
  restore();
  put(file(surplus), files_[shard]);
  EXPECT_TRUE(contains(error(), "do not belong to the checkpoint: 1 (" + surplus + ")")) << error();
  restore();
  fs::remove(file(kState));
  EXPECT_TRUE(contains(error(), "has no trainer_state.json")) << error();
  restore();
  put(file("config.json"), "{}");
  EXPECT_TRUE(contains(error(), "config.json' has 2 bytes, but 27 were written")) << error();
  restore();
  put(file("README.md"), "a person's");
  EXPECT_EQ(error(), "");
  fs::remove_all(path());
  EXPECT_TRUE(contains(error(), "does not exist")) << error();
}

TEST_F(Checkpoint, RefusesStatesThatAreNotItsOwn) {
  put_state([](Json&) {});
  EXPECT_EQ(error(), "");
  put_state([](Json& state) {
    state.set("format", Json(2));
    state.set("written_by", Json("megatron 9.1"));
  });
  EXPECT_TRUE(contains(error(), "written by megatron 9.1, newer than this program")) << error();
  const struct {
    const char *key, *value;
    std::string_view reason;
  } cases[] = {
      {"format", "\"1\"", "no \"format\" number"},
      {"format", "0", "no \"format\" number"},
      {"format", "1.5", "no \"format\" number"},
      {"files", "[]", "\"files\" is missing or not an object"},
      {"files", R"({"../config.json":{"bytes":1,"xxh3":"0000000000000000"}})", "plain file name"},
      {"files", R"({"a\u0000b":{"bytes":1,"xxh3":"0000000000000000"}})", "plain file name"},
      {"files", R"({"trainer_state.json":{"bytes":1,"xxh3":"0000000000000000"}})",
       "plain file name"},
      {"files", R"({"..":{}})", "plain file name"},
      {"files", R"({"a":3})", "not an object"},
      {"files", R"({"a":{"bytes":-1,"xxh3":"0000000000000000"}})", "bytes is not an integer"},
      {"files", R"({"a":{"bytes":1e3,"xxh3":"0000000000000000"}})", "bytes is not an integer"},
      {"files", R"({"a":{"bytes":1,"xxh3":"0"}})", "16 hexadecimal digits"},
      {"files", R"({"a":{"bytes":1,"xxh3":"00000000000000AA"}})", "16 hexadecimal digits"},
      {"files", R"({"a":{"bytes":1,"xxh3":5}})", "16 hexadecimal digits"},
      {"files", R"({"a":{"bytes":1}})", "has no size or no checksum"},
      {"files", R"({"a":{"bytes":1,"header":"0000000000000000"}})", "unknown key 'header'"},
      {"files", R"({"a":{"bytes":1,"header":"0000000000000000","tensors":[]}})",
       "tensors is not an object"},
      {"files", "{}", "do not belong to the checkpoint"},
  };
  for (const auto& c : cases) {
    put_state([&](Json& state) { state.set(c.key, Json::parse(c.value)); });
    EXPECT_TRUE(contains(error(), c.reason)) << c.value << "\n" << error();
  }
  for (const char* text : {"", "{", "[]", "3", "{}", "\xff", "{\"format\":1}"}) {
    put(file(kState), text);
    EXPECT_TRUE(contains(error(), kState)) << text << "\n" << error();
  }
}

TEST_F(Checkpoint, RefusesListsThatDoNotFitTheFiles) {
  const std::string shard = optimizer_shard(0);
  put_entry(shard, [](Json& entry) { entry.set("tensors", Json(Json::Object{})); });
  EXPECT_TRUE(contains(error(), "unexpected tensors: ")) << error();
  put_entry(shard, [](Json& entry) {
    Json tensors = entry["tensors"];
    tensors.set("transformer.wte.weight", Json("0000000000000000"));
    entry.set("tensors", tensors);
  });
  EXPECT_TRUE(contains(error(), "lists tensor 'transformer.wte.weight' twice")) << error();
  put_entry(shard, [](Json& entry) {
    entry = Json(Json::Object{{"bytes", entry["bytes"]}, {"xxh3", entry["header"]}});
  });
  EXPECT_TRUE(contains(error(), "lists it without tensors")) << error();
  put_entry("tokenizer.json", [](Json& entry) {
    entry = Json(Json::Object{
        {"bytes", entry["bytes"]}, {"header", entry["xxh3"]}, {"tensors", Json(Json::Object{})}});
  });
  EXPECT_TRUE(contains(error(), "neither a file of the model nor of the optimizer")) << error();
}

TEST_F(Checkpoint, OfAnotherModelOrOptimizerIsAnErrorThatListsTheDifferences) {
  const CheckpointDirectory directory(path());
  TrainedModel deeper(DType::bf16, false, 1, 3), single(DType::f32, false, 1);
  EXPECT_TRUE(contains(error_of([&] { deeper.load(directory); }),
                       "missing: 4 (transformer.h.2.ln_1.weight"));
  const std::string text = error_of([&] { directory.load_optimizer(deeper.optimizer()); });
  EXPECT_TRUE(contains(text, "do not match the optimizer") &&
              contains(text, "missing: 12 (exp_avg.transformer.h.2.ln_1.weight"))
      << text;
  EXPECT_TRUE(contains(error_of([&] { directory.load_optimizer(single.optimizer()); }),
                       "not in the optimizer: 10 (remainder."));
  Model other;
  const HeldTensor moment{"exp_avg.",
                          &other.add("transformer.h.0.ln_1.weight", Shape{9}, DType::f32).placement,
                          other.parameters()[0]->parameter.value};
  EXPECT_TRUE(contains(error_of([&] { directory.load_optimizer({&moment, 1}); }),
                       "ln_1.weight: [8] in the file, [9] in the optimizer"));
}

TEST_F(Checkpoint, WithoutOptimizerLoadsItsWeightsOnly) {
  Contents contents = model_.contents(8, kShard);
  contents.optimizer.clear();
  save(folder_ / "m", contents, model_.stream());
  const CheckpointDirectory directory(folder_ / "m");
  EXPECT_FALSE(directory.has_optimizer());
  directory.verify(model_.pool());
  EXPECT_TRUE(contains(error_of([&] { directory.load_optimizer(model_.optimizer()); }),
                       "contains no optimizer state"));
}

// Every byte of every file is covered by a checksum: any change is an Error.
TEST_F(Checkpoint, DamageAnywhereIsAnError) {
  std::mt19937 random(3);
  const auto below = [&](size_t n) { return static_cast<size_t>(random()) % n; };
  const std::vector<std::string> all = names();
  int mutations = 0;
  const auto expect_error = [&](const std::string& name, std::string_view what) {
    ++mutations;
    EXPECT_NE(error(), "") << name << ": " << what;
  };
  for (const std::string& name : all) {
    const std::string& text = files_[name];
    for (int i = 0; i < 10; ++i) {
      put(file(name), text.substr(0, below(text.size())));
      expect_error(name, "truncated");
      std::string flipped = text;
      flipped[below(text.size())] ^= static_cast<char>(1 << below(8));
      put(file(name), flipped);
      expect_error(name, "a bit");
      std::string garbled = text;
      const size_t begin = below(text.size());
      for (size_t at = begin; at < std::min(begin + 8, text.size()); ++at)
        garbled[at] = static_cast<char>(random());
      if (garbled == text) continue;
      put(file(name), garbled);
      expect_error(name, "eight bytes");
    }
    put(file(name), text + std::string(1 + below(64), ' '));
    expect_error(name, "extended");
    fs::remove(file(name));
    expect_error(name, "deleted");
    fs::create_directory(file(name));
    expect_error(name, "a directory");
    fs::remove(file(name));
    const std::string& other = all[(std::ranges::find(all, name) - all.begin() + 1) % all.size()];
    put(file(name), files_[other]);
    put(file(other), text);
    expect_error(name, "exchanged with " + other);
    restore();
  }
  EXPECT_EQ(error(), "");
  EXPECT_GT(mutations, 250);
}

}  // namespace
}  // namespace megatron::checkpoint
