#include "train/data/token_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "train/checkpoint/crc32c.h"

namespace argosy::train {
namespace {

using Json = nlohmann::json;

// The file: tokens, begins and is_target as they are in memory, each at a multiple of 64 bytes; then JSON that says what they are, its
// length in 8 bytes, its CRC-32C in 8, and the magic. What is told last can be written without knowing it before.
constexpr char kMagic[] = "ARGTOK01";
constexpr size_t kTail = 24;
constexpr size_t kBuffer = 1 << 20;

uint32_t ChecksumOf(std::string_view text) { return ExtendCrc32c(0, std::as_bytes(std::span(text))); }

class File {
 public:
  explicit File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  static absl::StatusOr<File> Open(const std::string& path, int flags) {
    int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
    if (fd < 0) return ErrnoStatus(errno, path);
    return File(fd, path);
  }
  // A file without a name in the folder.
  static absl::StatusOr<File> Scratch(const std::string& folder) {
    std::string name = folder + "/.scratch-XXXXXX";
    int fd = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd < 0) return ErrnoStatus(errno, folder);
    ::unlink(name.c_str());
    return File(fd, folder);
  }

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

  absl::StatusOr<uint64_t> Size() const {
    struct stat info;
    if (::fstat(fd_, &info) != 0) return ErrnoStatus(errno, path_);
    return static_cast<uint64_t>(info.st_size);
  }
  absl::Status Write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return ErrnoStatus(n < 0 ? errno : ENOSPC, path_);
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return absl::OkStatus();
  }
  absl::Status ReadAt(uint64_t offset, std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      ssize_t n = ::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, path_);
      if (n == 0) return MakeStatus(absl::StatusCode::kDataLoss, "{}: ends at byte {}", path_, offset);
      bytes = bytes.subspan(static_cast<size_t>(n));
      offset += static_cast<uint64_t>(n);
    }
    return absl::OkStatus();
  }
  // Of bytes [begin, begin + size), through one buffer.
  absl::StatusOr<uint32_t> Checksum(uint64_t begin, uint64_t size) const {
    std::vector<std::byte> buffer(std::min<uint64_t>(size, kBuffer));
    uint32_t crc = 0;
    for (uint64_t at = 0; at < size; at += buffer.size()) {
      std::span<std::byte> part(buffer.data(), std::min<uint64_t>(buffer.size(), size - at));
      ARGOSY_RETURN_IF_ERROR(ReadAt(begin + at, part));
      crc = ExtendCrc32c(crc, part);
    }
    return crc;
  }

 private:
  int fd_;
  std::string path_;
};

// One of the arrays on its way to disk.
class Stream {
 public:
  explicit Stream(File file) : file_(std::move(file)) { buffer_.reserve(kBuffer); }

  template <class T>
  absl::Status Add(std::span<const T> values) {
    std::span<const std::byte> bytes = std::as_bytes(values);
    size_ += bytes.size();
    crc_ = ExtendCrc32c(crc_, bytes);
    while (!bytes.empty()) {
      size_t count = std::min(bytes.size(), kBuffer - buffer_.size());
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
      bytes = bytes.subspan(count);
      if (buffer_.size() == kBuffer) ARGOSY_RETURN_IF_ERROR(Flush());
    }
    return absl::OkStatus();
  }
  absl::Status Flush() {
    ARGOSY_RETURN_IF_ERROR(file_.Write(buffer_));
    buffer_.clear();
    return absl::OkStatus();
  }
  uint64_t size() const { return size_; }
  uint32_t crc() const { return crc_; }
  File& file() { return file_; }

 private:
  File file_;
  std::vector<std::byte> buffer_;
  uint64_t size_ = 0;
  uint32_t crc_ = 0;
};

// What a cache file is made from.
struct Source {
  uint64_t bytes = 0;
  uint32_t content = 0, tokenizer = 0;
  std::string options;
};

std::string Describe(const RowOptions& o) {
  return fmt::format("ctx_len {}, loss_on {}, answer_marker {}, prompt_type {}, long_rows {}, special tokens {}, EOS {}, rows_max {}, skip bad rows {}", o.ctx_len,
                     static_cast<int>(o.loss_on), Json(o.answer_marker).dump(), static_cast<int>(o.prompt_type), static_cast<int>(o.long_rows), o.add_special_tokens,
                     o.append_eos, o.rows_max, o.skip_bad_rows);
}

absl::StatusOr<Source> SourceOf(const std::string& path, const Tokenizer& tokenizer, const RowOptions& options) {
  ARGOSY_ASSIGN_OR_RETURN(File file, File::Open(path, O_RDONLY));
  Source source{.options = Describe(options)};
  ARGOSY_ASSIGN_OR_RETURN(source.bytes, file.Size());
  ARGOSY_ASSIGN_OR_RETURN(source.content, file.Checksum(0, source.bytes));
  source.tokenizer = ChecksumOf(tokenizer.Identity());
  return source;
}

struct Section {
  uint64_t offset = 0, bytes = 0;
  uint32_t crc = 0;
};
constexpr const char* kSections[] = {"tokens", "begins", "is_target"};

