#pragma once

// The Jobs HTTP API, as the `argosy job` commands use it. Any server that speaks it will do.

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/token.h"

namespace argosy::cli {

struct JobAddress {
  std::string host;
  std::string port;
  std::string text;   // "http://127.0.0.1:8265", for messages
};

// "http://HOST[:PORT][/]"; the port defaults to 8265.
absl::StatusOr<JobAddress> ParseJobAddress(std::string_view text);

// "/api/jobs/ID", escaped.
std::string JobPath(std::string_view id);

// Thread:   one; calls block.
// Failure:  Unavailable when nobody answers at the address; otherwise the server's own words, with the code that fits its
//           status (401 and 403 say where the token is looked for).
class JobClient {
 public:
  JobClient(JobAddress address, Token token) : address_(std::move(address)), token_(std::move(token)) {}

  // `body` is sent as JSON when not null.
  absl::StatusOr<nlohmann::ordered_json> Call(const std::string& method, const std::string& path, const nlohmann::ordered_json& body = nullptr);

  absl::StatusOr<bool> HasPackage(const std::string& name);
  // Streams the file; `progress` is called with the bytes sent so far.
  absl::Status PutPackage(const std::string& name, const std::string& path, const std::function<void(uint64_t sent, uint64_t size)>& progress);

  // Calls `take` with the log's bytes from `offset` on until the job has ended and all of its log has come. A broken connection is
  // opened again where it broke, for as long as the head comes back within `patience_seconds`; `lost_contact` hears of each break.
  absl::Status FollowLog(const std::string& id, uint64_t offset, int patience_seconds, const std::function<void(std::string_view)>& take,
                         const std::function<void(const absl::Status&)>& lost_contact);

 private:
  absl::Status FollowOnce(const std::string& id, uint64_t& offset, bool& complete, const std::function<void(std::string_view)>& take);

  JobAddress address_;
  Token token_;
};

}  // namespace argosy::cli
