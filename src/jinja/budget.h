// Resource limits of a template. All limits are counts, so that a template that exceeds one fails
// at the same place on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/error.h"

namespace megatron::jinja {

struct Limits {
  int64_t steps = 50'000'000;       // evaluated nodes, plus work proportional to the data
  int64_t output_bytes = 64 << 20;  // bytes of the rendered text, or of an intermediate string
  int64_t live_bytes = 256 << 20;   // bytes of all values and output pieces that exist at once
  int depth = 1500;                 // nesting depth of evaluated nodes
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits), left_(limits.steps) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  void spend(int64_t steps) {
    left_ -= steps;
    MG_CHECK(left_ >= 0, "the template takes more than {} steps (limit `steps`)", limits_.steps);
  }
  void check_length(size_t bytes) const {
    MG_CHECK(static_cast<int64_t>(bytes) <= limits_.output_bytes,
             "a text of the template is longer than {} bytes (limit `output_bytes`)",
             limits_.output_bytes);
  }
  // Accounts for work on a text of `bytes` bytes, and checks that the text is not too long.
  void spend_bytes(size_t bytes) {
    check_length(bytes);
    spend(static_cast<int64_t>(bytes / 32));
  }
  void spend_items(size_t items) { spend(static_cast<int64_t>(items / 4)); }
  // Throws Error if `bytes` more would exceed live_bytes.
  void check_memory(size_t bytes) const {
    MG_CHECK(static_cast<int64_t>(bytes) <= limits_.live_bytes - live_,
             "the values of the template take more than {} bytes at once (limit `live_bytes`)",
             limits_.live_bytes);
  }

  // Counts the bytes of a value or a piece of output as long as it lives; the budget must outlive
  // it. Without a budget (an input, a constant) nothing is counted.
  class Held {
   public:
    Held() = default;
    Held(Budget* budget, size_t bytes) : budget_(budget) { grow(bytes); }
    Held(Held&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}
    Held& operator=(Held&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Held() {
      if (budget_ != nullptr) budget_->live_ -= bytes_;
    }
    void grow(size_t bytes) {
      if (budget_ == nullptr) return;
      budget_->check_memory(bytes);
      bytes_ += static_cast<int64_t>(bytes);
      budget_->live_ += static_cast<int64_t>(bytes);
    }

   private:
    Budget* budget_ = nullptr;
    int64_t bytes_ = 0;
  };

  // Counts one level of nested evaluation during its lifetime.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(budget) {
      MG_CHECK(budget.depth_ < budget.limits_.depth,
               "the template nests deeper than {} levels (limit `depth`); does a macro call itself "
               "without end?",
               budget.limits_.depth);
      ++budget.depth_;
    }
    ~Level() { --budget_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  Limits limits_;
  int64_t left_;
  int64_t live_ = 0;
  int depth_ = 0;
};

}  // namespace megatron::jinja
