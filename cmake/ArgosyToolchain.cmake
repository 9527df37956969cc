# Compiler, linker and sanitizer settings shared by every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")

add_compile_options(-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -fno-omit-frame-pointer)

find_program(ARGOSY_CCACHE ccache)
if(ARGOSY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ARGOSY_CCACHE})
endif()
find_program(ARGOSY_MOLD mold)
if(ARGOSY_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(ARGOSY_SANITIZE)
  add_compile_options(-fsanitize=${ARGOSY_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${ARGOSY_SANITIZE})
  # Newer versions of Abseil lay their tables out in another way, and poison what is unused in them, when they see the address sanitizer; the
  # distribution's library was compiled without.
  if(ARGOSY_SANITIZE MATCHES "address")
    add_compile_options(-include ${CMAKE_CURRENT_LIST_DIR}/absl_as_built.h)
  endif()
  # These three make GCC doubt that a function has an address, and newer versions of Abseil ask that at compile time; the address sanitizer stops at
  # null pointers too.
  if(ARGOSY_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    add_compile_options(-fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute)
  endif()
endif()

# Everything is instrumented, or the fuzzer sees nothing of what it makes happen.
if(ARGOSY_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "ARGOSY_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++-16 (the compiler is ${CMAKE_CXX_COMPILER_ID})")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=address,undefined)
endif()

# Every executable and shared library lands in bin/ and lib/, so that `argosy` finds `argosy-finetune` beside itself.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
