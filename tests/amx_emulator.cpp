#include "amx_emulator.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <signal.h>
#include <sys/ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/products/amx.h"
#endif

namespace megatron::kernels::cpu {

#if defined(__x86_64__)

namespace {

[[noreturn]] void refuse(const char* what) {
  constexpr char kBegin[] = "AMX, emulated: ";
  for (const char* text : {kBegin, what, "\n"}) {
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) break;
  }
  abort();
}

struct Tile {
  int64_t rows = 0, row_bytes = 0;
  alignas(64) uint8_t bytes[16][64] = {};
  void clear() { std::memset(bytes, 0, sizeof bytes); }
};

struct State {
  bool configured = false;
  Tile tiles[8];

  Tile& at(int i) {
    if (!configured) refuse("no LDTILECFG before");
    if (tiles[i].rows == 0) refuse("a tile without rows is named");
    return tiles[i];
  }
};
thread_local State state;

void set_shapes(const amx::Shapes& shapes) {
  const auto zero = [](auto byte) { return byte == 0; };
  if (shapes.palette != 1 || shapes.start_row != 0) refuse("palette 1 from row 0 is meant");
  if (!std::all_of(shapes.reserved, shapes.reserved + 14, zero)) refuse("reserved bytes are set");
  state.configured = true;
  for (int i = 0; i < 16; ++i) {
    const int64_t rows = shapes.rows[i], bytes = shapes.row_bytes[i];
    if (rows > 16 || bytes > 64 || (rows == 0) != (bytes == 0))
      refuse("LDTILECFG of a wrong shape");
    if (i >= 8) {
      if (rows != 0) refuse("there are eight tiles");
      continue;
    }
    state.tiles[i].rows = rows;
    state.tiles[i].row_bytes = bytes;
    state.tiles[i].clear();
  }
}

void load(Tile& tile, const uint8_t* from, int64_t stride) {
  tile.clear();
  for (int64_t r = 0; r < tile.rows; ++r)
    std::memcpy(tile.bytes[r], from + r * stride, static_cast<size_t>(tile.row_bytes));
}

void store(const Tile& tile, uint8_t* to, int64_t stride) {
  for (int64_t r = 0; r < tile.rows; ++r)
    std::memcpy(to + r * stride, tile.bytes[r], static_cast<size_t>(tile.row_bytes));
}

using Floats = float __attribute__((vector_size(64)));
using Words = uint32_t __attribute__((vector_size(64)));

// Element 0 or 1 of words, as f32.
__attribute__((target("avx512f"))) Floats even_of(Words words) {
  return reinterpret_cast<Floats>(words << 16);
}
__attribute__((target("avx512f"))) Floats odd_of(Words words) {
  return reinterpret_cast<Floats>(words & 0xffff0000u);
}

// TDPBF16PS. Beyond a row's end all tiles hold zeros, so that whole rows may be summed.
__attribute__((target("avx512f"))) void multiply(Tile& c, const Tile& a, const Tile& b) {
  if (&c == &a || &c == &b || &a == &b) refuse("TDPBF16PS of the same tile twice");
  if (a.row_bytes % 4 != 0 || b.row_bytes % 4 != 0 || c.row_bytes % 4 != 0 || a.rows != c.rows ||
      a.row_bytes / 4 != b.rows || b.row_bytes != c.row_bytes)
    refuse("TDPBF16PS of shapes that do not fit");
  const unsigned before = _mm_getcsr();
  _mm_setcsr(0x9fc0);  // nearest, subnormals to zero on both sides, no exceptions
  for (int64_t i = 0; i < c.rows; ++i) {
    Floats even = {}, odd = {};
    for (int64_t l = 0; l < b.rows; ++l) {
      Words columns;
      uint32_t word;
      std::memcpy(&word, a.bytes[i] + 4 * l, 4);
      std::memcpy(&columns, b.bytes[l], 64);
      const Words row = word - Words{};
      even = _mm512_fmadd_ps(even_of(row), even_of(columns), even);
      odd = _mm512_fmadd_ps(odd_of(row), odd_of(columns), odd);
    }
    Floats sums;
    std::memcpy(&sums, c.bytes[i], 64);
    sums = sums + (even + odd);
    std::memcpy(c.bytes[i], &sums, static_cast<size_t>(c.row_bytes));
  }
  _mm_setcsr(before);
}

// An instruction of three bytes VEX, an opcode and its operands.
class Instruction {
 public:
  Instruction(const uint8_t* at, const greg_t* registers) : at_(at), registers_(registers) {}

