#pragma once

// Places in code that several processes reach, counted in files.

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace argosy::testing {

// A file of this process's that does not exist yet; removed at the end.
class MarkFile {
 public:
  explicit MarkFile(const std::string& name) : path_("/tmp/argosy-test-" + std::to_string(::getpid()) + "-" + name) {
    ::unlink(path_.c_str());
  }
  ~MarkFile() { ::unlink(path_.c_str()); }
  MarkFile(const MarkFile&) = delete;
  MarkFile& operator=(const MarkFile&) = delete;
  const std::string& path() const { return path_; }
  operator const std::string&() const { return path_; }

 private:
  std::string path_;
};

inline int Marks(const std::string& path) {
  std::error_code error;
  auto size = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int>(size);
}

// Marks it once more; how often it is marked now.
inline int Mark(const std::string& path) {
  std::ofstream(path, std::ios::app) << "x";
  return Marks(path);
}

// Waits for it, up to a minute.
inline bool MarksBecome(const std::string& path, int want) {
  for (auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60); std::chrono::steady_clock::now() < deadline;) {
    if (Marks(path) >= want) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

}  // namespace argosy::testing
