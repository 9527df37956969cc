#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/command.h"
#include "cli/job_client.h"
#include "runtime/base/job_priority.h"
#include "runtime/base/limits.h"
#include "runtime/base/status.h"
#include "runtime/base/token.h"
#include "runtime/node/package_plan.h"

namespace argosy::cli {
namespace {

using Json = nlohmann::ordered_json;
using SteadyClock = std::chrono::steady_clock;

constexpr int kFollowPatienceSeconds = 60;
constexpr std::chrono::milliseconds kPendingPeriod{300};
constexpr double kMiB = 1024.0 * 1024.0;

struct Connection {
  std::string address;   // empty: ARGOSY_JOB_ADDRESS, else this host
  std::string token_file;
};

struct SubmitArguments {
  std::string program;
  std::function<std::vector<std::string>()> words;   // what follows `program`, after the "--"
  std::string submission_id;
  std::string working_dir;
  std::vector<std::string> env_vars;
  std::vector<std::string> metadata;
  std::optional<int> priority;
  std::string runtime_env_json;
  std::optional<double> num_cpus, num_gpus;
  std::optional<uint64_t> memory;
  std::string resources_json;
  std::string label_selector;
  bool no_wait = false;
};

struct JobArguments {
  Connection connection;
  SubmitArguments submit;
  std::string id;
  bool follow = false;
  bool no_wait = false;
  bool json = false;
};

absl::StatusOr<Token> FindToken(const Connection& connection) {
  if (!connection.token_file.empty()) return ReadToken(connection.token_file);
  if (const char* text = std::getenv("ARGOSY_AUTH_TOKEN"); text != nullptr && *text != '\0') return Token(text);
  const char* home = std::getenv("HOME");
  std::string path = DefaultTokenPath(home == nullptr ? "" : home);
  absl::StatusOr<Token> token = ReadToken(path);
  // Without a token the head says what it wants: it may run with authentication off.
  if (token.status().code() == absl::StatusCode::kNotFound) return Token();
  return token;
}

absl::StatusOr<JobClient> OpenClient(const Connection& connection) {
  std::string text = connection.address;
  // Not CLI11's envname: it also fills the options of commands that were not given, which here share one variable.
  if (const char* set = std::getenv("ARGOSY_JOB_ADDRESS"); text.empty() && set != nullptr) text = set;
  if (text.empty()) text = fmt::format("http://127.0.0.1:{}", kDashboardPort);
  ARGOSY_ASSIGN_OR_RETURN(JobAddress address, ParseJobAddress(text));
  ARGOSY_ASSIGN_OR_RETURN(Token token, FindToken(connection));
  return JobClient(std::move(address), std::move(token));
}

// As a POSIX shell reads it back: one word.
std::string QuoteWord(const std::string& word) {
  constexpr char kPlain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (char c : word) quoted += c == '\'' ? std::string("'\"'\"'") : std::string(1, c);
  return quoted + "'";
}

absl::StatusOr<Json> ParsePairs(const std::vector<std::string>& pairs, std::string_view option) {
  Json json = Json::object();
  for (const std::string& pair : pairs) {
    size_t equals = pair.find('=');
    if (equals == 0 || equals == std::string::npos) return InvalidArgument("{} {}: NAME=VALUE is expected", option, pair);
    json[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  return json;
}

absl::StatusOr<Json> ParseObject(const std::string& text, std::string_view option) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("{} {}: a JSON object is expected, such as '{{\"name\": 1}}'", option, text);
  return json;
}

// '{"k": "v"}' or k=v,k=v.
absl::StatusOr<Json> ParseLabels(const std::string& text) {
  if (!text.empty() && text.front() == '{') return ParseObject(text, "--entrypoint-label-selector");
  std::vector<std::string> pairs;
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find(',', begin), text.size());
    pairs.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return ParsePairs(pairs, "--entrypoint-label-selector");
}

// A line that is written again and again on a terminal, and now and then into a file.
class UploadProgress {
 public:
  void operator()(uint64_t sent, uint64_t size) {
    SteadyClock::time_point now = SteadyClock::now();
    bool last = sent == size;
    if (size < (4 << 20) || (!last && now - shown_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(2000)))) return;
    shown_ = now;
    double seconds = std::max(1e-3, std::chrono::duration<double>(now - begun_).count());
    double rate = static_cast<double>(sent) / seconds;
    fmt::print(stderr, "{}uploading working directory: {:.1f} of {:.1f} MiB, {:.1f} MiB/s, {:.0f} s left{}", terminal_ ? "\r" : "",
               static_cast<double>(sent) / kMiB, static_cast<double>(size) / kMiB, rate / kMiB, static_cast<double>(size - sent) / rate,
               terminal_ && !last ? "   " : "\n");
  }

