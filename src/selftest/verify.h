// Compares a Hugging Face directory with the values that another system computed for it, stored in
// its expected.safetensors.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/model_directory.h"
#include "device/device.h"
#include "selftest/report.h"
#include "training/trained_model.h"

namespace megatron::selftest {

struct VerifyOptions {
  std::vector<DeviceKind> devices = {
      DeviceKind::cpu, DeviceKind::reference};  // cpu computes in f32, reference in f64
  int threads = 1;                              // per rank
  // Number of ranks, as threads, among which the model is divided; layers as evenly as possible.
  // Data-parallel ranks share the sequences.
  int tensor_parallel = 1, pipeline_parallel = 1, data_parallel = 1;
  // Context-parallel ranks and their exchange of tokens.
  int context_parallel = 1;
  std::vector<parallel::ContextExchange> context_exchange = {};
  std::vector<int> context_levels = {};  // sizes of ContextExchange::a2a_p2p
  // Tensor- and data-parallel ranks that the experts, and each expert's matrices, are divided
  // among; expert_tensor_parallel 0: same as tensor_parallel.
  int expert_parallel = 1, expert_tensor_parallel = 0;
  parallel::Sharding sharding =
      parallel::Sharding::none;    // state that is divided among the data-parallel ranks
  bool sequence_parallel = false;  // the tensor-parallel ranks also divide the tokens
  checkpoint::ReadingOptions reading = {};

  int ranks() const {
    return tensor_parallel * context_parallel * pipeline_parallel * data_parallel;
  }
  // Sequences are padded to a multiple of this many tokens.
  int64_t length_multiple() const {
    const int64_t slices = sequence_parallel ? tensor_parallel : 1;
    return context_parallel == 1 ? slices : 2 * context_parallel * slices;
  }
  training::ModelLayout layout() const;
  std::string text() const;  // ", tensor parallel 2, pipeline parallel 2"; "" for one rank
};

// Compares, for weights of any stored type: logits (or scores), loss, the gradient of every stored
// tensor, inputs and outputs of each layer, and 12 greedy tokens after input_ids[0,:8]. Of an
// adapter, also the weights with it merged into them ("merged.NAME"), and the logits of the model
// that has these.
// verify_batch.h defines the contents of the file. A tensor of the file that was not compared is a
// failure. Returns one report per device. Throws Error if the directory or its inputs cannot be
// used.
std::vector<Report> verify(const std::string& directory, const VerifyOptions& options);

// Loads the directory and saves it to `out`, which must not exist; then compares the file set, and
// name, type, shape, file and bytes of every tensor that the model needs. Files of weights written
// by torch.save are compared by their names in safetensors (checkpoint::safetensors_name). Of an
// adapter, its configuration and its file of tensors must have the same bytes, but for a newline at
// the end.
Report verify_rewrite(const std::string& directory, const std::string& out,
                      const checkpoint::ReadingOptions& reading = {});

}  // namespace megatron::selftest
