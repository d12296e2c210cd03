#include "base/fields.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace megatron {
namespace {

enum class Shape { round, square };

struct Settings {
  int64_t layers = 12;
  double rate = 3e-4;
  std::string name = "gpt";
  std::optional<int64_t> heads;
  std::optional<double> clip;
  std::optional<std::string> path;
  std::vector<std::string> data;
  std::string kind = "gpt2";
  bool bias = true;
  Shape shape = Shape::square;
  Fields fields;

  Settings() {
    fields.add("num-layers", &layers, "Layers.");
    fields.add("lr", &rate, "Rate.");
    fields.add("name", &name, "Name.");
    fields.add("heads", &heads, "Heads.");
    fields.add("clip", &clip, "Clip.");
    fields.add("path", &path, "Path.");
    fields.add("data", &data, "Data.");
    fields.add("kind", &kind, {"gpt2", "llama", "mixtral"}, "Kind.");
    fields.add_switch("no-bias", &bias, false, "No bias.");
    fields.add_enum<Shape>("shape", &shape, {{"round", Shape::round}, {"square", Shape::square}},
                           "Shape.");
  }
  std::string error(std::string_view flag, const std::vector<std::string>& values) {
    try {
      fields.find(flag)->assign(values);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST(Fields, SetAndGet) {
  Settings s;
  const std::pair<const char*, std::vector<std::string>> given[] = {
      {"num-layers", {"-7"}}, {"lr", {"1e-05"}},   {"name", {"a b"}},    {"heads", {"4"}},
      {"clip", {"0.5"}},      {"path", {"/x"}},    {"data", {"a", "b"}}, {"kind", {"llama"}},
      {"no-bias", {}},        {"shape", {"round"}}};
  for (const auto& [flag, values] : given) s.fields.find(flag)->assign(values);
  EXPECT_EQ(s.layers, -7);
  EXPECT_EQ(s.rate, 1e-5);
  EXPECT_EQ(s.name, "a b");
  EXPECT_EQ(s.heads, 4);
  EXPECT_EQ(s.clip, 0.5);
  EXPECT_EQ(s.path, "/x");
  EXPECT_EQ(s.data, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(s.kind, "llama");
  EXPECT_FALSE(s.bias);
  EXPECT_EQ(s.shape, Shape::round);
  for (const auto& [flag, values] : given) {
    EXPECT_TRUE(s.fields.find(flag)->given);
    if (values.size() != 1) continue;
    EXPECT_EQ(s.fields.find(flag)->get(), values[0]);
  }
  EXPECT_EQ(s.fields.find("data")->get(), "a b");
  EXPECT_EQ(s.fields.find("no-bias")->get(), "true");
}

TEST(Fields, UnsetGivesTheDefaultBack) {
  Settings s;
  s.data = {"d"};
  Fields fields;  // a field's default is its value when it is added
  fields.add("data", &s.data, "Data.");
  s.fields.all().push_back(fields.all()[0]);
  s.fields.all().back().name = "other-data";
  const std::pair<const char*, std::vector<std::string>> given[] = {
      {"num-layers", {"-7"}}, {"lr", {"1e-05"}},   {"name", {"a b"}},     {"heads", {"4"}},
      {"clip", {"0.5"}},      {"path", {"/x"}},    {"other-data", {"a"}}, {"kind", {"llama"}},
      {"no-bias", {}},        {"shape", {"round"}}};
  for (const auto& [flag, values] : given) {
    Field& field = *s.fields.find(flag);
    const std::string initial = field.get();
    field.assign(values);
    field.where = "run.yaml:1";
    EXPECT_NE(field.get(), initial) << flag;
    field.unset();
    EXPECT_EQ(field.get(), initial) << flag;
    EXPECT_FALSE(field.given) << flag;
    EXPECT_EQ(field.where, "") << flag;
  }
  EXPECT_FALSE(s.heads.has_value());
  EXPECT_EQ(s.data, std::vector<std::string>{"d"});
}

TEST(Fields, DescribeThemselves) {
  Settings s;
  const auto field = [&](const char* name) -> const Field& { return *s.fields.find(name); };
  EXPECT_EQ(field("num-layers").type, "INT");
  EXPECT_EQ(field("num-layers").initial, "12");
  EXPECT_EQ(field("num-layers").doc, "Layers.");
  EXPECT_EQ(field("lr").type, "FLOAT");
  EXPECT_EQ(field("lr").initial, "0.0003");
  EXPECT_EQ(field("heads").initial, "");
  EXPECT_EQ(field("data").type, "TEXT ...");
  EXPECT_TRUE(field("data").many);
  EXPECT_EQ(field("kind").choices, (std::vector<std::string>{"gpt2", "llama", "mixtral"}));
  EXPECT_EQ(field("shape").initial, "square");
  EXPECT_TRUE(field("no-bias").is_switch);
  EXPECT_EQ(field("no-bias").type, "");
  EXPECT_FALSE(field("lr").given);
  EXPECT_EQ(s.fields.find("none"), nullptr);
  EXPECT_EQ(s.fields.all().size(), 10u);
}

TEST(Fields, RefuseBadIntegers) {
  for (const char* text : {"abc", "1.5", "", " 1", "1 ", "1e3", "0x10", "nan", "+1", "--1",
                           "9223372036854775808", "1,000"}) {
    for (const char* flag : {"num-layers", "heads"}) {
      Settings s;
      const std::string error = s.error(flag, {text});
      EXPECT_NE(error.find(std::string("--") + flag), std::string::npos) << error;
      EXPECT_NE(error.find(std::string("'") + text + "'"), std::string::npos) << error;
      EXPECT_EQ(s.layers, 12);
      EXPECT_FALSE(s.heads);
      EXPECT_FALSE(s.fields.find(flag)->given);
    }
  }
}

TEST(Fields, RefuseBadNumbers) {
  for (const char* text : {"abc", "", "nan", "inf", "-inf", "NaN", "Infinity", "1e999", "1.5x",
                           "1,5", " 1", "0x1p3", "1e-999"}) {
    for (const char* flag : {"lr", "clip"}) {
      Settings s;
      const std::string error = s.error(flag, {text});
      EXPECT_NE(error.find(std::string("--") + flag), std::string::npos) << error;
      EXPECT_NE(error.find(std::string("'") + text + "'"), std::string::npos) << error;
      EXPECT_EQ(s.rate, 3e-4);
    }
  }
}

TEST(Fields, RefuseBadChoicesAndCounts) {
  Settings s;
  EXPECT_EQ(s.error("kind", {"lama"}),
            "--kind is 'lama'; it can be gpt2, llama, mixtral (did you mean 'llama'?)");
  EXPECT_EQ(s.error("shape", {"zzz"}), "--shape is 'zzz'; it can be round, square");
  EXPECT_EQ(s.error("lr", {}), "--lr takes one value, but 0 were given");
  EXPECT_EQ(s.error("lr", {"1", "2"}), "--lr takes one value, but 2 were given");
  EXPECT_NE(s.error("data", {}), "no error");
  EXPECT_NE(s.error("no-bias", {"maybe"}), "no error");
  EXPECT_EQ(s.kind, "gpt2");
  EXPECT_TRUE(s.bias);
}

TEST(Fields, SwitchesReadTheirSavedText) {
  Settings s;
  EXPECT_EQ(s.error("no-bias", {"true"}), "no error");
  EXPECT_FALSE(s.bias);
  EXPECT_EQ(s.error("no-bias", {"false"}), "no error");
  EXPECT_TRUE(s.bias);
}

TEST(Fields, ANumberBeyondFp32IsOutOfRange) {
  Settings s;
  EXPECT_NE(s.error("lr", {"1e308"}).find("--lr is '1e308', which is beyond fp32's largest number"),
            std::string::npos);
  EXPECT_EQ(s.error("lr", {"-3e38"}), "no error");
}

TEST(Fields, ASecondSpellingHasNotChangedAsWell) {
  bool on = false;
  Fields fields, defaults;
  for (Fields* all : {&fields, &defaults})
    for (const char* name : {"use-opt-param", "use-opt_param"})
      all->add_switch(name, &on, true, "");
  bool off = false;
  for (Field& field : defaults.all())
    field.get = [&off] { return std::string(off ? "" : "false"); };
  on = true;
  using Changes = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(changed(fields, defaults), (Changes{{"use-opt-param", "true"}}));
}

TEST(Fields, OneNameOnce) {
  Settings s;
  EXPECT_THROW(s.fields.add("lr", &s.rate, "Again."), InternalError);
}

TEST(Nearest, FindsTypingErrors) {
  const std::vector<std::string> flags = {"num-layers", "hidden-size", "seq-length", "lr",
                                          "micro-batch-size"};
  EXPECT_EQ(nearest("num-layer", flags), "num-layers");
  EXPECT_EQ(nearest("nmu-layers", flags), "num-layers");  // a transposition is one error
  EXPECT_EQ(nearest("hiden_size", flags), "hidden-size");
  EXPECT_EQ(nearest("lt", flags), "lr");
  EXPECT_EQ(nearest("num-layers", flags), "num-layers");
  EXPECT_EQ(nearest("weight-decay", flags), "");
  EXPECT_EQ(nearest("x", flags), "");
  EXPECT_EQ(nearest("", flags), "");
  EXPECT_EQ(nearest("lr", {}), "");
  EXPECT_EQ(nearest(std::string(1'000'000, 'a'), flags), "");
  // Alignment distances of "ca" and "abc" differ by definition: 3 here, too far for 3 letters.
  EXPECT_EQ(nearest("ca", {"abc"}), "");
}

TEST(Fields, RowsHaveRanges) {
  int64_t layers = 12;
  std::optional<int64_t> heads;
  Fields fields;
  fields.add("num-layers", &layers, "Layers.").within(1, 12).in_short_help();
  fields.add("heads", &heads, "Heads.").within(0, 4).of([] { return "there are none"; });
  const auto refusal = [&] {
    try {
      fields.check();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(), "") << "heads are not set";
  layers = 13;
  heads = -1;
  EXPECT_EQ(refusal(), "--num-layers is 13; it must lie in [1, 12]");
  layers = 1;
  EXPECT_EQ(refusal(), "--heads is -1; it must lie in [0, 4]");
  heads = 4;
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(fields.all()[0].common);
  EXPECT_EQ(fields.all()[1].idle(), "there are none");
}

}  // namespace
}  // namespace megatron
