#include "tasks/format.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "jinja/unicode.h"
#include "tasks/published_choices.h"

namespace megatron::tasks {
namespace {

void nothing(Task& task) { task.until = {task.fewshot_delimiter}; }

void read_lambada(const Item& item, Example& example) {
  const std::string& text = item.text("text");
  const size_t space = text.rfind(' ');
  example.target = " " + (space == text.npos ? text : text.substr(space + 1));
  if (example.target == " ")
    item.refuse("text", "ends with a space or is empty; it must end with a word");
  if (space != text.npos) example.text = text.substr(0, space);
}

std::string with_replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// Removes "[...]" within a line.
std::string without_brackets(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text[at] == '[' ? text.find_first_of("]\n", at) : text.npos;
    if (end != text.npos && text[end] == ']') {
      at = end + 1;
    } else {
      out += text[at++];
    }
  }
  return out;
}

// Removes marks that the data set has from the web pages that it was taken from.
std::string cleaned(std::string_view text) {
  std::string out(jinja::strip_space(text, true, true));
  out = without_brackets(with_replaced(std::move(out), " [title]", ". "));
  return with_replaced(std::move(out), "  ", " ");
}

void read_hellaswag(const Item& item, Example& example) {
  const std::string &activity = item.text("activity_label"), &begin = item.text("ctx_a"),
                    &end = item.text("ctx_b");
  example.text = cleaned(activity + ": " + begin + " " + jinja::to_capitalized(end));
  for (const std::string& ending : item.texts("endings"))
    example.choices.push_back(cleaned(ending));
  example.gold = item.index("label", example.choices.size());
}

void read_mmlu(const Item& item, Example& example) {
  const std::vector<std::string> choices = item.texts("choices");
  constexpr size_t kLetters = 26;
  if (choices.size() > kLetters)
    item.refuse("choices", fmt::format("has {} choices; at most {} are supported, one per letter",
                                       choices.size(), kLetters));
  example.text = jinja::strip_space(item.text("question"), true, true);
  for (size_t i = 0; i < choices.size(); ++i) {
    example.choices.emplace_back(1, static_cast<char>('A' + i));
    example.text += "\n" + example.choices.back() + ". " + choices[i];
  }
  example.text += "\nAnswer:";
  const Json* answer = item.json().find("answer");
  const auto letter = answer != nullptr && answer->is_string()
                          ? std::ranges::find(example.choices, answer->as_string())
                          : example.choices.end();
  example.gold = letter != example.choices.end() ? letter - example.choices.begin()
                                                 : item.index("answer", choices.size());
  example.subject = item.optional_text("subject").value_or("");
}

void mmlu_defaults(Task& task) { task.sampler = Sampler::first_n; }

void read_gsm8k(const Item& item, Example& example) {
  example.text = "Question: " + item.text("question") + "\nAnswer:";
  example.target = item.text("answer");
  if (example.target.find("#### ") == std::string::npos)
    item.refuse("answer",
                "has no number after '#### '; an answer looks like \"6 * 7 = 42\\n#### 42\"");
}

void gsm8k_defaults(Task& task) {
  task.num_fewshot = 5;
  task.until = {"Question:", "</s>", "<|im_end|>"};
  task.filters = {{"strict-match", R"(#### (\-?[0-9\.\,]+))"},
                  {"flexible-extract", R"((-?[$0-9.,]{2,})|(-?[0-9]+))", -1}};
  task.regexes_to_ignore = {",", R"(\$)", "(?s).*#### ", R"(\.$)"};
  task.ignore_case = true;
}

void read_multiple_choice(const Item& item, Example& example) {
  example.text = item.text("context");
  example.choices = item.texts("choices");
  example.gold = item.index("gold", example.choices.size());
}

void read_loglikelihood(const Item& item, Example& example) {
  example.text = item.text("context");
  example.target = item.text("continuation");
  if (example.target.empty()) item.refuse("continuation", "is empty; there is nothing to score");
}

void read_generation(const Item& item, Example& example) {
  example.text = item.text("context");
  example.target = item.text("target");
}

template <size_t N>
using NameArray = std::array<std::string_view, N>;
constexpr NameArray<2> kHellaswag = {"ctx_a", "endings"};
constexpr NameArray<3> kMmlu = {"question", "choices", "answer"};
constexpr NameArray<2> kGsm8k = {"question", "answer"}, kMultipleChoice = {"context", "choices"},
                       kLoglikelihood = {"context", "continuation"},
                       kGeneration = {"context", "target"};
constexpr NameArray<1> kLambada = {"text"};
constexpr NameArray<2> kArc = {"question", "answerKey"}, kBoolq = {"question", "passage"},
                       kTruthfulqaMc1 = {"question", "mc1_targets"},
                       kTruthfulqaMc2 = {"question", "mc2_targets"};
constexpr NameArray<3> kPiqa = {"goal", "sol1", "sol2"},
                       kWinogrande = {"sentence", "option1", "option2"};

// A line's format is the first whose fields it has.
constexpr Format kFormats[] = {
    {"hellaswag", TaskKind::multiple_choice, kHellaswag, read_hellaswag, nothing},
    {"arc_easy", TaskKind::multiple_choice, kArc, read_arc, nothing},
    {"arc_challenge", TaskKind::multiple_choice, kArc, read_arc, nothing},
    {"piqa", TaskKind::multiple_choice, kPiqa, read_piqa, nothing, "label"},
    {"winogrande", TaskKind::multiple_input, kWinogrande, read_winogrande, nothing},
    {"boolq", TaskKind::multiple_choice, kBoolq, read_boolq, nothing},
    {"truthfulqa_mc1", TaskKind::multiple_choice, kTruthfulqaMc1, read_truthfulqa_mc1,
     truthfulqa_defaults},
    {"truthfulqa_mc2", TaskKind::true_choices, kTruthfulqaMc2, read_truthfulqa_mc2,
     truthfulqa_defaults},
    {"mmlu", TaskKind::multiple_choice, kMmlu, read_mmlu, mmlu_defaults},
    {"gsm8k", TaskKind::generation, kGsm8k, read_gsm8k, gsm8k_defaults},
    {"multiple_choice", TaskKind::multiple_choice, kMultipleChoice, read_multiple_choice, nothing},
    {"loglikelihood", TaskKind::loglikelihood, kLoglikelihood, read_loglikelihood, nothing},
    {"generate_until", TaskKind::generation, kGeneration, read_generation, nothing},
    {"lambada", TaskKind::loglikelihood, kLambada, read_lambada, nothing},
};

}  // namespace

