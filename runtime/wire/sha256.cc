#include "runtime/wire/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "runtime/base/id.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace argosy::wire {

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  ARGOSY_CHECK(impl_->context != nullptr && EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;

void Sha256::Update(std::string_view bytes) {
  ARGOSY_CHECK(EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::Finish() {
  std::string digest(32, '\0');
  unsigned size = 0;
  ARGOSY_CHECK(EVP_DigestFinal_ex(impl_->context, reinterpret_cast<unsigned char*>(digest.data()), &size) == 1 && size == 32);
  return digest;
}

std::string Sha256Hex(std::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes);
  std::string digest = hash.Finish();
  return internal::ToHex(reinterpret_cast<const unsigned char*>(digest.data()), digest.size());
}

absl::StatusOr<std::string> Sha256FileHex(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) return ErrnoStatus(errno, path);
  Sha256 hash;
  std::vector<char> buffer(1 << 18);
  for (;;) {
    ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, path);
    if (n == 0) break;
    hash.Update({buffer.data(), static_cast<size_t>(n)});
  }
  std::string digest = hash.Finish();
  return internal::ToHex(reinterpret_cast<const unsigned char*>(digest.data()), digest.size());
}

std::string HmacSha256(std::string_view key, std::string_view message) {
  std::string digest(32, '\0');
  unsigned size = 0;
  const unsigned char* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                   reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                                   reinterpret_cast<unsigned char*>(digest.data()), &size);
  ARGOSY_CHECK(done != nullptr && size == 32);
  return digest;
}

}  // namespace argosy::wire
