// Names of kernels, which are local functions, from the symbol table of the file that contains
// them.
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include "machine.h"

namespace cuda_shim {
namespace {

std::string read_file(const char* path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

template <class T>
const T* at(const std::string& file, uint64_t offset, uint64_t count = 1) {
  if (offset > file.size() || count > (file.size() - offset) / sizeof(T)) return nullptr;
  return reinterpret_cast<const T*>(file.data() + offset);
}

// Returns the function that begins at an address of the file.
std::string symbol_of(const std::string& file, uint64_t address) {
  const auto* const header = at<ElfW(Ehdr)>(file, 0);
  if (header == nullptr) return "";
  const auto* const sections = at<ElfW(Shdr)>(file, header->e_shoff, header->e_shnum);
  if (sections == nullptr) return "";
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB || sections[i].sh_link >= header->e_shnum) continue;
    const uint64_t count = sections[i].sh_size / sizeof(ElfW(Sym));
    const auto* const symbols = at<ElfW(Sym)>(file, sections[i].sh_offset, count);
    for (uint64_t s = 0; symbols != nullptr && s < count; ++s) {
      if (symbols[s].st_value != address || ELF64_ST_TYPE(symbols[s].st_info) != STT_FUNC) continue;
      const uint64_t name = sections[sections[i].sh_link].sh_offset + symbols[s].st_name;
      if (name < file.size()) return file.c_str() + name;
    }
  }
  return "";
}

std::string without_mangling(const std::string& name) {
  int status = 0;
  char* const plain = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string text = status == 0 ? plain : name;
  std::free(plain);
  return text;
}

}  // namespace

std::string kernel_name(const void* kernel) {
  Dl_info info{};
  if (dladdr(kernel, &info) == 0) return "at an unknown address";
  const auto base = reinterpret_cast<uint64_t>(info.dli_fbase);
  const std::string file = read_file(info.dli_fname);
  const auto* const header = at<ElfW(Ehdr)>(file, 0);
  const bool fixed = header != nullptr && header->e_type == ET_EXEC;
  const std::string name = symbol_of(file, reinterpret_cast<uint64_t>(kernel) - (fixed ? 0 : base));
  return name.empty() ? "without a name" : "'" + without_mangling(name) + "'";
}

}  // namespace cuda_shim
