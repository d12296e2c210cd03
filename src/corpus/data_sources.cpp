#include "corpus/data_sources.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "corpus/corpus.h"

namespace megatron::corpus {
namespace {

constexpr const char* kMock = "mock data";

}  // namespace

std::string split_of(const settings::DataSettings& settings) {
  return settings.split.value_or(settings.mock_data ? "1,1,1" : "969, 30, 1");
}

DataSources sources_of_flags(const settings::DataSettings& s) {
  const std::array<const std::vector<std::string>*, 3> own = {
      &s.train_data_path, &s.valid_data_path, &s.test_data_path};
  constexpr std::array<const char*, 3> kOwn = {"--train-data-path", "--valid-data-path",
                                               "--test-data-path"};
  const auto given = std::ranges::find_if(own, [](const auto* list) { return !list->empty(); });
  std::vector<std::string> flags;
  if (s.mock_data) flags.push_back("--mock-data");
  if (!s.data_path.empty()) flags.push_back("--data-path " + s.data_path[0]);
  if (s.data_args_path) flags.push_back("--data-args-path");
  if (given != own.end()) flags.push_back(kOwn[static_cast<size_t>(given - own.begin())]);
  if (s.per_split_data_args_path) flags.push_back("--per-split-data-args-path");
  MG_CHECK(flags.size() <= 1, "{} and {} both specify the data: give only one", flags[0], flags[1]);
  const bool divided = given == own.end() && !s.per_split_data_args_path;
  MG_CHECK(divided || !s.split,
           "--split {} has no effect, because {} gives each split its own data: drop one", *s.split,
           flags[0]);
  if (divided) data::parse_split(split_of(s));
  DataSources sources{.blend = {.all = {}, .per_split = {}}, .mock = s.mock_data};
  if (s.mock_data) {
    sources.blend.all = data::BlendList{{kMock}, {}};
  } else if (!s.data_path.empty()) {
    sources.blend.all = data::parse_blend_list(s.data_path, "--data-path");
  } else {
    for (size_t i = 0; i < own.size(); ++i)
      if (!own[i]->empty()) sources.blend.per_split[i] = data::parse_blend_list(*own[i], kOwn[i]);
  }
  return sources;
}

DataSources find_sources(const settings::DataSettings& s) {
  require_data(s);
  DataSources sources = sources_of_flags(s);
  if (s.data_args_path)
    sources.blend.all = data::read_blend_list(*s.data_args_path, "--data-args-path");
  if (s.per_split_data_args_path)
    sources.blend.per_split =
        data::read_split_blend_lists(*s.per_split_data_args_path, "--per-split-data-args-path");
  return sources;
}

}  // namespace megatron::corpus
