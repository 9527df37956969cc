#include "runtime/base/token.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "runtime/base/file.h"
#include "runtime/base/id.h"
#include "runtime/base/status.h"

namespace argosy {

Token Token::Random() {
  unsigned char bytes[32];
  internal::FillRandom(bytes, sizeof bytes);
  return Token(internal::ToHex(bytes, sizeof bytes));
}

bool Token::Matches(std::string_view candidate) const {
  if (candidate.size() != text_.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < text_.size(); ++i) difference |= static_cast<unsigned char>(text_[i] ^ candidate[i]);
  return difference == 0;
}

std::string DefaultTokenPath(std::string_view home) {
  return (std::filesystem::path(home) / ".argosy" / "token").string();
}

absl::StatusOr<Token> ReadToken(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, "token file " + path);
  if ((info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        ToAbsl(fmt::format("token file {} has mode {:o}: others can read it; run chmod 600 on it", path, info.st_mode & 0777)));
  }
  ARGOSY_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  if (text.empty()) return InvalidArgument("token file {} is empty", path);
  return Token(text);
}

absl::StatusOr<Token> ReadOrCreateToken(const std::string& path) {
  if (::access(path.c_str(), F_OK) == 0) return ReadToken(path);
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(std::filesystem::path(path).parent_path().string(), 0700));
  // Written whole under another name and linked into place, so that a racing reader never sees half of it.
  std::string temporary = path + ".new-" + NodeId::Random().Short();
  ARGOSY_RETURN_IF_ERROR(WriteFileAtomic(temporary, Token::Random().text() + "\n", {.mode = 0600, .sync = true}));
  int linked = ::link(temporary.c_str(), path.c_str());
  int saved_errno = errno;
  ::unlink(temporary.c_str());
  if (linked != 0 && saved_errno != EEXIST) return ErrnoStatus(saved_errno, "token file " + path);
  return ReadToken(path);
}

}  // namespace argosy