 private:
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  SteadyClock::time_point begun_ = SteadyClock::now();
  SteadyClock::time_point shown_{};
};

absl::Status TooLarge(const node::PackagePlan& plan, uint64_t size) {
  std::vector<node::PackageEntry> largest = plan.entries;
  std::sort(largest.begin(), largest.end(), [](const node::PackageEntry& a, const node::PackageEntry& b) { return a.size > b.size; });
  std::string names;
  for (size_t i = 0; i < std::min<size_t>(largest.size(), 3); ++i) {
    names += fmt::format("{}{} ({:.0f} MiB)", i == 0 ? "" : ", ", largest[i].name, static_cast<double>(largest[i].size) / kMiB);
  }
  return InvalidArgument(
      "the working directory packs to {:.0f} MiB, {} MiB are allowed; the largest files are {}. Name what the job does not need in a "
      ".gitignore, or put large data where the nodes can read it",
      static_cast<double>(size) / kMiB, kPackageBytesMax >> 20, names);
}

// Sends the folder unless the head has it; its URI.
absl::StatusOr<std::string> UploadWorkingDir(JobClient& client, const std::string& directory) {
  if (directory.find("://") != std::string::npos) return directory;
  ARGOSY_ASSIGN_OR_RETURN(node::PackagePlan plan, node::PlanPackage(directory));
  for (const std::string& line : plan.left_out) fmt::print(stderr, "left out of the working directory: {}\n", line);
  std::string uri = "gcs://" + plan.name;
  ARGOSY_ASSIGN_OR_RETURN(bool present, client.HasPackage(plan.name));
  if (present) return uri;
  if (plan.size > 16 * kPackageBytesMax) return TooLarge(plan, plan.size);
  std::string folder = (std::filesystem::temp_directory_path() / "argosy-package-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return ErrnoStatus(errno, folder);
  struct Remove {
    std::string folder;
    ~Remove() {
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);
    }
  } remove{folder};
  std::string zip = folder + "/" + plan.name;
  if (plan.size > (64 << 20)) {
    fmt::print(stderr, "packing {} files, {:.0f} MiB\n", plan.entries.size(), static_cast<double>(plan.size) / kMiB);
  }
  ARGOSY_RETURN_IF_ERROR(node::WritePackage(plan, zip));
  uint64_t size = std::filesystem::file_size(zip);
  if (size > kPackageBytesMax) return TooLarge(plan, size);
  UploadProgress progress;
  ARGOSY_RETURN_IF_ERROR(client.PutPackage(plan.name, zip, [&](uint64_t sent, uint64_t total) { progress(sent, total); }));
  return uri;
}

std::string Text(const Json& json, const char* key) {
  if (!json.contains(key) || json[key].is_null()) return "";
  return json[key].is_string() ? json[key].get<std::string>() : json[key].dump();
}

bool IsTerminalState(const std::string& state) { return state == "STOPPED" || state == "SUCCEEDED" || state == "FAILED"; }

void WriteLog(std::string_view bytes) {
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  std::fflush(stdout);
}

// Says how a job ended; the exit code is 1 iff it failed.
absl::StatusOr<int> PrintEnd(JobClient& client, const std::string& id) {
  ARGOSY_ASSIGN_OR_RETURN(Json job, client.Call("GET", JobPath(id)));
  std::string state = Text(job, "status");
  if (state == "SUCCEEDED") {
    fmt::print(stderr, "Job '{}' succeeded\n", id);
  } else if (state == "STOPPED") {
    fmt::print(stderr, "Job '{}' was stopped\n", id);
  } else if (state == "FAILED") {
    fmt::print(stderr, "Job '{}' failed\n{}\n", id, Text(job, "message"));
    return 1;
  } else {
    fmt::print(stderr, "Job '{}' is {}: {}\n", id, state, Text(job, "message"));
  }
  return 0;
}

// Follows the log to its end. While the job waits to start there is none: then it says why it waits, whenever the reason changes.
absl::Status Follow(JobClient& client, const std::string& id) {
  std::string said;
  for (;;) {
    absl::StatusOr<Json> job = client.Call("GET", JobPath(id));
    if (absl::IsUnavailable(job.status())) break;   // FollowLog is the patient one
    ARGOSY_RETURN_IF_ERROR(job.status());
    if (Text(*job, "status") != "PENDING") break;
    if (std::string reason = Text(*job, "message"); reason != said) {
      fmt::print(stderr, "Job '{}' waits: {}\n", id, reason);
      said = reason;
    }
    std::this_thread::sleep_for(kPendingPeriod);
  }
  auto lost = [](const absl::Status& status) { fmt::print(stderr, "{}; trying again for up to {} s\n", Message(status), kFollowPatienceSeconds); };
  return client.FollowLog(id, 0, kFollowPatienceSeconds, WriteLog, lost);
}

absl::StatusOr<int> Submit(const JobArguments& arguments) {
  const SubmitArguments& submit = arguments.submit;
  std::vector<std::string> words = submit.words();
  if (!words.empty() && words.front() != "--") {
    return InvalidArgument("\"{}\" is no option of this command; what to run comes after --: argosy job submit [options] -- COMMAND...",
                           words.front());
  }
  ARGOSY_ASSIGN_OR_RETURN(JobClient client, OpenClient(arguments.connection));
  Json runtime_env = Json::object();
  if (!submit.runtime_env_json.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(runtime_env, ParseObject(submit.runtime_env_json, "--runtime-env-json"));
  }
  ARGOSY_ASSIGN_OR_RETURN(Json env_vars, ParsePairs(submit.env_vars, "--env"));
  if (runtime_env.contains("env_vars") && !runtime_env["env_vars"].is_object()) {
    return InvalidArgument("--runtime-env-json {}: env_vars must be an object of strings", submit.runtime_env_json);
  }
  for (const auto& [name, value] : env_vars.items()) runtime_env["env_vars"][name] = value;
  ARGOSY_ASSIGN_OR_RETURN(Json metadata, ParsePairs(submit.metadata, "--metadata"));
  if (submit.priority) metadata[kJobPriorityMetadata] = fmt::format("{}", *submit.priority);
  if (!submit.working_dir.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(std::string uri, UploadWorkingDir(client, submit.working_dir));
    runtime_env["working_dir"] = uri;
  }
  for (const auto& [flag, amount] : {std::pair("--entrypoint-num-cpus", submit.num_cpus), {"--entrypoint-num-gpus", submit.num_gpus}}) {
    if (amount && !(*amount >= 0 && std::isfinite(*amount))) return InvalidArgument("{} {}: give a number from 0", flag, *amount);
  }
  std::string entrypoint = QuoteWord(submit.program);
  for (size_t i = 1; i < words.size(); ++i) entrypoint += " " + QuoteWord(words[i]);
  Json body = {{"entrypoint", entrypoint}, {"runtime_env", runtime_env}, {"metadata", metadata}};
  if (!submit.submission_id.empty()) body["submission_id"] = submit.submission_id;
  if (submit.num_cpus) body["entrypoint_num_cpus"] = *submit.num_cpus;
  if (submit.num_gpus) body["entrypoint_num_gpus"] = *submit.num_gpus;
  if (submit.memory) body["entrypoint_memory"] = *submit.memory;
  if (!submit.resources_json.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(body["entrypoint_resources"], ParseObject(submit.resources_json, "--entrypoint-resources"));
  }
  if (!submit.label_selector.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(body["entrypoint_label_selector"], ParseLabels(submit.label_selector));
  }
  ARGOSY_ASSIGN_OR_RETURN(Json answer, client.Call("POST", "/api/jobs/", body));
  std::string id = Text(answer, "submission_id");
  fmt::print(stderr, "Job '{}' submitted\n", id);
  if (submit.no_wait) {
    fmt::print("{}\n", id);
    return 0;
  }
  fmt::print(stderr, "following its log; Ctrl-C leaves it running, `argosy job stop {}` ends it\n", id);
  ARGOSY_RETURN_IF_ERROR(Follow(client, id));
  return PrintEnd(client, id);
}

std::string TimeText(const Json& job, const char* key) {
  if (!job.contains(key) || !job[key].is_number()) return "-";
  std::time_t seconds = job[key].get<int64_t>() / 1000;
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

absl::StatusOr<int> Status(const JobArguments& arguments) {
  ARGOSY_ASSIGN_OR_RETURN(JobClient client, OpenClient(arguments.connection));
  ARGOSY_ASSIGN_OR_RETURN(Json job, client.Call("GET", JobPath(arguments.id)));
  if (arguments.json) {
    fmt::print("{}\n", job.dump(2));
    return 0;
  }
  fmt::print("id:         {}\nstatus:     {}\nentrypoint: {}\nstarted:    {}\nended:      {}\n", arguments.id, Text(job, "status"),
             Text(job, "entrypoint"), TimeText(job, "start_time"), TimeText(job, "end_time"));
  if (std::string code = Text(job, "driver_exit_code"); !code.empty()) fmt::print("exit code:  {}\n", code);
  fmt::print("message:    {}\n", Text(job, "message"));
  return 0;
}

absl::StatusOr<int> List(const JobArguments& arguments) {
  ARGOSY_ASSIGN_OR_RETURN(JobClient client, OpenClient(arguments.connection));
  ARGOSY_ASSIGN_OR_RETURN(Json jobs, client.Call("GET", "/api/jobs/"));
  if (arguments.json) {
    fmt::print("{}\n", jobs.dump(2));
    return 0;
  }
  size_t width = 2;
  auto name = [](const Json& job) { return Text(job, Text(job, "submission_id").empty() ? "job_id" : "submission_id"); };
  for (const Json& job : jobs) width = std::max(width, name(job).size());
  fmt::print("{:{}}  {:9}  {:19}  {:19}  {}\n", "ID", width, "STATUS", "STARTED", "ENDED", "ENTRYPOINT");
  for (const Json& job : jobs) {
    std::string entrypoint = Text(job, "entrypoint");
    std::replace(entrypoint.begin(), entrypoint.end(), '\n', ' ');
    fmt::print("{:{}}  {:9}  {:19}  {:19}  {}\n", name(job), width, Text(job, "status"), TimeText(job, "start_time"),
               TimeText(job, "end_time"), entrypoint.size() > 100 ? entrypoint.substr(0, 97) + "..." : entrypoint);
  }
  return 0;
}

absl::StatusOr<int> Logs(const JobArguments& arguments) {
  ARGOSY_ASSIGN_OR_RETURN(JobClient client, OpenClient(arguments.connection));
  if (!arguments.follow) {
    ARGOSY_ASSIGN_OR_RETURN(Json answer, client.Call("GET", JobPath(arguments.id) + "/logs"));
    WriteLog(Text(answer, "logs"));
    return 0;
  }
  ARGOSY_RETURN_IF_ERROR(Follow(client, arguments.id));
  return PrintEnd(client, arguments.id);
}

absl::StatusOr<int> Stop(const JobArguments& arguments) {
  ARGOSY_ASSIGN_OR_RETURN(JobClient client, OpenClient(arguments.connection));
  ARGOSY_ASSIGN_OR_RETURN(Json answer, client.Call("POST", JobPath(arguments.id) + "/stop"));
  if (!answer.is_object() || !answer.value("stopped", false)) {
    fmt::print(stderr, "Job '{}' had already ended\n", arguments.id);
    return 0;
  }
  fmt::print(stderr, "Job '{}' is asked to stop\n", arguments.id);
  while (!arguments.no_wait) {
    ARGOSY_ASSIGN_OR_RETURN(Json job, client.Call("GET", JobPath(arguments.id)));
    if (std::string state = Text(job, "status"); IsTerminalState(state)) {
      fmt::print(stderr, "Job '{}': {}\n", arguments.id, state);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return 0;
}

absl::StatusOr<int> Delete(const JobArguments& arguments) {
  ARGOSY_ASSIGN_OR_RETURN(JobClient client, OpenClient(arguments.connection));
  ARGOSY_RETURN_IF_ERROR(client.Call("DELETE", JobPath(arguments.id)).status());
  fmt::print(stderr, "Job '{}' is deleted\n", arguments.id);
  return 0;
}

using Command = absl::StatusOr<int> (*)(const JobArguments&);

void Run(CLI::App* command, const std::shared_ptr<JobArguments>& arguments, Command run) {
  command->callback([arguments, run] {
    absl::StatusOr<int> code = run(*arguments);
    if (!code.ok()) {
      fmt::print(stderr, "error: {}\n", Message(code.status()));
      throw CLI::RuntimeError(1);
    }
    if (*code != 0) throw CLI::RuntimeError(*code);
  });
}

}  // namespace

void RegisterJob(CLI::App& app) {
  auto arguments = std::make_shared<JobArguments>();
  CLI::App* job = app.add_subcommand("job", "Submit jobs to a cluster and look after them");
  job->require_subcommand(1);

  auto add = [&](const char* name, const char* what, Command run) {
    CLI::App* command = job->add_subcommand(name, what);
    command->add_option("--address", arguments->connection.address, "The head's dashboard (else ARGOSY_JOB_ADDRESS, else http://127.0.0.1:8265)");
    command->add_option("--token-file", arguments->connection.token_file, "File with the cluster token (else ARGOSY_AUTH_TOKEN, else ~/.argosy/token)");
    Run(command, arguments, run);
    return command;
  };
  auto add_id = [&](CLI::App* command) {
    command->add_option("id", arguments->id, "The job's submission id")->required()->check([](const std::string& id) {
      return id.empty() ? std::string("the job's id is empty; argosy job list shows the ids") : std::string();
    });
  };

  CLI::App* submit = add("submit", "Run a command on the cluster: argosy job submit [options] -- COMMAND...", Submit);
  SubmitArguments& s = arguments->submit;
  // The first word is an option of its own and the rest is left alone: in a list CLI11 would read "[x]" as a list of one.
  submit->add_option("command", s.program, "What to run, after --")->required();
  submit->prefix_command();
  s.words = [submit] { return submit->remaining(); };
  submit->add_flag("--no-wait", s.no_wait, "Print the job's id and return instead of following its log");
  submit->add_option("--submission-id", s.submission_id, "The job's name (default: a new one)");
  submit->add_option("--working-dir", s.working_dir, "Folder that the command runs in: packed and sent to the cluster");
  submit->add_option("--env", s.env_vars, "NAME=VALUE for the command's environment; may be repeated")->allow_extra_args(false);
  submit->add_option("--metadata", s.metadata, "NAME=VALUE kept with the job; may be repeated")->allow_extra_args(false);
  submit->add_option("--priority", s.priority, "Among jobs that wait for the same nodes: higher ones first, from -1000 to 1000 (default: 0)")
      ->check(CLI::Range(-kJobPriorityMax, kJobPriorityMax));
  submit->add_option("--runtime-env-json", s.runtime_env_json, "The whole runtime environment as JSON");
  submit->add_option("--entrypoint-num-cpus", s.num_cpus, "CPUs to reserve for the command")->check(CLI::NonNegativeNumber);
  submit->add_option("--entrypoint-num-gpus", s.num_gpus, "GPUs to reserve for the command")->check(CLI::NonNegativeNumber);
  submit->add_option("--entrypoint-memory", s.memory, "Bytes of memory to reserve for the command");
  submit->add_option("--entrypoint-resources", s.resources_json, "Custom resources to reserve, as JSON");
  submit->add_option("--entrypoint-label-selector", s.label_selector, "Labels of the node to run on: k=v,... or JSON");

  CLI::App* status = add("status", "Show one job", Status);
  add_id(status);
  status->add_flag("--json", arguments->json, "As JSON");
  CLI::App* list = add("list", "Show all jobs", List);
  list->add_flag("--json", arguments->json, "As JSON");
  CLI::App* logs = add("logs", "Print a job's log", Logs);
  add_id(logs);
  logs->add_flag("-f,--follow", arguments->follow, "Keep printing until the job ends; exit code 1 if it fails");
  CLI::App* stop = add("stop", "End a job: SIGTERM, then SIGKILL", Stop);
  add_id(stop);
  stop->add_flag("--no-wait", arguments->no_wait, "Do not wait until it has ended");
  CLI::App* remove = add("delete", "Forget a job that has ended, and its log", Delete);
  add_id(remove);
}

}  // namespace argosy::cli
