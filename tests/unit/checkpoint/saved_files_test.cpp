// The files of a saved model: their names and contents, and that each is complete or absent.
#include <sys/resource.h>

#include <csignal>

#include "checkpoint/safetensors.h"
#include "checkpoint/save.h"
#include "support.h"

namespace megatron::checkpoint {
namespace {

// Makes a model with a parameter for each tensor of a directory, in the order of `names`.
std::unique_ptr<Model> model_of(const ModelDirectory& directory,
                                const std::vector<std::string>& names) {
  auto model = std::make_unique<Model>();
  for (const std::string& name : names) {
    const TensorInfo& info = *directory.find(name);
    model->add(name, info.shape, info.dtype);
  }
  load(directory, model->parameters());
  return model;
}

void expect_same_files(const std::string& a, const std::string& b,
                       const std::set<std::string>& names) {
  for (const std::string& name : names) {
    EXPECT_TRUE(read_file(a + "/" + name) == read_file(b + "/" + name)) << name;
  }
}

TEST(Save, AReadDirectoryIsWrittenAgainByteForByte) {
  const TemporaryDirectory folder;
  for (const char* name :
       {"gpt2", "llama", "llama_tied", "llama_bf16", "llama_fp16", "llama_sharded"}) {
    const ModelDirectory directory(golden(name));
    const auto model = model_of(directory, directory.tensor_names());
    Contents options;
    options.like = &directory;
    options.copied_files = {golden(name) + "/generation_config.json",
                            golden(name) + "/expected.safetensors"};
    options.written_files = {{"tokenizer.json", "{}\n"}};
    save_model(folder / name, directory.config(), model->parameters(), options);
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(golden(name))) {
      names.insert(entry.path().filename().string());
    }
    expect_same_files(folder / name, golden(name), names);
    EXPECT_EQ(read_file(folder / name + "/tokenizer.json"), "{}\n");
    names.insert("tokenizer.json");
    for (const auto& entry : std::filesystem::directory_iterator(folder / name)) {
      EXPECT_TRUE(names.contains(entry.path().filename().string())) << entry.path();
    }
  }
}

TEST(Save, ADirectoryOfTorchIsWrittenAsSafetensors) {
  const TemporaryDirectory folder;
  for (const char* name : {"gpt2_legacy", "llama_sharded"}) {
    const ModelDirectory directory(torch_vector(name));
    std::vector<std::string> names, dropped;
    for (const std::string& tensor : directory.tensor_names()) {
      const bool mask = tensor.ends_with("masked_bias") || tensor.ends_with(".attn.bias");
      (mask ? dropped : names).push_back(tensor);
    }
    Model model;
    for (const std::string& tensor : names)
      model.add(tensor, directory.find(tensor)->shape, directory.find(tensor)->dtype);
    load(directory, model.parameters(), dropped);
    Contents options;
    options.like = &directory;
    save_model(folder / name, directory.config(), model.parameters(), options);
    const ModelDirectory again(folder / name);
    EXPECT_EQ(again.has_index(), directory.has_index());
    EXPECT_EQ(again.tensor_names(), names);
    EXPECT_EQ(again.metadata(), directory.metadata());
    for (const std::string& tensor : names) {
      EXPECT_TRUE(std::ranges::equal(again.bytes(tensor), directory.bytes(tensor))) << tensor;
      EXPECT_EQ(again.shard_map().find(tensor)->second,
                safetensors_name(directory.shard_map().find(tensor)->second));
    }
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "llama_sharded/model-00003-of-00003.safetensors"));
}

// Tensors in the order in which transformers' model holds them.
std::vector<std::string> llama_order() {
  std::vector<std::string> names = {"model.embed_tokens.weight"};
  for (int layer = 0; layer < 3; ++layer) {
    for (const char* rest : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                             "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
                             "input_layernorm", "post_attention_layernorm"}) {
      names.push_back(fmt::format("model.layers.{}.{}.weight", layer, rest));
    }
  }
  names.insert(names.end(), {"model.norm.weight", "lm_head.weight"});
  return names;
}

TEST(Save, ANewDirectoryIsWhatTransformersWrites) {
  const TemporaryDirectory folder;
  const ModelDirectory sharded(golden("llama_sharded")), single(golden("llama"));
  Contents options;
  options.shard_bytes = 80'000;
  save_model(folder / "sharded", sharded.config(), model_of(sharded, llama_order())->parameters(),
             options);
  expect_same_files(folder / "sharded", golden("llama_sharded"),
                    {"config.json", "model-00001-of-00004.safetensors",
                     "model-00002-of-00004.safetensors", "model-00003-of-00004.safetensors",
                     "model-00004-of-00004.safetensors", std::string(kIndex)});
  save_model(folder / "single", single.config(), model_of(single, llama_order())->parameters(), {});
  expect_same_files(folder / "single", golden("llama"), {"config.json", "model.safetensors"});
}

