#include "training/gemm_choices.h"

#include <charconv>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/checkpoint_directory.h"
#include "comm/texts.h"
#include "comm/values.h"
#include "device/cuda_plugin.h"
#include "kernels/gemm_tuning.h"

namespace megatron::training {
namespace {

constexpr std::string_view kBits =
    "results may differ in the last bits from those of an uninterrupted run";

const std::string& device_name(const Runtime& runtime) {
  return cuda_plugin().devices()[static_cast<size_t>(runtime.device().index)].name;
}

std::string text_of(const std::vector<uint64_t>& words) {
  std::string text;
  for (const uint64_t word : words) text += fmt::format("{:016x}", word);
  return text;
}

// Returns an empty list if the text is malformed.
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

bool is_there(const std::string& path) {
  std::error_code error;
  return !path.empty() && std::filesystem::exists(path, error);
}

using Products = std::map<std::string, std::string>;

Json::Object object_of(const Products& products) {
  Json::Object object;
  for (const auto& [product, algorithm] : products) object.emplace_back(product, algorithm);
  return object;
}

std::string sent(const Products& products) { return Json(object_of(products)).dump(); }

Products received(const std::string& text) {
  const Json json = Json::parse(text);
  Products products;
  for (const auto& [product, algorithm] : json.as_object())
    products.emplace(product, algorithm.as_string());
  return products;
}

}  // namespace

GemmChoices::GemmChoices(const settings::TrainSettings& settings,
                         const resume::StartingPoint& start, comm::Group& world, Runtime& runtime,
                         const FileSystem& files)
    : settings_(settings), world_(world), runtime_(runtime), files_(files) {
  if (runtime.device().kind != DeviceKind::cuda) return;
  std::string why_not = "this run has --gemm-tuning off";
  if (settings.runtime.tunes_gemms()) {
    why_not = rank_of_another_machine();
    tunes_ = why_not.empty();
    if (lead() && !tunes_)
      log::warning(
          "--gemm-tuning has no effect, because all ranks need the same GPU and library: {}",
          why_not);
  }
  if (tunes_) {
    if (lead()) read_saved(start);
    use_of_lead();
  } else if (lead() && has_saved(start)) {
    log::warning("the saved GEMM algorithms are not used ({}): {}", why_not, kBits);
  }
}

// Machine description for which the algorithms are valid.
std::string GemmChoices::machine() const {
  return fmt::format("{}, {}", device_name(runtime_),
                     kernels::gemm_tuning(runtime_.stream()).library());
}

// Returns "" if there is none.
std::string GemmChoices::rank_of_another_machine() {
  const std::vector<std::string> all =
      comm::gather_texts(world_, runtime_.stream(), machine(), "gemm tuning: machines");
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      return fmt::format("rank 0 has {}, and rank {} has {}", all[0], rank, all[rank]);
  return "";
}

// The choices in the --save folder only belong to this run before its first checkpoint.
bool GemmChoices::has_saved(const resume::StartingPoint& start) const {
  if (start.checkpoint != nullptr) return !start.state.gemm_tuning.is_null();
  return is_there(path());
}

// Returns "" if there is no --save folder.
std::string GemmChoices::path() const {
  const auto& folder = settings_.checkpoint.save;
  return folder ? resume::SaveDirectory(*folder).gemm_choices_path() : "";
}

void GemmChoices::read_saved(const resume::StartingPoint& start) {
  if (start.checkpoint != nullptr) {
    const Json& saved = start.state.gemm_tuning;
    if (saved.is_null())
      log::warning("--gemm-tuning is on, but the run that wrote the checkpoint did not use it: {}",
                   kBits);
    else
      add(saved,
          fmt::format("{}/{}: gemm_tuning", start.checkpoint->path(), checkpoint::kTrainerState));
  }
  if (is_there(path())) add(Json::read(path()), path());
}

void GemmChoices::add(const Json& saved, const std::string& origin) {
  const Json* const products = saved.is_object() ? saved.find("products") : nullptr;
  MG_CHECK(products != nullptr && products->is_object(),
           "{} contains no GEMMs: it is damaged; if it is a gemm_choices.json, remove it, and the "
           "GEMMs are timed again",
           origin);
  const std::string of = fmt::format("{}, {}", member(saved, "device"), member(saved, "library"));
  if (of != machine()) {
    log::warning("the GEMM algorithms of {} are not used (they are for {}, and this is {}): {}",
                 origin, of, machine(), kBits);
    return;
  }
  for (const auto& [product, algorithm] : products->as_object()) {
    MG_CHECK(algorithm.is_string() && !words_of(algorithm.as_string()).empty(),
             "{}: {} is {}; expected an algorithm in hexadecimal digits: it is damaged; if it is a "
             "gemm_choices.json, remove it, and the GEMMs are timed again",
             origin, product, algorithm.dump());
    products_.emplace(product, algorithm.as_string());
  }
}

void GemmChoices::use_of_lead() {
  std::string text = sent(products_);
  comm::broadcast(world_, runtime_.stream(), text, 0, "gemm tuning: choices of rank 0");
  products_ = received(text);
  std::vector<kernels::GemmChoice> choices;
  for (const auto& [product, algorithm] : products_)
    choices.push_back({product, words_of(algorithm)});
  kernels::gemm_tuning(runtime_.stream()).use(std::move(choices));
}

void GemmChoices::make(FunctionRef<void()> rehearse) {
  kernels::GemmTuning& tuning = kernels::gemm_tuning(runtime_.stream());
  tuning.time_others();
  rehearse();
  Products mine;
  for (const kernels::GemmChoice& choice : tuning.choices())
    mine.emplace(choice.product, text_of(choice.algorithm));
  const std::vector<std::string> all = comm::gather_texts(world_, runtime_.stream(), sent(mine),
                                                          "gemm tuning: choices of all ranks");
  const size_t saved = products_.size();
  if (lead()) {
    Products made;
    for (const std::string& text : all) made.merge(received(text));
    made.merge(products_);
    products_ = std::move(made);
    write();
    log::info("--gemm-tuning: {} GEMMs were timed, {} use the saved algorithm",
              products_.size() - saved, saved);
  }
  use_of_lead();
}

void GemmChoices::write() const {
  if (!path().empty()) write_file(path(), json().dump(1) + "\n", files_);
}

Json GemmChoices::json() const {
  if (!tunes_) return {};
  return Json::Object{{"device", device_name(runtime_)},
                      {"library", kernels::gemm_tuning(runtime_.stream()).library()},
                      {"products", object_of(products_)}};
}

}  // namespace megatron::training
