// Parsing of task files, and errors for malformed lines.
#include <zstd.h>

#include "unit/tasks/support.h"

namespace megatron::testing {
namespace {

using tasks::Example;
using tasks::Sampler;
using tasks::Task;
using tasks::TaskKind;

class TaskFile : public TaskFiles {};

TEST_F(TaskFile, Lambada) {
  const Task t = task("{\"text\": \"I read the  book\"}\n\n{\"text\": \"word\"}\n");
  EXPECT_EQ(t.name, "task");
  EXPECT_EQ(t.kind, TaskKind::loglikelihood);
  ASSERT_EQ(t.examples.size(), 2u);
  EXPECT_EQ(t.examples[0].text, "I read the ");
  EXPECT_EQ(t.examples[0].target, " book");
  EXPECT_EQ(t.examples[1].text, "");
  EXPECT_EQ(t.examples[1].target, " word");
  EXPECT_TRUE(t.examples[1].place.ends_with("task.jsonl line 3"));
}

TEST_F(TaskFile, Hellaswag) {
  const Task t = task(
      R"({"activity_label": "Tea", "ctx_a": "[header] How [title] Fill  it.", "ctx_b": "ÉLA POURS", )"
      R"("endings": [" pours [step] [a\n] tea ", "sits"], "label": "1", "ind": 4})");
  const Example& e = t.examples[0];
  EXPECT_EQ(t.kind, TaskKind::multiple_choice);
  EXPECT_EQ(e.text, "Tea: How. Fill it. Éla pours");
  EXPECT_EQ(e.choices, (std::vector<std::string>{"pours [a\n] tea", "sits"}));
  EXPECT_EQ(e.gold, 1);
}

TEST_F(TaskFile, Mmlu) {
  const Task t = task(R"({"question": " What?\n", "choices": ["x", "y", "z"], "answer": 2, )"
                      R"("subject": "small_things"})"
                      "\n"
                      R"({"question": "Who?", "choices": ["x", "y"], "answer": "A"})");
  const Example& e = t.examples[0];
  EXPECT_EQ(e.text, "What?\nA. x\nB. y\nC. z\nAnswer:");
  EXPECT_EQ(e.choices, (std::vector<std::string>{"A", "B", "C"}));
  EXPECT_EQ(e.gold, 2);
  EXPECT_EQ(t.examples[1].gold, 0);
  EXPECT_EQ(t.sampler, Sampler::first_n);
  EXPECT_EQ(t.description_of(e),
            "The following are multiple choice questions (with answers) about small things.\n\n");
  EXPECT_EQ(t.description_of(t.examples[1]), "");
}

TEST_F(TaskFile, Gsm8k) {
  const Task t = task(R"({"question": "How many?", "answer": "Two.\n#### 2"})");
  EXPECT_EQ(t.kind, TaskKind::generation);
  EXPECT_EQ(t.examples[0].text, "Question: How many?\nAnswer:");
  EXPECT_EQ(t.examples[0].target, "Two.\n#### 2");
  EXPECT_EQ(t.num_fewshot, 5);
  EXPECT_EQ(t.until, (std::vector<std::string>{"Question:", "</s>", "<|im_end|>"}));
  EXPECT_EQ(t.filters.size(), 2u);
}

TEST_F(TaskFile, PlainFormats) {
  const Task choice = task(R"({"context": "", "choices": ["a", "b"], "gold": 0})");
  EXPECT_EQ(choice.kind, TaskKind::multiple_choice);
  EXPECT_EQ(choice.examples[0].answer(), "a");
  const Task continuation = task(R"({"context": "x", "continuation": " y"})");
  EXPECT_EQ(continuation.kind, TaskKind::loglikelihood);
  EXPECT_EQ(continuation.examples[0].answer(), " y");
  const Task text = task(R"({"context": "x", "target": "y"})");
  EXPECT_EQ(text.kind, TaskKind::generation);
  EXPECT_EQ(text.until, std::vector<std::string>{"\n\n"});
  EXPECT_TRUE(text.filters.empty());
}

TEST_F(TaskFile, SettingsInTheFirstLine) {
  file("shots.jsonl", "{\"context\": \"p\", \"target\": \"q\"}\n");
  const Task t = task(
      R"({"task": {"task": "sums", "description": "Add.", "num_fewshot": 1, "fewshot_file": "shots.jsonl", )"
      R"("fewshot_sampler": "first_n", "target_delimiter": "=", "fewshot_delimiter": ";", )"
      R"("max_gen_toks": 7, "filters": [{"name": "n", "regex_pattern": "[0-9]+", "group_select": -1}], )"
      R"("regexes_to_ignore": [","], "ignore_case": true}})"
      "\n{\"context\": \"1+1\", \"target\": \"2\"}\n");
  EXPECT_EQ(t.name, "sums");
  EXPECT_EQ(t.description, "Add.");
  EXPECT_EQ(t.num_fewshot, 1);
  EXPECT_EQ(t.shots.at(0).target, "q");
  EXPECT_EQ(t.sampler, Sampler::first_n);
  EXPECT_EQ(t.target_delimiter, "=");
  EXPECT_EQ(t.until, std::vector<std::string>{";"});
  EXPECT_EQ(t.max_gen_toks, 7);
  EXPECT_EQ(t.filters.at(0).group_select, -1);
  EXPECT_TRUE(t.ignore_case);
  EXPECT_TRUE(t.examples[0].place.ends_with("line 2"));
}

TEST_F(TaskFile, EveryBadLineIsNamed) {
  const std::string good = "{\"text\": \"a b\"}\n";
  refused("", {"task.jsonl", "is empty"});
  refused(good + "{\"text\": \"a b\"\n", {"task.jsonl line 2", "column 15"});
  refused(good + "[1]\n", {"task.jsonl line 2", "not a JSON object"});
  refused(good + "{\"txt\": \"a b\"}\n", {"task.jsonl line 2", "'text' is missing"});
  refused(good + "{\"text\": 5}\n", {"task.jsonl line 2", "'text' is 5", "a string"});
  refused(good + "{\"text\": \"a b \"}\n", {"task.jsonl line 2", "'text'", "end with a word"});
  refused(good + "{\"text\": \"a \xff\"}\n", {"task.jsonl line 2", "UTF-8"});
  refused("{\"a\": 1, \"b\": 2}\n", {"task.jsonl line 1", "[a, b]", "lambada (text)", "mmlu"});
  const auto choice = [&](const std::string& fields) {
    return "{\"context\": \"x\", " + fields + "}";
  };
  refused(choice(R"("choices": [], "gold": 0)"), {"line 1", "'choices' is []"});
  refused(choice(R"("choices": ["a", 1], "gold": 0)"), {"line 1", "'choices' contains 1"});
  refused(choice(R"("choices": ["a", ""], "gold": 0)"), {"line 1: choice 1", "empty"});
  refused(choice(R"("choices": ["a"], "gold": 1)"), {"line 1", "'gold' is 1", "from 0 to 0"});
  refused(choice(R"("choices": ["a"], "gold": "x")"), {"line 1", "'gold' is \"x\""});
  refused(choice(R"("choices": ["a"])"), {"line 1", "'gold' is missing"});
  refused(choice(R"("continuation": "")"), {"line 1", "'continuation' is empty"});
  refused(R"({"question": "q", "choices": ["a"], "answer": "B"})", {"line 1", "'answer' is \"B\""});
  refused(R"({"question": "q", "answer": "42"})", {"line 1", "'answer'", "#### "});
  refused(R"({"ctx_a": "q", "endings": ["a"]})", {"line 1", "'activity_label' is missing"});
}

TEST_F(TaskFile, FieldsThatAreNotReadDoNotMatter) {
  const Task t =
      task(R"({"text": "a b", "n": 1e999, "m": NaN, "\udc00": "\ud83d", "id": 1, "id": 2})"
           "\n");
  EXPECT_EQ(t.examples.at(0).target, " b");
  refused(R"({"text": "a \ud83d"})", {"task.jsonl line 1: field 'text'", "\\ud83d", "surrogate"});
  refused(R"({"context": "x", "choices": ["a", "\udc00"], "gold": 0})", {"'choices'", "\\udc00"});
  refused(R"({"text": ["\ud83d"]})", {"line 1: field 'text' is", "a string"});
  refused(R"({"text": NaN})", {"line 1: field 'text' is nan"});
}

// Compressed files are recognized by their first bytes, here those of pzstd.
TEST_F(TaskFile, MayBeCompressed) {
  const std::string text = "{\"text\": \"a b\"}\n";
  std::string packed("\x50\x2a\x4d\x18\x04\0\0\0abcd", 12);
  packed.resize(12 + ZSTD_compressBound(text.size()));
  packed.resize(12 +
                ZSTD_compress(packed.data() + 12, packed.size() - 12, text.data(), text.size(), 1));
  const Task t = tasks::read_task(file("words.jsonl.zst", packed));
  EXPECT_EQ(t.name, "words");
  EXPECT_EQ(t.examples.at(0).target, " b");
}

TEST_F(TaskFile, BadSettingsAreNamed) {
  const auto settings = [&](const std::string& text,
                            std::initializer_list<std::string_view> parts) {
    refused("{\"task\": {" + text + "}}\n{\"context\": \"x\", \"target\": \"y\"}\n", parts);
  };
  settings(R"("num_fewshots": 3)", {"line 1", "'num_fewshots'", "'num_fewshot'"});
  settings(R"("num_fewshot": -1)", {"line 1", "'num_fewshot' is -1", "from 0"});
  settings(R"("format": "squad")", {"line 1", "'format' is 'squad'", "gsm8k"});
  settings(R"("fewshot_sampler": "all")", {"'fewshot_sampler' is 'all'", "first_n or random"});
  settings(R"("fewshot_file": "nowhere.jsonl")", {"nowhere.jsonl"});
  settings(R"("until": [""])", {"'until'", "empty"});
  settings(R"("max_gen_toks": 0)", {"'max_gen_toks' is 0"});
  settings(R"("ignore_case": 1)", {"'ignore_case' is 1"});
  settings(R"("filters": 3)", {"'filters'"});
  settings(R"("filters": [{"name": "a"}])", {"'filters'", "'regex_pattern' is missing"});
  settings(R"("filters": [{"name": "a", "regex_pattern": "("}])", {"filters", "'('"});
  settings(R"("regexes_to_ignore": ["["])", {"regexes_to_ignore", "'['"});
  refused("{\"task\": {}}\n", {"task.jsonl", "no example"});
  refused("{\"task\": {\"until\": [\"x\"]}}\n{\"text\": \"a b\"}\n",
          {"'until'", "only to generation tasks", "lambada is not"});
}

}  // namespace
}  // namespace megatron::testing
