#include "dashboard/server/job_codec.h"

#include "runtime/base/status.h"
#include "tests/support/catch.h"

namespace argosy::dashboard {
namespace {

std::string Refused(std::string_view body) {
  absl::StatusOr<v1::SubmitJobRequest> request = ParseSubmit(body);
  REQUIRE_FALSE(request.ok());
  CHECK(request.status().code() == absl::StatusCode::kInvalidArgument);
  return Message(request.status());
}

bool Contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_CASE("Submit: what the stock client sends is understood") {
  auto request = ParseSubmit(
      R"({"entrypoint": "python main.py", "submission_id": "job_1", "runtime_env": {"working_dir": "gcs://_ray_pkg_8513233826e09f92.zip",
          "env_vars": {"FOO": "bar"}}, "metadata": {"team": "x"}, "entrypoint_num_cpus": 1.0, "entrypoint_memory": 1000000,
          "entrypoint_resources": {"foo": 0}, "entrypoint_label_selector": {"a": "b"}})");
  REQUIRE(request.ok());
  CHECK(request->entrypoint() == "python main.py");
  CHECK(request->submission_id() == "job_1");
  CHECK(request->metadata().at("team") == "x");
  CHECK(request->has_entrypoint_resources());
  CHECK(request->entrypoint_num_cpus() == 1.0);
  CHECK(request->entrypoint_memory() == 1000000);
  CHECK(request->entrypoint_resources().at("foo") == 0);
  CHECK(request->entrypoint_label_selector().at("a") == "b");
  CHECK(Json::parse(request->runtime_env_json())["env_vars"]["FOO"] == "bar");
}

TEST_CASE("Submit: null fields count as absent, and without resources the job asks for none") {
  auto request = ParseSubmit(R"({"entrypoint": "echo", "submission_id": null, "entrypoint_num_cpus": null, "metadata": null})");
  REQUIRE(request.ok());
  CHECK(request->submission_id().empty());
  CHECK_FALSE(request->has_entrypoint_resources());
  CHECK(request->runtime_env_json() == "{}");
}

TEST_CASE("Submit: job_id is the old name of submission_id, which wins") {
  CHECK(ParseSubmit(R"({"entrypoint": "e", "job_id": "old"})")->submission_id() == "old");
  CHECK(ParseSubmit(R"({"entrypoint": "e", "job_id": "old", "submission_id": "new"})")->submission_id() == "new");
  CHECK(ParseSubmit(R"({"entrypoint": "e", "submission_id": "new", "job_id": "old"})")->submission_id() == "new");
}

TEST_CASE("Submit: a wrong field is named, with what came and what would be right") {
  CHECK(Contains(Refused("{bad"), "not JSON"));
  CHECK(Contains(Refused("[]"), "must be a dict, got <class 'list'>"));
  CHECK(Contains(Refused(R"({"submission_id": "zz"})"), "missing 1 required positional argument: 'entrypoint'"));
  CHECK(Contains(Refused(R"({"entrypoint": 5})"), "entrypoint must be a string, got <class 'int'>"));
  CHECK(Contains(Refused(R"({"entrypoint": null})"), "entrypoint must be a string, got <class 'NoneType'>"));
  CHECK(Contains(Refused(R"({"entrypoint": " "})"), "empty"));
  CHECK(Contains(Refused(R"({"entrypoint": "echo 1", "bogus": 1})"), "__init__() got an unexpected keyword argument 'bogus'"));
  CHECK(Contains(Refused(R"({"entrypoint": "e", "metadata": {"a": 1}})"), "metadata values must be strings, got <class 'int'>"));
  CHECK(Contains(Refused(R"({"entrypoint": "e", "runtime_env": []})"), "runtime_env must be a dict"));
  CHECK(Contains(Refused(R"({"entrypoint": "e", "runtime_env": {"env_vars": {"A": 1}}})"), "env_vars"));
  CHECK(Contains(Refused(R"({"entrypoint": "e", "runtime_env": {"env_vars": {"A": "x\u0000y"}}})"), "\"A\" must not contain a zero byte"));
  CHECK(Contains(Refused(R"({"entrypoint": "e", "entrypoint_num_gpus": "1"})"), "entrypoint_num_gpus must be a number, got <class 'str'>"));
  CHECK(Contains(Refused(R"({"entrypoint": "e", "entrypoint_num_gpus": -1})"), "not negative"));
  CHECK(Contains(Refused(R"({"entrypoint": "e", "entrypoint_memory": 1.5})"), "entrypoint_memory must be an integer"));
  CHECK(Contains(Refused(R"({"entrypoint": "e", "entrypoint_resources": {"x": "1"}})"), "entrypoint_resources values must be numbers"));
  CHECK(Contains(Refused(R"({"entrypoint": "e", "submission_id": "a/b c"})"), "letters, digits"));
}

TEST_CASE("JobDetails: the keys of the field, null where nothing is known") {
  v1::JobInfo job;
  job.set_submission_id("job_exit3");
  job.set_is_submission(true);
  job.set_state(v1::JobInfo::FAILED);
  job.set_entrypoint("bash -c 'exit 3'");
  job.set_start_unix_ms(1000);
  job.set_end_unix_ms(2000);
  job.set_has_exit_code(true);
  job.set_driver_exit_code(3);
  job.set_driver_node_id(std::string(2, '\xAB'));
  job.set_runtime_env_json(R"({"env_vars": {"A": "b"}})");
  Json details = JobDetails(job);
  CHECK(Dump(details) ==
        R"({"type":"SUBMISSION","job_id":null,"submission_id":"job_exit3","driver_info":null,"status":"FAILED",)"
        R"("entrypoint":"bash -c 'exit 3'","message":"Job failed.","error_type":null,"start_time":1000,"end_time":2000,"metadata":{},)"
        R"("runtime_env":{"env_vars":{"A":"b"}},"driver_agent_http_address":null,"driver_node_id":"abab","driver_exit_code":3})");
  job.set_state(v1::JobInfo::RUNNING);
  job.set_end_unix_ms(0);
  job.set_driver_job_id("\x02");
  job.set_driver_pid(42);
  details = JobDetails(job);
  CHECK(details["message"] == "Job is currently running.");
  CHECK(details["end_time"].is_null());
  CHECK(details["job_id"] == "02");
  CHECK(details["driver_info"]["pid"] == "42");
}

}  // namespace
}  // namespace argosy::dashboard
