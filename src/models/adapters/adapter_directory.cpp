#include "models/adapters/adapter_directory.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text_parts.h"

namespace megatron::models {
namespace {

constexpr std::string_view kStoredPrefix = "base_model.model.";
constexpr std::string_view kNest = ".base_layer";

struct PartEnding {
  AdapterPart part;
  std::string_view ending;
};
constexpr std::array kPartEndings = {
    PartEnding{AdapterPart::a, ".lora_A.weight"},
    PartEnding{AdapterPart::b, ".lora_B.weight"},
    PartEnding{AdapterPart::b_bias, ".lora_B.bias"},
    PartEnding{AdapterPart::embedding_a, ".lora_embedding_A"},
    PartEnding{AdapterPart::embedding_b, ".lora_embedding_B"},
    PartEnding{AdapterPart::magnitude, ".lora_magnitude_vector"},
    PartEnding{AdapterPart::base_weight, ".base_layer.weight"},
    PartEnding{AdapterPart::base_bias, ".base_layer.bias"},
    PartEnding{AdapterPart::token_rows, ".token_adapter.trainable_tokens_delta"},
};

// A part of a name that PEFT's wrappers add, and no base model has.
bool is_wrapper(std::string_view part) {
  constexpr std::string_view kWrappers[] = {"base_layer", "token_adapter", "modules_to_save",
                                            "original_module"};
  return part.starts_with("lora_") || std::ranges::find(kWrappers, part) != std::end(kWrappers);
}

void check_has_no_wrapper(std::string_view tensor, std::string_view name) {
  for (const std::string_view part : split_text(name, '.')) {
    MG_CHECK(!part.empty(), "the adapter has a tensor '{}', whose name has an empty part", tensor);
    MG_CHECK(
        !is_wrapper(part),
        "the adapter has a tensor '{}', whose '{}' is not where PEFT's save_pretrained puts it; "
        "names with an adapter's name in them (lora_A.default.weight) are those of a state "
        "dict: save the adapter with save_pretrained",
        tensor, part);
  }
}

StoredName parse_whole(std::string_view tensor, std::string_view name) {
  const size_t dot = name.rfind('.');
  MG_CHECK(dot != name.npos, "the adapter has a tensor '{}', which names no module", tensor);
  check_has_no_wrapper(tensor, name);
  return {.module = std::string(name.substr(0, dot)),
          .part = AdapterPart::whole,
          .parameter = std::string(name.substr(dot + 1))};
}

}  // namespace

std::string stored_name(const StoredName& name) {
  std::string stored = std::string(kStoredPrefix) + name.module;
  for (int64_t i = 0; i < name.nesting; ++i) stored += kNest;
  if (name.part == AdapterPart::whole) return stored + "." + name.parameter;
  const auto ending = std::ranges::find(kPartEndings, name.part, &PartEnding::part);
  MG_ASSERT(ending != kPartEndings.end());
  return stored.append(ending->ending);
}

std::string stored_name(std::string_view module, AdapterPart part) {
  MG_ASSERT(part != AdapterPart::whole);
  return stored_name({.module = std::string(module), .part = part});
}

StoredName parse_stored_name(std::string_view tensor) {
  MG_CHECK(tensor.starts_with(kStoredPrefix),
           "the adapter has a tensor '{}'; names in a PEFT adapter begin with '{}'", tensor,
           kStoredPrefix);
  std::string_view name = tensor.substr(kStoredPrefix.size());
  const auto ending = std::ranges::find_if(
      kPartEndings, [name](const PartEnding& part) { return name.ends_with(part.ending); });
  if (ending == kPartEndings.end()) return parse_whole(tensor, name);
  name.remove_suffix(ending->ending.size());
  StoredName parsed{.part = ending->part};
  if (parsed.part == AdapterPart::a || parsed.part == AdapterPart::b)
    for (; name.ends_with(kNest); ++parsed.nesting) name.remove_suffix(kNest.size());
  check_has_no_wrapper(tensor, name);
  parsed.module = name;
  return parsed;
}

std::string_view nested_parameter(std::span<const std::string> adapted, int64_t nesting) {
  const auto count = static_cast<int64_t>(adapted.size());
  MG_CHECK(nesting >= 0 && nesting < count,
           "the adapter nests {} adapters in one module ('base_layer' {} times), but "
           "target_parameters names {} of its parameters",
           nesting + 1, nesting, count);
  return adapted[static_cast<size_t>(count - 1 - nesting)];
}

}  // namespace megatron::models
