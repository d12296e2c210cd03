#include "training/gemm_choices.h"

#include <charconv>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_directory.h"
#include "device/cuda_plugin.h"
#include "kernels/gemm_tuning.h"

namespace megatron::training {
namespace {

const std::string& device_name(const Runtime& runtime) {
  return cuda_plugin().devices()[static_cast<size_t>(runtime.device().index)].name;
}

std::string text_of(const std::vector<uint64_t>& words) {
  std::string text;
  for (const uint64_t word : words) text += fmt::format("{:016x}", word);
  return text;
}

// Empty: it is no such text.
std::vector<uint64_t> words_of(std::string_view text) {
  constexpr size_t kDigits = 16;
  std::vector<uint64_t> words;
  if (text.size() % kDigits != 0) return words;
  for (; !text.empty(); text.remove_prefix(kDigits)) {
    uint64_t& word = words.emplace_back();
    const char* const end = text.data() + kDigits;
    const auto [stop, error] = std::from_chars(text.data(), end, word, 16);
    if (error != std::errc() || stop != end) return {};
  }
  return words;
}

std::string member(const Json& object, std::string_view key) {
  const Json* const value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

std::vector<kernels::GemmChoice> read_choices(const Json& kept, const std::string& path) {
  const Json* const products = kept.find("products");
  const bool whole = products != nullptr && products->is_object();
  MG_CHECK(whole, "{}/{}: gemm_tuning has no products; the checkpoint is damaged", path,
           checkpoint::kTrainerState);
  std::vector<kernels::GemmChoice> choices;
  for (const auto& [product, text] : products->as_object()) {
    const std::vector<uint64_t> words = words_of(text.is_string() ? text.as_string() : "");
    MG_CHECK(!words.empty(),
             "{}/{}: gemm_tuning: {} is {}; expected an algorithm in hexadecimal digits; the "
             "checkpoint is damaged",
             path, checkpoint::kTrainerState, product, text.dump());
    choices.push_back({product, words});
  }
  return choices;
}

// Why choices of a checkpoint cannot be used; empty: they can.
std::string why_not(const Json& kept, const settings::RuntimeSettings& settings, Runtime& runtime) {
  if (!settings.tunes_gemms())
    return settings.gemm_tuning == "off"
               ? "this run has --gemm-tuning off"
               : fmt::format("this run has {} ranks", settings.rank_count());
  const std::string saved = fmt::format("{}, {}", member(kept, "device"), member(kept, "library"));
  const std::string now =
      fmt::format("{}, {}", device_name(runtime), kernels::gemm_tuning(runtime.stream()).library());
  return saved == now ? "" : fmt::format("they are of {}, and this is {}", saved, now);
}

}  // namespace

void begin_gemm_tuning(const settings::RuntimeSettings& settings,
                       const resume::Beginning& beginning, Runtime& runtime) {
  if (runtime.device().kind != DeviceKind::cuda) return;
  const bool tunes = settings.tunes_gemms(), resumed = beginning.checkpoint != nullptr;
  const Json& kept = beginning.state.gemm_tuning;
  std::vector<kernels::GemmChoice> choices;
  constexpr std::string_view kBits =
      "results may differ in their last bits from those of a run without interruption";
  if (resumed && !kept.is_null()) {
    const std::string why = why_not(kept, settings, runtime);
    if (why.empty()) choices = read_choices(kept, beginning.checkpoint->path());
    else log::warning("the checkpoint's GEMM algorithms are not used ({}): {}", why, kBits);
  } else if (resumed && tunes) {
    log::warning("--gemm-tuning on, but the checkpoint is of a run without it: {}", kBits);
  }
  if (tunes) kernels::gemm_tuning(runtime.stream()).begin(std::move(choices));
}

Json gemm_choices(const settings::RuntimeSettings& settings, Runtime& runtime) {
  if (runtime.device().kind != DeviceKind::cuda || !settings.tunes_gemms()) return {};
  const kernels::GemmTuning& tuning = kernels::gemm_tuning(runtime.stream());
  Json::Object products;
  for (const kernels::GemmChoice& choice : tuning.choices())
    products.emplace_back(choice.product, text_of(choice.algorithm));
  return Json::Object{{"device", device_name(runtime)},
                      {"library", tuning.library()},
                      {"products", std::move(products)}};
}

}  // namespace megatron::training