  // Executes the instruction and returns its length. Returns 0 if it is not an AMX instruction.
  int64_t run() {
    if (at_[0] != 0xc4 || (at_[1] & 0x1f) != 2 || (at_[2] & 0x84) != 0) return 0;
    const int prefix = at_[2] & 3, opcode = at_[3], tile = at_[4] >> 3 & 7;
    const bool in_memory = at_[4] >> 6 != 3;
    if (opcode != 0x5c && (at_[2] >> 3 & 15) != 15) refuse("VEX.vvvv is not 1111");
    if (opcode == 0x49 && prefix == 0 && in_memory && tile == 0) {
      amx::Shapes shapes;
      std::memcpy(&shapes, address(), sizeof shapes);
      set_shapes(shapes);
    } else if (opcode == 0x49 && prefix == 0 && at_[4] == 0xc0) {
      state = State();
    } else if (opcode == 0x49 && prefix == 3 && !in_memory) {
      state.at(tile).clear();
    } else if (opcode == 0x4b && in_memory && prefix != 0) {
      if ((at_[4] & 7) != 4) refuse("tiles want an address with an index");
      uint8_t* const place = address();
      // TILELOADD, TILELOADDT1 or TILESTORED.
      prefix == 2 ? store(state.at(tile), place, stride_) : load(state.at(tile), place, stride_);
    } else if (opcode == 0x5c && prefix == 2 && !in_memory) {
      multiply(state.at(tile), state.at(at_[4] & 7), state.at(~at_[2] >> 3 & 15));
    } else {
      return 0;
    }
    return length_;
  }

 private:
  int64_t value(int number) const {
    static constexpr int kPlaces[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                      REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                      REG_R12, REG_R13, REG_R14, REG_R15};
    return registers_[kPlaces[number]];
  }

  // base + displacement; the index, scaled, is the stride of tiles.
  uint8_t* address() {
    const int mode = at_[4] >> 6, rm = at_[4] & 7;
    const bool b = (at_[1] & 0x20) == 0, x = (at_[1] & 0x40) == 0;
    const uint8_t* next = at_ + 5;
    int base = rm | b << 3;
    bool has_base = true;
    if (rm == 4) {
      const int index = (*next >> 3 & 7) | x << 3;
      base = (*next & 7) | b << 3;
      has_base = mode != 0 || (*next & 7) != 5;
      stride_ = index == 4 ? 0 : value(index) << (*next >> 6);
      ++next;
    }
    int64_t displacement = 0;
    const bool relative = mode == 0 && rm == 5;
    if (mode == 1) {
      displacement = static_cast<int8_t>(*next++);
    } else if (mode == 2 || relative || !has_base) {
      int32_t word;
      std::memcpy(&word, next, 4);
      displacement = word;
      next += 4;
    }
    length_ = next - at_;
    const int64_t from = relative ? reinterpret_cast<int64_t>(next) : has_base ? value(base) : 0;
    return reinterpret_cast<uint8_t*>(from + displacement);
  }

  const uint8_t* at_;
  const greg_t* registers_;
  int64_t stride_ = 0, length_ = 5;
};

// Emulates the instruction that trapped and the AMX instructions directly after it, because traps
// are slow.
void on_illegal_instruction(int, siginfo_t*, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  bool done = false;
  for (;; done = true) {
    const auto* const at = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
    const int64_t length = Instruction(at, registers).run();
    if (length == 0) break;
    registers[REG_RIP] += length;
  }
  if (!done) refuse("an illegal instruction that is none of AMX");
}

bool emulate() {
  // Operands are packed with these, which every processor with AMX has.
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512vbmi"))
    return false;
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO;
  return sigaction(SIGILL, &action, nullptr) == 0;
}

}  // namespace

#else

namespace {
bool emulate() { return false; }
}  // namespace

#endif

namespace {
bool emulating = false;
}

const std::vector<Bf16Products>& bf16_ways() {
  static const std::vector<Bf16Products> ways = [] {
    std::vector<Bf16Products> list = {Bf16Products::widened};
    const Bf16Products best = bf16_products();
    if (best != Bf16Products::widened) list.push_back(Bf16Products::pairs);
    emulating = best != Bf16Products::amx && emulate();
    if (best == Bf16Products::amx || emulating) list.push_back(Bf16Products::amx);
    return list;
  }();
  return ways;
}

std::vector<std::pair<DType, Bf16Products>> types_and_ways() {
  std::vector<std::pair<DType, Bf16Products>> list = {{DType::f32, Bf16Products::widened}};
  for (const Bf16Products products : bf16_ways()) list.emplace_back(DType::bf16, products);
  return list;
}

bool slow(Bf16Products products) { return products == Bf16Products::amx && emulating; }

const char* str(Bf16Products products) {
  switch (products) {
    case Bf16Products::amx: return "in AMX tiles";
    case Bf16Products::pairs: return "in pairs";
    case Bf16Products::widened: return "widened";
  }
  return "";
}

}  // namespace megatron::kernels::cpu
