#include <stdlib.h>
#include <sys/stat.h>
#include <zip.h>

#include <filesystem>
#include <string>

#include "runtime/base/file.h"
#include "runtime/node/package_cache.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace argosy::node {
namespace {

struct PackageFixture {
  PackageFixture() { std::filesystem::create_directory(folder / "out"); }

  void Add(const std::string& name, const std::string& content, uint32_t mode) {
    zip_t* archive = zip_open(zip.c_str(), ZIP_CREATE, nullptr);
    REQUIRE(archive != nullptr);
    zip_source_t* source = zip_source_buffer(archive, content.data(), content.size(), 0);
    zip_int64_t index = zip_file_add(archive, name.c_str(), source, ZIP_FL_ENC_UTF_8);
    REQUIRE(index >= 0);
    zip_file_set_external_attributes(archive, static_cast<zip_uint64_t>(index), 0, ZIP_OPSYS_UNIX, mode << 16);
    REQUIRE(zip_close(archive) == 0);
  }
  absl::Status Run(UnzipLimits limits = {}) { return Unzip(zip, folder / "out", limits); }

  testing::TemporaryFolder folder;
  std::string zip;
};

}  // namespace

TEST_CASE("Unzip: files keep their folders, content and mode") {
  PackageFixture f;
  f.zip = f.folder / "a.zip";
  f.Add("run.sh", "#!/bin/sh\n", S_IFREG | 0755);
  f.Add("pkg/data.txt", "hello", S_IFREG | 0644);
  REQUIRE(f.Run().ok());
  REQUIRE(*ReadFile(f.folder / "out/pkg/data.txt") == "hello");
  struct stat info;
  REQUIRE(::stat((f.folder / "out/run.sh").c_str(), &info) == 0);
  REQUIRE((info.st_mode & 0777) == 0755);
}

TEST_CASE("Unzip: entries that leave the folder, links and bombs are refused by name") {
  for (const char* name : {"../evil", "a/../../evil", "/etc/evil", "a\\..\\evil"}) {
    PackageFixture f;
    f.zip = f.folder / "a.zip";
    f.Add(name, "x", S_IFREG | 0644);
    absl::Status status = f.Run();
    REQUIRE(status.code() == absl::StatusCode::kInvalidArgument);
    REQUIRE(std::string(status.message()).find("evil") != std::string::npos);
    REQUIRE_FALSE(std::filesystem::exists(f.folder / "evil"));
  }
  PackageFixture link;
  link.zip = link.folder / "a.zip";
  link.Add("link", "/etc", S_IFLNK | 0777);
  REQUIRE(link.Run().code() == absl::StatusCode::kInvalidArgument);

  PackageFixture bomb;
  bomb.zip = bomb.folder / "a.zip";
  bomb.Add("zeros", std::string(10 << 20, '\0'), S_IFREG | 0644);
  REQUIRE(bomb.Run({.bytes_max = 1 << 20}).code() == absl::StatusCode::kInvalidArgument);
  REQUIRE(bomb.Run({.files_max = 0}).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("Unzip: what is not a zip file is refused") {
  PackageFixture f;
  f.zip = f.folder / "a.zip";
  REQUIRE(WriteFileAtomic(f.zip, "this is not a zip file at all").ok());
  REQUIRE(f.Run().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace argosy::node
