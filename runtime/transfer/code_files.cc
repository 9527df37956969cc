#include "runtime/transfer/code_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/wire/sha256.h"

namespace argosy::transfer {

// The files of one package that have to be fetched, one after another.
struct CodeFiles::Fetch {
  wire::CodePackage package;
  Located located;
  std::vector<size_t> missing;       // indices of files, to be fetched
  size_t at = 0;                     // in `missing`
  std::string folder;
  std::shared_ptr<wire::Connection> source;
  std::string temporary;
  UniqueFd file;
  uint64_t offset = 0;
  std::unique_ptr<wire::Sha256> hash;
};

CodeFiles::CodeFiles(async::Loop& loop, Peers& peers, CodeFilesOptions options)
    : loop_(loop), peers_(peers), options_(std::move(options)), work_(loop) {}

CodeFiles::~CodeFiles() { alive_.reset(); }

absl::StatusOr<std::string> CodeFiles::HashOf(const std::string& path, uint64_t size_wanted) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode)) return InvalidArgument("{} is not a file", path);
  if (static_cast<uint64_t>(info.st_size) != size_wanted) return std::string();   // another file: no need to read it
  Key key{static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino), static_cast<uint64_t>(info.st_size),
          static_cast<int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec};
  if (auto at = hashes_.find(key); at != hashes_.end()) return at->second;
  ARGOSY_ASSIGN_OR_RETURN(std::string hash, wire::Sha256FileHex(path));
  if (hashes_.size() > 10'000) hashes_.clear();
  hashes_[key] = hash;
  return hash;
}

void CodeFiles::Locate(const wire::CodePackage& package, Done done) {
  if (package.files.empty()) return done(InvalidArgument("code package {} has no files", package.id));
  std::vector<Done>& waiting = locating_[package.id];
  waiting.push_back(std::move(done));
  if (waiting.size() > 1) return;
  auto fetch = std::make_shared<Fetch>();
  fetch->package = package;
  fetch->located.paths.resize(package.files.size());
  fetch->folder = options_.folder + "/" + wire::Sha256Hex(package.id).substr(0, 32);
  auto problem = std::make_shared<absl::Status>();
  work_.Run(
      [this, fetch, problem] {
        for (size_t i = 0; i < fetch->package.files.size(); ++i) {
          const wire::CodeFile& file = fetch->package.files[i];
          std::string name = std::filesystem::path(file.path).filename().string();
          if (name.empty() || name == "." || name == ".." || file.size > options_.file_bytes_max) {
            *problem = InvalidArgument("code file '{}' of {} bytes cannot be used", file.path, file.size);
            return;
          }
          std::string fetched = fetch->folder + "/" + name;
          absl::StatusOr<std::string> hash = HashOf(file.path, file.size);
          if (hash.ok() && *hash == file.sha256) {
            fetch->located.paths[i] = file.path;
            continue;
          }
          hash = HashOf(fetched, file.size);
          fetch->located.paths[i] = fetched;
          fetch->located.fetched = true;
          if (!hash.ok() || *hash != file.sha256) fetch->missing.push_back(i);
        }
        if (!fetch->missing.empty()) *problem = MakeDirectories(fetch->folder, 0700);
      },
      [this, weak = std::weak_ptr<bool>(alive_), fetch, problem] {
        if (weak.expired()) return;
        if (!problem->ok()) return FinishPackage(fetch->package.id, *problem);
        if (fetch->missing.empty()) return FinishPackage(fetch->package.id, fetch->located);
        spdlog::info("fetching {} files of code package {} from {}", fetch->missing.size(), fetch->package.id.substr(0, 12),
                     fetch->package.source_address);
        peers_.Get(fetch->package.source_address, [this, weak, fetch](absl::StatusOr<std::shared_ptr<wire::Connection>> source) {
          if (weak.expired()) return;
          if (!source.ok()) {
            return FinishPackage(fetch->package.id, Annotate(source.status(), fmt::format("the node at {} with the driver's files", fetch->package.source_address)));
          }
          fetch->source = *source;
          FetchMissing(fetch);
        });
      });
}

