#include "train/checkpoint/checkpoint_writer.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "spdlog/spdlog.h"
#include "train/checkpoint/crc32c.h"

namespace argosy::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDirtyBytesMax = 64 << 20;
constexpr size_t kVerifyBufferBytes = 1 << 20;
// Room for config, tokenizer files, index and manifest.
constexpr int64_t kSmallFilesBytes = 64 << 20;

constexpr const char* kCopiedFiles[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
};

std::string Sibling(const std::string& directory, std::string_view suffix) {
  fs::path path(directory);
  return (path.parent_path() / fmt::format(".{}.{}", path.filename().string(), suffix)).string();
}

absl::Status SyncDirectory(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.ok() || ::fsync(fd.get()) != 0) return ErrnoStatus(errno, fmt::format("cannot sync the directory {}", path));
  return absl::OkStatus();
}

absl::Status CheckPlainName(std::string_view name) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string_view::npos || name == kManifestName) {
    return InvalidArgument("\"{}\" cannot be the name of a file in a checkpoint", name);
  }
  return absl::OkStatus();
}

// What stands at `directory` may be replaced when it is nothing, empty, or a checkpoint of ours without other files.
absl::Status CheckReplaceable(const std::string& directory) {
  std::error_code error;
  fs::file_status status = fs::status(directory, error);
  if (status.type() == fs::file_type::not_found) return absl::OkStatus();
  if (status.type() != fs::file_type::directory) return FailedPrecondition("{} exists and is not a directory", directory);
  absl::StatusOr<CheckpointManifest> manifest = CheckpointManifest::Load(directory);
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (!manifest.ok()) {
      return FailedPrecondition("{} exists and is not a checkpoint written by Argosy (it holds {}): choose another directory, or empty it",
                                directory, name);
    }
    if (name != kManifestName && !manifest->files.contains(name)) {
      return FailedPrecondition("the checkpoint {} would be replaced, but {} in it is not part of it: move that file away first", directory,
                                name);
    }
  }
  if (error) return FailedPrecondition("cannot list {}: {}", directory, error.message());
  return absl::OkStatus();
}

