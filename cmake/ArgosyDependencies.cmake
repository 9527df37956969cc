# Finds what the distribution's packages provide. A missing one names the package to install.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(CLI11 REQUIRED)

# Asio without Boost.System's library: header only since 1.69.
add_library(argosy_boost INTERFACE)
target_link_libraries(argosy_boost INTERFACE Boost::headers Threads::Threads)
target_compile_definitions(argosy_boost INTERFACE BOOST_ASIO_NO_DEPRECATED BOOST_ERROR_CODE_HEADER_ONLY)

if(ARGOSY_GRPC)
  find_package(Protobuf REQUIRED)
  pkg_check_modules(GRPC REQUIRED IMPORTED_TARGET grpc++)
  find_program(ARGOSY_PROTOC protoc REQUIRED)
  find_program(ARGOSY_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
  pkg_check_modules(LIBZIP REQUIRED IMPORTED_TARGET libzip)
endif()

if(ARGOSY_TRAIN)
  pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
  pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
  pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
  if(ARGOSY_FUZZ)
    add_library(argosy_torch INTERFACE)   # what is fuzzed is free of libtorch, and what is not is not built
  else()
    include(FindTorchWheel)
  endif()
endif()