void CodeFiles::FetchMissing(const std::shared_ptr<Fetch>& fetch) {
  if (fetch->at == fetch->missing.size()) return FinishPackage(fetch->package.id, fetch->located);
  fetch->temporary = fetch->located.paths[fetch->missing[fetch->at]] + ".part";
  fetch->file.Reset(::open(fetch->temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fetch->file.ok()) return FinishPackage(fetch->package.id, ErrnoStatus(errno, fetch->temporary));
  fetch->offset = 0;
  fetch->hash = std::make_unique<wire::Sha256>();
  FetchChunk(fetch);
}

void CodeFiles::FetchChunk(const std::shared_ptr<Fetch>& fetch) {
  const wire::CodeFile& file = fetch->package.files[fetch->missing[fetch->at]];
  wire::ReadCodeFile request{file.sha256, file.path, fetch->offset, options_.chunk_bytes};
  fetch->source->Request(request, [this, weak = std::weak_ptr<bool>(alive_), fetch](absl::StatusOr<wire::CodeFileChunk> chunk) {
    if (weak.expired()) return;
    if (!chunk.ok()) {
      return FinishPackage(fetch->package.id, Annotate(chunk.status(), fmt::format("the node at {} with the driver's files", fetch->package.source_address)));
    }
    auto problem = std::make_shared<absl::Status>();
    auto finished = std::make_shared<bool>(false);
    auto data = std::make_shared<wire::CodeFileChunk>(std::move(*chunk));
    work_.Run(
        [fetch, data, problem, finished] {
          const size_t index = fetch->missing[fetch->at];
          const wire::CodeFile& file = fetch->package.files[index];
          if (data->total_size != file.size || fetch->offset + data->bytes.size() > file.size || (data->bytes.empty() && file.size > 0)) {
            *problem = FailedPrecondition("{} changed while it was fetched", file.path);
            return;
          }
          for (size_t done = 0; done < data->bytes.size();) {
            ssize_t n = ::write(fetch->file.get(), data->bytes.data() + done, data->bytes.size() - done);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) {
              *problem = ErrnoStatus(errno, fetch->temporary);
              return;
            }
            done += static_cast<size_t>(n);
          }
          fetch->hash->Update(data->bytes);
          fetch->offset += data->bytes.size();
          if (fetch->offset < file.size) return;
          *finished = true;
          std::string raw = fetch->hash->Finish();
          std::string hex = internal::ToHex(reinterpret_cast<const unsigned char*>(raw.data()), raw.size());
          if (hex != file.sha256) {
            *problem = FailedPrecondition("{} arrived with hash {}, not {}", file.path, hex, file.sha256);
          } else if (::fchmod(fetch->file.get(), (file.mode & 0777) | 0500) != 0 ||
                     ::rename(fetch->temporary.c_str(), fetch->located.paths[index].c_str()) != 0) {
            *problem = ErrnoStatus(errno, fetch->located.paths[index]);
          }
          // An executable that is open for writing cannot be run.
          fetch->file.Reset();
        },
        [this, weak, fetch, problem, finished] {
          if (weak.expired()) return;
          if (!problem->ok()) return FinishPackage(fetch->package.id, *problem);
          if (!*finished) return FetchChunk(fetch);
          ++fetch->at;
          FetchMissing(fetch);
        });
  });
}

void CodeFiles::FinishPackage(const std::string& id, absl::StatusOr<Located> located) {
  auto waiting = locating_.extract(id);
  if (waiting.empty()) return;
  for (Done& done : waiting.mapped()) done(located);
}

void CodeFiles::ServeRead(wire::Call call) {
  absl::StatusOr<wire::ReadCodeFile> request = call.As<wire::ReadCodeFile>();
  if (!request.ok()) return call.Fail(request.status());
  struct Read {
    wire::ReadCodeFile request;
    wire::Call call;
    absl::StatusOr<wire::CodeFileChunk> chunk = absl::UnknownError("");
  };
  auto read = std::shared_ptr<Read>(new Read{std::move(*request), std::move(call)});
  uint64_t chunk_max = options_.chunk_bytes;
  work_.Run(
      [this, read, chunk_max] {
        read->chunk = [&]() -> absl::StatusOr<wire::CodeFileChunk> {
          const std::string& path = read->request.path;
          UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
          struct stat info;
          if (!file.ok() || ::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, path);
          ARGOSY_ASSIGN_OR_RETURN(std::string hash, HashOf(path, static_cast<uint64_t>(info.st_size)));
          if (hash != read->request.sha256) return FailedPrecondition("{} is no longer the file that the driver was started from", path);
          wire::CodeFileChunk chunk;
          chunk.total_size = static_cast<uint64_t>(info.st_size);
          if (read->request.offset >= chunk.total_size) return chunk;
          chunk.bytes.resize(std::min({read->request.size_max, chunk_max, chunk.total_size - read->request.offset}));
          for (size_t done = 0; done < chunk.bytes.size();) {
            ssize_t n = ::pread(file.get(), chunk.bytes.data() + done, chunk.bytes.size() - done,
                                static_cast<off_t>(read->request.offset + done));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) return ErrnoStatus(errno, path);
            if (n == 0) return FailedPrecondition("{} shrank while it was read", path);
            done += static_cast<size_t>(n);
          }
          return chunk;
        }();
      },
      [read] {
        if (read->chunk.ok()) read->call.Answer(*read->chunk);
        else read->call.Fail(read->chunk.status());
      });
}

}  // namespace argosy::transfer