TEST(Save, ATensorAboveTheLimitHasItsOwnFile) {
  const TemporaryDirectory folder;
  Model model;
  for (const auto& [name, size] : {std::pair{"a", 2}, {"big", 9}, {"b", 2}, {"c", 1}}) {
    count_from(model.add(name, Shape{size}, DType::f32), 0);
  }
  Contents options;
  options.shard_bytes = 16;
  save_model(folder / "m", Json(Json::Object{}), model.parameters(), options);
  const ModelDirectory directory(folder / "m");
  const auto file = [&](const char* name) { return directory.shard_map().find(name)->second; };
  EXPECT_EQ(file("big"), "model-00001-of-00003.safetensors");
  EXPECT_EQ(file("a"), "model-00002-of-00003.safetensors");
  EXPECT_EQ(file("b"), file("a"));
  EXPECT_EQ(file("c"), "model-00003-of-00003.safetensors");
  EXPECT_EQ(Json::read(folder / "m/" + std::string(kIndex))["metadata"]["total_size"].as_integer(),
            14 * 4);
  options.shard_bytes = 0;
  EXPECT_TRUE(contains(error_of([&] {
                         save_model(folder / "n", Json(Json::Object{}), model.parameters(),
                                    options);
                       }),
                       "0 bytes"));
}

TEST(Save, TensorsThatLikeLacksComeLast) {
  const TemporaryDirectory folder;
  const ModelDirectory like(golden("llama_sharded"));
  std::vector<std::string> names = llama_order();
  names.pop_back();  // a score head instead of lm_head
  const std::string ignored[] = {"lm_head.weight"};
  Model model;
  for (const std::string& name : names) model.add(name, like.find(name)->shape, DType::f32);
  load(like, model.parameters(), ignored);
  count_from(model.add("score.weight", Shape{1, 48}, DType::f32), 0);
  Contents options;
  options.like = &like;
  save_model(folder / "m", like.config(), model.parameters(), options);
  const ModelDirectory directory(folder / "m");
  EXPECT_EQ(directory.shard_map().find("score.weight")->second, "model-00004-of-00004.safetensors");
  EXPECT_EQ(directory.tensor_names().back(), "score.weight");
  EXPECT_EQ(directory.find("lm_head.weight"), nullptr);
  expect_same_files(folder / "m", golden("llama_sharded"), {"model-00001-of-00004.safetensors"});
}

TEST(Save, ConfigIsPythonsText) {
  const TemporaryDirectory folder;
  Model model;
  count_from(model.add("a", Shape{}, DType::f32), 3);
  const Json config = Json::parse(R"({"b":1e-5,"a":[1,2.0],"n":null,"s":"\u00e9"})");
  save_model(folder / "m/", config, model.parameters(), {});
  EXPECT_EQ(read_file(folder / "m/config.json"),
            "{\n  \"b\": 1e-05,\n  \"a\": [\n    1,\n    2.0\n  ],\n"
            "  \"n\": null,\n  \"s\": \"\\u00e9\"\n}\n");
  EXPECT_EQ(SafetensorsFile(folder / "m/model.safetensors").doubles("a"), (std::vector<double>{3}));
}

TEST(Save, FailuresLeaveNothing) {
  const TemporaryDirectory folder;
  Model model;
  count_from(model.add("a", Shape{300'000}, DType::f32), 0);
  const auto error = [&](const Contents& options) {
    return error_of(
        [&] { save_model(folder / "m", Json(Json::Object{}), model.parameters(), options); });
  };
  write_file(folder / "config.json", "{}");
  EXPECT_TRUE(contains(error({.copied_files = {folder / "absent"}}), "absent"));
  EXPECT_TRUE(contains(error({.copied_files = {folder / "config.json"}}),
                       "there is already a "
                       "file of that name"));
  EXPECT_TRUE(contains(error({.written_files = {{"config.json", "{}"}}}),
                       "there is already a "
                       "file of that name"));
  EXPECT_TRUE(contains(error({.dtype = [](const std::string&) { return DType::i32; }}),
                       "cannot be saved as i32"));
  EXPECT_TRUE(contains(error_of([&] { save_model(folder / "m", Json(3), model.parameters(), {}); }),
                       "not a JSON object"));
  EXPECT_TRUE(contains(error_of([&] { save_model(folder / "m", Json(Json::Object{}), {}, {}); }),
                       "no tensors"));
  EXPECT_TRUE(contains(error_of([&] {
                         save_model(folder / "config.json/m", Json(Json::Object{}),
                                    model.parameters(), {});
                       }),
                       "cannot create the directory"));
  EXPECT_EQ(folder.names(), (std::set<std::string>{"config.json"}));

  // A limit on the size of files simulates a full disk.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = 1'000'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string full = error({});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(contains(full, "cannot write '") && contains(full, "model.safetensors")) << full;
  EXPECT_EQ(folder.names(), (std::set<std::string>{"config.json"}));
}

TEST(Save, NeverWritesOverWhatExists) {
  const TemporaryDirectory folder;
  Model model;
  count_from(model.add("a", Shape{1}, DType::f32), 0);
  const std::string stale = "m.tmp";
  write_file(folder / stale + "/half", "left by a process that died");
  save_model(folder / "m", Json(Json::Object{}), model.parameters(), {});
  EXPECT_EQ(folder.names(), (std::set<std::string>{"m"}));
  EXPECT_FALSE(std::filesystem::exists(folder / "m/half"));
  const auto error = [&](const char* name) {
    return error_of(
        [&] { save_model(folder / name, Json(Json::Object{}), model.parameters(), {}); });
  };
  EXPECT_TRUE(contains(error("m"), "already exists"));
  EXPECT_TRUE(contains(error("m/"), "already exists"));
  std::filesystem::create_symlink("nowhere", folder / "link");
  EXPECT_TRUE(contains(error("link"), "already exists"));
  EXPECT_EQ(error("deep/er/m"), "");
  EXPECT_EQ(folder.names(), (std::set<std::string>{"deep", "link", "m"}));
}

}  // namespace
}  // namespace megatron::checkpoint
