#pragma once

#include <map>
#include <string>
#include <string_view>

#include "dashboard/server/request.h"

namespace argosy::dashboard {

// The built page (dashboard/web/dist), read once into memory: nothing outside the folder can ever be served.
//
// Thread:  immutable once made.
// Failure: a folder that is not there gives a page that says how to build it.
class StaticFiles {
 public:
  explicit StaticFiles(const std::string& directory);

  // "/" and every path that names no file give index.html, where the page itself reads the path; a missing file below
  // /assets/ is a 404. `if_none_match` is the request's header.
  Response Serve(std::string_view path, std::string_view if_none_match) const;

 private:
  struct File {
    std::string content_type;
    std::string content;
    std::string etag;
  };
  std::map<std::string, File, std::less<>> files_;  // by path, "/index.html"
};

}  // namespace argosy::dashboard
