#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "train/data/rows.h"
#include "train/data/samples.h"
#include "train/tokenizer/tokenizer.h"

namespace argosy::train {

struct CachedSamples {
  SampleSet samples;   // lie in the cache's file, which is mapped: the kernel reads them when they are needed and lets them go
  std::string path;    // of that file
  uint32_t id = 0;     // of what is in it; equal ids, equal samples
  std::string note;    // "reused", "made", or "made again: the tokenizer changed"
};

// ReadSamples through a file in `folder`, which is made when it is missing, damaged, or of another content, tokenizer or options; each is noted.
// While it is made, memory is bounded by the longest row, a few buffers of 1 MiB and what the file's layout needs (VisitRows): the rows may be
// more than fits into memory. The file appears whole or not at all, and is read back against its checksums before it is used.
//
// A data file has one cache file, whose name is made from the data file's path.
absl::StatusOr<CachedSamples> ReadSamplesCached(const std::string& path, const Tokenizer& tokenizer, const RowOptions& options, const std::string& folder);

// The samples of a cache file whose id is `id`; NotFound, FailedPrecondition (another id), DataLoss (damaged).
absl::StatusOr<SampleSet> OpenTokenCache(const std::string& path, uint32_t id);

}  // namespace argosy::train
