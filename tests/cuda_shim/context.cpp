#include "context.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstring>
#include <new>

#if defined(__x86_64__)
// cuda_shim_switch(void** save, void* load): callee-saved registers are kept on the stack.
extern "C" void cuda_shim_switch(void** save, void* load);
asm(R"(
.text
.type cuda_shim_switch, @function
.globl cuda_shim_switch
.hidden cuda_shim_switch
cuda_shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_shim_switch, .-cuda_shim_switch
)");
#endif

// Tells the thread sanitizer about the stacks.
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#else
#define __tsan_get_current_fiber() nullptr
#define __tsan_create_fiber(flags) nullptr
#define __tsan_destroy_fiber(fiber) static_cast<void>(fiber)
#define __tsan_switch_to_fiber(fiber, flags) static_cast<void>(fiber)
#endif

namespace cuda_shim {
namespace {

constexpr size_t kGuard = 4096;

std::byte* make_stack(size_t bytes) {
  void* const p = mmap(nullptr, kGuard + bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  mprotect(p, kGuard, PROT_NONE);
  return static_cast<std::byte*>(p) + kGuard;
}

}  // namespace

struct Context::State {
  std::byte* stack = nullptr;
  size_t bytes = 0;
  void* top = nullptr;  // address of the saved registers
  ucontext_t context{};
  void* fiber = nullptr;  // the sanitizer's handle
};

Context::Context() : state_(std::make_unique<State>()) {}
Context::Context(size_t bytes) : Context() {
  state_->stack = make_stack(bytes);
  state_->bytes = bytes;
  state_->fiber = __tsan_create_fiber(0);
}
Context::~Context() {
  if (state_->stack == nullptr) return;
  __tsan_destroy_fiber(state_->fiber);
  ASAN_UNPOISON_MEMORY_REGION(state_->stack, state_->bytes);  // frames that never returned
  munmap(state_->stack - kGuard, state_->bytes + kGuard);
}

#if defined(__x86_64__)
void Context::start(void (*entry)()) {
  ASAN_UNPOISON_MEMORY_REGION(state_->stack, state_->bytes);  // frames that never returned
  // Six registers and the return address; the function finds the stack as after a call.
  std::byte* const end = state_->stack + state_->bytes - 16;
  std::memcpy(end, &entry, sizeof entry);
  std::memset(end - 48, 0, 48);
  state_->top = end - 48;
}
void Context::switch_to(Context& other) { cuda_shim_switch(&state_->top, other.state_->top); }
#else
void Context::start(void (*entry)()) {
  ASAN_UNPOISON_MEMORY_REGION(state_->stack, state_->bytes);
  getcontext(&state_->context);
  state_->context.uc_stack.ss_sp = state_->stack;
  state_->context.uc_stack.ss_size = state_->bytes;
  state_->context.uc_link = nullptr;
  makecontext(&state_->context, entry, 0);
}
void Context::switch_to(Context& other) { swapcontext(&state_->context, &other.state_->context); }
#endif

}  // namespace cuda_shim
