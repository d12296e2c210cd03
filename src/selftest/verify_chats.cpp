#include "selftest/verify_chats.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "corpus/chat/chat_tokens.h"
#include "corpus/chat/packing.h"

namespace megatron::selftest {
namespace {

namespace fs = std::filesystem;
using corpus::ChatExample;
using corpus::ChatTokens;

std::vector<int64_t> mask_of(std::span<const float> weights) {
  std::vector<int64_t> mask;
  for (const float w : weights) mask.push_back(w != 0);
  return mask;
}

std::vector<int64_t> labels_of(const ChatTokens& tokens) {
  std::vector<int64_t> labels;
  for (size_t i = 0; i < tokens.ids.size(); ++i)
    labels.push_back(tokens.weights[i] != 0 ? tokens.ids[i] : -100);
  return labels;
}

// Checks the conversations of one directory.
class Chats {
 public:
  explicit Chats(const std::string& directory)
      : tokenizer_(tokenizers::Tokenizer::load(directory)),
        template_(tokenizers::ChatTemplate::load(directory)),
        tokens_(tokenizer_, template_),
        report_(fmt::format("{}: chats", directory)) {
    const std::string path = (fs::path(directory) / ".." / "conversations.json").string();
    const Json chats = Json::read(path);
    for (const Json& chat : chats.as_array()) {
      ChatExample example{.messages = chat["messages"].as_array()};
      if (const Json* tools = chat.find("tools")) example.tools = tools->as_array();
      example.place = fmt::format("{}, {}", path, chat["name"].as_string());
      conversations_[chat["name"].as_string()] = std::move(example);
    }
  }

  Report run(const Json& expected) {
    for (const Json& test : expected.as_array()) {
      name_ = test["conversation"].as_string();
      const auto found = conversations_.find(name_);
      MG_CHECK(found != conversations_.end(), "conversations.json has no conversation '{}'", name_);
      check(found->second, test);
    }
    return std::move(report_);
  }

 private:
  template <class T>
  void equal(std::string_view kind, const std::string& what, const T& value, const T& expected) {
    report_.compare(kind, fmt::format("{}{}", name_, what), value == expected ? 0 : 1, 0);
  }

  void check(const ChatExample& example, const Json& test) {
    tokenizers::Chat chat{.messages = example.messages, .tools = example.tools, .documents = {}};
    const tokenizers::RenderedChat rendered = template_.render(chat);
    chat.add_generation_prompt = true;
    equal("texts", "", rendered.text, test["rendered"].as_string());
    equal("texts", ", generation prompt", template_.render(chat).text,
          rendered.text + test["generation_prompt"].as_string());
    std::vector<std::vector<int64_t>> spans, expected_spans;
    for (const auto& [begin, end] : rendered.generation) spans.push_back({begin, end});
    for (const Json& span : test["spans"].as_array()) expected_spans.push_back(integers_of(span));
    equal("answers", "", spans, expected_spans);
    const ChatTokens tokens = tokens_.tokens(example);
    equal("tokens", "", std::vector<int64_t>(tokens.ids.begin(), tokens.ids.end()),
          integers_of(test["input_ids"]));
    equal("masks", "", mask_of(tokens.weights), integers_of(test["assistant_mask"]));
    for (const Json& cut : test["truncated"].as_array()) check_truncated(rendered, cut);
    for (const Json& prepared : test["trl"].as_array()) check_labels(example, tokens, prepared);
  }

  void check_truncated(const tokenizers::RenderedChat& rendered, const Json& cut) {
    const int64_t length = cut["max_length"].as_integer();
    const std::string& side = cut["side"].as_string();
    std::vector<int32_t> ids;
    std::vector<tokenizers::Range> offsets;
    tokenizer_.codec().encode(rendered.text, {}, ids, &offsets);
    const auto kept = std::min<size_t>(static_cast<size_t>(length), offsets.size());
    const std::span<const tokenizers::Range> left =
        side == "right" ? std::span(offsets).first(kept) : std::span(offsets).last(kept);
    equal("masks of cut texts", fmt::format(", {} tokens, {}", length, side),
          mask_of(corpus::answer_mask(left, rendered.generation)),
          integers_of(cut["assistant_mask"]));
  }

  void check_labels(const ChatExample& example, const ChatTokens& whole, const Json& prepared) {
    const int64_t length = prepared["max_length"].as_integer();
    const std::string& mode = prepared["truncation_mode"].as_string();
    const std::string what = fmt::format(", {} tokens, {}", length, mode);
    if (prepared.contains("error")) return equal("labels", what, whole.counted(), int64_t{0});
    ChatTokens cut = whole;
    corpus::truncate(cut, length, mode == "keep_start");
    if (prepared.contains("dropped")) return equal("labels", what, cut.counted(), int64_t{0});
    equal("labels", what, labels_of(cut), integers_of(prepared["labels"]));
    if (!prepared.contains("completion_begins")) return;
    ChatExample divided = example;
    divided.prompt_messages = example.messages.size() - 1;
    const ChatTokens completion = tokens_.tokens(divided);
    const auto begin = std::ranges::find(completion.weights, 1.0f) - completion.weights.begin();
    equal("completions", what, begin, prepared["completion_begins"].as_integer());
  }

  tokenizers::Tokenizer tokenizer_;
  tokenizers::ChatTemplate template_;
  corpus::ChatTokenizer tokens_;
  std::map<std::string, ChatExample> conversations_;
  Report report_;
  std::string name_;  // of the conversation that is checked
};

std::vector<corpus::PackedRow> rows_of(const Json& list) {
  std::vector<corpus::PackedRow> rows;
  for (const Json& parts : list.as_array()) {
    const std::vector<int64_t> values = integers_of(parts);
    MG_CHECK(values.size() % 3 == 0, "a packed row has {} numbers, which are not triples",
             values.size());
    corpus::PackedRow& row = rows.emplace_back();
    for (size_t i = 0; i < values.size(); i += 3)
      row.push_back({values[i], values[i + 1], values[i + 2]});
  }
  return rows;
}

}  // namespace

bool has_chats(const std::string& directory) {
  return fs::exists(directory + "/expected.json") && fs::exists(directory + "/chat_template.jinja");
}

Report verify_chats(const std::string& directory) {
  return Chats(directory).run(Json::read(directory + "/expected.json"));
}

bool has_packing(const std::string& directory) { return fs::exists(directory + "/packing.json"); }

Report verify_packing(const std::string& directory) {
  Report report(fmt::format("{}: packing", directory));
  const Json cases = Json::read(directory + "/packing.json");
  for (size_t i = 0; i < cases.as_array().size(); ++i) {
    const Json& one = cases.as_array()[i];
    for (const corpus::Packing packing :
         {corpus::Packing::bfd, corpus::Packing::bfd_split, corpus::Packing::wrapped}) {
      const auto rows =
          corpus::pack(integers_of(one["lengths"]), one["capacity"].as_integer(), packing);
      const bool same = rows == rows_of(one[name(packing)]);
      report.compare("rows", fmt::format("case {}, {}", i, name(packing)), same ? 0 : 1, 0);
    }
  }
  return report;
}

}  // namespace megatron::selftest