absl::Status MakeHiddenDirectory(const std::string& partial, UniqueFd& lock) {
  UniqueFd existing(::open(partial.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (existing.ok() && ::flock(existing.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return FailedPrecondition("another process is writing this checkpoint ({} is locked)", partial);
  }
  std::error_code error;
  fs::remove_all(partial, error);
  if (error) return FailedPrecondition("cannot remove what an interrupted run left in {}: {}", partial, error.message());
  if (::mkdir(partial.c_str(), 0755) != 0) return ErrnoStatus(errno, fmt::format("cannot make the directory {}", partial));
  lock = UniqueFd(::open(partial.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.ok()) return ErrnoStatus(errno, fmt::format("cannot open {}", partial));
  // File systems without flock answer other errors; they go unlocked.
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return FailedPrecondition("another process is writing this checkpoint ({} is locked)", partial);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSpace(const std::string& directory, int64_t bytes) {
  std::error_code error;
  fs::path existing = fs::absolute(directory, error);
  while (!fs::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
  struct statvfs info {};
  if (::statvfs(existing.c_str(), &info) != 0) return ErrnoStatus(errno, fmt::format("cannot tell the free space of {}", existing.string()));
  const double available = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  if (available < static_cast<double>(bytes)) {
    return absl::ResourceExhaustedError(ToAbsl(fmt::format(
        "a checkpoint in {} takes {:.2f} GB and {:.2f} GB are free there: free some, keep fewer checkpoints, or choose another directory",
        directory, static_cast<double>(bytes) / 1e9, available / 1e9)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(CheckpointWriterOptions options) {
  if (options.directory.empty()) return InvalidArgument("a checkpoint needs a directory");
  if (options.sink != nullptr) {
    std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter(std::move(options)));
    writer->manifest_.notes = writer->options_.notes;
    ARGOSY_RETURN_IF_ERROR(writer->Advance());
    return writer;
  }
  std::error_code error;
  fs::path path = fs::weakly_canonical(fs::absolute(options.directory, error), error);
  if (error) return InvalidArgument("{}: {}", options.directory, error.message());
  if (!path.has_filename()) path = path.parent_path();
  if (!path.has_relative_path()) return InvalidArgument("a checkpoint cannot be the root directory");
  options.directory = path.string();

  const std::string old = Sibling(options.directory, "old");
  if (!fs::exists(options.directory, error) && fs::exists(old, error)) {
    // An earlier run ended between the two renames of Publish's second way.
    if (::rename(old.c_str(), options.directory.c_str()) != 0) {
      return ErrnoStatus(errno, fmt::format("cannot bring back the checkpoint {} from {}", options.directory, old));
    }
  }
  ARGOSY_RETURN_IF_ERROR(CheckReplaceable(options.directory));
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(path.parent_path().string()));
  ARGOSY_RETURN_IF_ERROR(CheckSpace(path.parent_path().string(), options.layout.FileBytes() + kSmallFilesBytes));

  std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter(std::move(options)));
  const std::string partial = Sibling(writer->options_.directory, "partial");
  ARGOSY_RETURN_IF_ERROR(MakeHiddenDirectory(partial, writer->lock_));
  writer->partial_ = partial;
  writer->manifest_.notes = writer->options_.notes;
  ARGOSY_RETURN_IF_ERROR(writer->Advance());
  return writer;
}

CheckpointWriter::~CheckpointWriter() {
  if (committed_ || partial_.empty()) return;
  std::error_code error;
  fs::remove_all(partial_, error);
}

absl::Status CheckpointWriter::OpenFile() {
  const PlannedFile& file = options_.layout.files[file_];
  offset_ = started_ = settled_ = 0;
  file_crc_ = tensor_crc_ = 0;
  tensor_ = 0;
  byte_ = 0;
  open_ = true;
  if (options_.sink != nullptr) {
    ARGOSY_RETURN_IF_ERROR(options_.sink->Begin(file.name, file.bytes));
    return WriteBytes(std::as_bytes(std::span(file.header.data(), file.header.size())));
  }
  const std::string path = (fs::path(partial_) / file.name).string();
  fd_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd_.ok()) return ErrnoStatus(errno, fmt::format("cannot make {}", path));
  // Space is taken now, so that a full disk shows before the bytes are fetched. Not all file systems can.
  if (::fallocate(fd_.get(), 0, 0, std::max<int64_t>(1, file.bytes)) != 0 && errno == ENOSPC) {
    return ErrnoStatus(ENOSPC, fmt::format("{} takes {} bytes", path, file.bytes));
  }
  return WriteBytes(std::as_bytes(std::span(file.header.data(), file.header.size())));
}

absl::Status CheckpointWriter::WriteBytes(std::span<const std::byte> bytes) {
  file_crc_ = ExtendCrc32c(file_crc_, bytes);
  if (options_.sink != nullptr) {
    offset_ += static_cast<int64_t>(bytes.size());
    return options_.sink->Append(bytes);
  }
  for (size_t done = 0; done < bytes.size();) {
    ssize_t n = ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done, offset_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, fmt::format("cannot write {}/{}", partial_, options_.layout.files[file_].name));
    done += static_cast<size_t>(n);
    offset_ += n;
  }
  return LimitDirtyPages();
}

// One window is on its way to storage while the next is filled. Errors show in the fsync at the file's end.
absl::Status CheckpointWriter::LimitDirtyPages() {
  while (offset_ - started_ >= kDirtyBytesMax) {
    ::sync_file_range(fd_.get(), started_, kDirtyBytesMax, SYNC_FILE_RANGE_WRITE);
    if (started_ > settled_) {
      ::sync_file_range(fd_.get(), settled_, started_ - settled_,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
      ::posix_fadvise(fd_.get(), settled_, started_ - settled_, POSIX_FADV_DONTNEED);
      settled_ = started_;
    }
    started_ += kDirtyBytesMax;
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::FinishFile() {
  const PlannedFile& file = options_.layout.files[file_];
  ARGOSY_CHECK(offset_ == file.bytes, "{} of {} bytes", offset_, file.bytes);
  if (options_.sink != nullptr) {
    ARGOSY_RETURN_IF_ERROR(options_.sink->End());
  } else if (::ftruncate(fd_.get(), file.bytes) != 0 || ::fsync(fd_.get()) != 0) {
    return ErrnoStatus(errno, fmt::format("cannot sync {}/{}", partial_, file.name));
  }
  fd_.Reset();
  open_ = false;
  manifest_.files[file.name] = {file.bytes, file_crc_};
  ++file_;
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Advance() {
  while (file_ < options_.layout.files.size()) {
    if (!open_) ARGOSY_RETURN_IF_ERROR(OpenFile());
    const std::vector<PlacedTensor>& tensors = options_.layout.files[file_].tensors;
    while (tensor_ < tensors.size() && byte_ == tensors[tensor_].spec.Bytes()) {
      manifest_.tensors[tensors[tensor_].spec.name] = tensor_crc_;
      tensor_crc_ = 0;
      byte_ = 0;
      ++tensor_;
    }
    if (tensor_ < tensors.size()) return absl::OkStatus();
    ARGOSY_RETURN_IF_ERROR(FinishFile());
  }
  return absl::OkStatus();
}

std::optional<CheckpointWriter::Position> CheckpointWriter::Next() const {
  if (file_ >= options_.layout.files.size()) return std::nullopt;
  return Position{&options_.layout.files[file_].tensors[tensor_], byte_};
}

absl::Status CheckpointWriter::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    std::optional<Position> next = Next();
    if (!next) return InvalidArgument("{} bytes more than the checkpoint {} holds", bytes.size(), options_.directory);
    int64_t left = next->tensor->spec.Bytes() - next->byte;
    std::span<const std::byte> piece = bytes.first(static_cast<size_t>(std::min<int64_t>(left, static_cast<int64_t>(bytes.size()))));
    ARGOSY_RETURN_IF_ERROR(WriteBytes(piece));
    tensor_crc_ = ExtendCrc32c(tensor_crc_, piece);
    byte_ += static_cast<int64_t>(piece.size());
    bytes = bytes.subspan(piece.size());
    ARGOSY_RETURN_IF_ERROR(Advance());
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Write(std::string_view tensor, int64_t byte_begin, std::span<const std::byte> bytes) {
  std::optional<Position> next = Next();
  if (bytes.empty()) return absl::OkStatus();
  if (!next || next->tensor->spec.name != tensor || next->byte != byte_begin) {
    return InvalidArgument("bytes from {} of \"{}\" came where {} was expected", byte_begin, tensor,
                           next ? fmt::format("byte {} of \"{}\"", next->byte, next->tensor->spec.name) : std::string("nothing more"));
  }
  if (static_cast<int64_t>(bytes.size()) > next->tensor->spec.Bytes() - next->byte) {
    return InvalidArgument("{} bytes from {} pass the end of \"{}\" ({} bytes)", bytes.size(), byte_begin, tensor, next->tensor->spec.Bytes());
  }
  return Append(bytes);
}

absl::StatusOr<std::string> CheckpointWriter::MakeFiles() {
  ARGOSY_CHECK(file_ == 0 && tensor_ == 0 && byte_ == 0, "MakeFiles comes before any byte");
  if (options_.sink != nullptr) return FailedPrecondition("{}: objects are not written by several", options_.directory);
  for (size_t i = 0; i < options_.layout.files.size(); ++i) {
    const PlannedFile& file = options_.layout.files[i];
    // The first is open; one without tensors is finished.
    if (i != file_ || !open_) {
      file_ = i;
      ARGOSY_RETURN_IF_ERROR(OpenFile());
    }
    if (::ftruncate(fd_.get(), file.bytes) != 0 || ::fsync(fd_.get()) != 0) return ErrnoStatus(errno, fmt::format("cannot make {}/{}", partial_, file.name));
    fd_.Reset();
    open_ = false;
  }
  file_ = 0;
  ARGOSY_RETURN_IF_ERROR(SyncDirectory(partial_));
  return partial_;
}

absl::Status CheckpointWriter::AddPieces(std::vector<WrittenPiece> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const WrittenPiece& a, const WrittenPiece& b) {
    return std::tie(a.file, a.tensor, a.begin) < std::tie(b.file, b.tensor, b.begin);
  });
  size_t next = 0;
  for (size_t i = 0; i < options_.layout.files.size(); ++i) {
    const PlannedFile& file = options_.layout.files[i];
    uint32_t file_crc = ExtendCrc32c(0, std::as_bytes(std::span(file.header.data(), file.header.size())));
    for (size_t t = 0; t < file.tensors.size(); ++t) {
      const TensorSpec& spec = file.tensors[t].spec;
      uint32_t crc = 0;
      int64_t at = 0;
      for (; next < pieces.size() && pieces[next].file == static_cast<int64_t>(i) && pieces[next].tensor == static_cast<int64_t>(t); ++next) {
        if (pieces[next].begin != at) {
          return Internal("of \"{}\" the bytes from {} on were written {}", spec.name, std::min(at, pieces[next].begin), pieces[next].begin > at ? "by nobody" : "twice");
        }
        crc = CombineCrc32c(crc, pieces[next].crc32c, pieces[next].bytes);
        at += pieces[next].bytes;
      }
      if (at != spec.Bytes()) return Internal("of \"{}\" {} of {} bytes were written", spec.name, at, spec.Bytes());
      manifest_.tensors[spec.name] = crc;
      file_crc = CombineCrc32c(file_crc, crc, at);
    }
    manifest_.files[file.name] = {file.bytes, file_crc};
  }
  if (next != pieces.size()) return Internal("a piece of file {}, tensor {} is of no file here", pieces[next].file, pieces[next].tensor);
  file_ = options_.layout.files.size();
  return absl::OkStatus();
}

absl::Status PieceWriter::Write(std::string_view tensor, int64_t byte_begin, std::span<const std::byte> bytes) {
  auto it = layout_.by_name.find(ToAbsl(tensor));
  if (it == layout_.by_name.end()) return InvalidArgument("the checkpoint has no tensor \"{}\"", tensor);
  const auto [file, index] = it->second;
  const PlacedTensor& placed = layout_.files[file].tensors[index];
  if (byte_begin < 0 || byte_begin + static_cast<int64_t>(bytes.size()) > placed.spec.Bytes()) {
    return InvalidArgument("{} bytes from {} pass the end of \"{}\" ({} bytes)", bytes.size(), byte_begin, tensor, placed.spec.Bytes());
  }
  const std::string path = (fs::path(directory_) / layout_.files[file].name).string();
  if (!fd_.ok() || file != file_) {
    ARGOSY_RETURN_IF_ERROR(FinishFile());
    fd_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd_.ok()) return ErrnoStatus(errno, fmt::format("cannot open {}, which must be on storage that all ranks' nodes share", path));
    file_ = file;
  }
  for (size_t done = 0; done < bytes.size();) {
    ssize_t n = ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done, placed.extent.begin + byte_begin + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, fmt::format("cannot write {}", path));
    done += static_cast<size_t>(n);
  }
  unsettled_ += static_cast<int64_t>(bytes.size());
  if (unsettled_ >= kDirtyBytesMax) {
    // Those before this round are waited for.
    ::sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE);
    ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
    unsettled_ = 0;
  }
  const uint32_t crc = ExtendCrc32c(0, bytes);
  WrittenPiece* last = pieces_.empty() ? nullptr : &pieces_.back();
  if (last != nullptr && last->file == static_cast<int64_t>(file) && last->tensor == static_cast<int64_t>(index) && last->begin + last->bytes == byte_begin) {
    last->crc32c = CombineCrc32c(last->crc32c, crc, static_cast<int64_t>(bytes.size()));
    last->bytes += static_cast<int64_t>(bytes.size());
  } else {
    pieces_.push_back({static_cast<int64_t>(file), static_cast<int64_t>(index), byte_begin, static_cast<int64_t>(bytes.size()), crc});
  }
  return absl::OkStatus();
}

absl::Status PieceWriter::FinishFile() {
  if (!fd_.ok()) return absl::OkStatus();
  if (::fsync(fd_.get()) != 0) return ErrnoStatus(errno, fmt::format("cannot sync {}/{}", directory_, layout_.files[file_].name));
  // Who verifies may be on this host: what it reads must come from storage.
  ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
  fd_.Reset();
  unsettled_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<WrittenPiece>> PieceWriter::Finish() {
  ARGOSY_RETURN_IF_ERROR(FinishFile());
  return std::move(pieces_);
}

absl::Status CheckpointWriter::AddFile(std::string_view name, std::string_view content) {
  ARGOSY_RETURN_IF_ERROR(CheckPlainName(name));
  for (const PlannedFile& file : options_.layout.files) {
    if (file.name == name) return InvalidArgument("\"{}\" holds weights: it cannot be written as another file", name);
  }
  if (options_.sink != nullptr) ARGOSY_RETURN_IF_ERROR(options_.sink->Put(name, content));
  else ARGOSY_RETURN_IF_ERROR(WriteFileAtomic((fs::path(partial_) / name).string(), content));  // synced by Commit
  manifest_.files[std::string(name)] = {static_cast<int64_t>(content.size()),
                                        ExtendCrc32c(0, std::as_bytes(std::span(content.data(), content.size())))};
  return absl::OkStatus();
}

absl::StatusOr<bool> CheckpointWriter::CopyFile(const std::string& source) {
  absl::StatusOr<std::string> content = ReadFile(source);
  if (absl::IsNotFound(content.status())) return false;
  if (!content.ok()) return content.status();
  ARGOSY_RETURN_IF_ERROR(AddFile(fs::path(source).filename().string(), *content));
  return true;
}

absl::Status CheckpointWriter::Commit() {
  if (committed_) return FailedPrecondition("the checkpoint {} is already committed", options_.directory);
  if (std::optional<Position> next = Next()) {
    return FailedPrecondition("the checkpoint {} lacks bytes: byte {} of \"{}\" in {} is next", options_.directory, next->byte,
                              next->tensor->spec.name, options_.layout.files[file_].name);
  }
  if (!options_.layout.index_json.empty()) {
    std::string_view stem = options_.layout.files.front().name;
    stem = stem.substr(0, stem.find("-00001-of-"));
    ARGOSY_RETURN_IF_ERROR(AddFile(fmt::format("{}.safetensors.index.json", stem), options_.layout.index_json));
  }
  if (options_.sink != nullptr) {
    ARGOSY_RETURN_IF_ERROR(options_.sink->Commit(manifest_.ToJson()));
    committed_ = true;
    return absl::OkStatus();
  }
  if (options_.verify) {
    for (size_t i = 0; i < options_.layout.files.size(); ++i) ARGOSY_RETURN_IF_ERROR(VerifyFile(i));
  }
  ARGOSY_RETURN_IF_ERROR(WriteFileAtomic((fs::path(partial_) / kManifestName).string(), manifest_.ToJson()));
  ARGOSY_RETURN_IF_ERROR(SyncSmallFiles());
  ARGOSY_RETURN_IF_ERROR(SyncDirectory(partial_));
  return Publish();
}

absl::Status CheckpointWriter::SyncSmallFiles() const {
  auto sync = [&](const std::string& name) -> absl::Status {
    const std::string path = (fs::path(partial_) / name).string();
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.ok() || ::fsync(fd.get()) != 0) return ErrnoStatus(errno, fmt::format("cannot sync {}", path));
    return absl::OkStatus();
  };
  for (const auto& [name, file] : manifest_.files) {
    const bool synced = std::any_of(options_.layout.files.begin(), options_.layout.files.end(),
                                    [&](const PlannedFile& planned) { return planned.name == name; });
    if (!synced) ARGOSY_RETURN_IF_ERROR(sync(name));
  }
  return sync(kManifestName);
}

absl::Status CheckpointWriter::VerifyFile(size_t index) const {
  const PlannedFile& file = options_.layout.files[index];
  const std::string path = (fs::path(partial_) / file.name).string();
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) return ErrnoStatus(errno, fmt::format("cannot open {}", path));
  // Pages that were synced are dropped, so that what is read comes from storage.
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  std::vector<std::byte> buffer(kVerifyBufferBytes);
  auto checksum = [&](int64_t begin, int64_t end) -> absl::StatusOr<uint32_t> {
    uint32_t crc = 0;
    while (begin < end) {
      size_t want = static_cast<size_t>(std::min<int64_t>(end - begin, static_cast<int64_t>(buffer.size())));
      ssize_t n = ::pread(fd.get(), buffer.data(), want, begin);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, fmt::format("cannot read back {}", path));
      if (n == 0) return absl::DataLossError(ToAbsl(fmt::format("{} ends at byte {} of {}", path, begin, file.bytes)));
      crc = ExtendCrc32c(crc, std::span<const std::byte>(buffer.data(), static_cast<size_t>(n)));
      begin += n;
    }
    return crc;
  };
  ARGOSY_ASSIGN_OR_RETURN(uint32_t header, checksum(0, static_cast<int64_t>(file.header.size())));
  if (header != ExtendCrc32c(0, std::as_bytes(std::span(file.header.data(), file.header.size())))) {
    return absl::DataLossError(ToAbsl(fmt::format("{}: the header read back differs from what was written", path)));
  }
  for (const PlacedTensor& tensor : file.tensors) {
    ARGOSY_ASSIGN_OR_RETURN(uint32_t crc, checksum(tensor.extent.begin, tensor.extent.end));
    if (crc != manifest_.tensors.at(tensor.spec.name)) {
      return absl::DataLossError(
          ToAbsl(fmt::format("{}: tensor \"{}\" read back differs from what was written", path, tensor.spec.name)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Publish() {
  const std::string& directory = options_.directory;
  const std::string parent = fs::path(directory).parent_path().string();
  // Again: much may have happened since Create.
  ARGOSY_RETURN_IF_ERROR(CheckReplaceable(directory));
  std::error_code error;
  std::string replaced;  // where the previous checkpoint is now
  if (!fs::exists(directory, error)) {
    if (::rename(partial_.c_str(), directory.c_str()) != 0) return ErrnoStatus(errno, fmt::format("cannot rename {} to {}", partial_, directory));
  } else if (::renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, directory.c_str(), RENAME_EXCHANGE) == 0) {
    replaced = partial_;
  } else if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) {
    // No exchange here (NFS): between two renames the previous one is whole under another name, which Create brings back.
    replaced = Sibling(directory, "old");
    fs::remove_all(replaced, error);
    if (::rename(directory.c_str(), replaced.c_str()) != 0) return ErrnoStatus(errno, fmt::format("cannot rename {}", directory));
    if (::rename(partial_.c_str(), directory.c_str()) != 0) {
      absl::Status status = ErrnoStatus(errno, fmt::format("cannot rename {} to {}", partial_, directory));
      ::rename(replaced.c_str(), directory.c_str());
      return status;
    }
  } else {
    return ErrnoStatus(errno, fmt::format("cannot exchange {} and {}", partial_, directory));
  }
  committed_ = true;
  ARGOSY_RETURN_IF_ERROR(SyncDirectory(parent));
  if (!replaced.empty()) {
    fs::remove_all(replaced, error);
    if (error) spdlog::warn("the previous checkpoint could not be removed from {}: {}", replaced, error.message());
  }
  return absl::OkStatus();
}

std::span<const char* const> TokenizerFileNames() { return kCopiedFiles; }

absl::Status AddModelFiles(CheckpointWriter& writer, const ModelFiles& files) {
  if (files.config != nullptr) ARGOSY_RETURN_IF_ERROR(writer.AddFile("config.json", files.config->ToJson(files.changes)));
  bool has_generation_config = files.contents.contains("generation_config.json");
  if (!files.source_directory.empty()) {
    const fs::path source(files.source_directory);
    if (!has_generation_config && files.config != nullptr) {
      ARGOSY_ASSIGN_OR_RETURN(has_generation_config, writer.CopyFile((source / "generation_config.json").string()));
    }
    for (const char* name : kCopiedFiles) {
      if (files.contents.contains(name)) continue;
      if (absl::StatusOr<bool> copied = writer.CopyFile((source / name).string()); !copied.ok()) return copied.status();
    }
  }
  for (const auto& [name, content] : files.contents) ARGOSY_RETURN_IF_ERROR(writer.AddFile(name, content));
  if (!has_generation_config && files.config != nullptr) {
    ARGOSY_RETURN_IF_ERROR(writer.AddFile("generation_config.json", files.config->GenerationConfigJson()));
  }
  return absl::OkStatus();
}

}  // namespace argosy::train
