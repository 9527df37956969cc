#include "train/checkpoint/s3_checkpoint.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "runtime/base/status.h"
#include "spdlog/spdlog.h"
#include "train/checkpoint/crc32c.h"
#include "train/checkpoint/manifest.h"

namespace argosy::train {
namespace {

constexpr int64_t kPartBytes = 8 << 20;   // S3 wants at least 5 MiB
constexpr int64_t kPartsMax = 10'000;     // of an upload, by S3
constexpr int kConnections = 4;
constexpr int kPartsInFlight = 4;         // beside the one that is being filled
constexpr char kChecksumHeader[] = "x-amz-checksum-crc32c";

std::string ChecksumText(uint32_t crc) {
  const char bytes[] = {static_cast<char>(crc >> 24), static_cast<char>(crc >> 16), static_cast<char>(crc >> 8), static_cast<char>(crc)};
  return absl::Base64Escape(absl::string_view(bytes, sizeof bytes));
}

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

// Every key below `prefix`.
absl::StatusOr<std::vector<std::string>> ListKeys(S3Client& client, const std::string& prefix) {
  std::vector<std::string> keys;
  std::string token;
  do {
    S3Request request{.query = {{"list-type", "2"}, {"prefix", prefix}}};
    if (!token.empty()) request.query.emplace_back("continuation-token", token);
    ARGOSY_ASSIGN_OR_RETURN(S3Response response, client.Send(request));
    for (std::string& key : XmlTexts(response.body, "Key")) keys.push_back(std::move(key));
    token = XmlText(response.body, "IsTruncated") == "true" ? XmlText(response.body, "NextContinuationToken") : "";
  } while (!token.empty());
  return keys;
}

absl::Status DeleteKey(S3Client& client, const std::string& key) { return client.Send({.method = "DELETE", .key = key}, {200, 204, 404}).status(); }

class S3Sink final : public ObjectSink {
 public:
  S3Sink(S3Client& client, S3Location directory) : client_(client), directory_(std::move(directory)) {
    for (int i = 0; i < kConnections; ++i) threads_.emplace_back([this] { Upload(); });
  }

  ~S3Sink() override {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
      if (!committed_ && status_.ok()) status_ = absl::CancelledError("the checkpoint was given up");
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    if (committed_) return;
    for (const File& file : files_) {
      // Parts that are not aborted are paid for and seen by nobody.
      absl::Status status = file.completed ? DeleteKey(client_, directory_.Key(file.name))
                                           : client_.Send({.method = "DELETE", .key = directory_.Key(file.name), .query = {{"uploadId", file.upload}}},
                                                          {200, 204, 404}).status();
      if (!status.ok()) spdlog::warn("what was sent of {} could not be taken back: {}", directory_.Url(file.name), Message(status));
    }
    for (const std::string& name : put_) (void)DeleteKey(client_, directory_.Key(name));
  }

  // Uploads that a run left behind when it was killed.
  absl::Status AbortOld() {
    S3Request list{.query = {{"uploads", ""}, {"prefix", directory_.Key("") + "/"}}};
    ARGOSY_ASSIGN_OR_RETURN(S3Response response, client_.Send(list));
    for (const std::string& upload : XmlTexts(response.body, "Upload")) {
      S3Request abort{.method = "DELETE", .key = XmlText(upload, "Key"), .query = {{"uploadId", XmlText(upload, "UploadId")}}};
      ARGOSY_RETURN_IF_ERROR(client_.Send(abort, {200, 204, 404}).status());
    }
    return absl::OkStatus();
  }

  absl::Status Begin(std::string_view name, int64_t bytes) override {
    S3Request request{.method = "POST", .key = directory_.Key(name), .query = {{"uploads", ""}}, .headers = {{"x-amz-checksum-algorithm", "CRC32C"}}};
    ARGOSY_ASSIGN_OR_RETURN(S3Response response, client_.Send(request));
    std::string upload = XmlText(response.body, "UploadId");
    if (upload.empty()) return Internal("S3 names no upload of {}", directory_.Url(name));
    std::lock_guard lock(mutex_);
    files_.push_back({.name = std::string(name), .upload = std::move(upload), .bytes = bytes});
    constexpr int64_t kMiB = 1 << 20;
    part_bytes_ = std::max(kPartBytes, (bytes / kPartsMax + kMiB) / kMiB * kMiB);
    filling_.clear();
    return absl::OkStatus();
  }

  absl::Status Append(std::span<const std::byte> bytes) override {
    File& file = files_.back();
    file.crc = ExtendCrc32c(file.crc, bytes);
    while (!bytes.empty()) {
      const size_t count = std::min(bytes.size(), static_cast<size_t>(part_bytes_) - filling_.size());
      filling_.insert(filling_.end(), bytes.begin(), bytes.begin() + static_cast<int64_t>(count));
      bytes = bytes.subspan(count);
      if (static_cast<int64_t>(filling_.size()) == part_bytes_) ARGOSY_RETURN_IF_ERROR(SendPart());
    }
    return absl::OkStatus();
  }

