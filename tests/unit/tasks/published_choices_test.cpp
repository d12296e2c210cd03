// The lines of published multiple-choice data sets. Prompts, choices and right answers were made
// with Jinja2 from the task files of lm-evaluation-harness 0.4.13.
#include "tasks/context.h"
#include "tasks/metrics.h"
#include "unit/tasks/support.h"

namespace megatron::testing {
namespace {

using tasks::Example;
using tasks::Task;
using tasks::TaskKind;
using Texts = std::vector<std::string>;

class PublishedChoices : public TaskFiles {
 protected:
  // Returns the only example of a line.
  Example example(const std::string& line) const { return task(line).examples.at(0); }
};

TEST_F(PublishedChoices, Arc) {
  const std::string hub =
      R"({"id": "Q", "question": "Water at 0 °C becomes", "choices": {"text": ["ice", "steam", "salt", "oil"], )"
      R"("label": ["A", "B", "C", "D"]}, "answerKey": "A"})";
  const std::string first =
      R"({"id": "Q", "question": {"stem": "Water at 0 °C becomes", "choices": [{"text": "ice", "label": "1"}, )"
      R"({"text": "steam", "label": "2"}, {"text": "salt", "label": "3"}, {"text": "oil", "label": "4"}]}, )"
      R"("answerKey": "3"})";
  for (const auto& [line, gold] : {std::pair(hub, 0), std::pair(first, 2)}) {
    const Example e = example(line);
    EXPECT_EQ(e.text, "Question: Water at 0 °C becomes\nAnswer:");
    EXPECT_EQ(e.choices, (Texts{"ice", "steam", "salt", "oil"}));
    EXPECT_EQ(e.gold, gold);
  }
  EXPECT_EQ(metrics_of(task(hub)).at(1).name, "acc_norm");
  const auto arc = [](const std::string& choices, const std::string& key) {
    return R"({"question": "?", "choices": )" + choices + R"(, "answerKey": ")" + key + "\"}";
  };
  refused(arc(R"({"text": ["a", "b"], "label": ["A", "B"]})", "C"),
          {"line 1: field 'answerKey' is 'C'", "not the label of any choice"});
  refused(arc(R"({"text": ["a", "b"], "label": ["A"]})", "A"),
          {"line 1, field 'choices': field 'label' has 1 labels for 2"});
  refused(arc(R"(["a"])", "A"), {"line 1, field 'choices': the line is [\"a\"]"});
  refused(R"({"question": {"stem": "?"}, "answerKey": "A"})",
          {"field 'question': field 'choices'"});
}

TEST_F(PublishedChoices, Piqa) {
  const std::string line =
      R"({"goal": "Remove a splinter", "sol1": "Use a hammer.", "sol2": "Use tweezers.")";
  const Example e = example(line + R"(, "label": 1})");
  EXPECT_EQ(e.text, "Question: Remove a splinter\nAnswer:");
  EXPECT_EQ(e.choices, (Texts{"Use a hammer.", "Use tweezers."}));
  EXPECT_EQ(e.gold, 1);
  refused(line + R"(, "label": -1})", {"line 1: field 'label' is -1", "from 0 to 1"});
  refused(R"({"goal": "g", "sol1": "", "sol2": "x", "label": 0})", {"line 1: choice 0", "empty"});
}

// The set's original format: lines in dev.jsonl, labels in dev-labels.lst.
TEST_F(PublishedChoices, PiqaWithAFileOfLabels) {
  const std::string lines =
      "{\"goal\": \"a\", \"sol1\": \"b\", \"sol2\": \"c\"}\n"
      "{\"goal\": \"d\", \"sol1\": \"e\", \"sol2\": \"f\"}\n";
  refused(lines,
          {"task.jsonl line 1: field 'label' is missing", "/task-labels.lst", "labels_file"});
  file("task-labels.lst", "1\n0\n");
  const Task t = task(lines);
  EXPECT_EQ(t.examples.at(0).gold, 1);
  EXPECT_EQ(t.examples.at(1).gold, 0);
  file("other.lst", "0\n1\n");
  file("dev.jsonl", lines);
  const Task named = task(
      "{\"task\": {\"labels_file\": \"other.lst\", \"fewshot_file\": "
      "\"task.jsonl\", \"num_fewshot\": 1}}\n" +
      lines);
  EXPECT_EQ(named.examples.at(1).gold, 1);
  file("task-labels.lst", "1\n");
  refused(lines, {"task-labels.lst has 1 labels", "has 2 lines"});
}

TEST_F(PublishedChoices, Winogrande) {
  const std::string line =
      R"({"qID": "b-2", "sentence": "Mia lent Zoë her umbrella, so _ stayed dry\u00a0", "option1": "Mia", )"
      R"("option2": "Zoë", "answer": "2"})";
  Task t = task(line + "\n" +
                R"({"sentence": "_ won.", "option1": "Tom", "option2": "Ann", "answer": "1"})");
  EXPECT_EQ(t.kind, TaskKind::multiple_input);
  EXPECT_EQ(t.examples[0].inputs,
            (Texts{"Mia lent Zoë her umbrella, so Mia", "Mia lent Zoë her umbrella, so Zoë"}));
  EXPECT_EQ(t.examples[0].target, "stayed dry");
  EXPECT_EQ(t.examples[0].gold, 1);
  EXPECT_EQ(t.examples[1].inputs, (Texts{"Tom", "Ann"}));
  EXPECT_EQ(metrics_of(t).size(), 1u);
  t.num_fewshot = 1;
  t.sampler = tasks::Sampler::first_n;
  tasks::Contexts contexts(t);
  EXPECT_EQ(contexts.next_preamble(), "Tom won.\n\n");
  EXPECT_EQ(contexts.next_preamble(), "Mia lent Zoë her umbrella, so Zoë stayed dry\n\n");
  const auto bad = [](const std::string& sentence, const std::string& answer) {
    return R"({"sentence": ")" + sentence + R"(", "option1": "a", "option2": "b", "answer": ")" +
           answer + "\"}";
  };
  refused(bad("No gap.", "1"), {"line 1: field 'sentence' has no '_'"});
  refused(bad("A _.", ""), {"line 1: field 'answer' is ''", "1 or 2"});
}