Json ToJson(const SampleCounts& c) {
  return {{"rows", c.rows}, {"cut", c.cut}, {"dropped", c.dropped}, {"split", c.split}, {"empty", c.empty}, {"bad", c.bad}, {"first_bad", c.first_bad},
          {"tokens_cut", c.tokens_cut}, {"tokens_dropped", c.tokens_dropped}, {"target_tokens", c.target_tokens}};
}

struct Opened {
  SampleSet samples;
  uint32_t id = 0;
  Source source;
};

// Maps a cache file after comparing all of it with its checksums.
absl::StatusOr<Opened> OpenFile(const std::string& path) {
  ARGOSY_ASSIGN_OR_RETURN(File file, File::Open(path, O_RDONLY));
  ARGOSY_ASSIGN_OR_RETURN(uint64_t size, file.Size());
  auto damaged = [&](std::string_view what) { return MakeStatus(absl::StatusCode::kDataLoss, "{}: {}", path, what); };
  if (size < kTail) return damaged("is cut short");
  std::array<std::byte, kTail> tail;
  ARGOSY_RETURN_IF_ERROR(file.ReadAt(size - kTail, tail));
  uint64_t length, id;
  std::memcpy(&length, tail.data(), 8);
  std::memcpy(&id, tail.data() + 8, 8);
  if (std::memcmp(tail.data() + 16, kMagic, 8) != 0) return damaged("is cut short, or is no token cache");
  if (length > size - kTail || length > (64 << 20)) return damaged("says that it is longer than it is");
  std::string text(length, '\0');
  ARGOSY_RETURN_IF_ERROR(file.ReadAt(size - kTail - length, std::as_writable_bytes(std::span(text))));
  if (ChecksumOf(text) != id) return damaged("its description is damaged");
  Json json = Json::parse(text, nullptr, false);
  // The checksum holds: a description of another form is another version's.
  Opened opened{.id = static_cast<uint32_t>(id)};
  Section sections[3];
  try {
    const Json& source = json.at("source");
    opened.source = {.bytes = source.at("bytes"), .content = source.at("crc32c"), .tokenizer = source.at("tokenizer"), .options = source.at("options")};
    const Json& c = json.at("counts");
    opened.samples.counts = {.rows = c.at("rows"), .cut = c.at("cut"), .dropped = c.at("dropped"), .split = c.at("split"), .empty = c.at("empty"), .bad = c.at("bad"),
                             .first_bad = c.at("first_bad"), .tokens_cut = c.at("tokens_cut"), .tokens_dropped = c.at("tokens_dropped"),
                             .target_tokens = c.at("target_tokens")};
    for (int i = 0; i < 3; ++i) {
      const Json& s = json.at("sections").at(kSections[i]);
      sections[i] = {.offset = s.at("offset"), .bytes = s.at("bytes"), .crc = s.at("crc32c")};
    }
  } catch (const Json::exception& error) {
    return damaged(error.what());
  }
  for (int i = 0; i < 3; ++i) {
    const Section& s = sections[i];
    if (s.offset % 64 != 0 || s.offset > size || s.bytes > size - s.offset) return damaged(fmt::format("\"{}\" lies outside the file", kSections[i]));
    ARGOSY_ASSIGN_OR_RETURN(uint32_t crc, file.Checksum(s.offset, s.bytes));
    if (crc != s.crc) return damaged(fmt::format("\"{}\" is damaged", kSections[i]));
  }
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (mapped == MAP_FAILED) return ErrnoStatus(errno, path);
  std::shared_ptr<const void> owner(mapped, [size](const void* at) { ::munmap(const_cast<void*>(at), size); });
  const auto* base = static_cast<const std::byte*>(mapped);
  SampleSet& set = opened.samples;
  set.tokens = {reinterpret_cast<const int32_t*>(base + sections[0].offset), sections[0].bytes / sizeof(int32_t)};
  set.begins = {reinterpret_cast<const int64_t*>(base + sections[1].offset), sections[1].bytes / sizeof(int64_t)};
  set.is_target = {reinterpret_cast<const uint8_t*>(base + sections[2].offset), sections[2].bytes};
  set.owner = std::move(owner);
  if (set.begins.empty() || set.begins.back() != static_cast<int64_t>(set.tokens.size()) || set.is_target.size() != set.tokens.size()) {
    return damaged("its parts do not belong together");
  }
  return opened;
}

class CacheSink : public SampleSink {
 public:
  CacheSink(File tokens, File begins, File is_target) : tokens_(std::move(tokens)), begins_(std::move(begins)), is_target_(std::move(is_target)) {}

  absl::Status Begin() { return begins_.Add(std::span<const int64_t>(&end_, 1)); }
  absl::Status Add(std::span<const int32_t> ids, std::span<const uint8_t> is_target) override {
    end_ += static_cast<int64_t>(ids.size());
    ARGOSY_RETURN_IF_ERROR(tokens_.Add(ids));
    ARGOSY_RETURN_IF_ERROR(is_target_.Add(is_target));
    return begins_.Add(std::span<const int64_t>(&end_, 1));
  }