  absl::Status End() override { return filling_.empty() && !files_.back().parts.empty() ? absl::OkStatus() : SendPart(); }

  absl::Status Put(std::string_view name, std::string_view content) override {
    small_[std::string(name)] = std::string(content);
    return absl::OkStatus();
  }

  absl::Status Commit(std::string_view manifest) override {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return in_flight_ == 0 || !status_.ok(); });
      ARGOSY_RETURN_IF_ERROR(status_);
    }
    // From here on what stood in this place before is no checkpoint.
    ARGOSY_RETURN_IF_ERROR(DeleteKey(client_, directory_.Key(kManifestName)));
    for (File& file : files_) {
      ARGOSY_RETURN_IF_ERROR(Complete(file));
      file.completed = true;
      const bool confirmed = std::all_of(file.parts.begin(), file.parts.end(), [](const Part& part) { return part.confirmed; });
      ARGOSY_RETURN_IF_ERROR(Verify(file, confirmed));
    }
    for (const auto& [name, content] : small_) ARGOSY_RETURN_IF_ERROR(PutNow(name, content));
    ARGOSY_RETURN_IF_ERROR(PutNow(kManifestName, manifest));
    committed_ = true;
    return absl::OkStatus();
  }

 private:
  struct Part {
    std::string etag;
    uint32_t crc = 0;
    bool confirmed = false;   // the server has computed the same
  };
  struct File {
    std::string name, upload;
    int64_t bytes = 0;
    uint32_t crc = 0;
    std::vector<Part> parts;
    bool completed = false;
  };
  struct Task {
    size_t file = 0;
    size_t part = 0;
    std::vector<std::byte> bytes;
  };

  // Waits while too many are on their way.
  absl::Status SendPart() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return in_flight_ < kPartsInFlight || !status_.ok(); });
    ARGOSY_RETURN_IF_ERROR(status_);
    files_.back().parts.emplace_back();
    tasks_.push_back({files_.size() - 1, files_.back().parts.size() - 1, std::exchange(filling_, {})});
    filling_.reserve(static_cast<size_t>(part_bytes_));
    ++in_flight_;
    changed_.notify_all();
    return absl::OkStatus();
  }

  void Upload() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !tasks_.empty() || ended_; });
      if (tasks_.empty()) return;
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      if (status_.ok()) {
        S3Request request{.method = "PUT", .key = directory_.Key(files_[task.file].name),
                          .query = {{"partNumber", fmt::to_string(task.part + 1)}, {"uploadId", files_[task.file].upload}}, .body = task.bytes};
        lock.unlock();
        Part part{.crc = ExtendCrc32c(0, task.bytes)};
        const std::string checksum = ChecksumText(part.crc);
        request.headers[kChecksumHeader] = checksum;
        absl::StatusOr<S3Response> response = client_.Send(request);
        absl::Status status = response.status();
        if (response.ok()) {
          part.etag = response->headers["etag"];
          auto said = response->headers.find(kChecksumHeader);
          part.confirmed = said != response->headers.end();
          if (part.confirmed && said->second != checksum) {
            status = absl::DataLossError(ToAbsl(fmt::format("part {} of {} arrived with checksum {}, not {}", task.part + 1, request.key,
                                                            said->second, checksum)));
          }
        }
        task.bytes = {};
        lock.lock();
        files_[task.file].parts[task.part] = std::move(part);
        if (!status.ok() && status_.ok()) status_ = status;
      }
      --in_flight_;
      changed_.notify_all();
    }
  }

  absl::Status Complete(const File& file) {
    std::string xml = "<CompleteMultipartUpload>";
    for (size_t i = 0; i < file.parts.size(); ++i) {
      xml += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag>", i + 1, XmlEscaped(file.parts[i].etag));
      if (file.parts[i].confirmed) xml += fmt::format("<ChecksumCRC32C>{}</ChecksumCRC32C>", ChecksumText(file.parts[i].crc));
      xml += "</Part>";
    }
    xml += "</CompleteMultipartUpload>";
    S3Request request{.method = "POST", .key = directory_.Key(file.name), .query = {{"uploadId", file.upload}}, .body = BytesOf(xml)};
    // No such upload: it was completed by an attempt whose answer was lost. Verify looks at what is there.
    return client_.Send(request, {200, 404}).status();
  }

  absl::Status Verify(const File& file, bool confirmed) {
    const std::string key = directory_.Key(file.name);
    ARGOSY_ASSIGN_OR_RETURN(S3Response head, client_.Send({.method = "HEAD", .key = key}));
    int64_t bytes = -1;
    if (!absl::SimpleAtoi(head.headers["content-length"], &bytes) || bytes != file.bytes) {
      return absl::DataLossError(ToAbsl(fmt::format("{} has {} bytes of {} in S3", directory_.Url(file.name), head.headers["content-length"], file.bytes)));
    }
    if (confirmed) return absl::OkStatus();
    uint32_t crc = 0;
    for (int64_t at = 0; at < bytes; at += kPartBytes) {
      S3Request request{.key = key, .headers = {{"range", fmt::format("bytes={}-{}", at, std::min(bytes, at + kPartBytes) - 1)}}};
      ARGOSY_ASSIGN_OR_RETURN(S3Response part, client_.Send(request, {200, 206}));
      crc = ExtendCrc32c(crc, BytesOf(part.body));
    }
    if (crc == file.crc) return absl::OkStatus();
    return absl::DataLossError(ToAbsl(fmt::format("{} read back from S3 differs from what was sent", directory_.Url(file.name))));
  }

  absl::Status PutNow(const std::string& name, std::string_view content) {
    put_.push_back(name);
    S3Request request{.method = "PUT", .key = directory_.Key(name), .headers = {{kChecksumHeader, ChecksumText(ExtendCrc32c(0, BytesOf(content)))}},
                      .body = BytesOf(content)};
    return client_.Send(request).status();
  }

  S3Client& client_;
  const S3Location directory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<File> files_;           // addresses stay
  std::deque<Task> tasks_;
  int in_flight_ = 0;
  absl::Status status_;              // of the first part that failed
  bool ended_ = false, committed_ = false;
  int64_t part_bytes_ = kPartBytes;
  std::vector<std::byte> filling_;
  std::map<std::string, std::string> small_;
  std::vector<std::string> put_;
  std::vector<std::thread> threads_;
};

