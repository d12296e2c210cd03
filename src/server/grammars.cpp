#include "server/grammars.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "inference/constraint/matcher.h"

namespace megatron::server {
namespace {

constexpr size_t kListedBytes = 1000;

// Encodes a JSON pointer as the fragment of a URI.
std::string percent_encoded(std::string_view pointer) {
  constexpr std::string_view kPlain = "-._~/#$&'()*+;=:@!?";
  std::string out;
  for (const char c : pointer) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       kPlain.find(c) != kPlain.npos;
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<uint8_t>(c));
  }
  return out;
}

// Computes the first mask, which throws Error if no token can begin the grammar's text: an error of
// the request.
void check_start(const SharedGrammar& grammar,
                 const std::shared_ptr<const inference::TokenBytes>& tokens) {
  inference::Matcher matcher(grammar, tokens);
  std::vector<uint64_t> mask(tokens->words());
  bool complete = false;
  matcher.allowed(mask, complete);
}

}  // namespace

Grammars::Grammars(const tokenizers::Tokenizer& tokenizer, size_t max_bytes)
    : max_bytes_(max_bytes) {
  try {
    token_bytes_ = std::make_shared<const inference::TokenBytes>(tokenizer);
  } catch (const Error& e) {
    why_not_ = e.what();
  }
}

const std::shared_ptr<const inference::TokenBytes>& Grammars::token_bytes() const {
  MG_CHECK(token_bytes_ != nullptr, "this model does not support structured output: {}", why_not_);
  return token_bytes_;
}

template <class F>
SharedGrammar Grammars::kept(const std::string& key, F&& compile) {
  static_cast<void>(token_bytes());
  {
    const std::lock_guard lock(mutex_);
    const auto found = index_.find(key);
    if (found != index_.end()) {
      kept_.splice(kept_.begin(), kept_, found->second);
      const SharedGrammar grammar = found->second->grammar;
      found->second->may_grow = true;
      keep_within_bounds();
      return grammar;
    }
  }
  SharedGrammar made = compile();
  check_start(made, token_bytes_);
  const size_t bytes = made->bytes() + 2 * key.size();
  MG_CHECK(bytes <= max_bytes_,
           "the grammar takes {} bytes of memory; the limit is {}; lower its limits on lengths, "
           "items and repeats, or split it",
           bytes, max_bytes_);
  if (!made->unenforced().empty())
    log::info("these keywords of a JSON schema are not enforced: {}", unenforced_list(*made));
  const std::lock_guard lock(mutex_);
  if (index_.contains(key)) return made;  // another thread added it first
  kept_.push_front({key, made});
  index_.emplace(kept_.front().key, kept_.begin());
  keep_within_bounds();
  return made;
}

// Removes the least recently used grammars. The last one stays.
void Grammars::keep_within_bounds() {
  size_t all = 0;
  for (Entry& entry : kept_) {
    if (entry.may_grow) {
      entry.may_grow = entry.grammar.use_count() > 1;
      entry.bytes = sizeof(Entry) + 2 * entry.key.size() + entry.grammar->bytes();
    }
    all += entry.bytes;
  }
  while (all > max_bytes_ && kept_.size() > 1) {
    all -= kept_.back().bytes;
    index_.erase(kept_.back().key);
    kept_.pop_back();
  }
}

SharedGrammar Grammars::json_object() {
  return kept("object", [] { return inference::Grammar::from_json_object(); });
}

SharedGrammar Grammars::json_schema(const Json& schema, bool strict) {
  return kept((strict ? "strict " : "schema ") + schema.dump(),
              [&] { return inference::Grammar::from_json_schema(schema, strict); });
}

SharedGrammar Grammars::tool_calls(std::span<const inference::ToolSchema> tools) {
  Json::Array key;
  for (const inference::ToolSchema& tool : tools)
    key.push_back(Json::Array{tool.name, tool.parameters, tool.strict});
  return kept("tools " + Json(std::move(key)).dump(),
              [&] { return inference::Grammar::from_tool_calls(tools); });
}

SharedGrammar Grammars::regex(const std::string& pattern) {
  return kept("regex " + pattern, [&] { return inference::Grammar::from_regex(pattern); });
}

SharedGrammar Grammars::choice(const std::vector<std::string>& texts) {
  return kept("choice " + Json(Json::Array(texts.begin(), texts.end())).dump(),
              [&] { return inference::Grammar::from_texts(texts); });
}

std::string unenforced_list(const inference::Grammar& grammar) {
  std::string list;
  size_t left = grammar.unenforced().size();
  for (const std::string& pointer : grammar.unenforced()) {
    const std::string next = (list.empty() ? "" : ", ") + percent_encoded(pointer);
    if (list.size() + next.size() > kListedBytes) break;
    list += next;
    --left;
  }
  if (left > 0) list += fmt::format("{}and {} more", list.empty() ? "" : ", ", left);
  return list;
}

}  // namespace megatron::server
