#include "checkpoint/model_directory.h"

#include <sys/resource.h>

#include <csignal>
#include <cstring>

#include "support.h"

namespace megatron::checkpoint {
namespace {

using parallel::Part;

const std::string kIndex = "model.safetensors.index.json";

void write_tensor_file(const std::string& path, const std::vector<std::string>& names) {
  std::vector<TensorToWrite> tensors;
  for (const std::string& name : names) {
    tensors.push_back({name, DType::f32, Shape{1}, [](std::span<std::byte> out) {
                         std::fill(out.begin(), out.end(), std::byte{0});
                       }});
  }
  write_safetensors(path, tensors, {});
}

std::string open_error(const TemporaryDirectory& folder) {
  return error_of([&] { ModelDirectory directory(folder.path()); });
}

TEST(ModelDirectory, OpensOneFile) {
  const ModelDirectory directory(golden("gpt2"));
  EXPECT_EQ(directory.config()["model_type"].as_string(), "gpt2");
  ASSERT_NE(directory.find("transformer.h.0.attn.c_attn.weight"), nullptr);
  EXPECT_EQ(directory.find("transformer.h.0.attn.c_attn.weight")->shape, (Shape{48, 144}));
  EXPECT_EQ(directory.find("absent"), nullptr);
  EXPECT_EQ(directory.shard_map().find("transformer.wpe.weight")->second, "model.safetensors");
  EXPECT_EQ(directory.tensor_names().size(), directory.shard_map().size());
  EXPECT_EQ(directory.metadata().front().second, "pt");
}

TEST(ModelDirectory, OpensShards) {
  const ModelDirectory directory(golden("llama_sharded"));
  EXPECT_EQ(directory.shard_map().size(), 30u);
  EXPECT_EQ(directory.shard_map().find("lm_head.weight")->second,
            "model-00004-of-00004.safetensors");
  EXPECT_EQ(directory.tensor_names().front(), "model.embed_tokens.weight");
  EXPECT_EQ(directory.tensor_names().back(), "model.norm.weight");
  EXPECT_EQ(directory.bytes("model.norm.weight").size(), 48u * 4);
}

TEST(ModelDirectory, TellsWhatIsNotThere) {
  const TemporaryDirectory folder;
  EXPECT_TRUE(contains(error_of([&] { ModelDirectory d(folder / "absent"); }), "does not exist"));
  write_file(folder / "file", "x");
  EXPECT_TRUE(contains(error_of([&] { ModelDirectory d(folder / "file"); }), "not a directory"));
  EXPECT_TRUE(contains(open_error(folder), "no config.json"));
  write_file(folder / "config.json", "[]");
  EXPECT_TRUE(contains(open_error(folder), "not a JSON object"));
  write_file(folder / "config.json", "{");
  EXPECT_TRUE(contains(open_error(folder), "config.json, line 1"));
  write_file(folder / "config.json", "{}");
  EXPECT_TRUE(contains(open_error(folder), "has no weights"));
  write_file(folder / "pytorch_model.bin", "x");
  EXPECT_TRUE(contains(open_error(folder), "pytorch_model.bin is not read"));
  write_file(folder / "model.safetensors", "x");
  EXPECT_TRUE(contains(open_error(folder), "model.safetensors' is no safetensors file"));
  write_tensor_file(folder / "model.safetensors", {"a"});
  EXPECT_EQ(open_error(folder), "");
  write_file(folder / kIndex, "{}");
  EXPECT_TRUE(contains(open_error(folder), "has both"));
}

TEST(ModelDirectory, RefusesBadIndices) {
  const struct {
    std::string index;
    std::string_view reason;
  } cases[] = {
      {"[]", "not a JSON object"},
      {"{}", "weight_map is missing"},
      {R"({"weight_map":{}})", "weight_map is empty"},
      {R"({"weight_map":{"a":1}})", "is not a string"},
      {R"({"weight_map":{"a":"../x.safetensors"}})", "not a plain file name"},
      {R"({"weight_map":{"a":"/x.safetensors"}})", "not a plain file name"},
      {R"({"weight_map":{"a":".."}})", "not a plain file name"},
      {R"({"weight_map":{"a":""}})", "not a plain file name"},
      {R"({"weight_map":{"a":"x.bin"}})", "not a plain file name"},
      {R"({"weight_map":{"a":"x\u0000.safetensors"}})", "not a plain file name"},
      {R"({"weight_map":{"a":"1.safetensors","b":"3.safetensors"}})", "1 (3.safetensors)"},
      {R"({"weight_map":{"a":"1.safetensors"}})",
       "not so named by the index: 1 (1.safetensors: b)"},
      {R"({"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"1.safetensors"}})",
       "but not in the file: 1 (1.safetensors: c)"},
      // Each holds the other's tensor, and `a` lies in both.
      {R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})",
       "2 (1.safetensors: b, 2.safetensors: a)"},
  };
  const TemporaryDirectory folder;
  write_file(folder / "config.json", "{}");
  write_tensor_file(folder / "1.safetensors", {"a", "b"});
  write_tensor_file(folder / "2.safetensors", {"a"});
  for (const auto& c : cases) {
    write_file(folder / kIndex, c.index);
    EXPECT_TRUE(contains(open_error(folder), c.reason)) << c.index << "\n" << open_error(folder);
  }
}

