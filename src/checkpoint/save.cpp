#include "checkpoint/save.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/agreement.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/part_copy.h"
#include "checkpoint/save_plan.h"
#include "checkpoint/staging.h"

namespace megatron::checkpoint {
namespace {

constexpr size_t kPiece = size_t{16} << 20;  // bytes of a write
constexpr int kNewFile = O_WRONLY | O_CREAT;

using Bytes = std::unique_ptr<std::byte[]>;

size_t size_of(const PlannedTensor& tensor) { return static_cast<size_t>(tensor.bytes()); }

// Whether the value's memory is the tensor as it is stored.
bool lies_as_stored(const PlannedTensor& tensor) {
  if (tensor.pieces.size() != 1) return false;
  const Piece& piece = tensor.pieces.front();
  return !piece.part->transposed && piece.part->slices.size() == 1 &&
         piece.value.dtype() == tensor.dtype && piece.value.bytes() == tensor.bytes() &&
         piece.value.is_contiguous();
}

void fill(const PlannedTensor& tensor, std::byte* out) {
  for (const Piece& piece : tensor.pieces)
    write_part(*piece.part, piece.value, {out, size_of(tensor)}, tensor.dtype);
}

uint64_t identity(const SavePlan& plan) {
  std::string text;
  for (const PlannedFile& file : plan.files) text += file.name + '\0' + file.head;
  for (const PlannedText& file : plan.texts) text += file.name + '\0';
  return checksum(text);
}

std::string gibibytes(int64_t bytes) {
  return fmt::format("{} bytes ({:.2f} GiB)", bytes, static_cast<double>(bytes) / (1 << 30));
}

}  // namespace

struct Save::State {
  State(std::string path, Contents given, comm::Group& group, Stream& s, const FileSystem& f)
      : contents(std::move(given)),
        ranks(group),
        stream(s),
        files(f),
        staging(std::move(path), contents.trainer_state.has_value(), f) {}

  bool leads() const { return ranks.rank() == 0; }
  void prepare(Snapshot snapshot);
  void take_snapshot();
  void write_tensors();
  void write_file_of_tensors(size_t index, size_t first);
  void write_texts();
  void write_text(const std::string& name, std::string_view content);
  std::span<const std::byte> stored(size_t index, Bytes& buffer) const;
  void publish();

  Contents contents;
  comm::Group& ranks;
  Stream& stream;
  const FileSystem& files;
  SavePlan plan;
  std::vector<PlannedTensor*> tensors;  // of the plan
  std::vector<Bytes> snapshot;          // of tensors; empty: none, or not this rank's
  std::vector<uint64_t> sums;           // of tensors: those this rank wrote
  std::vector<uint64_t> head_sums, text_sums;
  std::string error = "the save was not written";
  Staging staging;
};

// What may fail on one rank before anything is written.
void Save::State::prepare(Snapshot kind) {
  plan = plan_save(contents, ranks.size());
  check_whole(plan);
  tensors = plan.tensors();
  sums.resize(tensors.size());
  head_sums.resize(plan.files.size());
  text_sums.resize(plan.texts.size());
  for (const PlannedTensor* tensor : tensors) {
    for (const Piece& piece : tensor->pieces) MG_ASSERT(piece.value.device().has_data());
  }
  if (leads()) {
    for (PlannedText& text : plan.texts) {
      if (!text.source.empty()) text.content = read_file(text.source);
      text.source.clear();
    }
    staging.clear();
    check_room(folder_of(staging.path()), plan.bytes(contents.trainer_state), files,
               "make room there or write to another place");
    staging.make();
  }
  if (kind == Snapshot::copy) take_snapshot();
}

void Save::State::take_snapshot() {
  stream.synchronize();
  snapshot.resize(tensors.size());
  std::vector<size_t> mine;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i]->writer != ranks.rank()) continue;
    snapshot[i] = std::make_unique_for_overwrite<std::byte[]>(size_of(*tensors[i]));
    mine.push_back(i);
  }
  stream.pool().parallel_for(static_cast<int64_t>(mine.size()), [&](int64_t block, int) {
    const size_t i = mine[static_cast<size_t>(block)];
    fill(*tensors[i], snapshot[i].get());
  });
  for (PlannedTensor* tensor : tensors) tensor->pieces.clear();
  contents.model.clear();
  contents.optimizer.clear();
}

std::span<const std::byte> Save::State::stored(size_t index, Bytes& buffer) const {
  const PlannedTensor& tensor = *tensors[index];
  if (!snapshot.empty()) return {snapshot[index].get(), size_of(tensor)};
  if (lies_as_stored(tensor))
    return {static_cast<const std::byte*>(tensor.pieces.front().value.raw()), size_of(tensor)};
  buffer = std::make_unique_for_overwrite<std::byte[]>(size_of(tensor));
  fill(tensor, buffer.get());
  return {buffer.get(), size_of(tensor)};
}

