#include "cli/session.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"

namespace argosy::cli {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Folders(const std::string& parent, const std::string& prefix) {
  std::vector<std::string> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    struct stat info;
    // Not through links, and only our own: the root is shared.
    if (::lstat(entry.path().c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::getuid()) continue;
    if (entry.path().filename().string().starts_with(prefix)) folders.push_back(entry.path().string());
  }
  std::sort(folders.rbegin(), folders.rend());
  return folders;
}

std::vector<std::string> DaemonFolders(const std::string& session) {
  std::vector<std::string> folders = Folders(session, "node_");
  for (std::string& head : Folders(session, "head")) folders.insert(folders.begin(), std::move(head));
  return folders;
}

std::optional<DaemonRecord> ReadRecord(const std::string& folder) {
  for (const char* kind : {"head", "node"}) {
    absl::StatusOr<std::string> text = ReadFile(folder + "/" + kind + ".json");
    if (!text.ok()) continue;
    nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
    if (!json.is_object()) continue;
    auto field = [&](const char* name) { return json.contains(name) && json[name].is_string() ? json[name].get<std::string>() : std::string(); };
    DaemonRecord record{kind, folder};
    record.pid = json.contains("pid") && json["pid"].is_number_integer() ? json["pid"].get<pid_t>() : 0;
    record.name = field("name");
    record.address = field("address");
    record.dashboard = field("dashboard");
    record.socket = field("socket");
    record.token_file = field("token_file");
    record.head_address = field("head_address");
    return record;
  }
  return std::nullopt;
}

}  // namespace

std::string SessionsRoot(const std::string& flag) {
  const char* variable = std::getenv("ARGOSY_SESSIONS_DIR");
  std::string root = !flag.empty() ? flag : variable != nullptr && *variable != '\0' ? variable : "/tmp/argosy";
  // Daemons write down the paths in it, and whoever reads them may stand elsewhere.
  std::error_code error;
  fs::path absolute = fs::absolute(root, error).lexically_normal();
  return error ? root : absolute.string();
}

absl::StatusOr<std::string> MakeSession(const std::string& root) {
  std::error_code unreadable;   // then making it says why
  bool existed = fs::exists(root, unreadable);
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(root, 0700));
  if (!existed) ::chmod(root.c_str(), 01777);
  std::time_t now = std::time(nullptr);
  std::tm local;
  ::localtime_r(&now, &local);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%d_%H-%M-%S", &local);
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string path = fmt::format("{}/session_{}_{}{}", root, date, ::getpid(), attempt == 0 ? "" : fmt::format("_{}", attempt));
    if (::mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST) return ErrnoStatus(errno, "session folder " + path);
  }
  return Internal("no free name for a session folder in {}", root);
}

absl::StatusOr<std::string> MakeNodeFolder(const std::string& session) {
  for (int number = 1; number < 10'000; ++number) {
    std::string path = fmt::format("{}/node_{}", session, number);
    if (::mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST) return ErrnoStatus(errno, path);
  }
  return Internal("no free name for a node's folder in {}", session);
}

absl::StatusOr<UniqueFd> LockDaemonFolder(const std::string& folder) {
  std::string path = folder + "/daemon.lock";
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.ok()) return ErrnoStatus(errno, path);
  // Whoever only asks holds the lock shared for a moment; a daemon holds it for good.
  for (int attempt = 0; ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0; ++attempt) {
    if (attempt == 100) return FailedPrecondition("{} is another daemon's: its lock is held", folder);
    ::usleep(1'000);
  }
  return fd;
}

bool IsLocked(const std::string& folder) {
  UniqueFd fd(::open((folder + "/daemon.lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  return fd.ok() && ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0;   // shared: two that ask at once do not see each other
}

absl::Status WriteRecord(const DaemonRecord& record) {
  nlohmann::json json{{"pid", record.pid}, {"name", record.name}, {"address", record.address}, {"token_file", record.token_file}};
  if (record.kind == "head") json["dashboard"] = record.dashboard;
  else json.update({{"socket", record.socket}, {"head_address", record.head_address}});
  if (!record.bind_ip.empty()) json["bind_ip"] = record.bind_ip;
  if (record.worker_port_min != 0) json.update({{"worker_port_min", record.worker_port_min}, {"worker_port_max", record.worker_port_max}});
  return WriteFileAtomic(record.folder + "/" + record.kind + ".json", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n", {.mode = 0600});
}

std::vector<DaemonRecord> LiveDaemons(const std::string& root) {
  std::vector<DaemonRecord> live;
  for (const std::string& session : Folders(root, "session_")) {
    for (const std::string& folder : DaemonFolders(session)) {
      if (!IsLocked(folder)) continue;
      if (std::optional<DaemonRecord> record = ReadRecord(folder); record && record->pid > 1) live.push_back(std::move(*record));
    }
  }
  return live;
}

void RemoveStaleSessions(const std::string& root) {
  for (const std::string& session : Folders(root, "session_")) {
    std::vector<std::string> folders = DaemonFolders(session);
    bool lives = std::any_of(folders.begin(), folders.end(), IsLocked);
    // A session that is being made has no locked folder yet: its first minute is its own.
    struct stat info;
    bool young = folders.empty() && ::stat(session.c_str(), &info) == 0 && std::time(nullptr) - info.st_mtime < 60;
    std::error_code error;
    if (!lives && !young) fs::remove_all(session, error);
  }
}

std::optional<DaemonRecord> NewestHead(const std::string& root) {
  for (DaemonRecord& record : LiveDaemons(root)) {
    if (record.kind == "head") return std::move(record);
  }
  return std::nullopt;
}

}  // namespace argosy::cli
