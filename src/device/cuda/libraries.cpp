#include "device/cuda/libraries.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <system_error>

#include "base/error.h"
#include "device/cuda/build.h"
#include "device/cuda/library_search.h"

namespace megatron::cuda {
namespace {

// Minimum for NCCL's non-blocking communicators and CUDA graphs of its calls.
constexpr int kMinNcclMinor = 18;

struct Kind {
  const char* name;
  const char* file;  // prefix of its file's name
  const char* needed_by;
  const char* package;   // pip package without "nvidia-"
  bool package_of_cuda;  // its name has the suffix -cu12 for CUDA 12 only; else -cu12 or -cu13
  bool required;
};
constexpr std::array<Kind, 4> kKinds = {{
    {"cuBLASLt", "libcublasLt", "matrix products", "cublas", true, true},
    {"cuDNN", "libcudnn", "attention in bf16 and fp16", "cudnn", false, false},
    {"NCCL", "libnccl", "several ranks with a GPU each", "nccl", false, false},
    {"NVRTC", "libnvrtc", "cuDNN's compiled graphs", "cuda-nvrtc", true, false},
}};
constexpr std::array<NvidiaLibrary, 4> kAll = {NvidiaLibrary::cublas_lt, NvidiaLibrary::cudnn,
                                               NvidiaLibrary::nccl, NvidiaLibrary::nvrtc};
const Kind& kind_of(NvidiaLibrary library) { return kKinds[static_cast<size_t>(library)]; }

// cuDNN's sublibraries, which it opens by name on demand. The first reports the version: libcudnn
// itself only forwards to it, and ends the program if it is not found.
constexpr std::array<const char*, 4> kCudnnParts = {"_graph", "_heuristic", "_engines_precompiled",
                                                    "_engines_runtime_compiled"};

int major_of(std::string_view soname) {
  return std::atoi(std::string(soname.substr(soname.rfind('.') + 1)).c_str());
}

// File name from built_libraries(); empty: built without this library.
std::string soname_of(NvidiaLibrary library) {
  std::string_view all = built_libraries();
  while (!all.empty()) {
    const std::string_view one = all.substr(0, all.find(','));
    all.remove_prefix(std::min(all.size(), one.size() + 1));
    if (one.starts_with(kind_of(library).file)) return std::string(one);
  }
  return "";
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

const std::vector<std::string>& folders() {
  static const std::vector<std::string> once = library_folders(variable);
  return once;
}

// Formats "nvidia-cublas", "nvidia-cudnn-cu13".
std::string package_of(NvidiaLibrary library) {
  const Kind& kind = kind_of(library);
  const int cuda = major_of(soname_of(NvidiaLibrary::cublas_lt));
  const std::string name = fmt::format("nvidia-{}", kind.package);
  return kind.package_of_cuda && cuda >= 13 ? name : fmt::format("{}-cu{}", name, cuda);
}

template <class Function>
Function* symbol(void* handle, const char* name) {
  return reinterpret_cast<Function*>(dlsym(handle, name));
}

// Version number that the library reports; 0: none.
long long version_number(NvidiaLibrary library, void* handle) {
  int number = 0, minor = 0;
  switch (library) {
    case NvidiaLibrary::cublas_lt:
    case NvidiaLibrary::cudnn: {
      const auto version = symbol<size_t()>(
          handle, library == NvidiaLibrary::cudnn ? "cudnnGetVersion" : "cublasLtGetVersion");
      return version == nullptr ? 0 : static_cast<long long>(version());
    }
    case NvidiaLibrary::nccl:
      if (const auto version = symbol<int(int*)>(handle, "ncclGetVersion")) version(&number);
      return number;
    case NvidiaLibrary::nvrtc:
      if (const auto version = symbol<int(int*, int*)>(handle, "nvrtcVersion"))
        version(&number, &minor);
      return number * 10000 + minor * 100;
  }
  return 0;
}

// CUDA version that a cuDNN was built for, since files of the same name exist for CUDA 12 and 13.
// 0: not reported.
int cuda_of_cudnn(void* handle) {
  const auto version = symbol<size_t()>(handle, "cudnnGetCudartVersion");
  return version == nullptr ? 0 : static_cast<int>(version() / 1000);
}

// Path of the file that the loader opened.
std::string path_of(void* handle, const std::string& asked) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name[0] == '\0')
    return asked;
  return map->l_name;
}

constexpr std::string_view kNoSuchFile = ": cannot open shared object file";

// True if the loader's error text says that the file itself does not exist.
bool is_missing(const std::string& words, const std::string& file) {
  return words.starts_with(file + std::string(kNoSuchFile));
}

// Reason why the loader refuses an existing file: often a file that it needs is missing.
std::string refusal(const std::string& file, const std::string& words) {
  const size_t at = words.find(kNoSuchFile);
  if (at == std::string::npos) return fmt::format("{} cannot be opened: {}", file, words);
  return fmt::format("{} needs {}, which is not found; install it", file, words.substr(0, at));
}

class Opening {
 public:
  Opening(NvidiaLibrary library, std::string soname)
      : library_(library), soname_(std::move(soname)) {
    const Kind& kind = kind_of(library);
    found_ = {.name = kind.name, .needed_by = kind.needed_by, .required = kind.required};
  }

