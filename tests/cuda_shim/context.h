// A separate stack for each fiber, and switches between stacks without a system call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace cuda_shim {

// A point of execution that can be continued. An abandoned one is started again, never resumed.
class Context {
 public:
  Context();                       // the OS thread's own stack: only switched away from
  explicit Context(size_t bytes);  // a stack with a guard page below it
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // The next switch to this context calls entry, which must not return.
  void start(void (*entry)());
  // Continues there, and returns when something switches back.
  void switch_to(Context& other);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cuda_shim
