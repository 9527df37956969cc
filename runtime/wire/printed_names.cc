#include "runtime/wire/printed_names.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace argosy::wire {
namespace {

constexpr uint64_t kNotes = 64;
constexpr size_t kNameMax = 104;

struct Slot {
  std::atomic<uint64_t> out;
  std::atomic<uint64_t> error;
  std::atomic<uint32_t> size;
  char name[kNameMax];
};

}  // namespace

struct PrintedNames::Page {
  std::atomic<uint64_t> begun;      // notes whose slot may be half written
  std::atomic<uint64_t> finished;
  Slot slots[kNotes];
};

absl::StatusOr<PrintedNames> PrintedNames::Map(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, 0600));
  if (!fd.ok()) return ErrnoStatus(errno, path);
  if ((flags & O_CREAT) != 0 && ::ftruncate(fd.get(), sizeof(Page)) != 0) return ErrnoStatus(errno, path);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, path);
  if (info.st_size < static_cast<off_t>(sizeof(Page))) return Unavailable("{} is not complete", path);
  bool writes = (flags & O_ACCMODE) == O_RDWR;
  void* page = ::mmap(nullptr, sizeof(Page), writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) return ErrnoStatus(errno, path);
  return PrintedNames(static_cast<Page*>(page));
}

absl::StatusOr<PrintedNames> PrintedNames::Create(const std::string& path) { return Map(path, O_RDWR | O_CREAT); }
absl::StatusOr<PrintedNames> PrintedNames::Open(const std::string& path) { return Map(path, O_RDONLY); }

PrintedNames::PrintedNames(PrintedNames&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}
PrintedNames& PrintedNames::operator=(PrintedNames&& other) noexcept {
  std::swap(page_, other.page_);
  return *this;
}
PrintedNames::~PrintedNames() {
  if (page_ != nullptr) ::munmap(page_, sizeof(Page));
}

void PrintedNames::Add(uint64_t out, uint64_t error, std::string_view name) {
  uint64_t number = page_->finished.load(std::memory_order_relaxed);
  page_->begun.store(number + 1, std::memory_order_seq_cst);
  Slot& slot = page_->slots[number % kNotes];
  slot.out.store(out, std::memory_order_relaxed);
  slot.error.store(error, std::memory_order_relaxed);
  uint32_t size = static_cast<uint32_t>(std::min(name.size(), kNameMax));
  slot.size.store(size, std::memory_order_relaxed);
  std::memcpy(slot.name, name.data(), size);
  page_->finished.store(number + 1, std::memory_order_release);
}

std::vector<PrintedNames::Note> PrintedNames::Read(bool* complete) const {
  uint64_t end = page_->finished.load(std::memory_order_acquire);
  uint64_t first = end > kNotes ? end - kNotes : 0;
  std::vector<Note> notes;
  for (uint64_t number = first; number < end; ++number) {
    const Slot& slot = page_->slots[number % kNotes];
    size_t size = std::min<size_t>(slot.size.load(std::memory_order_relaxed), kNameMax);
    notes.push_back({slot.out.load(std::memory_order_relaxed), slot.error.load(std::memory_order_relaxed), std::string(slot.name, size)});
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // What the writer may have overwritten meanwhile does not count.
  uint64_t begun = page_->begun.load(std::memory_order_seq_cst);
  uint64_t valid = begun > kNotes ? begun - kNotes : 0;
  if (valid > first) notes.erase(notes.begin(), notes.begin() + static_cast<std::ptrdiff_t>(std::min(valid - first, end - first)));
  *complete = std::max(valid, first) == 0;
  return notes;
}

std::string PrintedNamesPath(const std::string& session_dir, std::string_view worker_hex) {
  return session_dir + "/logs/worker-" + std::string(worker_hex) + ".names";
}

}  // namespace argosy::wire
