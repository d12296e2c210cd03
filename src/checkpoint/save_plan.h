// What a save will write, worked out before anything is written.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/file_list.h"
#include "checkpoint/save.h"
#include "checkpoint/tensor_blocks.h"

namespace megatron::checkpoint {

// Elements of a tensor that a parameter of this rank holds.
struct Piece {
  Tensor value;
  Block block;
};

struct PlannedTensor {
  std::string name;
  Shape shape;  // as on disk
  DType dtype = DType::f32;
  std::vector<Piece> pieces;  // of this rank
  bool whole = false;         // whether these are all of it
  int64_t offset = 0;         // in its file
  int writer = 0;             // the rank that writes it

  int64_t bytes() const { return shape.elements() * size_of(dtype); }
};

struct PlannedFile {
  std::string name;
  std::string head;                    // what lies before the data
  std::vector<PlannedTensor> tensors;  // one after another
  int64_t bytes = 0;
};

// A file whose content is given, or is that of the file `source`.
struct PlannedText {
  std::string name, content, source;
  int64_t bytes() const;
};

struct SavePlan {
  std::vector<PlannedFile> files;  // weights, then optimizer state
  size_t model_files = 0;          // how many of them have weights
  std::vector<PlannedText> texts;  // config.json, index, companions
  std::vector<PlannedTensor*> tensors();

  // Names and sizes as trainer_state.json lists them, with zeros for checksums.
  std::vector<ListedFile> list() const;
  int64_t bytes(const std::optional<Json>& trainer_state) const;  // of all files
};

// A function of the contents, what the ranks hold of the tensors apart: the same on every rank.
SavePlan plan_save(const Contents& contents);

// Sets the pieces of this rank. Throws Error naming a tensor held here that is not to be saved, is
// of another shape or a type that cannot be converted, or of which an element is held twice.
void attach_pieces(SavePlan& plan, const Contents& contents);

}  // namespace megatron::checkpoint
