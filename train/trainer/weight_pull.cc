#include "train/trainer/weight_pull.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/base/status.h"

namespace argosy::train {
namespace {

// A request as it travels: part of the receiver's extent number `extent`. `count` 0 ends the service.
struct Request {
  TensorPart part = TensorPart::kWeights;
  int64_t extent = 0;
  int64_t begin = 0;   // elements of the tensor
  int64_t count = 0;
};

struct WeightPart {
  PartName name;
  int owner = 0;   // -1: rank 0 has it whatever the ranks own
  int64_t extent = 0;
  const PlacedTensor* tensor = nullptr;
  int64_t begin = 0;
  int64_t count = 0;
  const PullOptions::Frozen* frozen = nullptr;   // read from there
};

struct OwnedRange { int64_t begin, count; int owner; int64_t extent; };

std::span<const std::byte> BytesOf(const Request& request) { return std::as_bytes(std::span(&request, 1)); }

// Every element of every tensor, in the order of the files, cut where owners change and at `elements_max`.
// With `all_own`, a part has its owner also where rank 0 holds all.
absl::StatusOr<std::vector<WeightPart>> WeightParts(const Engine& engine, int ranks, const CheckpointLayout& layout,
                                                    const PullOptions& options, bool all_own = false) {
  std::map<std::string, std::vector<OwnedRange>, std::less<>> owners;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Extent> extents = engine.ExtentsOf(rank);
    for (size_t i = 0; i < extents.size(); ++i) {
      owners[extents[i].tensor].push_back({extents[i].begin, extents[i].count, rank, static_cast<int64_t>(i)});
    }
  }
  for (auto& [tensor, ranges] : owners) {
    std::sort(ranges.begin(), ranges.end(), [](const OwnedRange& a, const OwnedRange& b) { return a.begin < b.begin; });
  }
  std::vector<WeightPart> pieces;
  for (const PlannedFile& file : layout.files) {
    for (const PlacedTensor& tensor : file.tensors) {
      PartName name = ParsePartName(tensor.spec.name);
      auto constant = options.frozen.find(tensor.spec.name);
      const PullOptions::Frozen* frozen = constant == options.frozen.end() ? nullptr : &constant->second;
      const bool weights = name.part == TensorPart::kWeights;
      const bool all_here = (!all_own && options.zero_stage < (weights ? 3 : 1)) || ranks == 1 || frozen != nullptr;
      const int64_t elements_max = std::max<int64_t>(1, options.piece_bytes / SizeOf(weights && frozen == nullptr ? options.engine_dtype : DType::kF32));
      std::vector<OwnedRange> whole{{0, tensor.spec.Elements(), -1, -1}};
      auto it = owners.find(name.tensor);
      if (it == owners.end() && frozen == nullptr) return Internal("no rank owns tensor {}", tensor.spec.name);
      for (const OwnedRange& range : all_here ? whole : it->second) {
        for (int64_t begin = range.begin; begin < range.begin + range.count; begin += elements_max) {
          int64_t count = std::min(elements_max, range.begin + range.count - begin);
          pieces.push_back({name, range.owner, range.extent, &tensor, begin, count, frozen});
        }
      }
    }
  }
  return pieces;
}

absl::Status ReadPart(const Engine& engine, TensorPart part, const Extent& extent, std::span<std::byte> out) {
  if (part == TensorPart::kWeights) return engine.ReadWeights(extent, out);
  // Vectors of bytes are aligned for any type.
  return engine.ReadState(part, extent, {reinterpret_cast<float*>(out.data()), out.size() / sizeof(float)});
}

// The bytes of a part in the type of the files, read from this rank.
absl::Status ReadConverted(const Engine& engine, const WeightPart& piece, const PullOptions& options, std::vector<std::byte>& bytes,
                           std::vector<std::byte>& converted) {
  const bool weights = piece.name.part == TensorPart::kWeights;
  const DType have = weights && piece.frozen == nullptr ? options.engine_dtype : DType::kF32;
  bytes.resize(static_cast<size_t>(piece.count * SizeOf(have)));
  if (piece.frozen != nullptr) {
    ARGOSY_RETURN_IF_ERROR(piece.frozen->source->Read(piece.frozen->range, piece.begin,
                                                      {reinterpret_cast<float*>(bytes.data()), static_cast<size_t>(piece.count)}));
  } else {
    ARGOSY_RETURN_IF_ERROR(ReadPart(engine, piece.name.part, {piece.name.tensor, piece.begin, piece.count}, bytes));
  }
  ConvertWeights(bytes, have, converted, weights ? options.save_dtype : DType::kF32);
  return absl::OkStatus();
}

// What `rank` owns, written into the files of `directory`.
absl::StatusOr<std::vector<WrittenPiece>> WritePieces(const Engine& engine, const Transport& transport, const CheckpointLayout& layout,
                                                      const std::string& directory, const PullOptions& options) {
  ARGOSY_ASSIGN_OR_RETURN(std::vector<WeightPart> pieces, WeightParts(engine, transport.size(), layout, options, /*all_own=*/true));
  PieceWriter writer(directory, layout);
  std::vector<std::byte> bytes, converted;
  for (const WeightPart& piece : pieces) {
    if (std::max(piece.owner, 0) != transport.rank()) continue;
    ARGOSY_RETURN_IF_ERROR(ReadConverted(engine, piece, options, bytes, converted));
    const DType want = piece.name.part == TensorPart::kWeights ? options.save_dtype : DType::kF32;
    ARGOSY_RETURN_IF_ERROR(writer.Write(piece.tensor->spec.name, piece.begin * SizeOf(want), converted));
  }
  return writer.Finish();
}

// A length and so many bytes: the folder to write to, the pieces that were written, or, with a negative length, what went wrong.
absl::Status SendBlock(Transport& transport, int peer, std::span<const std::byte> bytes, bool error, absl::Time deadline) {
  int64_t size = static_cast<int64_t>(bytes.size()) * (error ? -1 : 1);
  ARGOSY_RETURN_IF_ERROR(transport.Send(peer, std::as_bytes(std::span(&size, 1)), deadline));
  return bytes.empty() ? absl::OkStatus() : transport.Send(peer, bytes, deadline);
}

constexpr int64_t kBlockMax = 1 << 30;

absl::StatusOr<std::vector<std::byte>> ReceiveBlock(Transport& transport, int peer, absl::Time deadline) {
  int64_t size = 0;
  ARGOSY_RETURN_IF_ERROR(transport.Receive(peer, std::as_writable_bytes(std::span(&size, 1)), deadline));
  if (size > kBlockMax || size < -kBlockMax) return Internal("rank {} announces {} bytes", peer, size);
  std::vector<std::byte> bytes(static_cast<size_t>(std::abs(size)));
  if (!bytes.empty()) ARGOSY_RETURN_IF_ERROR(transport.Receive(peer, bytes, deadline));
  if (size < 0) return FailedPrecondition("rank {}: {}", peer, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  return bytes;
}

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

}  // namespace

absl::Status WriteTogether(const Engine& engine, Transport& transport, CheckpointWriter& writer, const PullOptions& options, absl::Duration turn) {
  ARGOSY_ASSIGN_OR_RETURN(const std::string directory, writer.MakeFiles());
  for (int rank = 0; rank < transport.size(); ++rank) {
    if (rank != transport.rank()) ARGOSY_RETURN_IF_ERROR(SendBlock(transport, rank, BytesOf(directory), false, absl::Now() + turn));
  }
  ARGOSY_ASSIGN_OR_RETURN(std::vector<WrittenPiece> pieces, WritePieces(engine, transport, writer.Layout(), directory, options));
  for (int rank = 0; rank < transport.size(); ++rank) {
    if (rank == transport.rank()) continue;
    ARGOSY_ASSIGN_OR_RETURN(std::vector<std::byte> bytes, ReceiveBlock(transport, rank, absl::Now() + turn));
    const size_t before = pieces.size();
    if (bytes.size() % sizeof(WrittenPiece) != 0) return Internal("rank {} sent {} bytes of pieces", rank, bytes.size());
    pieces.resize(before + bytes.size() / sizeof(WrittenPiece));
    std::memcpy(pieces.data() + before, bytes.data(), bytes.size());
  }
  return writer.AddPieces(std::move(pieces));
}

absl::Status WriteOwn(const Engine& engine, Transport& transport, const CheckpointLayout& layout, const PullOptions& options, absl::Duration turn) {
  ARGOSY_ASSIGN_OR_RETURN(std::vector<std::byte> directory, ReceiveBlock(transport, 0, absl::Now() + turn));
  absl::StatusOr<std::vector<WrittenPiece>> pieces =
      WritePieces(engine, transport, layout, std::string(reinterpret_cast<const char*>(directory.data()), directory.size()), options);
  if (!pieces.ok()) {
    const std::string text = Message(pieces.status());
    ARGOSY_RETURN_IF_ERROR(SendBlock(transport, 0, BytesOf(text), true, absl::Now() + turn));
    return pieces.status();
  }
  return SendBlock(transport, 0, std::as_bytes(std::span(*pieces)), false, absl::Now() + turn);
}

absl::Status PullWeights(const Engine& engine, Transport& transport, CheckpointWriter& writer, const PullOptions& options) {
  ARGOSY_ASSIGN_OR_RETURN(std::vector<WeightPart> pieces, WeightParts(engine, transport.size(), writer.Layout(), options));
  auto type_of = [&](const WeightPart& piece) {
    return piece.name.part == TensorPart::kWeights && piece.frozen == nullptr ? options.engine_dtype : DType::kF32;
  };
  auto here = [&](const WeightPart& piece) { return piece.owner < 0 || piece.owner == transport.rank(); };
  std::vector<std::byte> bytes, converted;
  int64_t asked_bytes = 0, written = 0;
  size_t asked = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    // Requests go out in the order in which the answers are read, so that each owner's stream has its answers in that order too.
    for (; asked < pieces.size(); ++asked) {
      const WeightPart& next = pieces[asked];
      int64_t size = next.count * SizeOf(type_of(next));
      if (asked > i && asked_bytes + size > options.window_bytes) break;
      asked_bytes += size;
      if (here(next)) continue;
      Request request{next.name.part, next.extent, next.begin, next.count};
      ARGOSY_RETURN_IF_ERROR(transport.Send(next.owner, BytesOf(request), absl::Now() + options.deadline));
    }
    const WeightPart& piece = pieces[i];
    const DType have = type_of(piece);
    const DType want = piece.name.part == TensorPart::kWeights ? options.save_dtype : DType::kF32;
    asked_bytes -= piece.count * SizeOf(have);
    if (here(piece)) {
      ARGOSY_RETURN_IF_ERROR(ReadConverted(engine, piece, options, bytes, converted));
    } else {
      bytes.resize(static_cast<size_t>(piece.count * SizeOf(have)));
      absl::Status status = transport.Receive(piece.owner, bytes, absl::Now() + options.deadline);
      if (!status.ok()) return Annotate(status, fmt::format("{} from rank {}", piece.tensor->spec.name, piece.owner));
      ConvertWeights(bytes, have, converted, want);
    }
    ARGOSY_RETURN_IF_ERROR(writer.Write(piece.tensor->spec.name, piece.begin * SizeOf(want), converted));
    written += static_cast<int64_t>(converted.size());
    if (options.progress) options.progress(written, writer.Layout().tensor_bytes);
  }
  for (int rank = 0; rank < transport.size(); ++rank) {
    if (rank != transport.rank()) ARGOSY_RETURN_IF_ERROR(transport.Send(rank, BytesOf(Request{}), absl::Now() + options.deadline));
  }
  return absl::OkStatus();
}

