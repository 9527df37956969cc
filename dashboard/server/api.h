#pragma once

#include <boost/asio/awaitable.hpp>
#include <string>

#include "absl/time/time.h"
#include "dashboard/server/head_client.h"
#include "dashboard/server/job_codec.h"
#include "dashboard/server/request.h"
#include "dashboard/server/routes.h"
#include "runtime/base/token.h"

namespace argosy::dashboard {

// Answers the requests that have a plain body: everything but uploads, the followed log and the page's files.
//
// Thread:   the loop.
// Failure:  a Response; never an exception.
class Api {
 public:
  Api(HeadClient& head, const Token& token) : head_(head), token_(token) {}

  boost::asio::awaitable<Response> Handle(Route route, std::string method, std::string body);
  // The submission of that name, or the response that says why there is none. `act` is "stop", "delete" or "get logs of".
  boost::asio::awaitable<absl::StatusOr<v1::JobInfo>> FindJob(std::string id);

  // The status and text for an error of the head about a job.
  static Response JobError(const absl::Status& status, const std::string& id);
  static Response NotSubmission(std::string_view act);
  // The status and text for any other error of the head.
  static Response Error(const absl::Status& status);

 private:
  using Answer = boost::asio::awaitable<Response>;
  Answer Version();
  Answer Health();
  Answer Activities();
  Answer Submit(std::string body);
  Answer List();
  Answer Details(std::string id);
  Answer Stop(std::string id);
  Answer Delete(std::string id);
  Answer Logs(std::string id);
  Answer HasPackage(std::string protocol, std::string name);
  Answer Cluster();
  Answer Metrics();
  Answer LogIn(std::string body);

  HeadClient& head_;
  const Token& token_;
  std::string session_name_;  // asked once
};

}  // namespace argosy::dashboard