  void* open() {
    for (const std::string& file : files()) {
      if (void* const handle = try_file(file)) return handle;
      if (decided_) break;
    }
    if (found_.why_not.empty()) found_.why_not = not_found();
    return nullptr;
  }

  const CudaLibrary& found() const { return found_; }

 private:
  // Candidate files, each once, in order of precedence: the loader's, which may be loaded already,
  // then those of the folders.
  std::vector<std::string> files() {
    std::vector<std::string> files;
    const auto add = [&](const std::filesystem::path& place) {
      std::error_code error;
      const std::string file = place.lexically_normal();
      if (::access(file.c_str(), F_OK) == 0 &&
          std::ranges::none_of(files, [&](const std::string& one) {
            return std::filesystem::equivalent(one, file, error);
          }))
        files.push_back(file);
    };
    const std::string known = loaders_file();
    if (library_ == NvidiaLibrary::cudnn && !known.empty() && is_named(known)) add(known);
    if (library_ == NvidiaLibrary::cudnn) {
      // cuDNN for CUDA 12 and for CUDA 13 have the same file name. The one next to cuBLASLt
      // matches.
      const std::string products = opened(NvidiaLibrary::cublas_lt).path;
      const std::string next_to_it = products.substr(0, products.rfind('/') + 1);
      add(next_to_it + soname_);
      add(next_to_it + "../../cudnn/lib/" + soname_);
    }
    if (!known.empty()) add(known);
    for (const std::string& folder : folders()) add(folder + "/" + soname_);
    return files;
  }

