#include "train/trainer/state_load.h"

#include <map>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/base/status.h"

namespace argosy::train {
namespace {

// As it travels. `tensor` counts the tensors of the model's layout; `count` 0 ends the service.
struct ReadRequest {
  TensorPart part = TensorPart::kMaster;
  int64_t tensor = 0;
  int64_t begin = 0;
  int64_t count = 0;
};
constexpr int64_t kElementsMax = 1 << 22;

class FileSource final : public WeightSource {
 public:
  FileSource(const HfWeights& files, TensorPart part) : files_(files), part_(part) {}
  absl::Status Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const override {
    return files_.ReadRange(NameOfPart(part_, tensor.name), begin, out);
  }

 private:
  const HfWeights& files_;
  TensorPart part_;
};

class RemoteSource final : public WeightSource {
 public:
  RemoteSource(Transport& transport, const std::map<std::string, int64_t>& numbers, TensorPart part, absl::Duration deadline)
      : transport_(transport), numbers_(numbers), part_(part), deadline_(deadline) {}
  absl::Status Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const override {
    for (size_t at = 0; at < out.size();) {
      auto piece = out.subspan(at, std::min<size_t>(kElementsMax, out.size() - at));
      ReadRequest request{part_, numbers_.at(tensor.name), begin + static_cast<int64_t>(at), static_cast<int64_t>(piece.size())};
      absl::Status status = transport_.Send(0, std::as_bytes(std::span(&request, 1)), absl::Now() + deadline_);
      if (status.ok()) status = transport_.Receive(0, std::as_writable_bytes(piece), absl::Now() + deadline_);
      if (!status.ok()) return Annotate(status, fmt::format("{} of the training state from rank 0", NameOfPart(part_, tensor.name)));
      at += piece.size();
    }
    return absl::OkStatus();
  }

 private:
  Transport& transport_;
  const std::map<std::string, int64_t>& numbers_;
  TensorPart part_;
  absl::Duration deadline_;
};

}  // namespace

struct StateSource::Impl {
  std::vector<TensorRange> ranges;
  std::map<std::string, int64_t> numbers;
  std::unique_ptr<HfWeights> files;   // null on ranks that ask rank 0
  Transport* transport = nullptr;     // where they ask
  absl::Duration deadline;
  std::map<TensorPart, std::unique_ptr<WeightSource>> parts;

  explicit Impl(std::vector<TensorRange> trained) : ranges(std::move(trained)) {
    for (size_t i = 0; i < ranges.size(); ++i) numbers[ranges[i].name] = static_cast<int64_t>(i);
  }
};

StateSource::StateSource(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StateSource::~StateSource() = default;

absl::StatusOr<std::unique_ptr<StateSource>> StateSource::Open(const std::string& directory, std::vector<TensorRange> trained) {
  ARGOSY_ASSIGN_OR_RETURN(HfWeights files, HfWeights::Open(directory, kStateStem));
  std::vector<TensorSpec> specs;
  for (const TensorRange& range : trained) specs.push_back({.name = range.name, .shape = range.shape, .dtype = DType::kF32});
  ARGOSY_RETURN_IF_ERROR(files.Check(StateTensors(specs)));
  auto impl = std::make_unique<Impl>(std::move(trained));
  impl->files = std::make_unique<HfWeights>(std::move(files));
  for (TensorPart part : {TensorPart::kMaster, TensorPart::kMoment1, TensorPart::kMoment2}) {
    impl->parts[part] = std::make_unique<FileSource>(*impl->files, part);
  }
  return std::unique_ptr<StateSource>(new StateSource(std::move(impl)));
}

std::unique_ptr<StateSource> StateSource::Remote(Transport& transport, std::vector<TensorRange> trained, absl::Duration deadline) {
  auto impl = std::make_unique<Impl>(std::move(trained));
  impl->transport = &transport;
  impl->deadline = deadline;
  for (TensorPart part : {TensorPart::kMaster, TensorPart::kMoment1, TensorPart::kMoment2}) {
    impl->parts[part] = std::make_unique<RemoteSource>(transport, impl->numbers, part, deadline);
  }
  return std::unique_ptr<StateSource>(new StateSource(std::move(impl)));
}

const WeightSource& StateSource::masters() const { return *impl_->parts.at(TensorPart::kMaster); }
const WeightSource& StateSource::moment1() const { return *impl_->parts.at(TensorPart::kMoment1); }
const WeightSource& StateSource::moment2() const { return *impl_->parts.at(TensorPart::kMoment2); }

absl::Status StateSource::Serve(Transport& transport, int peer, absl::Duration deadline) {
  std::vector<float> values;
  for (;;) {
    ReadRequest request;
    ARGOSY_RETURN_IF_ERROR(transport.Receive(peer, std::as_writable_bytes(std::span(&request, 1)), absl::Now() + deadline));
    if (request.count == 0) return absl::OkStatus();
    auto part = impl_->parts.find(request.part);
    if (part == impl_->parts.end() || request.tensor < 0 || request.tensor >= static_cast<int64_t>(impl_->ranges.size()) ||
        request.count < 0 || request.count > kElementsMax) {
      return InvalidArgument("rank {} asked for {} elements of part {} of tensor {}", peer, request.count,
                             static_cast<int64_t>(request.part), request.tensor);
    }
    values.resize(static_cast<size_t>(request.count));
    ARGOSY_RETURN_IF_ERROR(part->second->Read(impl_->ranges[static_cast<size_t>(request.tensor)], request.begin, values));
    ARGOSY_RETURN_IF_ERROR(transport.Send(peer, std::as_bytes(std::span(values)), absl::Now() + deadline));
  }
}

absl::Status StateSource::Done() {
  ReadRequest end;
  return impl_->transport->Send(0, std::as_bytes(std::span(&end, 1)), absl::Now() + impl_->deadline);
}

}  // namespace argosy::train