TEST(Load, ConvertsBetweenAllTypes) {
  const std::vector<double> values = {0.0, -1.5, 1.0 / 3.0, 65504.0, 1e30, -1e-7};
  const DType types[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
  const auto rounded = [](double value, DType type) -> double {
    if (type == DType::f64) return value;
    const float single = static_cast<float>(value);
    if (type == DType::f32) return single;
    return type == DType::bf16 ? static_cast<float>(bf16(single)) : static_cast<float>(f16(single));
  };
  const TemporaryDirectory folder;
  for (const DType disk : types) {
    Model model;
    copy_from(model.add("a", Shape{2, 3}, DType::f64).parameter.value, values);
    SaveOptions options;
    options.dtype = [&](const std::string&) { return disk; };
    const std::string path = folder / name(disk);
    save(path, Json(Json::Object{}), model.parameters(), options);
    const ModelDirectory directory(path);
    EXPECT_EQ(directory.find("a")->dtype, disk);
    for (const DType memory : types) {
      Model loaded;
      loaded.add("a", Shape{2, 3}, memory);
      load(directory, loaded.parameters());
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(loaded.values(0)[i], rounded(rounded(values[i], disk), memory))
            << name(disk) << " to " << name(memory);
      }
    }
  }
}

TEST(Load, KeepsTheBitsOfEqualTypes) {
  const TemporaryDirectory folder;
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32,
                           DType::i16, DType::i8, DType::u16, DType::u8}) {
    Model model, loaded;
    Tensor& value = model.add("a", Shape{64}, type).parameter.value;
    uint8_t* const bytes = static_cast<uint8_t*>(value.raw());
    for (int64_t i = 0; i < value.bytes(); ++i)
      bytes[i] = static_cast<uint8_t>(255 - i * 7);  // NaNs too
    save(folder / name(type), Json(Json::Object{}), model.parameters(), {});
    Tensor& copy = loaded.add("a", Shape{64}, type).parameter.value;
    load(ModelDirectory(folder / name(type)), loaded.parameters());
    EXPECT_EQ(std::memcmp(copy.raw(), bytes, static_cast<size_t>(value.bytes())), 0) << name(type);
  }
}

// A file of one tensor whose element i is i.
void write_counting(const std::string& folder, const std::string& name, Shape shape) {
  Model model;
  count_from(model.add(name, shape, DType::f32), 0);
  save(folder, Json(Json::Object{}), model.parameters(), {});
}

TEST(Load, TransposesAndSlices) {
  const TemporaryDirectory folder;
  constexpr int64_t kOut = 70, kIn = 45;  // above a tile of the copy, and not a multiple
  write_counting(folder / "t", "w", Shape{kIn, kOut});
  const ModelDirectory directory(folder / "t");
  const auto stored = [](int64_t out, int64_t in) { return static_cast<double>(in * kOut + out); };

  Model whole;
  whole.add("w", Shape{kOut, kIn}, DType::f64, true);
  load(directory, whole.parameters());
  for (int64_t o = 0; o < kOut; ++o) {
    for (int64_t i = 0; i < kIn; ++i) EXPECT_EQ(whole.values(0)[o * kIn + i], stored(o, i));
  }
  SaveOptions options;
  options.dtype = [](const std::string&) { return DType::f32; };
  save(folder / "again", Json(Json::Object{}), whole.parameters(), options);
  EXPECT_EQ(read_file(folder / "again/model.safetensors"),
            read_file(folder / "t/model.safetensors"));
  Model columns, rows;
  columns.add(Shape{kOut, 5}, DType::f32, {{"w", Shape{kOut, kIn}, 1, {{40, 0, 5}}, true}});
  load(directory, columns.parameters());
  rows.add(Shape{35, kIn}, DType::bf16,
           {{"w", Shape{kOut, kIn}, 0, {{0, 33, 2}, {37, 0, 33}}, true}});
  load(directory, rows.parameters());
  const std::vector<double> c = columns.values(0), r = rows.values(0);
  for (int64_t o = 0; o < kOut; ++o) {
    for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(c[o * 5 + i], stored(o, 40 + i));
  }
  for (int64_t o = 0; o < 35; ++o) {
    for (int64_t i = 0; i < kIn; ++i) {
      const double exact = stored(o < 33 ? 37 + o : o - 33, i);
      EXPECT_EQ(r[o * kIn + i], static_cast<float>(bf16(static_cast<float>(exact))));
    }
  }
}

