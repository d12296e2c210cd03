// Plan of a save, computed before anything is written.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/file_list.h"
#include "checkpoint/save.h"
#include "checkpoint/tensor_blocks.h"

namespace megatron::checkpoint {

// Elements of a tensor held by one of this rank's parameters.
struct Piece {
  Tensor value;
  Block block;
};

struct PlannedTensor {
  std::string name;
  Shape shape;  // as on disk
  DType dtype = DType::f32;
  std::vector<Piece> pieces;  // pieces that this rank holds
  bool whole = false;         // whether they are the whole tensor
  int64_t offset = 0;         // offset in its file
  int writer = 0;             // the rank that writes it

  int64_t bytes() const { return shape.elements() * size_of(dtype); }
};

struct PlannedFile {
  std::string name;
  std::string head;                    // header before the data
  std::vector<PlannedTensor> tensors;  // one after another
  int64_t bytes = 0;
};

// A file with given content, or with that of the file `source`.
struct PlannedText {
  std::string name, content, source;
  int64_t bytes() const;
};

struct SavePlan {
  std::vector<PlannedFile> files;  // weights first, then optimizer state
  size_t model_files = 0;          // number of files with weights
  std::vector<PlannedText> texts;  // config.json, index, companions
  std::vector<PlannedTensor*> tensors();

  // Returns names and sizes as trainer_state.json lists them, with zeros for checksums.
  std::vector<ListedFile> list() const;
  int64_t bytes(const std::optional<Json>& trainer_state) const;  // total of all files
};

// Depends on the contents only, not on the parts of the tensors that the ranks hold: the same on
// every rank.
SavePlan plan_save(const Contents& contents);

// Sets the pieces of this rank. Throws Error naming a tensor held here that is not to be saved, has
// another shape or a type that cannot be converted, or of which an element is held twice.
void attach_pieces(SavePlan& plan, const Contents& contents);

}  // namespace megatron::checkpoint