std::span<const Format> formats() { return kFormats; }

const Format* find_format(std::string_view name) {
  const auto at = std::ranges::find(kFormats, name, &Format::name);
  return at == std::end(kFormats) ? nullptr : at;
}

std::string format_names() {
  std::string names;
  for (const Format& format : kFormats)
    names += (names.empty() ? "" : ", ") + std::string(format.name);
  return names;
}

const Format& format_of(const Item& item) {
  for (const Format& format : kFormats)
    if (std::ranges::all_of(format.fields, [&](auto field) { return item.has(field); }))
      return format;
  std::vector<std::string> has, known;
  for (const auto& [field, value] : item.json().as_object()) has.push_back(field);
  for (const Format& format : kFormats)
    known.push_back(fmt::format("{} ({})", format.name, fmt::join(format.fields, ", ")));
  fail("{}: the line has the fields [{}], which do not match any known task: {}", item.place(),
       fmt::join(has, ", "), fmt::join(known, "; "));
}

Example read_example(const Format& format, const Item& item) {
  Example example;
  example.place = item.place();
  format.read(item, example);
  for (size_t i = 0; i < example.choices.size(); ++i)
    MG_CHECK(!example.choices[i].empty(), "{}: choice {} of the line is an empty text",
             item.place(), i);
  example.source = item.json();
  return example;
}

}  // namespace megatron::tasks
