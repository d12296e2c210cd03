// Settings of a small model, to which tests add their own.
#pragma once

#include "settings/settings.h"

namespace megatron::training {

inline settings::TrainSettings small_settings() {
  settings::TrainSettings s;
  s.shape.num_layers = 2;
  s.shape.hidden_size = 48;
  s.shape.num_attention_heads = 4;
  s.shape.vocab_size = 100;
  s.batch.seq_length = 16;
  s.batch.micro_batch_size = 2;
  s.optimizer.lr = 1e-3;
  s.runtime.threads = 1;
  return s;
}

}  // namespace megatron::training
