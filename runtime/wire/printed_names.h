#pragma once

// Which function printed what: a small ring that a worker and its node daemon share. The worker notes where its output stood when another
// function began; the daemon, which reads the output later, finds the name of each byte.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace argosy::wire {

// The newest notes, in a mapped file: a note costs no system call and wakes nobody, and those of a worker that died can still be read.
//
// Thread:   one writer; readers in any process.
// Failure:  notes that were overwritten before they were read are gone: their bytes have no name.
class PrintedNames {
 public:
  struct Note {
    uint64_t out = 0;     // bytes of standard output written before
    uint64_t error = 0;
    std::string name;
  };

  static absl::StatusOr<PrintedNames> Create(const std::string& path);
  // Error when it is not there (yet).
  static absl::StatusOr<PrintedNames> Open(const std::string& path);
  PrintedNames(PrintedNames&& other) noexcept;
  PrintedNames& operator=(PrintedNames&& other) noexcept;
  ~PrintedNames();

  void Add(uint64_t out, uint64_t error, std::string_view name);
  // Oldest first. `complete`: none was lost.
  std::vector<Note> Read(bool* complete) const;

 private:
  struct Page;
  static absl::StatusOr<PrintedNames> Map(const std::string& path, int flags);
  explicit PrintedNames(Page* page) : page_(page) {}
  Page* page_ = nullptr;
};

// Where a worker's notes are, beside its output.
std::string PrintedNamesPath(const std::string& session_dir, std::string_view worker_hex);

}  // namespace argosy::wire
