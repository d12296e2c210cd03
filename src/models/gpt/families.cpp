#include "models/gpt/families.h"

#include <array>

#include "base/error.h"

namespace megatron::models {
namespace {

// A message about flags, said of the keys that they stand for in this family's file.
std::string with_keys(std::string text, const GptFamily& family) {
  for (const GptFamily::Key& key : family.keys)
    for (size_t at = 0; (at = text.find(key.flag, at)) != text.npos; at += key.key.size())
      text.replace(at, key.flag.size(), key.key);
  return text;
}

}  // namespace

const GptFamily& family_of(const GptConfig& config) {
  if (config.family != nullptr) return *config.family;
  constexpr std::array kFamilies = {&kGpt2, &kLlama};
  for (const GptFamily* family : kFamilies)
    if (family->why_not(config).empty()) return *family;
  for (const GptFamily* family : kFamilies)
    if (family->names(config)) return *family;
  throw InternalError("no family names the tensors of this shape");
}

GptConfig read_config(const GptFamily& family, const Json& config) {
  GptConfig c = family.read(config);
  c.family = &family;
  try {
    c.finalize();
  } catch (const Error& error) {
    fail("config.json: {}", with_keys(error.what(), family));
  }
  return c;
}

Json write_config(const GptConfig& config, DType stored) {
  const GptFamily& family = family_of(config);
  const std::string why_not = family.why_not(config);
  MG_CHECK(why_not.empty(), "{}", why_not);
  return family.write(config, stored);
}

parallel::Placement placement_of(const GptConfig& config, const std::string& parameter,
                                 const Shape& shape) {
  parallel::Placement placement;
  placement.tensors = family_of(config).parts(config, parameter, shape);
  return placement;
}

}  // namespace megatron::models
