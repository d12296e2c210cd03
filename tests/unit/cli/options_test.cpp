// Values pass through a command line unchanged.
#include "cli/options.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace megatron::cli {
namespace {

using Words = std::vector<std::string>;

// A command with one field of each kind.
struct Command {
  double rate = 1;
  int64_t layers = 0;
  std::string style = "linear", prompt;
  Words keys = {"text"}, paths;
  bool bf16 = false, per_token = true;
  Fields fields;

  Command() {
    fields.add("lr", &rate, "learning rate");
    fields.add("num-layers", &layers, "layers");
    fields.add("style", &style, {"linear", "cosine"}, "how it falls");
    fields.add("prompt", &prompt, "text");
    fields.add("keys", &keys, "keys");
    fields.add_switch("bf16", &bf16, true, "in bfloat16");
    fields.add_switch("per-token", &per_token, true, "weigh tokens");
    fields.add_switch("no-per-token", &per_token, false, "weigh sequences");
  }

  std::optional<int> read(const Words& arguments, bool required = false) {
    return parse("program command [flags]", "Does something.", fields,
                 {{"PATH", "what to read", &paths, required}}, arguments);
  }

  std::string error(const Words& arguments, bool required = false) {
    try {
      read(arguments, required);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
};

::testing::AssertionResult says(const std::string& text, const Words& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == text.npos)
      return ::testing::AssertionFailure() << "'" << part << "' is not in '" << text << "'";
  }
  return ::testing::AssertionSuccess();
}

TEST(Options, ValuesAreLeftAsTheyAre) {
  for (const std::string value : {"[PAD]", "[hello, world]", "[]", "[a,b]", "{}", "\"x\"", "'y'",
                                  "a=b", "a,b", "%%", "", " ", "a\nb", "\xf0\x9f\x98\x80"}) {
    Command c;
    EXPECT_FALSE(c.read({value, "--keys", value, "x", "--prompt", value}));
    EXPECT_EQ(c.keys, (Words{value, "x"}));
    EXPECT_EQ(c.prompt, value);
    EXPECT_EQ(c.paths, Words{value});
    Command with_equals;
    with_equals.read({"--prompt=" + value, "--keys=" + value, value});
    EXPECT_EQ(with_equals.prompt, value);
    EXPECT_EQ(with_equals.keys, Words{value});
    EXPECT_EQ(with_equals.paths, Words{value});
  }
}

TEST(Options, SwitchesHaveAnOpposite) {
  const auto bf16 = [](const Words& arguments) {
    Command c;
    c.read(arguments);
    return c.bf16;
  };
  EXPECT_FALSE(bf16({}));
  EXPECT_TRUE(bf16({"--bf16"}));
  EXPECT_TRUE(bf16({"--bf16=true"}));
  EXPECT_FALSE(bf16({"--bf16=false"}));
  EXPECT_FALSE(bf16({"--bf16", "--bf16=false"}));
  EXPECT_TRUE(says(Command().error({"--bf16=maybe"}), {"--bf16", "maybe"}));
  EXPECT_TRUE(says(Command().error({"--bf16="}), {"--bf16"}));
  Command c;
  c.read({"--bf16", "false"});
  EXPECT_TRUE(c.bf16);
  EXPECT_EQ(c.paths, Words{"false"});
}

// Two switches of one setting: the order on the command line decides, not that of the definitions.
TEST(Options, TheLastOfSeveralCounts) {
  Command c;
  c.read({"--no-per-token", "--per-token", "--lr", "2", "--num-layers=3", "--lr=4"});
  EXPECT_TRUE(c.per_token);
  EXPECT_EQ(c.rate, 4);
  Command other;
  other.read({"--per-token", "--no-per-token", "--style", "cosine", "--style", "linear"});
  EXPECT_FALSE(other.per_token);
  EXPECT_EQ(other.style, "linear");
}

TEST(Options, AFieldOfManyGathersAll) {
  Command c;
  c.read({"--keys", "a", "b", "--bf16", "--keys", "c", "--keys=d", "e"});
  EXPECT_EQ(c.keys, (Words{"a", "b", "c", "d"}));
  EXPECT_EQ(c.paths, Words{"e"});
  EXPECT_TRUE(says(Command().error({"--keys"}), {"--keys"}));
}

TEST(Options, ValuesMayBeginWithADash) {
  for (const auto& [text, value] : {std::pair{"-1", -1.0}, {"-1e-3", -1e-3}, {"-.5", -.5}}) {
    Command c;
    c.read({"--lr", text});
    EXPECT_EQ(c.rate, value);
  }
  EXPECT_TRUE(says(Command().error({"--lr", "-inf"}), {"--lr", "-inf", "finite"}));
  EXPECT_TRUE(says(Command().error({"--num-layers", "-99999999999999999999"}),
                   {"--num-layers", "64 bits"}));
  Command c;
  c.read({"--prompt", "-", "- a list", "-5", "--", "--lr", "-x", "--help"});
  EXPECT_EQ(c.prompt, "-");
  EXPECT_EQ(c.paths, (Words{"- a list", "-5", "--lr", "-x", "--help"}));
  c.read({"--prompt=--lr"});
  EXPECT_EQ(c.prompt, "--lr");
  EXPECT_TRUE(says(Command().error({"--prompt", "--lr", "1"}),
                   {"--prompt needs a value", "--lr", "--prompt=VALUE"}));
}

TEST(Options, ErrorsNameTheFlag) {
  EXPECT_TRUE(says(Command().error({"--lr"}), {"--lr needs a value", "--help"}));
  EXPECT_TRUE(says(Command().error({"--num-layer", "1"}), {"--num-layer;", "--num-layers"}));
  EXPECT_TRUE(says(Command().error({"--num-layer=1"}), {"--num-layer;", "--num-layers"}));
  EXPECT_TRUE(says(Command().error({"-lr", "1"}), {"there is no flag -lr", "--lr"}));
  EXPECT_EQ(Command().error({"--foo"}), "there is no flag --foo; see --help");
  EXPECT_EQ(Command().error({"--keyz"}),
            "there is no flag --keyz; did you mean --keys? See --help");
  EXPECT_EQ(Command().error({"--foo", "1", "2", "--lr", "1", "--bar=3"}),
            "2 flags cannot be used:\n  there is no flag --foo; see --help\n  there is no flag "
            "--bar; see --help");
  EXPECT_TRUE(says(Command().error({"--"}, true), {"PATH", "what to read"}));
  EXPECT_TRUE(says(Command().error({"--num-layers", "[1]"}), {"--num-layers", "'[1]'"}));
  Fields none;
  EXPECT_THROW(parse("program", "", none, {}, {"stray"}), Error);
}

TEST(Options, Help) {
  Command c;
  ::testing::internal::CaptureStdout();
  const auto code = c.read({"--lr", "x", "-h", "--unknown"}, true);
  std::fflush(stdout);
  const std::string help = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0);
  EXPECT_EQ(help,
            "Does something.\n"
            "\n"
            "Usage: program command [flags]\n"
            "\n"
            "Positionals:\n"
            "  PATH ...                    what to read\n"
            "\n"
            "Options:\n"
            "  -h,--help                   print this help\n"
            "  --lr FLOAT                  learning rate [1]\n"
            "  --num-layers INT            layers [0]\n"
            "  --style TEXT                how it falls (linear, cosine) [linear]\n"
            "  --prompt TEXT               text\n"
            "  --keys TEXT ...             keys [text]\n"
            "  --bf16                      in bfloat16\n"
            "  --per-token                 weigh tokens\n"
            "  --no-per-token              weigh sequences\n");
}

TEST(Options, HelpIsCutAtSpaces) {
  std::string text;
  Fields fields;
  std::string doc;
  for (int i = 0; i < 40; ++i) doc += (i == 0 ? "" : " ") + std::string("seven") + "77";
  fields.add("a-flag-that-fills-the-column-of-flags", &text, doc);
  ::testing::internal::CaptureStdout();
  parse("program", "", fields, {}, {"--help"});
  std::fflush(stdout);
  const std::string help = ::testing::internal::GetCapturedStdout();
  size_t words = 0, begin = 0;
  for (size_t end; (end = help.find('\n', begin)) != help.npos; begin = end + 1) {
    EXPECT_LE(end - begin, 100u);
    EXPECT_FALSE(help.substr(begin, end - begin).ends_with(' '));
  }
  for (size_t at = 0; (at = help.find("seven77", at)) != help.npos; ++at) ++words;
  EXPECT_EQ(words, 40u);
}

}  // namespace
}  // namespace megatron::cli