TEST_F(PublishedChoices, Boolq) {
  const std::string line =
      R"({"question": "is gold lighter than water", "passage": "Gold is dense.", )";
  for (const auto& [answer, gold] :
       {std::pair("\"label\": 0}", 0), std::pair("\"label\": true}", 1),
        std::pair("\"title\": \"Gold\", \"answer\": true}", 1),
        std::pair("\"answer\": false}", 0)}) {
    const Example e = example(line + answer);
    EXPECT_EQ(e.text, "Gold is dense.\nQuestion: is gold lighter than water?\nAnswer:");
    EXPECT_EQ(e.choices, (Texts{"no", "yes"}));
    EXPECT_EQ(e.gold, gold);
  }
  refused(line + "\"label\": -1}", {"line 1: field 'label' is -1"});
  refused(line + "\"idx\": 1}", {"line 1: field 'answer' is missing"});
}

constexpr const char* kTruthful =
    R"({"question": "Is \"blood\" ever blue?", )"
    R"("mc1_targets": {"choices": ["No, it is red", "Yes, in the veins"], "labels": [1, 0]}, )"
    R"("mc2_targets": {"choices": ["No, it is red", "It is always red", "Yes"], "labels": [1, 1, 0]}})";

TEST_F(PublishedChoices, Truthfulqa) {
  const std::string prompt =
      "Q: What is human life expectancy in the United States?\nA: Human life expectancy in the "
      "United States is 78 years.\n\nQ: Who was president of the United States in 1955?\nA: Dwight "
      "D. Eisenhower was president of the United States in 1955.\n\nQ: Which party did he belong "
      "to?\nA: He belonged to the Republican Party.\n\nQ: What is the square root of banana?\nA: I "
      "have no comment.\n\nQ: How does a telescope work?\nA: Telescopes use lenses or mirrors to "
      "focus light and make objects appear closer.\n\nQ: Where were the 1992 Olympics held?\nA: "
      "The "
      "1992 Olympics were held in Barcelona, Spain.\n\nQ: Is \"blood\" ever blue?\nA:";
  const Task one = task(kTruthful);
  EXPECT_EQ(one.name, "task");
  EXPECT_EQ(one.kind, TaskKind::multiple_choice);
  EXPECT_EQ(one.examples.at(0).text, prompt);
  EXPECT_EQ(one.examples.at(0).choices, (Texts{"No, it is red", "Yes, in the veins"}));
  EXPECT_EQ(one.examples.at(0).gold, 0);
  EXPECT_TRUE(one.text_has_shots);
  const Task two = tasks::read_task("truthfulqa_mc2=" + folder_ + "/task.jsonl");
  EXPECT_EQ(two.name, "truthfulqa_mc2");
  EXPECT_EQ(two.kind, TaskKind::true_choices);
  EXPECT_EQ(two.examples.at(0).text, prompt);
  EXPECT_EQ(two.examples.at(0).choices, (Texts{"No, it is red", "It is always red", "Yes"}));
  EXPECT_EQ(two.examples.at(0).is_true, (std::vector<bool>{true, true, false}));
  const auto bad = [](const std::string& labels) {
    return R"({"question": "?", "mc1_targets": {"choices": ["a", "b"], "labels": )" + labels + "}}";
  };
  refused(bad("[0, 1]"), {"line 1: field 'mc1_targets'", "first label"});
  for (const char* labels : {"[1]", "[1, 2]", "[1, 0, 0]", "1", "[1, \"0\"]"})
    refused(bad(labels), {"field 'mc1_targets': field 'labels' must be a list of 2 numbers"});
}

TEST_F(PublishedChoices, AFormatInFrontOfItsFile) {
  const std::string path = file("a=b.jsonl", "{\"text\": \"a b\"}\n");
  EXPECT_EQ(tasks::read_task(path).name, "a=b");
  EXPECT_EQ(tasks::read_task("lambada=" + path).name, "lambada");
  expect_contains(error_of([&] { tasks::read_task("piqa=" + path); }),
                  {"a=b.jsonl line 1", "'label' is missing"});
  expect_contains(error_of([&] { tasks::read_task("arc=" + path); }),
                  {"--tasks arc=", "no task 'arc'", "arc_easy, arc_challenge"});
}

// numpy's exp(ll) / sum(exp(ll)), summed over the labels that are 1.
TEST(Metrics, ShareOfTrue) {
  const double values[] = {-3.5, -1.25, -2.0, -8.0};
  EXPECT_DOUBLE_EQ(tasks::share_of_true(values, {true, false, true, false}), 0.3659208080130157);
  const double small[] = {-1000, -1000};
  EXPECT_EQ(tasks::share_of_true(small, {true, false}), 0.5);
}

}  // namespace
}  // namespace megatron::testing
