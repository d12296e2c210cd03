// What a save will write, worked out before anything is written.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/file_list.h"
#include "checkpoint/save.h"

namespace megatron::checkpoint {

// What one parameter holds of a tensor.
struct Piece {
  const parallel::Part* part = nullptr;
  Tensor value;
};

struct PlannedTensor {
  std::string name;
  Shape shape;  // as on disk
  DType dtype = DType::f32;
  std::vector<Piece> pieces;
  int64_t offset = 0;  // in its file
  int writer = 0;      // the rank that writes it

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
  std::vector<PlannedText> texts;  // config.json, index, companions
  std::vector<PlannedTensor*> tensors();

  // Names and sizes as trainer_state.json lists them, with zeros for checksums.
  std::vector<ListedFile> list() const;
  int64_t bytes(const std::optional<Json>& trainer_state) const;  // of all files
};

// A function of the contents (the values' data apart) and the number of ranks, on which only
// PlannedTensor::writer depends: tensors go by falling size to the rank with the fewest bytes so
// far.
SavePlan plan_save(const Contents& contents, int ranks);

// Throws Error naming a tensor that is not held whole here, each element exactly once.
void check_whole(const SavePlan& plan);

}  // namespace megatron::checkpoint
