#pragma once

// JSON of the Jobs API <-> the head's messages. Pure.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "argosy/v1/head.pb.h"
#include "argosy/v1/job.pb.h"

namespace argosy::dashboard {

// Keys keep the order in which the field's server writes them.
using Json = nlohmann::ordered_json;

// The body of POST /api/jobs/. An error names the field, what came and what would be right; its words for a wrong field are those
// that clients and their tests look for ("unexpected keyword argument", "must be a string, got <class 'int'>").
absl::StatusOr<v1::SubmitJobRequest> ParseSubmit(std::string_view body);

// "PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED".
std::string StateName(v1::JobInfo::State state);
bool IsTerminal(v1::JobInfo::State state);

Json JobDetails(const v1::JobInfo& job);

// What the page shows.
Json ClusterJson(const v1::ClusterStatusReply& status, const v1::ListActorsReply& actors, const v1::ListGroupsReply& groups);

// JSON text; bytes that are not UTF-8 become U+FFFD.
std::string Dump(const Json& json);

}  // namespace argosy::dashboard