absl::Status ServeWeights(const Engine& engine, Transport& transport, DType engine_dtype, absl::Duration deadline) {
  const std::vector<Extent> own = engine.ExtentsOf(transport.rank());
  std::vector<std::byte> bytes;
  for (;;) {
    Request request;
    ARGOSY_RETURN_IF_ERROR(transport.Receive(0, std::as_writable_bytes(std::span(&request, 1)), absl::Now() + deadline));
    if (request.count == 0) return absl::OkStatus();
    if (request.extent < 0 || request.extent >= static_cast<int64_t>(own.size()) || request.part < TensorPart::kWeights ||
        request.part > TensorPart::kMoment2) {
      return InvalidArgument("rank 0 asked for part {} of extent {} of {}", static_cast<int64_t>(request.part), request.extent, own.size());
    }
    const Extent& extent = own[static_cast<size_t>(request.extent)];
    if (request.begin < extent.begin || request.count < 0 || request.begin + request.count > extent.begin + extent.count) {
      return InvalidArgument("rank 0 asked for elements {} to {} of {}, of which this rank has {} to {}", request.begin,
                             request.begin + request.count, extent.tensor, extent.begin, extent.begin + extent.count);
    }
    bytes.resize(static_cast<size_t>(request.count * SizeOf(request.part == TensorPart::kWeights ? engine_dtype : DType::kF32)));
    ARGOSY_RETURN_IF_ERROR(ReadPart(engine, request.part, {extent.tensor, request.begin, request.count}, bytes));
    ARGOSY_RETURN_IF_ERROR(transport.Send(0, bytes, absl::Now() + deadline));
  }
}

}  // namespace argosy::train
