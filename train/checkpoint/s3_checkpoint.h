#pragma once

// Checkpoints in S3.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "train/checkpoint/object_sink.h"
#include "train/checkpoint/retention.h"
#include "train/checkpoint/s3_client.h"

namespace argosy::train {

// Sends a checkpoint to s3://bucket/prefix/ while its bytes arrive: each weights file is a multipart upload whose parts go out on a few connections at once.
// Uploads are completed at Commit, small files follow, the manifest comes last: without it there is no checkpoint. Parts carry their CRC-32C, which the
// server checks; where it does not say so, the object is read back and compared.
//
// Memory: five parts of 8 MiB, larger ones only for files above 80 GB.
absl::StatusOr<std::unique_ptr<ObjectSink>> SendToS3(S3Client& client, S3Location directory);

// As of retention.h; the directories are s3://... addresses.
absl::StatusOr<std::vector<SavedCheckpoint>> ListS3Checkpoints(S3Client& client, const S3Location& parent);
absl::Status RemoveS3Checkpoint(S3Client& client, const S3Location& directory);
absl::Status ApplyS3Retention(S3Client& client, const S3Location& parent, const RetentionPolicy& policy);
// That this node may write below `parent`: an object is put there and deleted again.
absl::Status CheckS3Access(S3Client& client, const S3Location& parent);

}  // namespace argosy::train