absl::StatusOr<CheckpointManifest> ReadManifest(S3Client& client, const S3Location& directory) {
  ARGOSY_ASSIGN_OR_RETURN(S3Response response, client.Send({.key = directory.Key(kManifestName)}));
  return CheckpointManifest::Parse(response.body);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ObjectSink>> SendToS3(S3Client& client, S3Location directory) {
  auto sink = std::make_unique<S3Sink>(client, std::move(directory));
  ARGOSY_RETURN_IF_ERROR(sink->AbortOld());
  return std::unique_ptr<ObjectSink>(std::move(sink));
}

absl::StatusOr<std::vector<SavedCheckpoint>> ListS3Checkpoints(S3Client& client, const S3Location& parent) {
  const std::string below = parent.prefix.empty() ? "" : parent.prefix + "/", end = fmt::format("/{}", kManifestName);
  ARGOSY_ASSIGN_OR_RETURN(std::vector<std::string> keys, ListKeys(client, below));
  std::vector<SavedCheckpoint> found;
  for (const std::string& key : keys) {
    if (!key.ends_with(end)) continue;
    const S3Location directory{parent.bucket, key.substr(0, key.size() - end.size())};
    if (directory.prefix.find('/', below.size()) != std::string::npos) continue;
    absl::StatusOr<CheckpointManifest> manifest = ReadManifest(client, directory);
    if (absl::IsNotFound(manifest.status())) continue;   // removed meanwhile
    if (!manifest.ok()) return manifest.status();
    std::string url = directory.Url();
    found.push_back({std::move(url), std::move(manifest->notes)});
  }
  std::sort(found.begin(), found.end(), [](const SavedCheckpoint& a, const SavedCheckpoint& b) {
    return std::tie(a.notes.step, a.directory) < std::tie(b.notes.step, b.directory);
  });
  return found;
}

absl::Status RemoveS3Checkpoint(S3Client& client, const S3Location& directory) {
  ARGOSY_ASSIGN_OR_RETURN(CheckpointManifest manifest, ReadManifest(client, directory));
  // First what makes it one; objects of others stay.
  ARGOSY_RETURN_IF_ERROR(DeleteKey(client, directory.Key(kManifestName)));
  for (const auto& [name, file] : manifest.files) ARGOSY_RETURN_IF_ERROR(DeleteKey(client, directory.Key(name)));
  return absl::OkStatus();
}

absl::Status ApplyS3Retention(S3Client& client, const S3Location& parent, const RetentionPolicy& policy) {
  ARGOSY_ASSIGN_OR_RETURN(std::vector<SavedCheckpoint> checkpoints, ListS3Checkpoints(client, parent));
  for (const SavedCheckpoint& checkpoint : ChooseRemovals(checkpoints, policy)) {
    ARGOSY_ASSIGN_OR_RETURN(S3Location directory, ParseS3Url(checkpoint.directory));
    ARGOSY_RETURN_IF_ERROR(RemoveS3Checkpoint(client, directory));
  }
  return absl::OkStatus();
}

absl::Status CheckS3Access(S3Client& client, const S3Location& parent) {
  const std::string key = parent.Key(".argosy-access");
  ARGOSY_RETURN_IF_ERROR(client.Send({.method = "PUT", .key = key, .body = BytesOf("may this be written?")}).status());
  return DeleteKey(client, key);
}

}  // namespace argosy::train
