#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace argosy::dashboard {

enum class Endpoint {
  kVersion,
  kPackage,
  kJobs,
  kJob,
  kJobStop,
  kJobLogs,
  kJobLogTail,
  kHealth,
  kActivities,
  kCluster,
  kMetrics,
  kLogIn,
  kLogOut,
  kStatic,
  kNotFound,
  kMethodNotAllowed,
};

struct Route {
  Endpoint endpoint = Endpoint::kNotFound;
  std::string id;        // of the job, or the package's name; decoded
  std::string protocol;  // of the package
  std::string allow;     // for kMethodNotAllowed: what the path takes
};

// Trailing slashes matter, as they do to the field's clients: "/api/jobs/" is the list, "/api/jobs" is nothing.
Route MatchRoute(std::string_view method, std::string_view path);

// A submission id becomes part of file names and addresses: 1 to 128 letters, digits, '_', '-', '.', beginning with a letter,
// digit or '_'.
absl::Status CheckSubmissionId(std::string_view id);

// "gcs" and a plain file name that ends in .zip or .whl.
absl::Status CheckPackage(std::string_view protocol, std::string_view name);

}  // namespace argosy::dashboard