// A model of fused q, k, v of two heads and one group on `ranks` ranks; k and v whole on each.
std::unique_ptr<Model> fused(int64_t rank, int64_t ranks) {
  constexpr int64_t kWidth = 3, kQ = 4, kK = 2;
  const int64_t q = kQ / ranks;
  auto model = std::make_unique<Model>();
  model->add(Shape{q + 2 * kK, kWidth}, DType::f32,
             {{"q", Shape{kQ, kWidth}, 0, {{rank * q, 0, q}}},
              {"k", Shape{kK, kWidth}, 0, {{0, q, kK}}},
              {"v", Shape{kK, kWidth}, 0, {{0, q + kK, kK}}}});
  model->add(Shape{kWidth, q}, DType::f32, {{"o", Shape{kWidth, kQ}, 1, {{rank * q, 0, q}}}});
  return model;
}

TEST(Save, StackedTensorsGoApartAndComeBackOnOtherRanks) {
  const TemporaryDirectory folder;
  const auto whole = fused(0, 1);
  count_from(*whole->parameters()[0], 0);
  count_from(*whole->parameters()[1], 100);
  save(folder / "m", Json(Json::Object{}), whole->parameters(), {});
  const SafetensorsFile file(folder / "m/model.safetensors");
  EXPECT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.doubles("k"), (std::vector<double>{12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(file.doubles("v"), (std::vector<double>{18, 19, 20, 21, 22, 23}));
  EXPECT_EQ(file.tensors().front().name, "k");  // by name

  const auto second = fused(1, 2);
  load(ModelDirectory(folder / "m"), second->parameters());
  EXPECT_EQ(second->values(0), (std::vector<double>{6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18,
                                                    19, 20, 21, 22, 23}));
  EXPECT_EQ(second->values(1), (std::vector<double>{102, 103, 106, 107, 110, 111}));
  const std::string error =
      error_of([&] { save(folder / "n", Json(Json::Object{}), second->parameters(), {}); });
  EXPECT_TRUE(contains(error, "'q'") && contains(error, "[0, 2) of the 4")) << error;
  EXPECT_EQ(folder.names(), (std::set<std::string>{"m"}));
}

TEST(Save, PutsATensorTogetherFromSeveralParameters) {
  const TemporaryDirectory folder;
  const auto part = [](int64_t global, int64_t local, int64_t size) {
    return std::vector<Part>{{"a", Shape{5, 2}, 0, {{global, local, size}}, true}};
  };
  Model model;
  count_from(model.add(Shape{2, 2}, DType::f32, part(3, 0, 2)), 6);
  count_from(model.add(Shape{3, 2}, DType::f32, part(0, 0, 3)), 0);
  save(folder / "m", Json(Json::Object{}), model.parameters(), {});
  const SafetensorsFile file(folder / "m/model.safetensors");
  EXPECT_EQ(file.find("a")->shape, (Shape{2, 5}));
  EXPECT_EQ(file.doubles("a"), (std::vector<double>{0, 2, 4, 6, 8, 1, 3, 5, 7, 9}));

  model.add(Shape{1, 2}, DType::f32, part(1, 0, 1));
  EXPECT_TRUE(
      contains(error_of([&] { save(folder / "n", Json(Json::Object{}), model.parameters(), {}); }),
               "index 1 of its axis 0 is held twice"));
}

TEST(Save, LeavesPaddingOutAndLoadsItAsZero) {
  const TemporaryDirectory folder;
  const std::vector<Part> parts = {{"a", Shape{3, 2}, 0, {{0, 0, 3}}}};
  Model model, loaded;
  count_from(model.add(Shape{4, 2}, DType::f32, parts), 1);
  save(folder / "m", Json(Json::Object{}), model.parameters(), {});
  EXPECT_EQ(SafetensorsFile(folder / "m/model.safetensors").doubles("a").size(), 6u);
  count_from(loaded.add(Shape{4, 2}, DType::f32, parts), 50);
  load(ModelDirectory(folder / "m"), loaded.parameters());
  EXPECT_EQ(loaded.values(0), (std::vector<double>{1, 2, 3, 4, 5, 6, 0, 0}));
}

TEST(Load, ListsAllDifferencesAtOnce) {
  const TemporaryDirectory folder;
  Model there, wanted;
  there.add("same", Shape{2}, DType::f32);
  there.add("shape", Shape{2, 3}, DType::f32);
  there.add("type", Shape{2}, DType::i32);
  there.add("inv_freq", Shape{2}, DType::f32);
  for (int i = 0; i < 12; ++i) there.add(fmt::format("extra.{:02d}", i), Shape{1}, DType::f32);
  for (const parallel::Placed* placed : there.parameters()) {
    std::memset(placed->parameter.value.raw(), 0,
                static_cast<size_t>(placed->parameter.value.bytes()));
  }
  save(folder / "m", Json(Json::Object{}), there.parameters(), {});
  count_from(wanted.add("same", Shape{2}, DType::f32), 7);
  wanted.add("shape", Shape{2, 3}, DType::f32, true);
  wanted.add("type", Shape{2}, DType::f32);
  for (int i = 0; i < 11; ++i) wanted.add(fmt::format("lost.{:02d}", i), Shape{1}, DType::f32);
  const ModelDirectory directory(folder / "m");
  const std::string ignored[] = {"inv_freq"};
  const std::string error = error_of([&] { load(directory, wanted.parameters(), ignored); });
  EXPECT_TRUE(contains(error, "missing: 11 (lost.00, lost.01")) << error;
  EXPECT_TRUE(contains(error, "lost.09 and 1 more)")) << error;
  EXPECT_TRUE(contains(error, "not in the model: 12 (extra.00")) << error;
  EXPECT_TRUE(contains(error, "extra.09 and 2 more)")) << error;
  EXPECT_TRUE(contains(error, "of another shape: 1 (shape: [2, 3] there, [3, 2] in the model)"))
      << error;
  EXPECT_TRUE(contains(error, "cannot be converted: 1 (type: i32 there, f32 in the model)"))
      << error;
  EXPECT_FALSE(contains(error, "inv_freq") || contains(error, "same")) << error;
  EXPECT_TRUE(contains(error_of([&] { load(directory, wanted.parameters()); }), "13 (extra.00"));
  EXPECT_EQ(wanted.values(0), (std::vector<double>{7, 8}))
      << "nothing is loaded when something differs";
}

// The tensors of a directory as parameters, each its own, in the order of `names`.
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
    SaveOptions options;
    options.like = &directory;
    options.copied_files = {golden(name) + "/generation_config.json",
                            golden(name) + "/expected.safetensors"};
    options.written_files = {{"tokenizer.json", "{}\n"}};
    save(folder / name, directory.config(), model->parameters(), options);
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
  SaveOptions options;
  options.shard_bytes = 80'000;
  save(folder / "sharded", sharded.config(), model_of(sharded, llama_order())->parameters(),
       options);
  expect_same_files(
      folder / "sharded", golden("llama_sharded"),
      {"config.json", "model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
       "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors", kIndex});
  save(folder / "single", single.config(), model_of(single, llama_order())->parameters(), {});
  expect_same_files(folder / "single", golden("llama"), {"config.json", "model.safetensors"});
}

TEST(Save, ATensorAboveTheLimitHasItsOwnFile) {
  const TemporaryDirectory folder;
  Model model;
  for (const auto& [name, size] : {std::pair{"a", 2}, {"big", 9}, {"b", 2}, {"c", 1}}) {
    count_from(model.add(name, Shape{size}, DType::f32), 0);
  }
  SaveOptions options;
  options.shard_bytes = 16;
  save(folder / "m", Json(Json::Object{}), model.parameters(), options);
  const ModelDirectory directory(folder / "m");
  const auto file = [&](const char* name) { return directory.shard_map().find(name)->second; };
  EXPECT_EQ(file("big"), "model-00001-of-00003.safetensors");
  EXPECT_EQ(file("a"), "model-00002-of-00003.safetensors");
  EXPECT_EQ(file("b"), file("a"));
  EXPECT_EQ(file("c"), "model-00003-of-00003.safetensors");
  EXPECT_EQ(Json::read(folder / "m/" + kIndex)["metadata"]["total_size"].as_integer(), 14 * 4);
  options.shard_bytes = 0;
  EXPECT_TRUE(contains(
      error_of([&] { save(folder / "n", Json(Json::Object{}), model.parameters(), options); }),
      "0 bytes"));
}

TEST(Save, TensorsThatLikeLacksComeLast) {
  const TemporaryDirectory folder;
  const ModelDirectory like(golden("llama_sharded"));
  std::vector<std::string> names = llama_order();
  names.pop_back();  // no lm_head but a score head
  const std::string ignored[] = {"lm_head.weight"};
  Model model;
  for (const std::string& name : names) model.add(name, like.find(name)->shape, DType::f32);
  load(like, model.parameters(), ignored);
  count_from(model.add("score.weight", Shape{1, 48}, DType::f32), 0);
  SaveOptions options;
  options.like = &like;
  save(folder / "m", like.config(), model.parameters(), options);
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
  save(folder / "m/", config, model.parameters(), {});
  EXPECT_EQ(read_file(folder / "m/config.json"),
            "{\n  \"b\": 1e-05,\n  \"a\": [\n    1,\n    2.0\n  ],\n"
            "  \"n\": null,\n  \"s\": \"\\u00e9\"\n}\n");
  EXPECT_EQ(SafetensorsFile(folder / "m/model.safetensors").doubles("a"), (std::vector<double>{3}));
}

TEST(Save, FailuresLeaveNothing) {
  const TemporaryDirectory folder;
  Model model;
  count_from(model.add("a", Shape{300'000}, DType::f32), 0);
  const auto error = [&](const SaveOptions& options) {
    return error_of([&] { save(folder / "m", Json(Json::Object{}), model.parameters(), options); });
  };
  write_file(folder / "config.json", "{}");
  EXPECT_TRUE(contains(error({.copied_files = {folder / "absent"}}), "absent"));
  EXPECT_TRUE(contains(error({.copied_files = {folder / "config.json"}}), "is there already"));
  EXPECT_TRUE(contains(error({.written_files = {{"config.json", "{}"}}}), "is there already"));
  EXPECT_TRUE(contains(error({.dtype = [](const std::string&) { return DType::i32; }}),
                       "cannot be saved as i32"));
  EXPECT_TRUE(contains(error_of([&] { save(folder / "m", Json(3), model.parameters(), {}); }),
                       "not a JSON object"));
  EXPECT_TRUE(
      contains(error_of([&] { save(folder / "m", Json(Json::Object{}), {}, {}); }), "no tensors"));
  EXPECT_TRUE(contains(error_of([&] {
                         save(folder / "config.json/m", Json(Json::Object{}), model.parameters(),
                              {});
                       }),
                       "cannot make the directory"));
  EXPECT_EQ(folder.names(), (std::set<std::string>{"config.json"}));

  // A limit on the size of files stands for a full disk.
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
  const std::string stale = fmt::format("m.tmp-{}", getpid());
  write_file(folder / stale + "/half", "left by a process that died");
  save(folder / "m", Json(Json::Object{}), model.parameters(), {});
  EXPECT_EQ(folder.names(), (std::set<std::string>{"m"}));
  EXPECT_FALSE(std::filesystem::exists(folder / "m/half"));
  const auto error = [&](const char* name) {
    return error_of([&] { save(folder / name, Json(Json::Object{}), model.parameters(), {}); });
  };
  EXPECT_TRUE(contains(error("m"), "exists already"));
  EXPECT_TRUE(contains(error("m/"), "exists already"));
  std::filesystem::create_symlink("nowhere", folder / "link");
  EXPECT_TRUE(contains(error("link"), "exists already"));
  EXPECT_EQ(error("deep/er/m"), "");
  EXPECT_EQ(folder.names(), (std::set<std::string>{"deep", "link", "m"}));
}

}  // namespace
}  // namespace megatron::checkpoint