  // Empty if the loader finds no file, or none that can be opened.
  std::string loaders_file() {
    void* const handle = dlopen(soname_.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (handle != nullptr) {
      const std::string path = path_of(handle, soname_);
      known_.reset(handle);
      return path;
    }
    const std::string words = dlerror();
    if (!is_missing(words, soname_)) refuse(soname_, "", refusal(soname_, words));
    return "";
  }

  // True if its folder is one that the user named.
  static bool is_named(const std::string& file) {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::path(file).parent_path();
    return std::ranges::any_of(folders_of_path(variable("LD_LIBRARY_PATH")),
                               [&](const std::string& named) {
                                 return std::filesystem::equivalent(named, folder, error);
                               });
  }

  // Returns null on failure, and keeps the reason of the first refused file.
  void* try_file(const std::string& file) {
    void* const handle = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (handle == nullptr) {
      refuse(file, "", refusal(file, dlerror()));
      return nullptr;
    }
    std::string version;
    std::string why_not = library_ == NvidiaLibrary::cudnn
                              ? why_not_cudnn(file, version)
                              : why_not_versions(handle, file, version);
    if (why_not.empty() && library_ == NvidiaLibrary::nvrtc) why_not = why_not_nvrtc(handle, file);
    if (!why_not.empty()) {
      refuse(file, version, why_not);
      dlclose(handle);
      return nullptr;
    }
    found_.version = version;
    found_.path = file;
    found_.why_not.clear();
    return handle;
  }

  // Checks the version that the library at that path reports, and fills it in.
  std::string why_not_versions(void* handle, const std::string& path, std::string& text) const {
    const long long number = version_number(library_, handle);
    if (number == 0)
      return fmt::format("{} does not report its version; install {}", path, install());
    const LibraryVersion version = LibraryVersion::of(number);
    text = version.text();
    const std::string why_not = mismatch(library_, major_of(soname_), version);
    if (!why_not.empty() || library_ != NvidiaLibrary::cudnn) return why_not;
    const int built = major_of(soname_of(NvidiaLibrary::cublas_lt)), cuda = cuda_of_cudnn(handle);
    if (cuda == 0 || cuda == built) return "";
    return fmt::format("{} is for CUDA {}, and this build is for CUDA {}; install {}", path, cuda,
                       built, install());
  }

  // Opens the sublibraries, so that their names are known wherever they are, and failures to open
  // one are detected now.
  std::string why_not_cudnn(const std::string& path, std::string& version) {
    for (const char* name : kCudnnParts) {
      const std::string file = part(path, name);
      void* const opened = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
      const bool reports = name == kCudnnParts[0];
      if (opened == nullptr) {
        const std::string words = dlerror();
        if (!is_missing(words, file)) return refusal(file, words);
        if (reports)
          return fmt::format("{}, a part of {}, is not found; install {}", file, path, install());
      } else if (reports) {
        // A sublibrary stays loaded after it is closed, and another cuDNN would use it.
        decided_ = true;
        const std::string why_not = why_not_versions(opened, path, version);
        if (!why_not.empty())
          return why_not + ", or put the folder of another installation first in LD_LIBRARY_PATH";
      }
    }
    return "";
  }

  // NVRTC opens libnvrtc-builtins.so.13.0 by name when it compiles, and fails if the loader does
  // not find it. So it is opened here, wherever it is.
  std::string why_not_nvrtc(void* handle, const std::string& path) const {
    const LibraryVersion version = LibraryVersion::of(version_number(library_, handle));
    const std::string file = part(path, "-builtins", fmt::format(".{}", version.minor));
    if (dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr) return "";
    const std::string words = dlerror();
    if (!is_missing(words, file)) return refusal(file, words);
    return fmt::format("{}, a part of {}, is not found; install {}", file, path, install());
  }

  // The file next to the library or, if there is none, its name, which the loader may find.
  // version: suffix after the library's own name.
  std::string part(const std::string& path, const char* name,
                   const std::string& version = "") const {
    const size_t stem = std::string_view(kind_of(library_).file).size();
    const std::string file = soname_.substr(0, stem) + name + soname_.substr(stem) + version,
                      next_to_it = path.substr(0, path.rfind('/') + 1) + file;
    return ::access(next_to_it.c_str(), F_OK) == 0 ? next_to_it : file;
  }

  void refuse(const std::string& path, const std::string& version, const std::string& why_not) {
    if (!found_.why_not.empty()) return;
    found_.path = path;
    found_.version = version;
    found_.why_not = why_not;
  }

  std::string install() const {
    return fmt::format("{} (pip install {})", kind_of(library_).name, package_of(library_));
  }

  std::string not_found() const {
    std::string other;
    std::vector<std::string> places = folders_of_path(variable("LD_LIBRARY_PATH"));
    places.insert(places.end(), folders().begin(), folders().end());
    for (const std::string& folder : places)
      for (const std::string& path : other_versions(folder, soname_))
        if (other.empty()) other = path;
    const bool of_cuda = library_ == NvidiaLibrary::cublas_lt && !other.empty();
    return fmt::format(
        "{} is not found{}; install it (pip install {}), {}or add its folder to LD_LIBRARY_PATH",
        soname_, other.empty() ? "" : fmt::format(", only {}, which is a different version", other),
        package_of(library_),
        of_cuda ? fmt::format("build with -DMEGATRON_CUDA_VERSION={}, ", major_of(other)) : "");
  }

  const NvidiaLibrary library_;
  const std::string soname_;
  struct Close {
    void operator()(void* handle) const { dlclose(handle); }
  };
  std::unique_ptr<void, Close> known_;  // the loader's own, until a file is opened
  bool decided_ = false;                // no other file can be tried
  CudaLibrary found_;
};

struct Opened {
  std::once_flag once;
  CudaLibrary found;
  void* handle = nullptr;  // never closed
};

Opened& open(NvidiaLibrary library) {
  static std::array<Opened, kAll.size()> all;
  Opened& one = all[static_cast<size_t>(library)];
  std::call_once(one.once, [&] {
    const std::string soname = soname_of(library);
    if (soname.empty()) {
      one.found.name = kind_of(library).name;
      return;
    }
    // Both open it by name when they compile a kernel.
    if (library == NvidiaLibrary::cublas_lt || library == NvidiaLibrary::cudnn)
      open(NvidiaLibrary::nvrtc);
    Opening opening(library, soname);
    one.handle = opening.open();
    one.found = opening.found();
  });
  return one;
}

}  // namespace

const CudaLibrary& opened(NvidiaLibrary library) { return open(library).found; }

std::vector<CudaLibrary> opened_libraries(std::string_view name) {
  std::vector<CudaLibrary> libraries;
  for (const NvidiaLibrary library : kAll)
    if ((name.empty() || name == kind_of(library).name) && !soname_of(library).empty())
      libraries.push_back(opened(library));
  return libraries;
}

void* find_function(NvidiaLibrary library, const char* name) {
  const Opened& one = open(library);
  MG_CHECK(one.handle != nullptr, "{} cannot be used: {}", kind_of(library).name,
           one.found.why_not);
  void* const function = dlsym(one.handle, name);
  MG_CHECK(function != nullptr, "{} {} ({}) has no function {}; install a later version",
           one.found.name, one.found.version, one.found.path, name);
  return function;
}

LibraryVersion LibraryVersion::of(long long number) {
  // Since cuDNN 9, all of them use two digits for each of the lower components.
  const long long unit = number >= 20000 ? 10000 : 1000;
  return {.major = static_cast<int>(number / unit),
          .minor = static_cast<int>(number % unit / 100),
          .patch = static_cast<int>(number % 100)};
}

std::string LibraryVersion::text() const { return fmt::format("{}.{}.{}", major, minor, patch); }

std::string mismatch(NvidiaLibrary library, int built_major, const LibraryVersion& found) {
  const char* const name = kind_of(library).name;
  if (found.major != built_major)
    return fmt::format(
        "this build needs {0} {1}, and {2} was found; install version {1} or build again", name,
        built_major, found.text());
  if (library == NvidiaLibrary::nccl && built_major == 2 && found.minor < kMinNcclMinor)
    return fmt::format("NCCL 2.{} or later is needed, and {} was found; install a later one",
                       kMinNcclMinor, found.text());
  return "";
}

}  // namespace megatron::cuda
