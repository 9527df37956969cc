#include "runtime/worker/stacks.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace argosy::worker {
namespace {

constexpr int kFramesMax = 64;
constexpr size_t kThreadsMax = 1024;

// One thread's answer. Threads find theirs by the number that comes with the signal.
struct Slot {
  std::atomic<int> count{-1};          // frames; -1: no answer yet
  void* frames[kFramesMax];
};
// Where answers go while somebody asks; a late signal finds null, or another round's number.
std::atomic<Slot*> slots{nullptr};
std::atomic<int> round{0};
std::atomic<int> handlers_inside{0};
std::mutex asking;

void OnSignal(int, siginfo_t* info, void*) {
  int saved = errno;
  ++handlers_inside;
  Slot* all = slots.load();
  int value = info->si_value.sival_int;
  if (all != nullptr && info->si_pid == ::getpid() && value / static_cast<int>(kThreadsMax) == round.load()) {
    Slot& slot = all[value % static_cast<int>(kThreadsMax)];
    slot.count.store(::backtrace(slot.frames, kFramesMax), std::memory_order_release);
  }
  --handlers_inside;
  errno = saved;
}

// The functions of one ELF file, also those that are not exported.
class Symbols {
 public:
  explicit Symbols(const char* path) {
    UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
    struct stat info;
    if (!fd.ok() || ::fstat(fd.get(), &info) != 0 || info.st_size < static_cast<off_t>(sizeof(ElfW(Ehdr)))) return;
    size_ = static_cast<size_t>(info.st_size);
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (mapped == MAP_FAILED) return;
    data_ = static_cast<const char*>(mapped);
    Read();
  }
  ~Symbols() {
    if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
  }
  bool is_relocated() const { return relocated_; }

  // The function that the address of the file (not of memory) lies in.
  std::string_view Find(uint64_t address, uint64_t* offset) const {
    auto at = std::upper_bound(functions_.begin(), functions_.end(), address, [](uint64_t a, const Function& f) { return a < f.begin; });
    if (at == functions_.begin()) return {};
    --at;
    if (address >= at->begin + at->size) return {};
    *offset = address - at->begin;
    return at->name;
  }

 private:
  struct Function { uint64_t begin = 0; uint64_t size = 0; std::string_view name; };

  void Read() {
    auto header = reinterpret_cast<const ElfW(Ehdr)*>(data_);
    if (std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64) return;
    relocated_ = header->e_type == ET_DYN;
    if (header->e_shentsize != sizeof(ElfW(Shdr)) || !Fits(header->e_shoff, header->e_shnum * sizeof(ElfW(Shdr)))) return;
    auto sections = reinterpret_cast<const ElfW(Shdr)*>(data_ + header->e_shoff);
    for (size_t i = 0; i < header->e_shnum; ++i) {
      const ElfW(Shdr)& section = sections[i];
      if (section.sh_type != SHT_SYMTAB || section.sh_link >= header->e_shnum || !Fits(section.sh_offset, section.sh_size)) continue;
      const ElfW(Shdr)& names = sections[section.sh_link];
      if (!Fits(names.sh_offset, names.sh_size)) continue;
      auto symbols = reinterpret_cast<const ElfW(Sym)*>(data_ + section.sh_offset);
      for (size_t n = 0; n < section.sh_size / sizeof(ElfW(Sym)); ++n) {
        if (ELF64_ST_TYPE(symbols[n].st_info) != STT_FUNC || symbols[n].st_size == 0 || symbols[n].st_name >= names.sh_size) continue;
        const char* name = data_ + names.sh_offset + symbols[n].st_name;
        functions_.push_back({symbols[n].st_value, symbols[n].st_size, {name, ::strnlen(name, names.sh_size - symbols[n].st_name)}});
      }
    }
    std::sort(functions_.begin(), functions_.end(), [](const Function& a, const Function& b) { return a.begin < b.begin; });
  }
  bool Fits(uint64_t offset, uint64_t size) const { return offset <= size_ && size <= size_ - offset; }

  const char* data_ = nullptr;
  size_t size_ = 0;
  bool relocated_ = false;
  std::vector<Function> functions_;
};

std::string Demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string readable = status == 0 ? text : name;
  std::free(text);
  return readable;
}