void Save::State::write_file_of_tensors(size_t index, size_t first) {
  const PlannedFile& file = plan.files[index];
  OutputFile out(staging.folder() + "/" + file.name, kNewFile, files);
  if (leads()) {
    out.resize(file.bytes);
    head_sums[index] = checksum(file.head);
    out.write_at(std::as_bytes(std::span(file.head)), 0);
  }
  for (size_t i = 0; i < file.tensors.size(); ++i) {
    const PlannedTensor& tensor = file.tensors[i];
    if (tensor.writer != ranks.rank()) continue;
    Bytes buffer;
    const std::span<const std::byte> bytes = stored(first + i, buffer);
    sums[first + i] = checksum(bytes);
    for (size_t begin = 0; begin < bytes.size(); begin += kPiece)
      out.write_at(bytes.subspan(begin, std::min(kPiece, bytes.size() - begin)),
                   tensor.offset + static_cast<int64_t>(begin));
  }
  out.sync();
  out.close();
}

void Save::State::write_tensors() {
  if (snapshot.empty()) stream.synchronize();
  size_t first = 0;
  for (size_t i = 0; i < plan.files.size(); ++i) {
    const std::vector<PlannedTensor>& held = plan.files[i].tensors;
    const bool mine = std::ranges::any_of(
        held, [&](const PlannedTensor& tensor) { return tensor.writer == ranks.rank(); });
    if (mine || leads()) write_file_of_tensors(i, first);
    first += held.size();
  }
}

void Save::State::write_text(const std::string& name, std::string_view content) {
  OutputFile out(staging.folder() + "/" + name, kNewFile, files);
  out.write(std::as_bytes(std::span(content)));
  out.sync();
  out.close();
}

void Save::State::write_texts() {
  for (size_t i = 0; i < plan.texts.size(); ++i) {
    text_sums[i] = checksum(plan.texts[i].content);
    write_text(plan.texts[i].name, plan.texts[i].content);
  }
}

void Save::State::publish() {
  if (contents.trainer_state.has_value()) {
    std::vector<ListedFile> list = plan.list();
    size_t tensor = 0;
    for (size_t i = 0; i < plan.files.size(); ++i) {
      list[i].sum = head_sums[i];
      for (auto& [name, sum] : list[i].tensors) sum = sums[tensor++];
    }
    for (size_t i = 0; i < plan.texts.size(); ++i) list[plan.files.size() + i].sum = text_sums[i];
    write_text(std::string(kTrainerState), seal(*contents.trainer_state, list));
  }
  staging.publish();
}

Save::Save(std::string path, Contents contents, comm::Group& ranks, Stream& stream,
           const FileSystem& files, Snapshot snapshot)
    : state_(std::make_unique<State>(std::move(path), std::move(contents), ranks, stream, files)) {
  std::string error;
  try {
    state_->prepare(snapshot);
  } catch (const std::bad_alloc&) {
    error =
        "there is not enough memory for a copy of what is to be saved; use more ranks, or save "
        "without such a copy";
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  agree(ranks, stream, error, identity(state_->plan), "checkpoint: begin");
}

Save::~Save() = default;

void Save::write() noexcept {
  State& s = *state_;
  try {
    s.write_tensors();
    if (s.leads()) s.write_texts();
    s.error.clear();
  } catch (const std::bad_alloc&) {
    s.error = "there is not enough memory to write the checkpoint";
  } catch (const std::exception& failure) {
    s.error = failure.what();
  }
}

bool Save::failed() const { return !state_->error.empty(); }

void Save::finish() {
  State& s = *state_;
  try {
    agree(s.ranks, s.stream, s.error, 0, "checkpoint: written");
    put_together(s.ranks, s.stream, s.sums, "checkpoint: checksums");
    std::string error;
    try {
      if (s.leads()) s.publish();
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    agree(s.ranks, s.stream, error, 0, "checkpoint: named");
  } catch (...) {
    s.staging.remove();
    throw;
  }
}

const std::string& Save::path() const { return state_->staging.path(); }

void save(const std::string& path, Contents contents, Stream& stream) {
  const std::unique_ptr<comm::Group> one = comm::single();
  Save save(path, std::move(contents), *one, stream, system_files(), Save::Snapshot::none);
  save.write();
  save.finish();
}

void check_room(const std::string& folder, int64_t bytes, const FileSystem& files,
                std::string_view what) {
  int64_t free;
  do free = files.free_bytes(folder);
  while (free < 0 && errno == EINTR);
  MG_CHECK(free >= 0, "cannot find how much room there is for '{}': {}", folder,
           write_failure(errno));
  MG_CHECK(free >= bytes, "the disk of '{}' has room for {}, and {} are needed: {}", folder,
           gibibytes(free), gibibytes(bytes), what);
}

}  // namespace megatron::checkpoint
