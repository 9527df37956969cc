// The package calls of ClusterService: streams of chunks to and from files, on the disk loop.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/head/cluster_service.h"
#include "runtime/head/head_codec.h"

namespace argosy::head {
namespace {

constexpr size_t kChunkBytes = 1 << 20;

// Takes one package. Reads the next chunk when the last is in the file, so that a fast sender fills no memory.
class PackageUpload final : public grpc::ServerReadReactor<v1::PackageChunk> {
 public:
  PackageUpload(HeadCore& core, PackageStore& packages, async::Loop& loop, async::Loop& disk, v1::PackageStatus* reply)
      : core_(core), packages_(packages), loop_(loop), disk_(disk), reply_(reply) {
    StartRead(&chunk_);
  }

 private:
  void OnReadDone(bool ok) override {
    disk_.Post([this, ok] { ok ? Take() : End(); });
  }
  void OnDone() override {
    // After whatever the loops still have of this upload.
    loop_.Post([this] { disk_.Post([this] { delete this; }); });
  }

  void Take() {
    if (writer_ == nullptr) {
      name_ = chunk_.name();
      expected_ = chunk_.total_size();
      if (expected_ > kPackageBytesMax) {
        return Fail(absl::ResourceExhaustedError(
            ToAbsl(fmt::format("package {} has {} bytes; at most {} are allowed", name_, expected_, kPackageBytesMax))));
      }
      absl::StatusOr<std::unique_ptr<PackageStore::Writer>> writer = packages_.StartWrite(name_);
      if (!writer.ok()) return Fail(writer.status());
      writer_ = std::move(*writer);
    }
    if (absl::Status status = writer_->Write(chunk_.data()); !status.ok()) return Fail(status);
    StartRead(&chunk_);
  }

  void End() {
    if (finished_) return;
    if (writer_ == nullptr) return Fail(InvalidArgument("no chunk came: the first one names the package"));
    // A client that went away half-way looks the same as one that is done: the announced size tells them apart.
    if (expected_ != 0 && writer_->size() != expected_) {
      return Fail(InvalidArgument("package {}: {} of {} bytes came", name_, writer_->size(), expected_));
    }
    if (absl::Status status = writer_->Commit(); !status.ok()) return Fail(status);
    loop_.Post([this] {
      core_.PackageStored(name_, writer_->size(), [this](absl::Status status) {
        if (!status.ok()) return Fail(status);
        reply_->set_exists(true);
        reply_->set_size(writer_->size());
        Fail(absl::OkStatus());
      });
    });
  }

  void Fail(const absl::Status& status) {
    if (finished_) return;
    finished_ = true;
    Finish(rpc::ToGrpc(status));
  }

  HeadCore& core_;
  PackageStore& packages_;
  async::Loop& loop_;
  async::Loop& disk_;
  v1::PackageStatus* reply_;
  v1::PackageChunk chunk_;
  std::string name_;
  uint64_t expected_ = 0;
  std::unique_ptr<PackageStore::Writer> writer_;
  bool finished_ = false;
};

class PackageDownload final : public grpc::ServerWriteReactor<v1::PackageChunk> {
 public:
  PackageDownload(HeadCore& core, PackageStore& packages, async::Loop& loop, async::Loop& disk, std::string name)
      : disk_(disk), name_(std::move(name)), path_(packages.Path(name_)) {
    loop.Post([this, &core] {
      bool known = core.FindPackage(name_).has_value();
      disk_.Post([this, known] { Open(known); });
    });
  }

 private:
  void OnWriteDone(bool ok) override {
    disk_.Post([this, ok] { ok ? Next() : Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone")); });
  }
  void OnDone() override {
    disk_.Post([this] { delete this; });
  }

  void Open(bool known) {
    if (!known) return Finish(rpc::ToGrpc(NotFound("package {} does not exist", name_)));
    fd_.Reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info;
    if (!fd_.ok() || ::fstat(fd_.get(), &info) != 0) return Finish(rpc::ToGrpc(ErrnoStatus(errno, path_)));
    total_ = static_cast<uint64_t>(info.st_size);
    Next();
  }

  void Next() {
    if (sent_ == total_ && started_) return Finish(grpc::Status::OK);
    chunk_.Clear();
    if (!started_) chunk_.set_name(name_);
    chunk_.set_total_size(total_);
    std::string* data = chunk_.mutable_data();
    data->resize(std::min<uint64_t>(kChunkBytes, total_ - sent_));
    ssize_t n = data->empty() ? 0 : ::pread(fd_.get(), data->data(), data->size(), static_cast<off_t>(sent_));
    if (n < 0 || (n == 0 && !data->empty())) return Finish(rpc::ToGrpc(ErrnoStatus(n < 0 ? errno : EIO, path_)));
    data->resize(static_cast<size_t>(n));
    sent_ += static_cast<uint64_t>(n);
    started_ = true;
    StartWrite(&chunk_);
  }

  async::Loop& disk_;
  std::string name_;
  std::string path_;
  UniqueFd fd_;
  uint64_t total_ = 0;
  uint64_t sent_ = 0;
  bool started_ = false;
  v1::PackageChunk chunk_;
};

}  // namespace

ClusterService::Unary* ClusterService::HasPackage(Context* context, const v1::PackageName* request, v1::PackageStatus* reply) {
  return gate_.Unary<v1::PackageStatus>(context, reply, [this, request](rpc::Answer<v1::PackageStatus> answer) {
    std::optional<uint64_t> size = core_.FindPackage(request->name());
    answer.Ok([&](v1::PackageStatus& reply) {
      reply.set_exists(size.has_value());
      reply.set_size(size.value_or(0));
    });
  });
}

grpc::ServerReadReactor<v1::PackageChunk>* ClusterService::PutPackage(Context* context, v1::PackageStatus* reply) {
  if (absl::Status allowed = gate_.Check(*context); !allowed.ok()) {
    return new rpc::RefusedStream<grpc::ServerReadReactor<v1::PackageChunk>>(allowed);
  }
  return new PackageUpload(core_, packages_, gate_.loop(), disk_, reply);
}

grpc::ServerWriteReactor<v1::PackageChunk>* ClusterService::GetPackage(Context* context, const v1::PackageName* request) {
  absl::Status allowed = gate_.Check(*context);
  if (allowed.ok()) allowed = PackageStore::CheckName(request->name());
  if (!allowed.ok()) return new rpc::RefusedStream<grpc::ServerWriteReactor<v1::PackageChunk>>(allowed);
  return new PackageDownload(core_, packages_, gate_.loop(), disk_, request->name());
}

}  // namespace argosy::head
