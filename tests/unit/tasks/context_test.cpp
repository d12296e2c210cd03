// The context before an example, and the token at which its continuation begins.
#include "tasks/context.h"

#include "tokenizers/plain_codecs.h"
#include "unit/tasks/support.h"

namespace megatron::testing {
namespace {

using tasks::Contexts;
using tasks::Task;

class ContextsOf : public TaskFiles {};

TEST_F(ContextsOf, TheFirstOthersOfTheSubject) {
  Task t = task(R"({"question": "1?", "choices": ["x", "y"], "answer": 0, "subject": "s"})"
                "\n"
                R"({"question": "2?", "choices": ["x", "y"], "answer": 1, "subject": "t"})"
                "\n"
                R"({"question": "3?", "choices": ["x", "y"], "answer": 1, "subject": "s"})"
                "\n"
                R"({"question": "4?", "choices": ["x", "y"], "answer": 1, "subject": "t"})");
  t.num_fewshot = 1;
  Contexts contexts(t);
  const std::string of_s =
      "The following are multiple choice questions (with answers) about s.\n\n";
  EXPECT_EQ(contexts.next(), of_s + "3?\nA. x\nB. y\nAnswer: B\n\n1?\nA. x\nB. y\nAnswer:");
  EXPECT_TRUE(contexts.next().find("about t.\n\n4?") != std::string::npos);
  EXPECT_EQ(contexts.next(), of_s + "1?\nA. x\nB. y\nAnswer: A\n\n3?\nA. x\nB. y\nAnswer:");
  t.num_fewshot = 2;
  expect_contains(error_of([&] { Contexts too_many(t); }),
                  {"line 1", "2 few-shot examples", "has only 2 of subject 's', including itself",
                   "--num-fewshot"});
}

TEST_F(ContextsOf, ThoseOfAnotherFile) {
  file("shots.jsonl",
       "{\"context\": \"p\", \"target\": \"q\"}\n{\"context\": \"x\", \"target\": \"\"}\n");
  Task t = task(
      "{\"task\": {\"fewshot_file\": \"shots.jsonl\", \"description\": \"D \", \"num_fewshot\": 2, "
      "\"fewshot_sampler\": \"first_n\"}}\n{\"context\": \"x\", \"target\": \"y\"}\n");
  EXPECT_EQ(Contexts(t).next(), "D p q\n\nxx") << "an empty answer has no delimiters";
  t.num_fewshot = 3;
  expect_contains(error_of([&] { Contexts too_many(t); }), {"fewshot_file has only 2"});
}

// random.Random(1234).sample of ten: 7, 1, 0, then 1, 0, 9.
TEST_F(ContextsOf, DrawnOnesAreThoseOfPython) {
  std::string lines;
  for (int i = 0; i < 10; ++i)
    lines += "{\"context\": \"" + std::to_string(i) + "\", \"continuation\": \" .\"}\n";
  Task t = task(lines);
  t.num_fewshot = 2;
  t.fewshot_delimiter = "|";
  t.target_delimiter = "";
  Contexts contexts(t);
  EXPECT_EQ(contexts.next(), "7 .|1 .|0") << "0 itself is left out";
  EXPECT_EQ(contexts.next(), "0 .|9 .|1") << "1 itself is left out";
  const std::string third = contexts.next();
  EXPECT_EQ(third.size(), 9u);

  t.examples.resize(3);
  for (auto& example : t.examples) example.source = t.examples[0].source;
  Contexts alike(t);
  expect_contains(error_of([&] { alike.next(); }), {"only 0", "differ from it"});
}

// Tokens are bytes; byte 0 is the end of a document.
class Pairs : public ::testing::Test {
 protected:
  tasks::TokenPair pair(const std::string& context, const std::string& continuation) {
    return encode_pair(tokenizer_, options_, context, continuation, "FILE line 3");
  }
  std::string text(const tasks::TokenPair& pair) {
    std::string all;
    for (const int32_t token : pair.tokens) {
      if (std::ssize(all) == pair.context) all += '|';
      all += token == 0 ? '^' : static_cast<char>(token);
    }
    return all;
  }

  tokenizers::Tokenizer tokenizer_{tokenizers::make_byte_codec(256)};
  tasks::TokenOptions options_{.positions = 16};
};

TEST_F(Pairs, WhiteSpaceGoesToTheContinuation) {
  EXPECT_EQ(text(pair("ab", " cd")), "ab| cd");
  EXPECT_EQ(text(pair("ab \n", "cd")), "ab| \ncd");
  EXPECT_EQ(text(pair("a\xc2\xa0", "c")),
            "a|\xc2\xa0"
            "c")
      << "a no-break space is one, too";
  EXPECT_EQ(text(pair("", "cd")), "^|cd");
  EXPECT_EQ(text(pair("  ", "cd")), "^|  cd");
  EXPECT_EQ(text(pair("", std::string("\0cd", 3))), "^|cd") << "the prefix is not repeated";
}

TEST_F(Pairs, TheFirstTokensAreDropped) {
  EXPECT_EQ(text(pair("0123456789abc", "def")), "0123456789abc|def");
  EXPECT_EQ(text(pair("0123456789abcdef", "ghi")), "3456789abcdef|ghi");
  EXPECT_EQ(text(pair("01", "0123456789abcde")), "1|0123456789abcde");
  expect_contains(error_of([&] { pair("01", "0123456789abcdef"); }),
                  {"FILE line 3", "16 tokens", "16 positions", "at most 15"});
  expect_contains(error_of([&] { pair("a", ""); }),
                  {"FILE line 3", "adds no token to its context"});
}

TEST_F(Pairs, AContextLeavesRoom) {
  const auto context = [&](const std::string& text, int64_t room) {
    std::string all;
    for (const int32_t token : encode_context(tokenizer_, options_, text, room, "FILE line 3"))
      all += token == 0 ? '^' : static_cast<char>(token);
    return all;
  };
  EXPECT_EQ(context("0123456789", 6), "0123456789");
  EXPECT_EQ(context("0123456789", 10), "456789");
  EXPECT_EQ(context("", 10), "^");
  expect_contains(error_of([&] { context("0", 16); }),
                  {"FILE line 3", "max_gen_toks is 16", "16 positions"});
}

TEST(PythonSample, EqualsPython) {
  using Numbers = std::vector<size_t>;
  auto random = data::RandomState::python(1234);
  EXPECT_EQ(tasks::python_sample(random, 10, 3), (Numbers{7, 1, 0}));
  EXPECT_EQ(tasks::python_sample(random, 10, 3), (Numbers{1, 0, 9}));
  EXPECT_EQ(tasks::python_sample(random, 10, 7), (Numbers{1, 5, 3, 0, 6, 8, 2}));
  random = data::RandomState::python(1234);
  EXPECT_EQ(tasks::python_sample(random, 200, 5), (Numbers{199, 112, 29, 1, 23}));
  EXPECT_EQ(tasks::python_sample(random, 200, 5), (Numbers{149, 8, 171, 177, 21}));
  random = data::RandomState::python(1234);
  EXPECT_EQ(tasks::python_sample(random, 100, 6), (Numbers{99, 56, 14, 0, 11, 74}));
  EXPECT_EQ(tasks::python_sample(random, 100, 6), (Numbers{4, 85, 88, 10, 12, 98}));
}

}  // namespace
}  // namespace megatron::testing
