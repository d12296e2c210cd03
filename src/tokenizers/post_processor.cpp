#include "tokenizers/post_processor.h"

#include <string>

#include "base/error.h"
#include "tokenizers/vocabulary.h"

namespace megatron::tokenizers {
namespace {

int32_t checked_id(const Json& value) {
  const int64_t id = value.as_integer();
  MG_CHECK(id >= 0 && id <= Vocabulary::kMaximumId, "post_processor has id {}; ids are 0 to {}", id,
           Vocabulary::kMaximumId);
  return static_cast<int32_t>(id);
}

PostProcessor make_template(const Json& settings) {
  PostProcessor result;
  bool behind = false;
  for (const Json& piece : settings["single"].as_array()) {
    if (const Json* sequence = piece.find("Sequence")) {
      const std::string& name = (*sequence)["id"].as_string();
      MG_CHECK(name == "A" && !behind,
               "a template for one text must hold sequence A once; it has '{}'{}", name,
               behind ? " after A" : "");
      behind = true;
      continue;
    }
    const std::string& name = piece["SpecialToken"]["id"].as_string();
    for (const Json& id : settings["special_tokens"][name]["ids"].as_array()) {
      (behind ? result.after : result.before).push_back(checked_id(id));
    }
  }
  MG_CHECK(behind, "the template for one text does not hold sequence A");
  return result;
}

int32_t pair_id(const Json& pair) {
  const Json::Array& items = pair.as_array();
  MG_CHECK(items.size() == 2, "post_processor wants [token, id], found {} items", items.size());
  return checked_id(items[1]);
}

PostProcessor make_sequence(const Json& settings) {
  PostProcessor result;
  for (const Json& step : settings["processors"].as_array()) {
    const PostProcessor outer = make_post_processor(step);
    result.before.insert(result.before.begin(), outer.before.begin(), outer.before.end());
    result.after.insert(result.after.end(), outer.after.begin(), outer.after.end());
  }
  return result;
}

}  // namespace

PostProcessor make_post_processor(const Json& settings) {
  if (settings.is_null()) return {};
  const std::string& type = settings["type"].as_string();
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return make_template(settings);
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    return {{pair_id(settings["cls"])}, {pair_id(settings["sep"])}};
  }
  if (type == "Sequence") return make_sequence(settings);
  fail(
      "post-processor '{}' is not supported; supported are ByteLevel, TemplateProcessing, "
      "RobertaProcessing, BertProcessing and Sequence",
      type);
}

}  // namespace megatron::tokenizers
