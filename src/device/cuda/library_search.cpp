#include "device/cuda/library_search.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

namespace megatron::cuda {
namespace {

namespace fs = std::filesystem;

// Entries of a folder whose names begin with this text, ordered by name; empty if it cannot be
// read.
std::vector<std::string> entries(const std::string& folder, std::string_view beginning) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (at->path().filename().string().starts_with(beginning)) found.push_back(at->path().string());
  std::ranges::sort(found);
  return found;
}

// Numbers in a name, used to order versions: 12 and 9 of "cuda-12.9".
std::vector<int> numbers(std::string_view name) {
  std::vector<int> list;
  for (size_t at = 0; at < name.size(); ++at) {
    int number = 0;
    const auto [end, error] = std::from_chars(name.data() + at, name.data() + name.size(), number);
    if (error != std::errc() || name[at] == '-') continue;
    list.push_back(number);
    at = static_cast<size_t>(end - name.data());
  }
  return list;
}

class Search {
 public:
  void toolkit(const std::string& home) {
    for (const char* part :
         {"/lib64", "/lib", "/targets/x86_64-linux/lib", "/targets/sbsa-linux/lib"})
      add(home + part);
  }

  // Searches a Python installation: a virtual environment, a conda environment or the system's.
  void python(const std::string& prefix) {
    for (const char* library : {"/lib", "/lib64"}) {
      std::vector<std::string> versions = entries(prefix + library, "python3");
      std::ranges::sort(versions, std::greater(), numbers);
      for (const std::string& version : versions)
        for (const char* packages : {"/site-packages", "/dist-packages"}) {
          for (const std::string& part : entries(version + packages + "/nvidia", ""))
            add(part + "/lib");
          add(version + packages + "/torch/lib");
        }
    }
  }

  std::vector<std::string> folders;

 private:
  void add(const std::string& folder) {
    std::error_code error;
    if (!fs::is_directory(folder, error)) return;
    const fs::path place = fs::canonical(folder, error);
    if (error || std::ranges::find(places_, place) != places_.end()) return;
    places_.push_back(place);
    folders.push_back(fs::path(folder).lexically_normal());
  }

  std::vector<fs::path> places_;  // with symbolic links resolved
};

}  // namespace

std::vector<std::string> library_folders(const Variable& variable, const std::string& root) {
  Search search;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"})
    if (const std::string home = variable(name); !home.empty()) search.toolkit(home);
  search.toolkit(root + "usr/local/cuda");
  std::vector<std::string> toolkits = entries(root + "usr/local", "cuda-");
  std::ranges::sort(toolkits, std::greater(), [](const std::string& path) {
    return numbers(fs::path(path).filename().string());
  });
  for (const std::string& home : toolkits) search.toolkit(home);
  search.toolkit(root + "usr/local/nvidia");
  const std::string conda = variable("CONDA_PREFIX");
  if (!conda.empty()) search.toolkit(conda);

  if (const std::string prefix = variable("VIRTUAL_ENV"); !prefix.empty()) search.python(prefix);
  if (!conda.empty()) search.python(conda);
  std::error_code error;
  for (const std::string& folder : folders_of_path(variable("PATH")))
    if (fs::exists(folder + "/python3", error)) search.python(folder + "/..");
  if (const std::string home = variable("HOME"); !home.empty()) search.python(home + "/.local");
  search.python(root + "usr/local");
  search.python(root + "usr");
  for (const std::string& place : entries(root + "opt", "")) {
    search.python(place);
    search.python(place + "/.venv");
  }
  return std::move(search.folders);
}

std::vector<std::string> folders_of_path(std::string_view list) {
  std::vector<std::string> folders;
  while (!list.empty()) {
    const std::string_view one = list.substr(0, list.find(':'));
    list.remove_prefix(std::min(list.size(), one.size() + 1));
    if (!one.empty()) folders.emplace_back(one);
  }
  return folders;
}

std::vector<std::string> other_versions(const std::string& folder, std::string_view soname) {
  const std::string_view any_version = soname.substr(0, soname.rfind('.') + 1);
  std::vector<std::string> found = entries(folder, any_version);
  std::erase_if(found, [&](const std::string& path) {
    const std::string name = fs::path(path).filename().string();
    const std::string version = name.substr(any_version.size());
    return name == soname || version.empty() ||
           version.find_first_not_of("0123456789") != std::string::npos;
  });
  return found;
}

}  // namespace megatron::cuda