  // Brings the arrays together behind the tokens, and tells what they are.
  absl::Status Finish(const Source& source, const SampleCounts& counts) {
    Json sections;
    uint64_t at = 0;
    Stream* streams[] = {&tokens_, &begins_, &is_target_};
    std::vector<std::byte> buffer(kBuffer);
    for (int i = 0; i < 3; ++i) {
      Stream& stream = *streams[i];
      ARGOSY_RETURN_IF_ERROR(stream.Flush());
      sections[kSections[i]] = {{"offset", at}, {"bytes", stream.size()}, {"crc32c", stream.crc()}};
      for (uint64_t from = 0; i > 0 && from < stream.size(); from += buffer.size()) {
        std::span<std::byte> part(buffer.data(), std::min<uint64_t>(buffer.size(), stream.size() - from));
        ARGOSY_RETURN_IF_ERROR(stream.file().ReadAt(from, part));
        ARGOSY_RETURN_IF_ERROR(tokens_.file().Write(part));
      }
      const uint64_t padding = (64 - stream.size() % 64) % 64;
      const std::vector<std::byte> zeros(padding);
      ARGOSY_RETURN_IF_ERROR(tokens_.file().Write(zeros));
      at += stream.size() + padding;
    }
    Json json{{"source", {{"bytes", source.bytes}, {"crc32c", source.content}, {"tokenizer", source.tokenizer}, {"options", source.options}}},
              {"counts", ToJson(counts)}, {"sections", sections}};
    std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
    uint64_t length = text.size(), id = ChecksumOf(text);
    text.append(reinterpret_cast<const char*>(&length), 8).append(reinterpret_cast<const char*>(&id), 8).append(kMagic, 8);
    ARGOSY_RETURN_IF_ERROR(tokens_.file().Write(std::as_bytes(std::span(text))));
    if (::fsync(tokens_.file().fd()) != 0) return ErrnoStatus(errno, tokens_.file().path());
    return absl::OkStatus();
  }

 private:
  Stream tokens_, begins_, is_target_;
  int64_t end_ = 0;
};

absl::Status MakeFile(const std::string& path, const std::string& data_path, const Tokenizer& tokenizer, const RowOptions& options, const Source& source) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::string temporary = path + ".XXXXXX";
  int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, temporary);
  auto make = [&]() -> absl::Status {
    File tokens(fd, temporary);
    ARGOSY_ASSIGN_OR_RETURN(File begins, File::Scratch(folder));
    ARGOSY_ASSIGN_OR_RETURN(File is_target, File::Scratch(folder));
    CacheSink sink(std::move(tokens), std::move(begins), std::move(is_target));
    ARGOSY_RETURN_IF_ERROR(sink.Begin());
    ARGOSY_ASSIGN_OR_RETURN(SampleCounts counts, ReadSamples(data_path, tokenizer, options, sink));
    ARGOSY_RETURN_IF_ERROR(sink.Finish(source, counts));
    if (::chmod(temporary.c_str(), 0644) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) return ErrnoStatus(errno, path);
    return absl::OkStatus();
  };
  absl::Status status = make();
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

}  // namespace

absl::StatusOr<CachedSamples> ReadSamplesCached(const std::string& path, const Tokenizer& tokenizer, const RowOptions& options, const std::string& folder) {
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(folder));
  ARGOSY_ASSIGN_OR_RETURN(Source source, SourceOf(path, tokenizer, options));
  std::error_code error;
  const std::string whole = std::filesystem::weakly_canonical(path, error).string();
  CachedSamples cached{.path = fmt::format("{}/{}-{:08x}.tokens", folder, std::filesystem::path(path).stem().string(),
                                           ChecksumOf(whole.empty() ? path : whole))};
  absl::StatusOr<Opened> opened = OpenFile(cached.path);
  if (opened.ok()) {
    const Source& was = opened->source;
    std::string why = was.bytes != source.bytes || was.content != source.content ? fmt::format("{} changed", path)
                      : was.tokenizer != source.tokenizer                        ? "the tokenizer changed"
                      : was.options != source.options ? fmt::format("options changed (were: {})", was.options)
                                                      : "";
    cached.note = why.empty() ? "reused" : "made again: " + why;
  } else if (opened.status().code() == absl::StatusCode::kNotFound) {
    cached.note = "made";
  } else {
    cached.note = "made again: " + Message(opened.status());
  }
  if (cached.note != "reused") {
    opened = absl::NotFoundError("");   // the mapping goes before the file does
    ARGOSY_RETURN_IF_ERROR(MakeFile(cached.path, path, tokenizer, options, source));
    opened = OpenFile(cached.path);
    ARGOSY_RETURN_IF_ERROR(opened.status());
  }
  cached.samples = std::move(opened->samples);
  cached.id = opened->id;
  return cached;
}

absl::StatusOr<SampleSet> OpenTokenCache(const std::string& path, uint32_t id) {
  ARGOSY_ASSIGN_OR_RETURN(Opened opened, OpenFile(path));
  if (opened.id != id) return FailedPrecondition("{}: is another run's", path);
  return std::move(opened.samples);
}

}  // namespace argosy::train
