// A stack of its own for each fiber, and the switch between them: no system call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace cuda_shim {

// Something that can be gone on with. Abandoned ones are started again, never resumed.
class Context {
 public:
  Context();                       // the OS thread's own stack: only switched away from
  explicit Context(size_t bytes);  // a stack, with a page below it that faults
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // The next switch to it calls entry, which does not return.
  void start(void (*entry)());
  // Goes on there; returns when somebody switches back.
  void switch_to(Context& other);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cuda_shim