class Printer {
 public:
  std::string Frame(void* address, bool innermost) {
    // A return address may already be the next function's.
    char* at = static_cast<char*>(address) - (innermost ? 0 : 1);
    Dl_info info{};
    if (::dladdr(at, &info) == 0 || info.dli_fname == nullptr) return fmt::format("{}", address);
    std::string file = std::filesystem::path(info.dli_fname).filename().string();
    if (info.dli_sname != nullptr) {
      return fmt::format("{} + {:#x} ({})", Demangled(info.dli_sname), at - static_cast<char*>(info.dli_saddr), file);
    }
    std::unique_ptr<Symbols>& symbols = symbols_[info.dli_fname];
    // The name that the program was started by may not lead to it.
    if (!symbols) symbols = std::make_unique<Symbols>(std::strchr(info.dli_fname, '/') == nullptr ? "/proc/self/exe" : info.dli_fname);
    uint64_t place = reinterpret_cast<uint64_t>(at) - (symbols->is_relocated() ? reinterpret_cast<uint64_t>(info.dli_fbase) : 0);
    uint64_t offset = 0;
    std::string_view name = symbols->Find(place, &offset);
    if (name.empty()) return fmt::format("{}+{:#x}", file, reinterpret_cast<uint64_t>(at) - reinterpret_cast<uint64_t>(info.dli_fbase));
    return fmt::format("{} + {:#x} ({})", Demangled(std::string(name)), offset, file);
  }

 private:
  std::map<std::string, std::unique_ptr<Symbols>> symbols_;
};

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

absl::StatusOr<std::string> AllStacks(absl::Duration wait) {
  std::unique_lock lock(asking, std::try_to_lock);
  if (!lock.owns_lock()) return absl::UnavailableError("somebody else is asking for this process's stacks");
  const int signal = SIGRTMAX - 2;
  struct sigaction action {};
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  struct sigaction before {};
  if (::sigaction(signal, nullptr, &before) != 0) return ErrnoStatus(errno, "sigaction");
  bool ours = (before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction == OnSignal;
  if (!ours && before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    return FailedPrecondition("this program uses signal {} itself, which its stacks would need", signal);
  }
  // The handler stays: a signal may still be on its way to a thread that blocks it.
  if (::sigaction(signal, &action, nullptr) != 0) return ErrnoStatus(errno, "sigaction");
  // The first unwinding loads a library, which a handler must not.
  void* own[2];
  ::backtrace(own, 2);

  std::vector<pid_t> threads;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    if (threads.size() < kThreadsMax) threads.push_back(std::atoi(entry.path().filename().c_str()));
  }
  std::sort(threads.begin(), threads.end());
  auto answers = std::make_unique<Slot[]>(threads.size());
  int number = (round.load() + 1) % 1'000'000;
  round.store(number);
  slots.store(answers.get());
  for (size_t i = 0; i < threads.size(); ++i) {
    siginfo_t info{};
    info.si_signo = signal;
    info.si_code = SI_QUEUE;
    info.si_pid = ::getpid();
    info.si_uid = ::getuid();
    info.si_value.sival_int = number * static_cast<int>(kThreadsMax) + static_cast<int>(i);
    if (::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), threads[i], signal, &info) != 0) answers[i].count = 0;   // it has ended
  }
  absl::Time deadline = absl::Now() + wait;
  auto complete = [&] {
    return std::all_of(answers.get(), answers.get() + threads.size(), [](const Slot& slot) { return slot.count.load(std::memory_order_acquire) >= 0; });
  };
  while (!complete() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  slots.store(nullptr);
  // Whoever took the pointer before may still write to it.
  absl::Time leave = absl::Now() + absl::Seconds(1);
  while (handlers_inside.load() > 0 && absl::Now() < leave) absl::SleepFor(absl::Milliseconds(1));
  Slot* written = answers.get();
  if (handlers_inside.load() > 0) (void)answers.release();   // one is stuck in the unwinder: its slot must outlive it

  Printer printer;
  std::string text;
  for (size_t i = 0; i < threads.size(); ++i) {
    std::string folder = fmt::format("/proc/self/task/{}", threads[i]);
    std::string name = FirstLine(folder + "/comm");
    int count = written[i].count.load(std::memory_order_acquire);
    if (count == 0) continue;
    text += fmt::format("thread {} ({}){}\n", threads[i], name, threads[i] == ::getpid() ? ", main" : "");
    if (count < 0) {
      text += fmt::format("  did not answer; in the kernel at {}\n", FirstLine(folder + "/wchan"));
      continue;
    }
    // The first frames are the handler's and the kernel's return from it.
    constexpr int kOwnFrames = 2;
    for (int frame = std::min(kOwnFrames, count); frame < count; ++frame) {
      text += fmt::format("  #{} {}\n", frame - kOwnFrames, printer.Frame(written[i].frames[frame], frame == kOwnFrames));
    }
  }
  return text;
}

}  // namespace argosy::worker
