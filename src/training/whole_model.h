// All tensors of a model and of its optimizer, as checkpoints name them, whichever ranks hold them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/held_tensor.h"
#include "checkpoint/model_directory.h"
#include "models/stage.h"
#include "optim/optimizer.h"

namespace megatron::training {

class TrainStep;

struct WholeModel {
  std::vector<checkpoint::WholeTensor> weights, optimizer;
  std::vector<std::string> states;  // names of the weights that are module states
  // Names of the embedding, of the learned positions ("": none) and of the output layer ("": tied).
  std::string table, positions, head;
  std::vector<std::string> head_parts;  // names of the other tensors of a head of scores
  bool new_head = false;                // the directory that is read need not have the head
  // What checkpoints have of the weights: all of them, or the adapter's and those that it trains.
  std::vector<checkpoint::WholeTensor> saved;
  models::Model model;
};

// True for the embedding and the output layer of a language model.
bool has_a_row_per_token(const WholeModel& whole, const std::string& tensor);

// optimizer: null for weights only. freeze: patterns of parameters for which it has no state.
WholeModel whole_model(const models::Model& model, DType type,
                       const optim::OptimizerConfig* optimizer = nullptr,
                       const std::vector<std::string>& freeze = {});

// The whole model of a stage that is not divided.
WholeModel whole_model(const models::Stage& undivided);

// This rank's part of a model's tensors: shards of parameters, then states.
std::vector<checkpoint::HeldTensor> held_weights(std::span<const parallel::Shard> shards,
                                                 std::span<nn::ModuleState* const> states);
// Placements with the names in an adapter's directory, by those of the parameters.
using RenamedPlacements = std::map<const parallel::Placement*, parallel::Placement>;
// This rank's part of the tensors that checkpoints store: for an adapter, only what is trained,
// with the names of `renamed`, which must outlive the result.
std::vector<checkpoint::HeldTensor> held_saved(const TrainStep& step, const models::Model& model,
                                               RenamedPlacements& renamed);
// Names of an adapter's own tensors among the weights; none for a model without one.
std::vector<std::string> adapter_tensors(const WholeModel& whole);
// Names of the model's states that a directory lacks, because the model was trained elsewhere or by
// code without such states.
std::vector<std::string> absent_states(const WholeModel& whole,
                                       const checkpoint::ModelDirectory& directory);
// Names of the tensors of a score head to initialize: its output layer, and those of its other
// parts that the directory lacks. (An encoder's directory may have the part below the output
// layer.)
std::vector<std::string> new_head_tensors(const WholeModel& whole,
                                          const checkpoint::ModelDirectory& directory);
// Initializes the embedding and the output layer as in a new model.
void initialize_token_rows(std::span<const parallel::Shard> shards, const WholeModel& whole,
                           uint64_t seed, Stream& stream);
struct LoadOptions {
  std::span<const std::string> absent = {};  // tensors that keep their values
  // True if this rank logs the tensors that were left out.
  bool tells = true;
  // Tokens of the directory if they are fewer than the model's: rows of the other tokens keep their
  // values. 0 if there are as many.
  int64_t stored_tokens = 0;
  std::function<void(int64_t)> progress = {};  // called with the number of tensors filled so far
};
// Fills `held` as checkpoint::load does, from tensors by any of the names of StoredNames. Tensors
// of the directory that the model's family knows and does not need are left out.
void load_weights(const checkpoint::ModelDirectory& directory,
                  std::vector<checkpoint::HeldTensor> held, const WholeModel& whole,
                  const LoadOptions& options = {});
// "'DIR' lacks the module states 2 (NAME, NAME): they begin as in a new model"
std::string absent_states_text(const std::string& directory, std::span<const std::string> absent);
// This rank's part of the states of the training: those of modules, then the optimizer's.
std::vector<checkpoint::HeldTensor> held_states(const TrainStep& step);
// Fills the states of held_states() from a checkpoint. Module states that it lacks, for example
// because it was trained with another recipe, keep their values; others that it has are ignored.
// tells: this rank logs both.
void load_states(const checkpoint::CheckpointDirectory& checkpoint, const TrainStep& step,
                 const WholeModel& whole, bool tells);

}  // namespace megatron::training
