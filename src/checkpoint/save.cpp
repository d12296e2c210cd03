#include "checkpoint/save.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/agreement.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/reshard.h"
#include "checkpoint/save_plan.h"
#include "checkpoint/staging.h"
#include "checkpoint/tensor_copy.h"
#include "checkpoint/writers.h"

namespace megatron::checkpoint {
namespace {

constexpr size_t kPiece = size_t{16} << 20;  // bytes per write
constexpr int kNewFile = O_WRONLY | O_CREAT;

size_t size_of(const PlannedTensor& tensor) { return static_cast<size_t>(tensor.bytes()); }

// True if the value's memory has the layout of the stored tensor.
bool lies_as_stored(const PlannedTensor& tensor) {
  if (tensor.pieces.size() != 1) return false;
  const auto& [value, block] = tensor.pieces.front();
  return block.rows == 1 && block.local.column == 1 && value.dtype() == tensor.dtype &&
         value.is_contiguous();
}

const std::byte* where_it_lies(const PlannedTensor& tensor) {
  const auto& [value, block] = tensor.pieces.front();
  return static_cast<const std::byte*>(value.raw()) +
         block.local.begin * megatron::size_of(value.dtype());
}

void fill(const PlannedTensor& tensor, std::byte* out) {
  for (const Piece& piece : tensor.pieces)
    write_block(piece.block, piece.value, {out, size_of(tensor)}, tensor.dtype);
}

Contents values_on_host(Contents contents) {
  for (std::vector<HeldTensor>* const list : {&contents.model, &contents.optimizer})
    for (HeldTensor& tensor : *list) tensor.value = on_host(tensor.value);
  return contents;
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
      : contents(values_on_host(std::move(given))),
        ranks(group),
        stream(s),
        files(f),
        staging(std::move(path), contents.trainer_state.has_value(), f) {}

  bool leads() const { return ranks.rank() == 0; }
  void prepare();
  void bring_together();
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
  // Tensors that this rank writes and whose values it does not hold whole or has copied.
  std::vector<Bytes> copies;
  bool copied = false;         // everything that it writes is copied
  std::vector<uint64_t> sums;  // checksums of the tensors that this rank wrote
  std::vector<uint64_t> head_sums, text_sums;
  std::string error = "the checkpoint was not written";
  Staging staging;
};

// Steps that may fail on one rank before anything is written.
void Save::State::prepare() {
  plan = plan_save(contents);
  attach_pieces(plan, contents);
  tensors = plan.tensors();
  sums.resize(tensors.size());
  head_sums.resize(plan.files.size());
  text_sums.resize(plan.texts.size());
  if (!leads()) return;
  for (PlannedText& text : plan.texts) {
    if (!text.source.empty()) text.content = read_file(text.source);
    text.source.clear();
  }
  staging.clear();
  check_room(folder_of(staging.path()), plan.bytes(contents.trainer_state), files,
             "free some space or write somewhere else");
  staging.make();
}

// Sends every tensor to its writer.
void Save::State::bring_together() {
  const WholeHolders holders(tensors, ranks, stream);
  assign_writers(tensors, ranks.size(), holders);
  if (holders.all()) copies.resize(tensors.size());
  else copies = reshard(tensors, ranks, stream);
}

void Save::State::take_snapshot() {
  stream.synchronize();
  std::vector<size_t> mine;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i]->writer != ranks.rank() || copies[i] != nullptr) continue;
    copies[i] = std::make_unique_for_overwrite<std::byte[]>(size_of(*tensors[i]));
    mine.push_back(i);
  }
  stream.pool().parallel_for(static_cast<int64_t>(mine.size()), [&](int64_t block, int) {
    const size_t i = mine[static_cast<size_t>(block)];
    fill(*tensors[i], copies[i].get());
  });
  for (PlannedTensor* tensor : tensors) tensor->pieces.clear();
  contents.model.clear();
  contents.optimizer.clear();
  copied = true;
}

std::span<const std::byte> Save::State::stored(size_t index, Bytes& buffer) const {
  const PlannedTensor& tensor = *tensors[index];
  if (copies[index] != nullptr) return {copies[index].get(), size_of(tensor)};
  if (lies_as_stored(tensor)) return {where_it_lies(tensor), size_of(tensor)};
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
  if (!copied) stream.synchronize();
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

namespace {

// Text of the error that `work` throws; "" for none.
template <class F>
std::string error_of(F&& work) {
  try {
    work();
    return "";
  } catch (const std::bad_alloc&) {
    return "not enough memory for a copy of the checkpoint; use more ranks, or save without "
           "--async-save";
  } catch (const std::exception& failure) {
    return failure.what();
  }
}

}  // namespace

Save::Save(std::string path, Contents contents, comm::Group& ranks, Stream& stream,
           const FileSystem& files, Snapshot snapshot)
    : state_(std::make_unique<State>(std::move(path), std::move(contents), ranks, stream, files)) {
  State& s = *state_;
  const std::string error = error_of([&] { s.prepare(); });
  agree(ranks, stream, error, identity(s.plan), "checkpoint: begin");
  s.bring_together();
  if (snapshot == Snapshot::none) return;
  agree(ranks, stream, error_of([&] { s.take_snapshot(); }), 0, "checkpoint: copied");
}

Save::~Save() = default;

void Save::write() noexcept {
  State& s = *state_;
  try {
    s.write_tensors();
    if (s.leads()) s.write_texts();
    s.error.clear();
  } catch (const std::bad_alloc&) {
    s.error = "not enough memory to write the checkpoint";
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
  MG_CHECK(free >= 0, "cannot determine the free space for '{}': {}", folder, write_failure(errno));
  MG_CHECK(free >= bytes, "the disk of '{}' has {} free, but {} are needed: {}", folder,
           gibibytes(free), gibibytes(bytes), what);
}

}  // namespace megatron::checkpoint
